"""Hooks and tools to be looked at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from callgate import Hook, InvokeContext, tool


class Quota(Hook):
    """Takes one in a plain method."""

    def __init__(self) -> None:
        self.used = 0

    def will_acquire_quota(self, ctx: InvokeContext) -> None:
        self.used += 1

    def did_release_quota(self, ctx: InvokeContext) -> None:
        self.used -= 1


class Places(Hook):
    """Takes one in a method that waits."""

    def __init__(self) -> None:
        self.used = 0

    async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0.01)
        self.used += 1

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0.01)
        self.used -= 1


class Connected(Hook):
    """Takes one with ``ctx.lease``."""

    def __init__(self) -> None:
        self.used = 0

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[str, None]:
        self.used += 1
        try:
            yield "connection"
        finally:
            await asyncio.sleep(0)
            self.used -= 1

    async def will_inject_secrets(self, ctx: InvokeContext) -> None:
        assert await ctx.lease(self.connection()) == "connection"


class OnlyReleases(Hook):
    """Gives back what it is not seen to take."""

    def did_release_quota(self, ctx: InvokeContext) -> None:
        pass


class Again(Hook):
    """A retry."""

    repeats = True

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        try:
            return await next()
        except ConnectionError:
            return await next()


@tool(effect="read")
async def double(n: int) -> int:
    """Twice as much."""
    await asyncio.sleep(0.01)
    return 2 * n
