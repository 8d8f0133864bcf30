"""The requests of HTTP hosts: their user, and their body, whose bytes, time and nesting have limits."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any, TypeAlias

from callgate.errors import RegistrationError
from callgate.providers.http.bounded import MAX_NESTING, BoundedBody
from callgate.providers.http.pace import Pace
from callgate.tools.calls import User
from callgate.tools.limits import fault_of_seconds

CLIENT_GONE = 499
"""The status, in logs and metrics, of a request whose client disconnected before the response; nginx has the same."""

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")

Authenticate: TypeAlias = Callable[[Any], User | Awaitable[User | None] | None]
"""Takes the request of a host and returns its user, or None for an unknown caller. It sees headers, never the body.
It may be plain or async. A plain function runs in the event loop, so a function that does I/O has to be async."""


async def principal(authenticate: Authenticate | None, request: object) -> User | None:
    """Return the user of a request; None without *authenticate*, when it knows no user, or for two ``Authorization`` headers.

    Raises:
        TypeError: *authenticate* returned neither a ``User`` nor None.
    """
    if authenticate is None or has_two_credentials(getattr(request, "scope", {}).get("headers", ())):
        return None
    found: object = authenticate(request)
    if inspect.isawaitable(found):
        found = await found
    return known_user(found, "authenticate")


def has_two_credentials(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if a request has the header ``Authorization`` twice: a proxy may have checked the other one."""
    return sum(name == b"authorization" for name, _ in headers) > 1


def known_user(found: object, source: str) -> User | None:
    """Return what the function *source* of the application found; None for an unknown caller, such as an empty id.

    Raises:
        TypeError: it is neither a ``User`` nor None.
    """
    if found is not None and not isinstance(found, User):
        raise TypeError(
            f"{source} returned {type(found).__name__}; it has to return a User, or None for an unknown caller"
        )
    return found if found is not None and found.id else None


def check_settings(host: str, challenge: str | None, **seconds: float) -> None:
    """Check the settings that the annotations of a host do not.

    Raises:
        RegistrationError: *challenge* cannot be sent as a header, or one of *seconds* is no time above 0.
    """
    if challenge is not None and not (challenge.isascii() and challenge.isprintable()):
        raise RegistrationError(f"{host}: challenge has characters that no header has; give one line of ASCII")
    for name, value in seconds.items():
        if (fault := fault_of_seconds(value, none=False)) is not None:
            raise RegistrationError(f"{host}: {name} {fault}")


def holds_half_pair(body: bytes) -> bool:
    """Return True if JSON has a text with half of a surrogate pair, which no reply can repeat."""
    if _HALF.search(body) is None:
        return False
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):  # it is no JSON, which its parser reports
        return False
    return False


async def read_bounded(
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    max_bytes: int,
    seconds: float,
    *,
    max_depth: int | None = MAX_NESTING,
) -> bytes | None:
    """Read the body of a request; None if the client disconnects before its end.

    Raises:
        TimeoutError: the body did not arrive within *seconds*.
        BodyRefused: the body is larger than *max_bytes*, or its JSON nests deeper than *max_depth*.
    """
    body = BoundedBody(None, max_bytes, max_depth=max_depth)
    read, pace = bytearray(), Pace()
    async with asyncio.timeout(seconds):
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            read += body.feed(message.get("body", b""))
            if not message.get("more_body", False):
                return bytes(read)
            await pace.turn()  # a server may have all parts at hand, also empty ones without an end


Asgi: TypeAlias = MutableMapping[str, Any]


async def answered(
    app: Callable[[Asgi, Callable[[], Awaitable[Asgi]], Callable[[Asgi], Awaitable[None]]], Awaitable[None]],
    scope: Asgi,
    receive: Callable[[], Awaitable[Asgi]],
    send: Callable[[Asgi], Awaitable[None]],
) -> None:
    """Serve a request; if *app* sends no response because the client has gone, send an empty one, which the server drops.

    Middleware such as Starlette's ``BaseHTTPMiddleware`` takes a missing response for an error, with a traceback in the log.
    """
    started = False

    async def noted(message: Asgi) -> None:
        nonlocal started
        started = True
        await send(message)

    await app(scope, receive, noted)
    if not started:
        with suppress(OSError):
            await send({"type": "http.response.start", "status": CLIENT_GONE, "headers": []})
            await send({"type": "http.response.body", "body": b""})
