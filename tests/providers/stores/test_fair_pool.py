"""Connections go to callers in order of arrival, and renewals do not wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from typing import Any

import pytest
from sqlalchemy import event, text

from callgate.errors import StoreError
from callgate.providers.stores.base import Limit
from callgate.providers.stores.effects import EffectState
from callgate.providers.stores.jobs import JobState
from callgate.providers.stores.sql.database import engines as sql_engines
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import place
from tests.providers.stores.job_rows import job
from tests.providers.stores.ledger import effect

CALLERS, POOL, TURNS = 30, 4, 600
ONE = text("SELECT 1")


@pytest.fixture
async def store(tmp_path: Any) -> AsyncGenerator[SqlStore, None]:
    with place("postgresql", tmp_path) as (address, _):
        made = SqlStore(address, pool_size=POOL)
        await made.open()
        yield made
        await made.close()


_ARRIVAL: ContextVar[int] = ContextVar("arrival")


async def order_of(store: SqlStore) -> list[int]:
    """When each caller of a connection had asked for it, in the order in which they got one."""
    order, arrivals, left = list[int](), itertools.count(), iter(range(TURNS))

    def got(*_: object) -> None:
        order.append(_ARRIVAL.get())

    async def caller() -> None:
        for _ in left:
            _ARRIVAL.set(next(arrivals))
            await store._database.rows(ONE, {})

    async with contextlib.AsyncExitStack() as held:  # opens all connections: the first turns would wait for it
        for _ in range(POOL):
            await asyncio.create_task(held.enter_async_context(store.transaction()))
    pool = store._database.engines.calls.pool
    event.listen(pool, "checkout", got)
    try:
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
    finally:
        event.remove(pool, "checkout", got)
    return order


async def test_who_waits_for_a_connection_gets_it_before_who_returned_it(store: SqlStore) -> None:
    """Issue 16 A1: callers got between 2 and 346 of 600 turns."""
    assert await order_of(store) == list(range(TURNS))


async def test_a_pool_without_an_order_is_found_out(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the pool of SQLAlchemy by itself."""

    async def unordered(_: object) -> Callable[[], None]:
        return lambda: None

    monkeypatch.setattr(store._database.engines, "turn", unordered)
    assert await order_of(store) != list(range(TURNS))


async def test_leases_are_renewed_while_calls_hold_all_connections(store: SqlStore) -> None:
    """Issue 16 A1: five running effects became unknown, because their renewals starved."""
    async with contextlib.AsyncExitStack() as held:

        async def hold() -> Any:
            return await held.enter_async_context(store.transaction())

        for _ in range(POOL):
            await asyncio.create_task(hold())
        assert await store.effects.renew("owner", 1.0) == 0
        assert await store.effects.expire(1.0) == 0
        assert await store.effects.prune(1.0) == 0
        assert await store.jobs.renew(["owner"], 1.0) == []
        assert await store.jobs.prune(1.0) == 0
        assert await store.suspensions.prune(1.0) == 0
        await store._database.sweep()


async def test_who_gets_no_connection_is_told_what_to_do(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 16 A1."""
    monkeypatch.setattr(sql_engines, "TURN_LIMIT", 0.0)
    async with contextlib.AsyncExitStack() as held:
        for _ in range(POOL):
            await asyncio.create_task(held.enter_async_context(store.transaction()))
        with pytest.raises(StoreError, match="raise pool_size"):
            await asyncio.create_task(held.enter_async_context(store.transaction()))


async def test_a_task_with_a_transaction_does_not_wait_for_a_second_one(store: SqlStore) -> None:
    """Issue 16 B7: ten that held one and asked for another blocked each other for ten seconds."""
    ready = asyncio.Barrier(POOL)

    async def nested() -> None:
        async with store.transaction():
            await ready.wait()
            with pytest.raises(StoreError, match="use the parts of the transaction"):
                await store.transaction().__aenter__()
            with pytest.raises(StoreError, match="use the parts of the transaction"):
                await store.effects.claim("t", effect(1.0))
            await ready.wait()

    await asyncio.gather(*(nested() for _ in range(POOL)))
    async with store.transaction(), store.transaction():  # there are connections for both
        pass


async def test_a_locked_row_keeps_no_other_lease_from_being_renewed(store: SqlStore) -> None:
    """Issue 16 A1: an open transaction that had settled one effect held up the renewal of all leases of the process."""
    for key in ("locked", "free"):
        await store.effects.claim("t", effect(1.0, key))
    async with store.transaction() as written:
        assert await written.effects.settle("t", "locked", 1, EffectState.COMMITTED, at=2.0)
        assert await asyncio.wait_for(store.effects.renew("o", 50.0), 10.0) == 1
    found = await store.effects.get("t", "free")
    assert found is not None
    assert 50.0 <= found.lease_until < 60.0  # and the time that the statement has waited


MOST = 15
"""Connections of one process, as docs/how-to/choose-a-store.md states it."""


async def most_connections(address: str, pool_size: int | None) -> int:
    """Use all parts of a store at once, with more callers than connections. Return the largest number of sessions."""
    name = f"counted-{uuid.uuid4().hex[:8]}"
    named = f"{address}&application_name={name}"
    made = SqlStore(named) if pool_size is None else SqlStore(named, pool_size=pool_size)
    await made.open()
    counted = list[int]()
    try:
        made.notices.listen(lambda word: None)  # type: ignore[union-attr]

        async def use(number: int) -> None:
            key, now = f"k{number}", made.time()
            await made.effects.claim("t", effect(now, key))
            await made.ledger.claim("t", effect(now, f"{key} too"), (), retry=False)
            await made.quotas.take("t", key, Limit(1, 60.0))
            await made.jobs.add("t", job(now, key))
            await made.jobs.take("o", now, now + 60.0, id=key)
            await made.jobs.end("t", key, 1, JobState.DONE, at=now, result=None, reason=None)
            await made.effects.renew(key, now)
            rows = await made._database.rows(
                text("SELECT count(*) FROM pg_stat_activity WHERE application_name = :name"), {"name": name}
            )
            counted.append(rows[0][0])

        await asyncio.gather(*(use(number) for number in range(4 * MOST)))
    finally:
        await made.close()
    return max(counted)


async def test_a_busy_process_opens_no_more_connections_than_the_documentation_says(tmp_path: Any) -> None:
    """Issue 34, 2: it opened 26 and more."""
    with place("postgresql", tmp_path) as (address, _):
        assert MOST - 1 <= await most_connections(address, None) <= MOST  # the listener may connect late
        assert await most_connections(address, 12) > MOST, "the control: a larger pool"
