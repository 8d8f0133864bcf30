"""Helpers of the tests of hosts: tools that wait for an event, a permit that is held meanwhile, a user by token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Annotated, Any

from pydantic import Field

from callgate import Gate, Hook, InvokeContext, ToolContext, ToolError, User, tool
from tests.harness.gate_options import gate_options

ANN = User("ann", tenant="acme", roles={"clerk"})
MAX = User("max", tenant="acme", roles={"manager"})
TOKENS = {"ann": ANN, "max": MAX}
TRACE: ContextVar[str] = ContextVar("trace", default="none")


def who(request: Any) -> User | None:
    """By bearer token."""
    return TOKENS.get(request.headers.get("authorization", "").removeprefix("Bearer "))


class Places(Hook):
    """Counts who is inside; what is taken is given back."""

    def __init__(self) -> None:
        self.taken = self.held = self.most = 0

    def will_authorize(self, ctx: InvokeContext) -> None:
        if ctx.tool.tags & {"forbidden"}:
            ctx.abort("CANARY of the log", code="not_yours", http_status=451)

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0)
        self.taken += 1
        self.held += 1
        self.most = max(self.most, self.held)

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0)
        self.held -= 1

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        if ctx.tool.tags & {"busy"}:
            ctx.retry_after(1500, "CANARY of the log")


class Desk:
    """Tools, and what they saw."""

    def __init__(self, **options: Any) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.seen: list[Any] = []
        self.cancelled = 0
        self.places = Places()
        self.gate = Gate(self.tools(), [self.places], allow_unguarded=True, **gate_options(**options))

    def tools(self) -> list[Any]:
        desk = self

        @tool(effect="read")
        async def add(a: int, b: Annotated[int, Field(ge=0, le=1000)] = 1) -> int:
            """Add two numbers."""
            await asyncio.sleep(0)
            return a + b

        @tool(effect="read")
        async def wait(ctx: ToolContext) -> str:
            """Wait until told to go on."""
            desk.seen.append((ctx.user.id, ctx.session_id, ctx.request_id, ctx.idempotency_key, TRACE.get()))
            desk.started.set()
            try:
                await desk.go.wait()
            except asyncio.CancelledError:
                desk.cancelled += 1
                raise
            return "done"

        @tool(effect="read")
        async def count(upto: Annotated[int, Field(ge=0, le=50)], ctx: ToolContext) -> AsyncIterator[dict[str, int]]:
            """Count, and tell."""
            for number in range(upto):
                ctx.progress(number, upto)
                yield {"n": number}

        @tool(effect="read", tags={"forbidden"})
        async def forbidden() -> str:
            """A tool that no user may call."""
            return "never"

        @tool(effect="read", tags={"busy"})
        async def busy() -> str:
            """Not now."""
            return "never"

        @tool(effect="read")
        async def broken() -> str:
            """Fails."""
            raise ConnectionError("CANARY: postgres://app:hunter2@db")

        @tool(effect="read")
        async def sorry(text: str) -> str:
            """Fails, and says so."""
            raise ToolError("It cannot be done.", code="cannot")

        @tool(effect="read", allowed_roles={"manager"})
        async def secret(plan: str) -> str:
            """For managers."""
            return plan

        return [add, wait, count, forbidden, busy, broken, sorry, secret]
