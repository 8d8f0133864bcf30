"""What a request may bring: a body within limits of size and time, and four headers that are looked at."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

from callgate.runtime.engine import CallOptions
from callgate.runtime.hosts.asgi.problem_details import Disconnected, Problem

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_JSON = re.compile(r"application/(json|[\w.!#$&^-]+\+json)\s*(;.*)?", re.IGNORECASE | re.DOTALL)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,128}")
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_CLOSE = (b"connection", b"close")


class Headers:
    """The headers of a request, of which none that matters may come twice."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._found: dict[str, list[str]] = {}
        for name, value in raw:
            self._found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())

    def one(self, name: str, shape: re.Pattern[str] | None = None) -> str | None:
        """The value of a header, None where there is none.

        Raises:
            Problem: it comes twice, or does not have the *shape* that it must have.
        """
        values = self._found.get(name, [])
        if len(values) > 1:
            raise Problem(400, "bad_header", f"The header {name} came more than once.")
        if values and shape is not None and not shape.fullmatch(values[0]):
            raise Problem(400, "bad_header", f"The header {name} is not of the form that is asked for.")
        return values[0] if values else None


def request_id_of(headers: Headers) -> str:
    """The request's own id, else a new one."""
    return headers.one("x-request-id", _REQUEST_ID) or secrets.token_hex(16)


def options_of(headers: Headers, request_id: str) -> CallOptions:
    """The options of a call that headers may set."""
    return {
        "request_id": request_id,
        "session_id": headers.one("session-id", _SESSION_ID),
        "idempotency_key": headers.one("idempotency-key", _KEY),
    }


def require_json(headers: Headers) -> None:
    """Refuse anything that does not call itself JSON: a form on somebody's page cannot.

    Raises:
        Problem: 415.
    """
    if not _JSON.fullmatch(headers.one("content-type") or ""):
        raise Problem(415, "not_json", "The arguments must be sent as application/json.")
    if headers.one("content-encoding") not in {None, "identity"}:
        raise Problem(415, "encoded", "The body must not be compressed.")


async def read_body(receive: Receive, headers: Headers, limit: int, seconds: float) -> bytes:
    """The whole body: at most *limit* bytes, within *seconds*, however it is sent.

    Raises:
        Problem: 413 or 408; the rest is not read, and the connection is to be closed.
        Disconnected: the client left before its end.
    """
    length = headers.one("content-length") or ""
    if length.isdecimal() and (len(length) > 18 or int(length) > limit):
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Disconnected
                body += message.get("body", b"")
                if len(body) > limit:
                    raise _too_large(limit)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Problem(408, "slow_body", "The body did not arrive in time.", headers=[_CLOSE]) from None


def as_text(body: bytes) -> str | bytes:
    """The arguments as the gate reads them; what is no UTF-8 it refuses by itself."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


def path_of(scope: Scope) -> str:
    """The path within this application, wherever it is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return path or "/"


def _too_large(limit: int) -> Problem:
    return Problem(413, "too_large", f"The body is longer than {limit} bytes.", headers=[_CLOSE])
