"""Credentials of the user of a call, on a connection that all users share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextvars import ContextVar

import httpx2

TOKEN: ContextVar[str | None] = ContextVar("callgate_mcp_token", default=None)
"""The bearer token of the call that makes a request; empty for a call whose user has none, None for no call."""


class PerUser(httpx2.Auth):
    """Sends the token of the call, or none if its user has none. Requests of no call have the authentication *beneath*."""

    requires_response_body = True

    def __init__(self, beneath: httpx2.Auth | None) -> None:
        self._beneath = beneath

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """See httpx2."""
        token = TOKEN.get()
        if token is not None:
            request.headers.pop("authorization", None)  # of the connection: its rights are not those of the user
            if token:
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
