"""The cost of taking a job does not grow with the waiting jobs: counted, not timed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from sqlalchemy import event, text

from callgate.providers.stores.jobs import JobStore
from callgate.providers.stores.memory.store import MemoryStore
from callgate.providers.stores.sql import job_statements as sql_job_statements
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import opened, place
from tests.providers.stores.job_rows import DEAD, DONE, job

NOW, MANY, SOME = 1e6, 100_000, 1_000
Ask: TypeAlias = Callable[[JobStore], Awaitable[Any]]

# Of each eight: two may run in one queue and one in another, two are for later and come first then, one is running, one
# is over, and one has been put back for later. A third of them was told to an engine.
FILL = """
INSERT INTO callgate_jobs (tenant, version, id, tool, person, body, mac, made_at, run_at, queue, priority, max_attempts, state,
    attempts, token, owner, lease_until, sent_at, ended_at)
SELECT 't' || (n % 7), 1, 'j' || n, 'tool', 'ann', body, 'mac', n, CASE WHEN n % 8 IN (3, 4, 7) THEN 1e9 ELSE 5 + n END,
    CASE n % 8 WHEN 2 THEN 'other' ELSE 'default' END, CASE WHEN n % 8 IN (3, 4) THEN 9 ELSE 0 END, 5,
    CASE n % 8 WHEN 5 THEN 'running' WHEN 6 THEN 'done' ELSE 'queued' END, 0, CASE n % 8 WHEN 5 THEN 1 ELSE 0 END,
    'owner' || n, CASE n % 8 WHEN 5 THEN 1e9 END, CASE n % 3 WHEN 0 THEN 5.0 END,
    CASE n % 8 WHEN 6 THEN 500000 + n END
FROM numbers
"""
NUMBERS = {
    "sqlite": "WITH RECURSIVE numbers(n, body) AS (SELECT 1, x'7b7d' UNION ALL SELECT n + 1, body FROM numbers WHERE n < {})",
    "postgresql": "WITH numbers AS (SELECT n, CAST('{{}}' AS bytea) AS body FROM generate_series(1, {}) AS n)",
}
VISITED = """
SELECT sum(pg_stat_get_xact_tuples_returned(oid)) FROM (
    SELECT CAST('callgate_jobs' AS regclass) AS oid
    UNION ALL SELECT indexrelid FROM pg_index WHERE indrelid = CAST('callgate_jobs' AS regclass)
) AS relations
"""

TAKING: dict[str, Ask] = {
    "the next": lambda jobs: jobs.take("me", NOW, NOW + 9.0),
    "the next of some queues": lambda jobs: jobs.take("me", NOW, NOW + 9.0, queues=["none", "other", "default"]),
    "none of an idle queue": lambda jobs: jobs.take("me", NOW, NOW + 9.0, queues=["none"]),
    "one": lambda jobs: jobs.take("me", NOW, NOW + 9.0, id="j8"),
    "get": lambda jobs: jobs.get("t1", "j8"),
    "end": lambda jobs: jobs.end("t6", "j13", 1, DONE, at=NOW, result=None, reason=None),
    "put back": lambda jobs: jobs.put_back("t6", "j13", 1, run_at=NOW, reason=None),
    "cancel": lambda jobs: jobs.cancel("t1", "j8", NOW),
    "renew": lambda jobs: jobs.renew(["owner13"], NOW),
    "stopped": lambda jobs: jobs.stopped(["owner13", "owner14"]),
    "tell": lambda jobs: jobs.record_progress("t6", "j13", 1, b"1"),
    "revive": lambda jobs: jobs.revive("t6", "j13", NOW),
    "replace": lambda jobs: jobs.replace("t6", job(NOW, "j13", token=2)),
    "add": lambda jobs: jobs.add("t1", job(NOW, "new")),
}
LOOKING: dict[str, Ask] = {
    "unsent": lambda jobs: jobs.unsent(NOW, 9.0, limit=10),
    "sent": lambda jobs: jobs.mark_sent(["j8", "j16", "j24"], NOW),
    "list": lambda jobs: jobs.list(None, limit=10),
    "list of a tenant": lambda jobs: jobs.list("t1", limit=10),
    "list of a state": lambda jobs: jobs.list(None, state=DEAD, limit=10),
    "list of a tenant and a state": lambda jobs: jobs.list("t1", state=DONE, limit=10),
    "prune": lambda jobs: jobs.prune(500_050.0),
}


@pytest.fixture(params=["sqlite-file", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[SqlStore, None]:
    """A database of this test alone, empty."""
    with place(request.param, tmp_path) as at:
        async with opened(request.param, at) as backend:
            assert isinstance(backend.store, SqlStore)
            yield backend.store


async def run(store: SqlStore, sql: str) -> None:
    async with store._database.engines.calls.connect() as connection:
        await connection.execute(text(sql))


async def fill(store: SqlStore, rows: int) -> None:
    await run(store, "DELETE FROM callgate_jobs")
    await run(store, NUMBERS[store.name].format(rows) + FILL)


class Undone(Exception):
    """The error that ends a transaction."""


async def cost(store: SqlStore, ask: Ask) -> int:
    """The work of the database: steps of SQLite's machine, or entries and rows that PostgreSQL reads."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    with pytest.raises(Undone):
        async with store.transaction() as within:
            if store.name == "sqlite":
                raw = (await within._connection.get_raw_connection()).driver_connection
                await raw.set_progress_handler(step, 1)
                await ask(within.jobs)
                await raw.set_progress_handler(None, 0)
            else:
                before = (await within._connection.execute(text(VISITED))).scalar()
                await ask(within.jobs)
                steps = int((await within._connection.execute(text(VISITED))).scalar() - before)
            raise Undone
    return steps


async def costs(store: SqlStore, asks: dict[str, Ask]) -> dict[str, int]:
    return {name: await cost(store, ask) for name, ask in asks.items()}


def grown(few: dict[str, int], many: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Those that cost noticeably more among many."""
    return {name: (few[name], many[name]) for name in many if many[name] > 1.2 * few[name] + 20}


async def test_what_a_worker_does_costs_the_same_however_many_jobs_wait(store: SqlStore) -> None:
    """As the table has grown, and as the planner of PostgreSQL knows it then."""
    await fill(store, SOME)
    await run(store, "ANALYZE callgate_jobs")
    few = await costs(store, TAKING | LOOKING)
    assert few["the next"] > few["one"] > 0, "it is counted"
    await fill(store, MANY)
    assert grown(few, await costs(store, TAKING)) == {}
    await run(store, "ANALYZE callgate_jobs")
    assert grown(few, await costs(store, TAKING | LOOKING)) == {}


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
async def test_a_plan_that_postgresql_made_while_there_were_no_jobs_serves_for_many(store: SqlStore) -> None:
    """It prepares what runs often, and keeps the plan until it looks at the table again."""
    await run(store, "SET plan_cache_mode = force_generic_plan")
    for _ in range(8):
        await costs(store, TAKING)
    await fill(store, MANY)
    assert max((await costs(store, TAKING)).values()) < 60


@pytest.mark.parametrize("analyzed", [False, True])
async def test_the_plans_of_taking_read_by_an_index_and_sort_nothing_but_the_first_of_each_line(
    store: SqlStore, analyzed: bool
) -> None:
    await fill(store, SOME * 10)
    if analyzed:
        await run(store, "ANALYZE callgate_jobs")
    ran: list[tuple[str, Any]] = []
    engine = store._database.engines.calls.sync_engine
    event.listen(engine, "before_cursor_execute", lambda c, k, sql, values, *more: ran.append((sql, values)))
    for name in ("the next", "the next of some queues", "none of an idle queue", "one"):
        ran.clear()
        await cost(store, TAKING[name])
        sql, values = next(each for each in ran if each[0].lstrip().startswith("UPDATE"))
        explain = "EXPLAIN QUERY PLAN" if store.name == "sqlite" else "EXPLAIN (ANALYZE, TIMING OFF)"
        rows: list[Any] = []
        with pytest.raises(Undone):
            async with store._database.writing() as connection:
                rows += (await connection.exec_driver_sql(f"{explain} {sql}", values)).all()
                raise Undone
        plan = "\n".join(str(row[-1]) for row in rows)
        if store.name == "sqlite":
            assert "SEARCH callgate_jobs USING INDEX sqlite_autoindex_callgate_jobs_2 (id=?)" in plan, plan
            assert not {"SCAN callgate_jobs", "SCAN j"} & {line.split(" USING")[0] for line in plan.splitlines()}, plan
            assert plan.count("B-TREE") <= 1, plan
        else:
            assert "using callgate_jobs_id on callgate_jobs " in plan, plan
            assert "Seq Scan" not in plan, plan
            assert plan.count("Sort Key") <= 1, plan
            assert "Sort Key: l" in plan or name == "one", plan
            assert "JIT" not in plan, plan


async def test_a_taking_that_reads_all_that_waits_is_found_out(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the obvious statement."""
    plain = "(SELECT id FROM callgate_jobs WHERE free_at <= :now ORDER BY priority DESC, free_at, made_at LIMIT 1)"
    any_job = (store.name, False, False)
    monkeypatch.setitem(sql_job_statements.TAKE_NEXT, any_job, sql_job_statements.TAKE_JOB.format(id=plain))
    taking = {"the next": TAKING["the next"]}
    await fill(store, SOME)
    few = await costs(store, taking)
    await fill(store, SOME * 10)
    assert set(grown(few, await costs(store, taking))) == {"the next"}


async def test_in_memory_a_worker_looks_at_the_first_of_each_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = MemoryStore().jobs
    for number in range(MANY):
        later = number % 2
        await jobs.add("t", job(NOW + later, str(number), priority=later, queue="ab"[number % 3 == 0]))
    looked, seen = 0, jobs._find

    def looking(id: str) -> Any:
        nonlocal looked
        looked += 1
        return seen(id)

    monkeypatch.setattr(jobs, "_find", looking)
    for _ in range(100):
        assert await jobs.take("me", NOW, NOW + 9.0) is not None
    assert looked < 1000
