"""Who asks, and how much they may send: settled before anything of A2A reads a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from callgate.runtime.faces.principal import Authenticate, principal
from callgate.tools.calls import ANONYMOUS, User

MAX_BODY = 1_048_576
"""Bytes of a request."""
READ_TIMEOUT = 10.0
"""Seconds in which a request must have arrived."""
USER = "callgate.user"
"""Where the user of a request is kept in its scope."""

Endpoint = Callable[[Any], Awaitable[Any]]


class Caller:
    """A user as the SDK sees one; ``principal`` is ours."""

    is_authenticated = True

    def __init__(self, user: User) -> None:
        self.principal = user

    @property
    def user_name(self) -> str:
        """Tenant and id as one text, which no other user has: what the SDK tells owners apart by."""
        return json.dumps([self.principal.tenant, self.principal.id])


class Contexts:
    """What the SDK makes the context of a call with."""

    def build(self, request: Any) -> Any:
        """The context of a request that ``guarded`` has let pass."""
        from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
        from a2a.server.context import ServerCallContext

        caller: Any = Caller(request.scope[USER])
        return ServerCallContext(
            user=caller,
            state={"headers": dict(request.headers)},
            requested_extensions=get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER)),
        )


def guarded(endpoint: Endpoint, gate: Any, authenticate: Authenticate, challenge: str | None) -> Endpoint:
    """An endpoint for those alone whom *authenticate* knows by name, with bodies of JSON that are not too long.

    Tasks belong to somebody, so nobody and everybody's user, ``ANONYMOUS``, are refused alike.
    """

    async def serve(request: Any) -> Any:
        from starlette.requests import Request

        if not gate.is_open:
            return _refusal(503, "The service is not available.")
        user = await principal(authenticate, Request(request.scope))  # without the body: it is not theirs to read
        if user is None or user.id == ANONYMOUS.id:
            headers = {} if challenge is None else {"www-authenticate": challenge}
            return _refusal(401, "Who asks is not known.", headers)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _refusal(415, "A request is sent as application/json.")  # a form on somebody's page cannot
        body = await _body(request)
        if body is None:
            return _refusal(413, f"A request has {MAX_BODY} bytes at most.", {"connection": "close"})

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        return await endpoint(Request(request.scope | {USER: user}, receive))

    return serve


async def _body(request: Any) -> bytes | None:
    """The whole body; None if it is too long, or too slow."""
    parts: list[bytes] = []
    left = MAX_BODY
    try:
        async with asyncio.timeout(READ_TIMEOUT):
            async for part in request.stream():
                left -= len(part)
                if left < 0:
                    return None
                parts.append(part)
    except TimeoutError:
        return None
    return b"".join(parts)


def _refusal(status: int, text: str, headers: dict[str, str] | None = None) -> Any:
    from starlette.responses import JSONResponse

    return JSONResponse({"detail": text}, status, headers)
