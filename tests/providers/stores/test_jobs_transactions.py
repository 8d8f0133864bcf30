"""Jobs in a transaction: added with what else it writes, for workers and for an engine on the same connection, or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.jobs import JobState
from callgate.providers.stores.memory.store import MemoryStore
from callgate.providers.stores.sql.store import SqlStore
from callgate.testing import FaultyStore, InjectedFault, faults_of
from tests.providers.stores.backends import Backend
from tests.providers.stores.job_rows import (
    CANCELLED,
    DONE,
    FOREVER,
    INPUT_REQUIRED,
    QUEUED,
    RUNNING,
    found_in,
    job,
    kept,
)
from tests.providers.stores.ledger import effect


async def test_a_job_is_there_for_workers_when_the_transaction_that_adds_it_ends(queue: Backend) -> None:
    """Contract I16."""
    store, tenant, now = queue.store, queue.tenant, queue.now()
    async with store.transaction() as within:
        await within.jobs.add(tenant, job(now))
        assert await within.jobs.get(tenant, "j") == job(now), "it is there, within"
        worker = asyncio.create_task(store.jobs.take("o", now, FOREVER))
        if queue.kind in {"memory", "postgresql"}:  # others wait for the one writer
            assert await worker is None
    taken = await worker or await store.jobs.take("o", now, FOREVER)
    assert taken is not None
    assert taken[1].id == "j"


class Leaked(AssertionError):
    """A worker had a job whose transaction failed."""


async def no_worker_has_what_was_not_kept(store: Any, queue: Backend) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()
    had: list[str] = []

    async def fail() -> None:
        async with store.transaction() as within:
            await within.effects.claim(queue.tenant, effect(queue.now()))
            for number in range(3):
                await within.jobs.add(queue.tenant, job(queue.now(), str(number)))
            inside.set()
            await go_on.wait()
            raise ZeroDivisionError

    async def work(**more: Any) -> None:
        await inside.wait()
        taken = await queue.store.jobs.take("o", queue.now(), FOREVER, **more)
        had.extend([] if taken is None else [taken[1].id])

    workers = [asyncio.create_task(work(**more)) for more in ({}, {"queues": ["default"]}, {"id": "2"})]
    failing = asyncio.create_task(fail())
    await inside.wait()
    if queue.kind in {"memory", "postgresql"}:
        await asyncio.gather(*workers)
    go_on.set()
    with pytest.raises(ZeroDivisionError):
        await failing
    await asyncio.gather(*workers)
    await work()
    if had:
        raise Leaked(had)
    assert await queue.store.jobs.list(queue.tenant) == []
    assert await queue.store.effects.get(queue.tenant, "k") is None


async def test_a_job_whose_transaction_fails_is_run_by_nobody(queue: Backend) -> None:
    """Contract I16."""
    await no_worker_has_what_was_not_kept(queue.store, queue)


async def test_a_job_that_is_added_by_itself_is_found_out(queue: Backend) -> None:
    """The control."""

    class Single:
        @asynccontextmanager
        async def transaction(self) -> AsyncGenerator[Any, None]:
            yield queue.store

    with pytest.raises(Leaked):
        await no_worker_has_what_was_not_kept(Single(), queue)


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_a_transaction_that_fails_leaves_no_trace_of_any_change_of_jobs(
    queue: Backend, error: type[BaseException]
) -> None:
    """Contract I16. Of every state, by every method."""
    jobs, tenant, now = queue.store.jobs, queue.tenant, queue.now()
    for state in JobState:
        for number in range(3):
            await kept(queue, state, f"{state} {number}", lease=0.0)
    before = await jobs.list(None)
    with pytest.raises(error):
        async with queue.store.transaction() as within:
            assert len(await within.jobs.renew(["o"], now)) == 3
            assert await within.jobs.end(tenant, "running 0", 1, DONE, at=now, result=b"1", reason="r")
            assert await within.jobs.put_back(tenant, "running 1", 1, run_at=now, reason="r")
            assert await within.jobs.cancel(tenant, "queued 0", now) is CANCELLED
            for _ in range(4):
                assert await within.jobs.take("me", now, FOREVER) is not None
            assert await within.jobs.take("me", now, FOREVER) is None
            await within.jobs.mark_sent([f"{state} 2" for state in JobState], now)
            assert await within.jobs.prune(FOREVER) == 11
            await within.jobs.add(tenant, job(now, "new"))
            assert await within.jobs.count() == dict.fromkeys(JobState, 0) | {QUEUED: 1, RUNNING: 4, INPUT_REQUIRED: 3}
            assert len(await within.jobs.list(tenant)) == 8
            assert [row.id for _, row in await within.jobs.unsent(now, now)] == ["new"]
            raise error
    assert await jobs.list(None) == before
    assert len([await jobs.take("o", now, FOREVER) for _ in range(6)]) == 6
    assert await jobs.take("o", now, FOREVER) is None


# ---------------------------------------------------------------------- the connection, for an engine


@pytest.mark.parametrize("durable", ["postgresql"], indirect=True)
@pytest.mark.parametrize("fails", [True, False])
async def test_what_an_engine_writes_on_the_connection_is_kept_with_the_job_or_lost_with_it(
    queue: Backend, fails: bool
) -> None:
    """Contract I16."""
    store, tenant = queue.store, queue.tenant
    assert isinstance(store, SqlStore)
    with psycopg.connect(queue.address, autocommit=True) as server:
        server.execute("CREATE TABLE IF NOT EXISTS engine_jobs (id text)")
        server.execute("DELETE FROM engine_jobs")
        try:
            async with store.transaction() as within:
                connection = within.driver()
                assert isinstance(connection, psycopg.AsyncConnection)
                await within.jobs.add(tenant, job(queue.now()))
                await connection.execute("INSERT INTO engine_jobs VALUES ('one')")
                async with connection.transaction(), connection.cursor() as cursor:
                    await cursor.execute("INSERT INTO engine_jobs SELECT id FROM callgate_jobs WHERE id = 'j'")
                with pytest.raises(ZeroDivisionError):
                    async with connection.transaction():
                        await connection.execute("INSERT INTO engine_jobs VALUES ('undone')")
                        raise ZeroDivisionError
                assert server.execute("SELECT count(*) FROM engine_jobs").fetchone() == (0,), (
                    "no other connection sees it yet"
                )
                if fails:
                    raise InjectedFault
        except InjectedFault:
            pass
        rows = server.execute("SELECT id FROM engine_jobs ORDER BY id").fetchall()
    assert rows == ([] if fails else [("j",), ("one",)])
    assert (await store.jobs.get(tenant, "j") is None) is fails


@pytest.mark.parametrize("durable", ["postgresql"], indirect=True)
async def test_what_an_engine_breaks_on_the_connection_breaks_the_transaction(queue: Backend) -> None:
    """Contract I3. An engine that swallows its error does not leave a job that it never heard of."""
    store = queue.store
    assert isinstance(store, SqlStore)
    with pytest.raises(StoreError, match="so it was rolled back"):
        async with store.transaction() as within:
            await within.jobs.add(queue.tenant, job(queue.now()))
            with pytest.raises(psycopg.Error):
                await within.driver().execute("INSERT INTO no_such_table VALUES (1)")
    assert await store.jobs.get(queue.tenant, "j") is None


@pytest.mark.parametrize("durable", ["sqlite-memory", "sqlite-file"], indirect=True)
async def test_on_sqlite_there_is_no_connection_for_an_engine(queue: Backend) -> None:
    assert isinstance(queue.store, SqlStore)
    async with queue.store.transaction() as within:
        assert within.driver() is None


@pytest.mark.parametrize("durable", ["postgresql"], indirect=True)
async def test_the_connection_of_a_faulty_transaction_is_the_drivers_own(queue: Backend) -> None:
    assert isinstance(queue.store, SqlStore)
    faulty = FaultyStore(queue.store)
    async with faulty.transaction() as within:
        connection = within.driver()
        assert type(connection) is psycopg.AsyncConnection
        await connection.execute("SELECT 1")
    assert faults_of(faulty).log == ["transaction.enter", "transaction.exit"]


# ---------------------------------------------------------------------- in memory, where nothing waits


async def test_in_memory_nobody_else_sees_or_changes_a_job_that_is_being_added() -> None:
    """Contract I16."""
    store = MemoryStore()
    async with store.transaction() as within:
        await within.jobs.add("t", job(1.0))
        jobs = store.jobs
        await jobs.mark_sent(["j"], 2.0)
        assert await jobs.cancel("t", "j", 2.0) is None
        assert [await jobs.get("t", "j"), await jobs.take("o", 2.0, 3.0), await jobs.take("o", 2.0, 3.0, id="j")] == [
            None,
            None,
            None,
        ]
        assert [await jobs.list(None), await jobs.unsent(2.0, 2.0), await jobs.renew(["o"], 2.0)] == [[], [], []]
        assert sum((await jobs.count()).values()) == await jobs.prune(FOREVER) == 0
        for tenant in ("t", "other"):
            with pytest.raises(StoreConflict):
                await jobs.add(tenant, job(2.0))
        async with store.transaction() as another:
            assert await another.jobs.take("o", 2.0, 3.0) is None
            with pytest.raises(StoreConflict):
                await another.jobs.add("t", job(2.0))
    assert await store.jobs.take("o", 2.0, 3.0) is not None, "though it was passed over before"


async def test_in_memory_a_transaction_that_fails_takes_back_no_change_that_another_made_since() -> None:
    """Contract I4."""
    store = MemoryStore()
    for id in ("handed back", "mine"):
        await store.jobs.add("t", job(1.0, id))
        assert await store.jobs.take("o", 1.0, 9.0, id=id) is not None
    with pytest.raises(ZeroDivisionError):
        async with store.transaction() as within:
            for id in ("handed back", "mine"):
                assert await within.jobs.put_back("t", id, 1, run_at=1.0, reason="r")
            assert await store.jobs.take("another", 1.0, 9.0, id="handed back") is not None
            _ = 1 / 0
    rows = {row.id: (row.state, row.owner, row.token, row.reason) for _, row in await store.jobs.list("t")}
    assert rows == {"handed back": (RUNNING, "another", 2, "r"), "mine": (RUNNING, "o", 1, None)}


async def test_an_id_that_was_not_kept_is_free(queue: Backend) -> None:
    with pytest.raises(ZeroDivisionError):
        async with queue.store.transaction() as within:
            await within.jobs.add(queue.tenant + "2", job(queue.now()))
            _ = 1 / 0
    new = job(queue.now(), body=b"another")
    assert await queue.store.jobs.add(queue.tenant, new) is new
    assert await found_in(queue) == new
