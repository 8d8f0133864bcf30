"""Authentication and size limits of requests, checked before the A2A SDK reads a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from callgate.runtime.faces.principal import Authenticate, principal
from callgate.tools.calls import ANONYMOUS, User

MAX_BODY = 1_048_576
"""Maximum size of a request, in bytes."""
READ_TIMEOUT = 10.0
"""Timeout for the arrival of a request, in seconds."""
USER = "callgate.user"
"""The key of the user in the ASGI scope of a request."""

Endpoint = Callable[[Any], Awaitable[Any]]


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

    def build(self, request: Any) -> Any:
        """Build the context of a request that ``authenticated`` has accepted."""
        from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
        from a2a.server.context import ServerCallContext

        caller: Any = Caller(request.scope[USER])
        return ServerCallContext(
            user=caller,
            state={"headers": dict(request.headers)},
            requested_extensions=get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER)),
        )


def authenticated(endpoint: Endpoint, gate: Any, authenticate: Authenticate, challenge: str | None) -> Endpoint:
    """Wrap an endpoint: it accepts authenticated users and JSON bodies of limited size.

    A task has an owner, so requests without a user and requests of ``ANONYMOUS`` are refused with 401.
    """

    async def serve(request: Any) -> Any:
        from starlette.requests import Request

        if not gate.is_open:
            return _refusal(503, "The service is not available.")
        user = await principal(authenticate, Request(request.scope))  # ``authenticate`` cannot read the body
        if user is None or user.id == ANONYMOUS.id:
            headers = {} if challenge is None else {"www-authenticate": challenge}
            return _refusal(401, "Authentication is required.", headers)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _refusal(415, "Send the request as application/json.")  # HTML forms of other sites cannot
        body = await _body(request)
        if body is None:
            return _refusal(413, f"A request has at most {MAX_BODY} bytes.", {"connection": "close"})

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        return await endpoint(Request(request.scope | {USER: user}, receive))

    return serve


async def _body(request: Any) -> bytes | None:
    """Read the body; None if it is too long or too slow."""
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
