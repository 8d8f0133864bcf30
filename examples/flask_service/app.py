"""The application. The code that starts a process opens ``tools``, see ``__main__``."""

from __future__ import annotations

import secrets
from typing import Any

from flask import Flask, abort, request

from callgate import ToolCall, User
from examples.small_shop.shop import make_gate, who

app = Flask(__name__)
app.config["MAX_CONTENT_LENGTH"] = 262_144
tools = make_gate().sync()


def user() -> User:
    found = who(request)
    if found is None:
        abort(401)
    return found


@app.get("/tools")
def offered() -> Any:
    return tools.definitions("anthropic", user=user())


@app.post("/tools/<name>")
def call(name: str) -> Any:
    asked = ToolCall(id=secrets.token_hex(8), name=name, arguments=request.get_data(as_text=True))
    result = tools.call(asked, user=user())
    return dict(result.to_status()), 200 if result.error is None else result.error.http_status or 500
