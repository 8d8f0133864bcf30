"""Statements that lock many rows lock them in one order, and what the server ends because of others runs again."""

from __future__ import annotations

import asyncio
import random
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from callgate.errors import StoreError
from callgate.providers.stores.base import CacheEntry
from callgate.providers.stores.group_commit import RolledBack
from callgate.providers.stores.server_answers import answer_within
from callgate.providers.stores.sql import kept as sql_kept
from callgate.providers.stores.sql.database.connections import postgres_error
from callgate.providers.stores.sql.database.states import TURN_LIMIT, retried
from tests.harness.steploop import StepLoop, on_virtual_time
from tests.providers.stores.backends import POSTGRES, Backend, opened, place

KEYS, ROUNDS, WORKERS = 60, 12, 6


async def load(backend: Backend) -> list[BaseException]:
    """Writers, drops of two tags that share all keys, and sweeps, all at once. Return what failed."""
    store, chance = backend.store, random.Random(16)
    keys = [f"k{number:02}" for number in range(KEYS)]

    async def put(order: list[str]) -> None:
        now = backend.now()
        for key in order:
            await store.cache.put("t", key, CacheEntry(b"1", now, now, now - 3600.0, frozenset({"a", "b"})))

    async def drop(tags: list[str]) -> None:
        await store.cache.drop_tags("t", tags)

    failed: list[BaseException] = []
    for _ in range(ROUNDS):
        work: list[Any] = [put(chance.sample(keys, KEYS // 3)) for _ in range(WORKERS)]
        work += [drop(tags) for tags in 2 * [["a"], ["b"], ["b", "a"], ["a", "b"]]]
        work += [store._database.sweep() for _ in range(2)]  # type: ignore[attr-defined]
        told = await asyncio.gather(*work, return_exceptions=True)
        failed += [one for one in told if isinstance(one, BaseException)]
    return failed


async def test_drops_writes_and_sweeps_of_the_cache_never_deadlock(tmp_path: Path) -> None:
    """Issue 16 A5: 17 of 35 did."""
    with place("postgresql", tmp_path, bare=True) as where:
        async with opened("postgresql", where) as backend:
            assert await load(backend) == []


async def test_what_the_server_ended_because_of_others_runs_again(tmp_path: Path) -> None:
    """Issue 16 A5: two transactions that lock two rows in opposite orders, one of which the server ends."""
    with place("postgresql", tmp_path, bare=True) as where:
        async with opened("postgresql", where) as backend:
            database: Any = backend.store._database  # type: ignore[attr-defined]
            await database.write(text("CREATE TABLE rows (id INT PRIMARY KEY, n INT)"), {})
            await database.write(text("INSERT INTO rows VALUES (1, 0), (2, 0)"), {})
            both = asyncio.Barrier(2)
            began: list[int] = []

            async def add(first: int, second: int) -> None:
                async with database.writing() as connection:
                    began.append(first)
                    await connection.execute(text("SET LOCAL deadlock_timeout = '50ms'"))
                    await connection.execute(text("UPDATE rows SET n = n + 1 WHERE id = :id"), {"id": first})
                    if len(began) <= 2:  # later attempts are alone
                        await both.wait()
                    await connection.execute(text("UPDATE rows SET n = n + 1 WHERE id = :id"), {"id": second})

            await asyncio.gather(retried(lambda: add(1, 2)), retried(lambda: add(2, 1)))
            assert len(began) >= 3  # on a slow machine the second attempt meets the other transaction again
            assert [n for (n,) in await database.rows(text("SELECT n FROM rows"), {})] == [2, 2]


async def test_what_failed_by_itself_does_not_run_again() -> None:
    """The control."""
    ran = 0

    async def fails() -> None:
        nonlocal ran
        ran += 1
        raise StoreError("wrong")

    with pytest.raises(StoreError):
        await retried(fails)
    assert ran == 1


async def test_statements_that_lock_in_any_order_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without an order, and without another attempt, the load does deadlock."""

    async def once(work: Any) -> Any:
        return await work()

    monkeypatch.setattr("callgate.providers.stores.sql.database.database.retried", once)
    monkeypatch.setattr(
        "callgate.providers.stores.sql.database.schema._SWEEP_POSTGRES", "DELETE FROM {table} WHERE {condition}"
    )
    monkeypatch.setattr(
        sql_kept,
        "_DROP_TAGS",
        "DELETE FROM callgate_cache WHERE tenant = :tenant AND key IN (SELECT key FROM callgate_cache_tags WHERE tenant = :tenant AND tag IN :tags) RETURNING stale_until -- {lock}",
    )
    with place("postgresql", tmp_path, bare=True) as where:
        async with opened("postgresql", where) as backend:
            for _ in range(100):  # one of about ten does
                if any("deadlock" in str(one) for one in await load(backend)):
                    return
    raise AssertionError("no deadlock")


# ---------------------------------------------------------------------- a server with too many connections


@pytest.mark.parametrize("batched", [False, True])
@on_virtual_time
async def test_a_server_with_too_many_connections_is_asked_again_until_the_wait_is_over(
    loop: StepLoop, batched: bool
) -> None:
    """Another process may end a connection, and another call returns one to the pool."""
    full, asked = StoreError("too many", sqlstate="53300"), list[float]()
    failure: Exception = RolledBack(full) if batched else full

    async def work(frees_at: float = 3.0) -> str:
        asked.append(loop.time())
        if loop.time() < began + frees_at:
            raise failure
        return "written"

    began = loop.time()
    assert await retried(work) == "written"
    assert 3.0 <= loop.time() - began < 3.5
    assert len(asked) > 10
    for limit, expected in ((None, TURN_LIMIT), (1.0, 1.0)):
        began = loop.time()
        with answer_within(limit), pytest.raises(type(failure)):
            await retried(lambda: work(1e9))
        assert expected - 0.3 <= loop.time() - began <= expected


def test_an_error_of_a_server_with_too_many_connections_is_known() -> None:
    """Such an error has a text, and no SQLSTATE: the connection was not opened."""
    role = f"callgate_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(POSTGRES, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p' CONNECTION LIMIT 0".encode())
        try:
            with pytest.raises(psycopg.OperationalError) as refused:
                psycopg.connect(POSTGRES, user=role, password="p").close()
        finally:
            admin.execute(f"DROP ROLE {role}".encode())
    assert refused.value.sqlstate is None
    assert postgres_error(refused.value).sqlstate == "53300"
    assert postgres_error(psycopg.OperationalError("connection refused")).sqlstate is None
