"""Jobs that are added, taken and ended together: one statement, and an outcome for each."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy import text as sql_text

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.sql import batches as sql_batches
from callgate.providers.stores.sql import job_statements as sql_job_statements
from callgate.providers.stores.sql.database.statements import Statement
from callgate.providers.stores.sql.job_batches import of_many
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import Backend, opened, place
from tests.providers.stores.job_rows import DONE, QUEUED, RUNNING, found_in, job
from tests.providers.stores.test_jobs_plans import MANY, NOW, Ask, costs, fill, grown, run

ON_POSTGRES = pytest.mark.parametrize("durable", ["postgresql"], indirect=True)


@contextmanager
def statements(store: Any, verb: str) -> Generator[list[str]]:
    """The statements on jobs that begin so, as they are sent."""
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, sql: str, *_more: Any) -> None:
        if sql.lstrip().startswith(verb):
            sent.append(sql)

    engine = store._database.engines.calls.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def batches() -> Generator[list[int]]:
    """The number of changes of each batch, as it is sent."""
    sent: list[int] = []
    run_alone = sql_batches._PostgresBatch.run_alone

    async def noting(batch: Any, statement: Statement, values: Sequence[Any]) -> list[Any]:
        sent.append(len(values))
        return await run_alone(batch, statement, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_batches._PostgresBatch, "run_alone", noting)
        yield sent


# ---------------------------------------------------------------------- added together


async def test_jobs_that_are_added_together_are_all_there_with_every_fact(queue: Backend) -> None:
    full: dict[str, Any] = {
        "queue": "q",
        "priority": -3,
        "max_attempts": 9,
        "sent_at": 1.5,
        "body": b'{"a": "\xc3\xa9"}',
    }
    jobs = [job(queue.now(), "plain"), job(queue.now(), "full", **full), job(queue.now() + 0.25, "later")]
    assert await queue.store.jobs.add_many([(queue.tenant, one) for one in jobs]) == jobs
    assert [await found_in(queue, one.id) for one in jobs] == jobs


async def test_an_id_that_is_known_gives_the_job_that_is_there(queue: Backend) -> None:
    first = job(queue.now(), "a", tool="first")
    await queue.store.jobs.add(queue.tenant, first)
    second, new = replace(first, tool="second"), job(queue.now(), "b")
    assert await queue.store.jobs.add_many([(queue.tenant, second), (queue.tenant, new)]) == [first, new]
    assert await found_in(queue, "a") == first


async def test_if_one_is_refused_none_is_added(queue: Backend) -> None:
    await queue.store.jobs.add("another tenant", job(queue.now(), "taken"))
    jobs = [(queue.tenant, job(queue.now(), id)) for id in ("a", "taken", "b")]
    with pytest.raises(StoreConflict):
        await queue.store.jobs.add_many(jobs)
    assert await queue.store.jobs.get(queue.tenant, "a") is None
    assert await queue.store.jobs.get(queue.tenant, "b") is None


@ON_POSTGRES
async def test_a_thousand_jobs_are_one_statement(queue: Backend) -> None:
    jobs = [(queue.tenant, job(queue.now(), f"{number}")) for number in range(1_000)]
    with statements(queue.store, "INSERT") as sent:
        await queue.store.jobs.add_many(jobs)
    assert len(sent) == 1
    assert (await queue.store.jobs.count())[QUEUED] == 1_000


# ---------------------------------------------------------------------- taken and ended together


async def added(queue: Backend, number: int) -> Sequence[str]:
    ids = [f"{n:03}" for n in range(number)]
    await queue.store.jobs.add_many([(queue.tenant, job(queue.now(), id)) for id in ids])
    return ids


@ON_POSTGRES
async def test_jobs_of_concurrent_workers_are_taken_and_ended_in_a_few_statements(queue: Backend) -> None:
    jobs, now, ids = queue.store.jobs, queue.now(), await added(queue, 40)
    with batches() as sent:
        taken = await asyncio.gather(*(jobs.take(f"o{id}", now, now + 9.0, id=id) for id in ids))
    assert len(sent) <= 3
    assert [(found[1].id, found[1].owner, found[1].token, found[1].state) for found in taken if found] == [
        (id, f"o{id}", 1, RUNNING) for id in ids
    ]
    with batches() as sent:
        ends = [jobs.end(queue.tenant, id, 1, DONE, at=now, result=b"r" + id.encode(), reason=None) for id in ids]
        assert await asyncio.gather(*ends) == [True] * 40
    assert len(sent) <= 3
    assert [(await found_in(queue, id)).result for id in ids] == [b"r" + id.encode() for id in ids]


@ON_POSTGRES
async def test_each_worker_of_a_batch_has_its_own_outcome(queue: Backend) -> None:
    jobs, now = queue.store.jobs, queue.now()
    ids = await added(queue, 3)
    await jobs.add(queue.tenant, job(now + 5.0, "later"))
    wanted = [*ids, "later", "none", ids[0]]
    taken = await asyncio.gather(*(jobs.take("o", now, now + 9.0, id=id) for id in wanted))
    assert [found and found[1].id for found in taken] == [*ids, None, None, None]
    tokens = {ids[0]: 1, ids[1]: 2, ids[2]: 1}  # one worker has lost its job
    ends = (jobs.end(queue.tenant, id, token, DONE, at=now, result=None, reason=None) for id, token in tokens.items())
    assert await asyncio.gather(*ends) == [True, False, True]


@ON_POSTGRES
@pytest.mark.parametrize("text", ["\x00", "\ud800"])
async def test_a_change_that_the_database_refuses_takes_no_other_along(queue: Backend, text: str) -> None:
    jobs, now, ids = queue.store.jobs, queue.now(), await added(queue, 4)
    await asyncio.gather(*(jobs.take("o", now, now + 9.0, id=id) for id in ids))
    reasons = [None, text, None, "a reason"]
    ends = (
        jobs.end(queue.tenant, id, 1, DONE, at=now, result=None, reason=reason)
        for id, reason in zip(ids, reasons, strict=True)
    )
    first, refused, *others = await asyncio.gather(*ends, return_exceptions=True)
    assert [first, *others] == [True, True, True]
    assert isinstance(refused, StoreError)
    assert [(await found_in(queue, id)).state for id in ids] == [DONE, RUNNING, DONE, DONE]


@ON_POSTGRES
@pytest.mark.parametrize("verb", ["take", "end"])
@pytest.mark.parametrize("lock_wait", [50, 0], ids=["limited", "control without a limit"])
async def test_a_locked_job_waits_apart(
    queue: Backend, verb: str, lock_wait: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control waits for the row in the batch, and all other jobs wait with it."""
    monkeypatch.setattr(sql_batches, "LOCK_WAIT_MS", lock_wait)
    monkeypatch.setattr(sql_batches, "RETRY_WAIT_MS", lock_wait)
    jobs, now, ids = queue.store.jobs, queue.now(), await added(queue, 12)

    async def change(id: str) -> bool:
        if verb == "take":
            return await jobs.take("o", now, now + 9.0, id=id) is not None
        return await jobs.end(queue.tenant, id, 1, DONE, at=now, result=b"r", reason=None)

    if verb == "end":
        await asyncio.gather(*(jobs.take("o", now, now + 9.0, id=id) for id in ids))
    database: Any = getattr(queue.store, "_database")  # noqa: B009
    async with asyncio.timeout(10.0):
        async with database.writing() as other:
            await other.execute(sql_text("SELECT 1 FROM callgate_jobs WHERE id = :id FOR UPDATE"), {"id": ids[5]})
            changes = [asyncio.create_task(change(id)) for id in ids]
            done, waiting = await asyncio.wait([*changes[:5], *changes[6:]], timeout=2.0 if lock_wait else 0.4)
            assert not changes[5].done()
            assert len(waiting) == (0 if lock_wait else 11)
            assert all(one.result() for one in done)
        assert await asyncio.gather(*changes) == [True] * 12


@ON_POSTGRES
async def test_large_results_are_written_in_several_transactions(queue: Backend) -> None:
    jobs, now, ids = queue.store.jobs, queue.now(), await added(queue, 9)
    await asyncio.gather(*(jobs.take("o", now, now + 9.0, id=id) for id in ids))
    large = bytes(1 << 20)  # 2 MB in hexadecimal digits, and a transaction has 8 MB
    with batches() as sent:
        ends = (jobs.end(queue.tenant, id, 1, DONE, at=now, result=large, reason=None) for id in ids)
        assert await asyncio.gather(*ends) == [True] * 9
    assert (sum(sent), max(sent)) == (9, 4)


# ---------------------------------------------------------------------- what it costs


async def test_many_changes_read_no_more_rows_in_a_large_table(tmp_path: Path) -> None:
    """Also with the plan that PostgreSQL made while the table was empty. The control reads the whole table."""
    values = [
        {"id": f"j{n}", "owner": "me", "now": NOW, "until": NOW + 9.0, "version": 1, "tenant": f"t{n % 7}", "token": 1}
        | {"state": "done", "at": NOW, "result": None, "reason": None}
        for n in (8, 9, 13, 16)
    ]
    (given,) = Statement.parameters(values)
    asks: dict[str, Ask] = {
        "take": lambda jobs: _sent(jobs, of_many(sql_job_statements.TAKE_MANY), given),
        "end": lambda jobs: _sent(jobs, of_many(sql_job_statements.END_MANY), given),
        "all": lambda jobs: _sent(
            jobs, "SELECT count(mac) FROM callgate_jobs WHERE CAST(:given AS text) <> mac", given
        ),
    }
    with place("postgresql", tmp_path) as at:
        async with opened("postgresql", at) as backend:
            store = backend.store
            assert isinstance(store, SqlStore)
            await run(store, "SET plan_cache_mode = force_generic_plan")
            few: dict[str, int] = {}
            for _ in range(8):
                few = await costs(store, asks)
            await fill(store, MANY)
            assert set(grown(few, await costs(store, asks))) == {"all"}


async def _sent(jobs: Any, sql: str, given: str) -> None:
    await jobs._inside(sql, {"given": given})
