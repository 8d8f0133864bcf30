"""A caller that goes away while its call waits: it is cancelled, or its coroutine is closed."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate import Effects, Gate, Hook, InvokeContext, Options, User, tool
from callgate.providers.stores.sql import audit as sql_audit
from callgate.providers.stores.sql import store as sql
from callgate.providers.stores.sql.database import database as sql_database
from callgate.providers.stores.sql.database.connections import Attempt
from callgate.providers.stores.sql.database.part import statement
from callgate.providers.stores.sql.store import SqlStore
from callgate.providers.stores.turns import Turns
from callgate.runtime.pipeline import abandoned
from tests.harness.steploop import StepLoop, on_virtual_time

ANN = User("ann")


@types.coroutine
def run_until(coroutine: Coroutine[Any, Any, object], waits: int, *, woken: bool) -> Generator[Any, Any, bool]:
    """Run a coroutine until it has waited so often; *woken*, until what it waits for then has come.

    Return True if it has not ended.
    """
    pending: Any = None
    try:
        for count in range(waits + 1):
            pending = coroutine.send(None)
            if count < waits or woken:
                yield pending
    except StopIteration:
        return False
    if pending is not None:
        pending._asyncio_future_blocking = False
    return True


async def visit(coroutine: Coroutine[Any, Any, object], waits: int, *, woken: bool) -> None:
    if await run_until(coroutine, waits, woken=woken):
        coroutine.close()


async def in_transaction(store: SqlStore) -> None:
    async with store.transaction() as work:
        await asyncio.sleep(0)
        await work.audit.checkpoint([])


async def write(store: SqlStore) -> None:
    await store._database.write(statement("DELETE FROM callgate_quotas WHERE ends < 0"), {})


async def read(store: SqlStore) -> None:
    await store._database.rows(statement("SELECT 1"), {})


async def read_audit(store: SqlStore) -> None:
    async with store.audit.snapshot() as snapshot:
        await asyncio.sleep(0)
        assert [one async for one in snapshot.segments()] == []


VISITS: tuple[Callable[[SqlStore], Coroutine[Any, Any, None]], ...] = (in_transaction, write, read, read_audit)
CALLERS = st.lists(
    st.tuples(st.sampled_from(VISITS), st.integers(0, 8), st.sampled_from(["closed", "woken", "cancelled"])),
    min_size=1,
    max_size=6,
)
Callers = list[tuple[Callable[[SqlStore], Coroutine[Any, Any, None]], int, str]]


async def stalls(url: str, callers: Callers, limit: float) -> bool:
    """Return True if callers that go away leave a store that takes no write and no audit snapshot any more."""
    store = SqlStore(url)
    await store.open()
    kept = []  # as by a traceback: a coroutine that is collected is closed once more
    try:
        tasks = []
        for call, waits, end in callers:
            kept.append(coroutine := call(store))
            if end == "cancelled":
                task = asyncio.create_task(coroutine)
                asyncio.get_running_loop().call_later(0.001 * waits, task.cancel)
            else:
                task = asyncio.create_task(visit(coroutine, waits, woken=end == "woken"))
            tasks.append(task)
        _, late = await asyncio.wait(tasks, timeout=limit)
        for task in late:
            task.cancel()
        try:
            async with asyncio.timeout(limit):
                await in_transaction(store)
                await read_audit(store)
        except TimeoutError:
            return True
        return bool(late)
    finally:
        await store.close()


@pytest.mark.parametrize("place", ["file", "memory"])
def test_no_caller_that_goes_away_stalls_sqlite(place: str, tmp_path: Path) -> None:
    numbers = iter(range(10_000))

    @given(CALLERS)
    @settings(max_examples=25)
    def check(callers: Callers) -> None:
        url = f"sqlite:///{tmp_path}/{next(numbers)}.db" if place == "file" else "sqlite://"
        assert not asyncio.run(stalls(url, callers, 60.0))

    check()


def entered_by_generators(patch: pytest.MonkeyPatch) -> None:
    for module in (sql, sql_audit, sql_database):
        patch.setattr(module, "Entered", generated)


def the_end_is_awaited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Attempt, "end", lambda self, _, work: self.shielded(work))


def generated(enter: Callable[[AsyncExitStack], Awaitable[Any]]) -> Any:
    """``Entered`` as an async generator."""

    @asynccontextmanager
    async def entered() -> AsyncGenerator[Any, None]:
        async with AsyncExitStack() as stack:
            yield await enter(stack)

    KEPT.append(manager := entered())
    return manager


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("sabotage", "first"), [(entered_by_generators, (9, "cancelled")), (the_end_is_awaited, (1, "closed"))]
)
def test_control_without_a_rule_a_closed_caller_stalls_sqlite(
    sabotage: Callable[[pytest.MonkeyPatch], None],
    first: tuple[int, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sabotage(monkeypatch)
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    callers: Callers = [(in_transaction, *first), (in_transaction, 0, "closed")]
    assert asyncio.run(stalls(f"sqlite:///{tmp_path}/x.db", callers, 0.5))


KEPT: list[Any] = []
"""Managers that something refers to still; the collector of garbage frees the locks of all others, some time later."""


class Waiters:
    """Waiters of a lock, which is free in the end if nothing stalls."""

    def __init__(self, lock: Any) -> None:
        self.lock, self.served = lock, 0

    async def enter(self) -> None:
        async with self.lock:
            await asyncio.sleep(0)
            self.served += 1

    async def is_free(self, plan: list[tuple[int, bool]]) -> bool:
        tasks = [asyncio.create_task(visit(self.enter(), waits, woken=woken)) for waits, woken in plan]
        await asyncio.sleep(0)
        for _ in range(20 + 4 * len(tasks)):
            await asyncio.sleep(0)
        stuck = [task.cancel() for task in tasks if not task.done()]
        return not stuck and not self.lock.locked()


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=8))
def test_a_lock_of_turns_is_free_once_its_waiters_have_ended_or_were_closed(plan: list[tuple[int, bool]]) -> None:
    assert asyncio.run(Waiters(Turns()).is_free(plan))


async def test_control_a_lock_of_asyncio_keeps_the_permit_of_a_closed_waiter() -> None:
    assert not await Waiters(asyncio.Lock()).is_free([(9, True), (0, True), (9, True)])


class Stubborn(Hook):
    """A lease whose release waits for a lock in an async generator, and swallows its first cancellation."""

    concern = "concurrency"

    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None, None]:
        async with self.lock:
            yield

    async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
        """Take nothing."""

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        for _ in range(2):
            try:
                KEPT.append(turn := self.turn())
                async with turn:
                    return
            except asyncio.CancelledError:
                continue


@tool(effect="read")
async def work() -> int:
    """Work."""
    return 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("goes_on", [True, False], ids=["it goes on", "control: it is closed"])
@on_virtual_time
async def test_a_release_that_is_left_behind_in_the_queue_of_a_lock_does_not_stall_the_lock(
    loop: StepLoop, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not goes_on:
        monkeypatch.setattr(abandoned, "waits_in_generator", lambda _: False)
    hook = Stubborn()
    options = Options(closing=1.0)
    async with Gate([work], [hook], allow_unguarded=True, effects=Effects(durable=False), options=options) as gate:
        await hook.lock.acquire()
        assert await gate.invoke("work", {}, user=ANN) == 1
        hook.lock.release()
        try:
            async with asyncio.timeout(10):
                await gate.invoke("work", {}, user=ANN)
                await hook.lock.acquire()
        except TimeoutError:
            assert not goes_on
        else:
            assert goes_on
