"""Invocations to be cancelled at every point: hooks whose leases await, and everything that can go wrong about them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio

from callgate import Gate, Hook, InvokeContext, Outcome, ToolCall, ToolContext, ToolDefinition, ToolRecord, User, tool
from callgate.tools.definition import Effect
from tests.harness.cancel import FAR, Ledger

USER = User("u")
Wait = Callable[[], Awaitable[Any]]


# ---------------------------------------------------------------------- ways to wait


async def yields() -> None:
    """A bare yield."""
    await asyncio.sleep(0)


async def timer() -> None:
    """A future that a timer of the loop sets."""
    await asyncio.sleep(0.002)


async def task() -> None:
    """Another task."""
    await asyncio.ensure_future(asyncio.sleep(0))


async def twice() -> None:
    """Several times, in different ways."""
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)


async def nothing() -> None:
    """Never suspends."""


WAITS: tuple[Wait, ...] = (yields, timer, task, twice)


# ---------------------------------------------------------------------- leases that wait


class Held:
    """One lease of two units: a torn acquire or release shows. Taking and giving wait in between and after."""

    def __init__(self, ledger: Callable[[], Ledger], name: str, take: Wait = yields, give: Wait = yields) -> None:
        self.ledger, self.name, self.waits_to_take, self.waits_to_give = ledger, name, take, give

    async def take(self, ctx: Any) -> None:
        lease = (self.name, id(ctx))
        self.ledger().take(lease)
        await self.waits_to_take()
        self.ledger().take(lease)
        await self.waits_to_take()

    async def give(self, ctx: Any) -> None:
        lease = (self.name, id(ctx))
        await self.waits_to_give()
        self.ledger().give(lease)
        await self.waits_to_give()
        self.ledger().give(lease)


class Quota(Hook):
    """Holds a lease from ``will_acquire_quota`` on."""

    def __init__(self, held: Held) -> None:
        self.held = held

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        await self.held.take(ctx)

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        await self.held.give(ctx)


class Place(Hook):
    """Holds a lease from ``will_acquire_semaphore`` on."""

    def __init__(self, held: Held) -> None:
        self.held = held

    async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
        await self.held.take(ctx)

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        await self.held.give(ctx)


class Managed(AbstractAsyncContextManager[None]):
    """A lease as an async context manager, for ``ctx.lease``."""

    def __init__(self, held: Held, ctx: Any) -> None:
        self.held, self.ctx = held, ctx

    async def __aenter__(self) -> None:
        await self.held.take(self.ctx)

    async def __aexit__(self, *error: object) -> None:
        await self.held.give(self.ctx)


class Leased(Hook):
    """Takes its lease with ``ctx.lease``, in another stage."""

    def __init__(self, held: Held) -> None:
        self.held = held

    async def will_inject_secrets(self, ctx: InvokeContext) -> None:
        await ctx.lease(Managed(self.held, ctx))


# ---------------------------------------------------------------------- the scenario


class Case:
    """A gate made once, called once a run. Call it with the run's ledger."""

    def __init__(self, *, deadline: float | None = None) -> None:
        self.ledger = Ledger()
        self.deadline = deadline
        self.gate: Gate | None = None
        self.hooks: list[Any] = []
        self.tools: list[Any] = []
        self.name = "work"

    def held(self, name: str, take: Wait = yields, give: Wait = yields) -> Held:
        """A lease on the ledger of the run."""
        return Held(lambda: self.ledger, name, take, give)

    def six(self, waits: Iterable[Wait] = WAITS) -> list[Any]:
        """Six hooks that hold leases: two quotas, two places, two by ``ctx.lease``."""
        ways = [*waits] * 6
        kinds = (Quota, Quota, Place, Place, Leased, Leased)
        return [
            kind(self.held(f"{kind.__name__}{n}", ways[n], ways[n + 1]))
            for n, kind in enumerate(kinds)
        ]

    def use(self, *hooks: Any) -> Case:
        """Add hooks."""
        self.hooks += hooks
        return self

    def runs(self, *tools: Any) -> Case:
        """Set the tools; the first is called."""
        self.tools = [as_read(one) for one in tools]
        self.name = self.tools[0].record.id if hasattr(self.tools[0], "record") else self.tools[0].id
        return self

    async def open(self) -> Gate:
        """The gate, opened at the first run."""
        if self.gate is None:
            self.gate = Gate(self.tools or [as_read(work)], self.hooks, open=True)
            await self.gate.__aenter__()
        return self.gate

    async def call(self, gate: Gate) -> Any:
        """What one run does."""
        return await gate.invoke(self.name, {}, user=USER, deadline=self.deadline)

    async def __call__(self, ledger: Ledger) -> Any:
        self.ledger = ledger
        gate = await self.open()
        return await self.call(gate)


def as_read(function: Any) -> Any:
    """A tool of a plain function."""
    return function if isinstance(function, ToolRecord) or hasattr(function, "record") else tool(effect="read")(function)


async def work() -> int:
    """Wait a little."""
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    return 7
