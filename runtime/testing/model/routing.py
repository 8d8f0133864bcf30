"""From an HTTP request to what was asked: its wire by its path, its credentials left out."""

from __future__ import annotations

import json
import re
from importlib import import_module
from urllib.parse import parse_qsl, urlencode, urlsplit

from callgate.runtime.testing.model.checks import Refused, demand
from callgate.runtime.testing.model.http import Received
from callgate.runtime.testing.model.requests import Asked
from callgate.runtime.testing.model.wire_format import Wire

PATHS = {
    "openai_chat": r"/chat/completions$",
    "openai_responses": r"/responses$",
    "anthropic": r"/messages$",
    "gemini": r"/models/[^/:]+:(generateContent|streamGenerateContent)$",
    "ollama": r"/api/chat$",
}
"""Which wire a path belongs to, whatever stands before it."""
CREDENTIALS = {"authorization", "proxy-authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie"}


def read(request: Received, number: int) -> tuple[Asked, Wire | None]:
    """What was asked, and on which wire; ``refused`` says why it cannot be answered."""
    url = urlsplit(request.target)
    query = parse_qsl(url.query, keep_blank_values=True)
    shown = [(name, value) for name, value in query if name != "key"]
    path = f"{url.path}?{urlencode(shown)}" if shown else url.path
    headers = {name: value for name, value in request.headers if name not in CREDENTIALS}
    key = len(shown) < len(query) or any(name in CREDENTIALS - {"cookie"} for name, _ in request.headers)
    name = next((name for name, pattern in PATHS.items() if re.search(pattern, url.path)), None)
    if name is None or request.method != "POST":
        known = ", ".join(PATHS)
        reason = f"{request.method} {url.path} is not understood: POST is, on the paths of {known}"
        return Asked(number, "", path, headers, key, refused=reason), None
    wire: Wire = import_module(f"callgate.runtime.testing.model.{name}").WIRE
    body = None
    try:
        body = json.loads(request.body)
        demand(isinstance(body, dict), "the body is no JSON object")
        return Asked(number, name, path, headers, key, body, wire.hear(path, body)), wire
    except Refused as refused:
        return Asked(number, name, path, headers, key, body, refused=refused.reason), wire
    except ValueError:
        return Asked(number, name, path, headers, key, refused="the body is no JSON"), wire
