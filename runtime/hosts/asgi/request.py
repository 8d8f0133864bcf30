"""Reading of requests: the body, with limits of size and time, and the headers."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

from callgate.providers.http.bounded import BodyRefused
from callgate.runtime.hosts.asgi.problem_details import Disconnected, Problem
from callgate.runtime.hosts.http_requests import read_bounded
from callgate.runtime.pipeline.options import CallOptions

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_JSON = re.compile(r"application/(json|[\w.!#$&^-]+\+json)\s*(;.*)?", re.IGNORECASE | re.DOTALL)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,128}")
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_CLOSE = (b"connection", b"close")


class Headers:
    """The headers of a request; a header that is read must not be repeated."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._found: dict[str, list[str]] = {}
        for name, value in raw:
            self._found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())

    def one(self, name: str, shape: re.Pattern[str] | None = None) -> str | None:
        """Return the value of a header, or None.

        Raises:
            Problem: the header is repeated, or does not match *shape*.
        """
        values = self._found.get(name, [])
        if len(values) > 1:
            raise Problem(400, "bad_header", f"The header {name} is repeated.")
        if values and shape is not None and not shape.fullmatch(values[0]):
            raise Problem(400, "bad_header", f"The header {name} has an invalid format.")
        return values[0] if values else None


def request_id_of(headers: Headers) -> str:
    """Return the id of the request, or a new one."""
    return headers.one("x-request-id", _REQUEST_ID) or secrets.token_hex(16)


def options_of(headers: Headers, request_id: str) -> CallOptions:
    """Return the call options that the headers set."""
    return {
        "request_id": request_id,
        "session_id": headers.one("session-id", _SESSION_ID),
        "idempotency_key": headers.one("idempotency-key", _IDEMPOTENCY_KEY),
    }


def require_json(headers: Headers) -> None:
    """Refuse a body that is not declared as JSON: HTML forms of other sites cannot declare it.

    Raises:
        Problem: 415.
    """
    if not _JSON.fullmatch(headers.one("content-type") or ""):
        raise Problem(415, "not_json", "The arguments must be sent as application/json.")
    if headers.one("content-encoding") not in {None, "identity"}:
        raise Problem(415, "encoded", "The body must not be compressed.")


async def read_body(receive: Receive, headers: Headers, limit: int, seconds: float) -> bytes:
    """Read the body: at most *limit* bytes, within *seconds*.

    Raises:
        Problem: 413 or 408; the rest is not read, and the connection closes.
        Disconnected: the client disconnected before the end of the body.
    """
    length = headers.one("content-length") or ""
    if length.isdecimal() and (len(length) > 18 or int(length) > limit):
        raise _too_large(limit)
    try:
        body = await read_bounded(receive, limit, seconds, max_depth=None)  # the parser of arguments counts levels
    except BodyRefused:
        raise _too_large(limit) from None
    except TimeoutError:
        raise Problem(408, "slow_body", "The body did not arrive in time.", headers=[_CLOSE]) from None
    if body is None:
        raise Disconnected
    return body


def as_text(body: bytes) -> str | bytes:
    """Return the arguments for the gate, which refuses bytes that are not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


def path_of(scope: Scope) -> str:
    """Return the path within this application, also if it is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return path or "/"


def _too_large(limit: int) -> Problem:
    return Problem(413, "too_large", f"The body is larger than {limit} bytes.", headers=[_CLOSE])
