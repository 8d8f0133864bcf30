"""Routes an HTTP request: finds its wire by the path, and removes its credentials."""

from __future__ import annotations

import json
import re
from importlib import import_module
from urllib.parse import parse_qsl, urlencode, urlsplit

from callgate.runtime.testing.model.checks import RequestRefused, require
from callgate.runtime.testing.model.http import ReceivedRequest
from callgate.runtime.testing.model.requests import ModelRequest
from callgate.runtime.testing.model.wire_format import WireFormat

PATHS = {
    "openai_chat": r"/chat/completions$",
    "openai_responses": r"/responses$",
    "anthropic": r"/messages$",
    "gemini": r"/models/[^/:]+:(generateContent|streamGenerateContent)$",
    "ollama": r"/api/chat$",
}
"""The pattern of each wire's paths, after any prefix. A wire's format is ``FORMAT`` in the module of its name."""
CREDENTIALS = {"authorization", "proxy-authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie"}


def read_request(received: ReceivedRequest, number: int) -> tuple[ModelRequest, WireFormat | None]:
    """Read a request and find its wire; ``refused`` is the reason why it cannot be answered."""
    url = urlsplit(received.target)
    query = parse_qsl(url.query, keep_blank_values=True)
    shown = [(name, value) for name, value in query if name != "key"]
    path = f"{url.path}?{urlencode(shown)}" if shown else url.path
    headers = {name: value for name, value in received.headers if name not in CREDENTIALS}
    key = len(shown) < len(query) or any(name in CREDENTIALS - {"cookie"} for name, _ in received.headers)
    name = next((name for name, pattern in PATHS.items() if re.search(pattern, url.path)), None)
    if name is None or received.method != "POST":
        known = ", ".join(PATHS)
        reason = f"{received.method} {url.path} is not supported: use POST on the paths of {known}"
        return ModelRequest(number, "", path, headers, key, refused=reason), None
    wire: WireFormat = import_module(f"callgate.runtime.testing.model.{name}").FORMAT
    body = None
    try:
        body = json.loads(received.body)
        require(isinstance(body, dict), "the body is not a JSON object")
        return ModelRequest(number, name, path, headers, key, body, wire.parse(path, body)), wire
    except RequestRefused as refused:
        return ModelRequest(number, name, path, headers, key, body, refused=refused.reason), wire
    except ValueError:
        return ModelRequest(number, name, path, headers, key, refused="the body is not JSON"), wire
