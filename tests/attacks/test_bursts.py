"""A user who sends many requests at the same time: no more than the limit gets through. Issue 38, 3."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from a2a.utils.errors import InvalidParamsError

from callgate import Gate, Jobs, Outcome, RetryLater, Suspensions, ToolCall, User, tool
from callgate.providers.stores.sql.jobs import SqlJobs
from callgate.providers.stores.sql.store import SqlTransaction
from callgate.providers.stores.sql.suspensions import SqlSuspensions
from callgate.providers.stores.turns import KeyedTurns
from callgate.runtime.hosts.a2a import task_store
from callgate.runtime.jobs.submission import JobWriter
from tests.providers.stores.backends import place
from tests.runtime.hosts.a2a.making import KEY, Desk, running

EVE, LIMIT, BURST = User("eve"), 5, 40
One = Callable[[int], Awaitable[bool]]
"""Sends one request, and returns whether it got through."""


@pytest.fixture(params=["memory", "sqlite-file", "postgresql"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str | None]:
    """The address of an empty store; None for one in memory."""
    if request.param == "memory":
        yield None
        return
    with place(request.param, tmp_path) as (address, _):
        yield address


@tool(effect="read")
async def crawl(page: int) -> int:
    """Crawl."""
    return page


@tool(effect="irreversible", requires_approval=True)
async def pay(to: str) -> str:
    """Pay."""
    return to


def a_gate(at: str | None, **options: Any) -> Gate:
    """A gate with both tools."""
    return Gate([crawl, pay], allow_unguarded=True, store=at, signing_keys=[KEY], mode="development", **options)


@asynccontextmanager
async def submitting(at: str | None) -> AsyncGenerator[One]:
    """Jobs, each with a key or without one."""
    async with a_gate(at, jobs=Jobs(max_per_user=LIMIT)) as gate:

        async def one(number: int) -> bool:
            key = f"{number}" if number % 2 else None
            try:
                await gate.submit("crawl", {"page": number}, user=EVE, key=key, delay=3_600.0)
            except RetryLater:
                return False
            return True

        yield one


@asynccontextmanager
async def submitting_many(at: str | None) -> AsyncGenerator[One]:
    """Batches of one job."""
    async with a_gate(at, jobs=Jobs(max_per_user=LIMIT)) as gate:

        async def one(number: int) -> bool:
            try:
                await gate.submit_many([ToolCall(name="crawl", arguments={"page": number})], user=EVE, delay=3_600.0)
            except RetryLater:
                return False
            return True

        yield one


@asynccontextmanager
async def suspending(at: str | None) -> AsyncGenerator[One]:
    """Calls that wait for an approval."""
    async with a_gate(at, suspensions=Suspensions(max_per_user=LIMIT)) as gate:

        async def one(number: int) -> bool:
            asked = await gate.call("pay", {"to": f"{number}"}, user=EVE, idempotency_key=f"{number}")
            return asked.outcome is Outcome.SUSPENDED

        yield one


@asynccontextmanager
async def starting(at: str | None) -> AsyncGenerator[One]:
    """A2A tasks that wait for an approval."""
    options: dict[str, Any] = {} if at is None else {"store": at}
    async with running(Desk().gate(**options)) as agent:
        ann = await agent.as_user("ann")

        async def one(number: int) -> bool:
            try:
                await ann.call("refund", {"order_id": f"{number}", "cents": 1})
            except InvalidParamsError:
                return False
            return True

        yield one


CAPS: dict[str, Callable[[str | None], AbstractAsyncContextManager[One]]] = {
    "jobs": submitting,
    "batches of jobs": submitting_many,
    "waiting calls": suspending,
    "A2A tasks": starting,
}


@pytest.mark.parametrize("limited", [True, False], ids=["limited", "control without turns"])
@pytest.mark.parametrize("stored", ["sqlite-file", "postgresql"])
@pytest.mark.parametrize("cap", CAPS)
async def test_of_a_burst_to_several_processes_exactly_the_limit_gets_through(
    cap: str, stored: str, limited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gates share no turns: four of them stand for processes. Each transaction reads, pauses, and then writes.

    Without turns all four have read before one of them writes, also on a busy machine.
    """
    together = asyncio.Barrier(4)

    async def pause() -> None:
        if limited or stored == "sqlite-file":
            await asyncio.sleep(0.02)
            return
        try:
            with suppress(asyncio.BrokenBarrierError):
                await asyncio.wait_for(together.wait(), 5.0)
        except TimeoutError:  # the others have ended
            await together.abort()

    def paused(part: Any, name: str) -> None:
        inner = getattr(part, name)

        async def count(self: Any, *given: Any, **more: Any) -> int:
            found: int = await inner(self, *given, **more)
            await pause()
            return found

        monkeypatch.setattr(part, name, count)

    monkeypatch.setattr(task_store, "MAX_OPEN", LIMIT)
    paused(SqlJobs, "count_queued")
    paused(SqlSuspensions, "count")
    if not limited:

        async def no_turn(*_: object) -> bool:
            return False

        monkeypatch.setattr(SqlTransaction, "turn_of", no_turn)
    with place(stored, tmp_path) as (address, _):
        async with AsyncExitStack() as stack:
            ones = [await stack.enter_async_context(CAPS[cap](address)) for _ in range(4)]
            numbers = [1_000 * process + number for process in range(4) for number in range(4)]
            passed = sum(await asyncio.gather(*(ones[number // 1_000](number) for number in numbers)))
    assert passed == LIMIT if limited or stored == "sqlite-file" else passed > LIMIT  # SQLite has one writer at a time


CONTROLS = ["jobs", "batches of jobs"]  # the transactions of the others count, too: the test above has a control


@pytest.mark.parametrize(
    ("cap", "limited"),
    [pytest.param(cap, True, id=f"{cap}-limited") for cap in CAPS]
    + [pytest.param(cap, False, id=f"{cap}-control without turns") for cap in CONTROLS],
)
async def test_of_a_burst_exactly_the_limit_gets_through(
    cap: str, limited: bool, at: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that is read before the row is written lets the whole burst pass."""
    monkeypatch.setattr(task_store, "MAX_OPEN", LIMIT)
    if not limited:
        monkeypatch.setattr(KeyedTurns, "of", lambda *_: nullcontext())

        async def none_over(*_: object) -> set[int]:
            return set()

        monkeypatch.setattr(JobWriter, "_over_limit", none_over)
    async with CAPS[cap](at) as one:
        passed = sum(await asyncio.gather(*(one(number) for number in range(BURST))))
        further = await one(BURST)
    if limited:
        assert (passed, further) == (LIMIT, False)
    else:
        assert passed > LIMIT or at is None  # memory counts and writes without a pause in between
