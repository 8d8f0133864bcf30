"""Authentication and size limits of requests, checked before the A2A SDK reads a request."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from callgate.providers.http.bounded import BodyRefused, NotUtf8, TooDeep, has_more_values
from callgate.runtime.gate.gate import Gate
from callgate.runtime.hosts.a2a.texts import has_more_text
from callgate.runtime.hosts.http_requests import Authenticate, check_settings, holds_half_pair, principal, read_bounded
from callgate.runtime.hosts.not_open import OPENS, NotOpen
from callgate.tools.arguments.exact_json import what_is_lost
from callgate.tools.calls import ANONYMOUS, User

if TYPE_CHECKING:
    from a2a.server.context import ServerCallContext
    from starlette.requests import Request
    from starlette.responses import Response


MAX_BODY = 1_048_576
"""Maximum size of a request, in bytes."""
MAX_VALUES = 10_000
"""Maximum number of values in the JSON of a request: the SDK reads about 200 in a millisecond, in the event loop."""
MAX_TEXT = 262_144
"""Maximum number of characters of the texts outside of data parts: several steps of a task search them all."""
READ_TIMEOUT = 10.0
"""Timeout for the arrival of a request, in seconds."""
USER = "callgate.user"
"""The key of the user in the ASGI scope of a request."""

Endpoint: TypeAlias = "Callable[[Request], Awaitable[Response]]"


class Caller:
    """The user of a request, for the SDK; ``principal`` is the ``User`` of Callgate."""

    is_authenticated = True

    def __init__(self, user: User) -> None:
        self.principal = user

    @property
    def user_name(self) -> str:
        """Tenant and id as one unique text: the SDK separates the tasks of owners by it."""
        return json.dumps([self.principal.tenant, self.principal.id])


class ContextBuilder:
    """Builds the call context of the SDK."""

    def build(self, request: Request) -> ServerCallContext:
        """Build the context of a request that ``authenticated`` has accepted."""
        from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
        from a2a.server.context import ServerCallContext

        caller: Any = Caller(request.scope[USER])
        return ServerCallContext(
            user=caller,
            state={"headers": dict(request.headers)},
            requested_extensions=get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER)),
        )


def authenticated(endpoint: Endpoint, gate: Gate, authenticate: Authenticate, challenge: str | None) -> Endpoint:
    """Wrap an endpoint: it accepts authenticated users and JSON bodies of limited size.

    A task has an owner, so requests without a user and requests of ``ANONYMOUS`` are refused with 401.
    """
    check_settings("a2a.agent", challenge)
    closed = NotOpen("a2a.agent", OPENS)

    async def serve(request: Request) -> Response:
        from starlette.requests import Request

        if not gate.is_open:
            closed.log()
            return _refusal(503, "The service is not available.")
        user = await principal(authenticate, Request(request.scope))  # ``authenticate`` cannot read the body
        if user is None or user.id == ANONYMOUS.id:
            headers = {} if challenge is None else {"www-authenticate": challenge}
            return _refusal(401, "Authentication is required.", headers)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _refusal(415, "Send the request as application/json.")  # HTML forms of other sites cannot
        body = await _body(request)
        if not isinstance(body, bytes):
            return body

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": body, "more_body": False}

        return await endpoint(Request({**request.scope, USER: user}, receive))

    return serve


async def _body(request: Request) -> bytes | Response:
    """Read the body; return it, or the response that refuses it."""
    if request.headers.get("content-encoding", "identity") != "identity":
        return _refusal(415, "Send the request without compression.")
    try:
        body = await read_bounded(request.receive, MAX_BODY, READ_TIMEOUT)
    except (TooDeep, NotUtf8):
        return _rpc_error(200, -32700, "Invalid JSON payload")
    except (BodyRefused, TimeoutError):
        body = None
    if body is None:
        return _refusal(413, f"A request has at most {MAX_BODY} bytes.", {"connection": "close"})
    if has_more_values(body, MAX_VALUES):
        return _refusal(413, f"The JSON of a request has at most {MAX_VALUES} values.")
    try:
        message = orjson.loads(body)  # the SDK answers "internal error" to NaN and to bytes that are not UTF-8
    except orjson.JSONDecodeError:
        if holds_half_pair(body):
            return _rpc_error(400, -32600, "A text has half of a surrogate pair.")
        return _rpc_error(200, -32700, "Invalid JSON payload")
    if (lost := what_is_lost(body)) is not None:
        return _rpc_error(400, -32600, lost)
    if len(body) > MAX_TEXT and has_more_text(message, MAX_TEXT):
        return _refusal(413, f"The texts of a request have at most {MAX_TEXT} characters; data parts may have more.")
    return body


def _rpc_error(status: int, code: int, text: str) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": text}}, status)


def _refusal(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"detail": text}, status, headers)
