"""Credentials of the user of a call, on a connection that all users share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextvars import ContextVar

import httpx2

TOKEN: ContextVar[str | None] = ContextVar("callgate_mcp_token", default=None)
"""The bearer token of the call that makes a request."""


class PerUser(httpx2.Auth):
    """Sends the token of the call; requests of no call, and calls without a token, have the authentication *beneath*."""

    requires_response_body = True

    def __init__(self, beneath: httpx2.Auth | None) -> None:
        self._beneath = beneath

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """See httpx2."""
        token = TOKEN.get()
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
            yield request
            return
        flow = (self._beneath or httpx2.Auth()).async_auth_flow(request)
        try:
            request = await anext(flow)
            while True:
                response = yield request
                request = await flow.asend(response)
        except StopAsyncIteration:
            return
