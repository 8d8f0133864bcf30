"""Hooks whose leases wait, the ways in which they can go wrong, and tools to run under them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

import anyio
import pytest

from callgate import Hook, InvokeContext, ToolContext, tool
from callgate.runtime.pipeline import shield
from callgate.runtime.testing.lease_ledger import LeaseLedger

Wait = Callable[[], Awaitable[Any]]


class NoScope:
    """A shield that keeps no scope off."""

    def __init__(self, *, shield: bool) -> None:
        self.shield = shield

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


def leave_out_shields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: the scopes of anyio reach the steps."""
    monkeypatch.setattr(shield, "scope_class", lambda: NoScope)


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

    def __init__(self, ledger: Callable[[], LeaseLedger], name: str, take: Wait = yields, give: Wait = yields) -> None:
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


# ---------------------------------------------------------------------- what can go wrong about them


class Faulty(Quota):
    """Its acquire takes half, cleans up after itself and raises."""

    def __init__(self, held: Held) -> None:
        super().__init__(held)

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        lease = (self.held.name, id(ctx))
        self.held.ledger().take(lease)
        try:
            await self.held.waits_to_take()
            raise ConnectionError("the server is gone")
        except BaseException:
            self.held.ledger().undo(lease)
            raise


class Sulky(Place):
    """Its release gives back and then raises."""

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        await super().did_release_semaphore(ctx)
        raise ConnectionError("the server is gone")


class Limited(Quota):
    """Its acquire has a time limit of its own about the first try, which passes; the second try succeeds."""

    def __init__(self, held: Held, limit: Callable[[], Awaitable[None]]) -> None:
        super().__init__(held)
        self.limit = limit

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        try:
            await self.limit()
        except TimeoutError:
            await super().will_acquire_quota(ctx)

    async def did_release_quota(self, ctx: InvokeContext) -> None:
        try:
            await self.limit()
        except TimeoutError:
            await super().did_release_quota(ctx)


async def asyncio_limit() -> None:
    """Passes."""
    async with asyncio.timeout(0.003):
        await asyncio.sleep(3)


async def anyio_limit() -> None:
    """Passes."""
    with anyio.fail_after(0.003):
        await anyio.sleep(3)


async def wait_for_limit() -> None:
    """Passes."""
    await asyncio.wait_for(asyncio.sleep(3), 0.003)


async def no_time_limit() -> None:
    """Has passed before it begins."""
    async with asyncio.timeout(-1):
        await asyncio.sleep(3)


async def group_limit() -> None:
    """A task group whose child fails cancels its parent."""

    async def fails() -> None:
        await asyncio.sleep(0)
        raise TimeoutError

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            await asyncio.sleep(5)
    except* TimeoutError:
        pass
    raise TimeoutError


class Later:
    """An awaitable that is no coroutine."""

    def __init__(self, act: Callable[[], Awaitable[None]]) -> None:
        self.act = act

    def __await__(self) -> Generator[Any, None, None]:
        return self.act().__await__()


class Plain(Hook):
    """Plain methods that return an awaitable."""

    def __init__(self, held: Held) -> None:
        self.held = held

    def will_acquire_quota(self, ctx: InvokeContext) -> Awaitable[None]:
        return Later(lambda: self.held.take(ctx))

    def did_release_quota(self, ctx: InvokeContext) -> Awaitable[None]:
        return Later(lambda: self.held.give(ctx))


class Watching(Hook):
    """Waits in the closing and error stages and in those that shape the output."""

    async def will_normalize_input(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0)

    async def will_transform_output(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0)

    async def on_error(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0.001)

    async def will_audit(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0)

    async def will_finalize_invoke(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0)


class Around(Hook):
    """Waits before and after; holds a lease of its own inside."""

    def __init__(self, held: Held, tries: int = 1) -> None:
        self.held, self.tries = held, tries
        self.repeats = tries > 1

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        await asyncio.sleep(0)
        await ctx.lease(Managed(self.held, ctx))
        for _ in range(self.tries - 1):
            try:
                return await next()
            except ConnectionError:
                await asyncio.sleep(0.001)
        try:
            return await next()
        finally:
            await asyncio.sleep(0)


class Guarded(Quota):
    """A filter that waits and a time limit for each method."""

    timeout = 1.0

    async def filter(self, ctx: InvokeContext) -> bool:
        await asyncio.sleep(0)
        return True


# ---------------------------------------------------------------------- bodies


async def fails() -> int:
    """Raise."""
    await asyncio.sleep(0)
    raise ConnectionError("no")


async def responds(ctx: ToolContext) -> int:
    """Respond."""
    await asyncio.sleep(0)
    ctx.respond(8)


async def cleans_up() -> int:
    """Wait in ``finally``."""
    try:
        await asyncio.sleep(0.002)
    finally:
        await asyncio.sleep(0)
    return 7


async def calls_work(ctx: ToolContext) -> int:
    """Call another tool, twice."""
    one: int = await ctx.call("work", {})
    await asyncio.sleep(0)
    two: int = await ctx.call("work", {})
    return one + two


def hard(function: Any) -> Any:
    """In a task of its own that can be left behind."""
    return tool(effect="read", hard_deadline=True)(function)


async def stubborn() -> int:
    """Swallow cancellations for a second."""
    until = asyncio.get_running_loop().time() + 1.0
    while (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
    return 7


async def work() -> int:
    """Wait a little."""
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    return 7


async def forever() -> int:
    """Wait for an hour."""
    await asyncio.sleep(3600)
    return 7


async def parts() -> Any:
    """Yield parts."""
    yield 1
    await asyncio.sleep(0)
    yield 2
    await asyncio.sleep(0.001)
