"""Many jobs at once: bulk submit, submits that share a transaction, the application's own transaction, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from callgate import Gate, Jobs, RegistrationError, ToolCall, ToolContext, User, tool
from callgate.errors import Conflict, NotPending, StoreError
from callgate.jobs import EmbeddedJobs, JobBackend, JobRetries, ProcrastinateJobs
from callgate.stores import JobState
from callgate.testing import FakeClock
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place
from tests.providers.stores.test_job_batches import statements

ANN, BOB = User("ann", "acme"), User("bob", "acme")
KEY = "a key of the tests, long enough"
RAN: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_ran_yet() -> None:
    RAN.clear()


@pytest.fixture(params=["memory", "sqlite-file", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with place(request.param, tmp_path) as (where, _):
        yield where


@pytest.fixture
def postgres(tmp_path: Path) -> Generator[str]:
    with place("postgresql", tmp_path) as (where, _):
        yield where


@tool(effect="irreversible")
async def send(n: int) -> int:
    """Send something."""
    RAN.append(n)
    return n


@tool(effect="read")
async def busy(ctx: ToolContext) -> None:
    """Be busy for ever."""
    RAN.append(0)
    ctx.retry_after(1, "busy")


def calls(*numbers: int) -> list[ToolCall]:
    return [ToolCall(id=f"c{n}", name="send", arguments={"n": n}) for n in numbers]


@asynccontextmanager
async def a_gate(
    address: str, engine: JobBackend | None = None, clock: Any = None, **options: Any
) -> AsyncGenerator[Gate]:
    jobs = Jobs(engine=engine or EmbeddedJobs(0), **options)
    given = gate_options(store=address, signing_keys=[KEY], jobs=jobs, durable=False, clock=clock)
    async with Gate([send, busy], allow_unguarded=True, **given) as gate:
        yield gate


async def run_all(gate: Gate) -> None:
    while await gate.jobs.run_invocation() is not None:
        pass


async def enqueued(gate: Gate, sql: str = "SELECT queueing_lock FROM procrastinate_jobs") -> list[str]:
    """The ids that Procrastinate is to deliver."""
    async with gate.store.transaction() as within:
        rows = await (await within.driver().execute(sql)).fetchall()  # type: ignore[attr-defined]
    return [id for (id,) in rows]


# ---------------------------------------------------------------------- bulk


async def test_many_calls_are_submitted_together_and_each_has_its_handle(address: str) -> None:
    async with a_gate(address) as gate:
        jobs = await gate.submit_many(calls(*range(20)), user=ANN, priority=3)
        assert len({job.id for job in jobs}) == 20
        await run_all(gate)
        assert [(await job).output for job in jobs] == list(range(20))
        assert sorted(RAN) == list(range(20))
        assert await gate.submit_many([], user=ANN) == []


async def test_of_many_with_one_key_one_runs_and_all_have_its_result(address: str) -> None:
    async with a_gate(address) as gate:
        before = await gate.submit(calls(1)[0], user=ANN, key="a")
        jobs = await gate.submit_many(calls(1, 2, 2), user=ANN, keys=["a", "b", "b"])
        assert [job.id for job in jobs] == [before.id, jobs[1].id, jobs[1].id]
        await run_all(gate)
        assert [(await job).output for job in jobs] == [1, 2, 2]
        assert sorted(RAN) == [1, 2]


@pytest.mark.parametrize("keys", [["new", "known"], ["new", "new"]])
async def test_if_one_of_many_is_a_conflict_none_is_submitted(address: str, keys: list[str]) -> None:
    async with a_gate(address) as gate:
        await gate.submit(calls(1)[0], user=ANN, key="known")
        with pytest.raises(Conflict):
            await gate.submit_many(calls(2, 3), user=ANN, keys=keys)
        assert len(await gate.store.jobs.list(None)) == 1


async def test_one_key_for_each_call_is_asked_for(tmp_path: Path) -> None:
    async with a_gate(f"sqlite:///{tmp_path}/a.db") as gate:
        wrongs: list[dict[str, Any]] = [{"keys": ["a"]}, {"keys": "ab"}, {"key": "a"}]
        for wrong in wrongs:
            with pytest.raises(TypeError, match="one key for each call"):
                await gate.submit_many(calls(1, 2), user=ANN, **wrong)


async def test_many_calls_are_two_statements_in_postgresql(postgres: str) -> None:
    async with a_gate(postgres, ProcrastinateJobs()) as gate:
        with statements(gate.store, "INSERT") as sent:
            await gate.submit_many(calls(*range(200)), user=ANN)
        assert len(sent) == 1
        assert len(await enqueued(gate)) == 200


# ---------------------------------------------------------------------- concurrent callers


async def test_concurrent_submits_share_transactions(postgres: str) -> None:
    async with a_gate(postgres) as gate:
        with statements(gate.store, "COMMIT") as sent:
            jobs = await asyncio.gather(*(gate.submit(call, user=ANN) for call in calls(*range(50))))
        assert len({job.id for job in jobs}) == 50
        assert 1 <= len(sent) <= 5


async def test_a_transaction_of_submits_has_a_limit_in_bytes(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit that no two jobs fit in, each has a transaction of its own; the test above is the control."""
    monkeypatch.setattr("callgate.providers.stores.group_commit.MAX_BYTES", 2)
    async with a_gate(postgres) as gate:
        with statements(gate.store, "COMMIT") as sent:
            jobs = await asyncio.gather(*(gate.submit(call, user=ANN) for call in calls(*range(12))))
        assert len({job.id for job in jobs}) == 12
        assert len(sent) == 12


class Picky(EmbeddedJobs):
    """An engine that refuses a queue."""

    async def submit(self, tenant: str, job: Any, within: Any) -> None:
        if job.queue == "closed":
            raise RegistrationError("the queue is closed")


@pytest.mark.parametrize("kind", ["sqlite-file", "postgresql"])
async def test_a_submit_that_is_refused_takes_no_concurrent_one_along(tmp_path: Path, kind: str) -> None:
    with place(kind, tmp_path) as (address, _):
        async with a_gate(address, Picky(0)) as gate:
            queues = ["a", "closed", "b", "c"]
            done = await asyncio.gather(
                *(
                    gate.submit(call, user=ANN, queue=queue)
                    for call, queue in zip(calls(0, 1, 2, 3), queues, strict=True)
                ),
                return_exceptions=True,
            )
            assert isinstance(done[1], RegistrationError)
            assert str(done[1]) == "the queue is closed"
            assert sorted(job.queue for _, job in await gate.store.jobs.list(None)) == ["a", "b", "c"]


async def test_on_sqlite_a_submit_in_an_open_transaction_is_refused_and_does_not_wait_for_itself(
    tmp_path: Path,
) -> None:
    async with a_gate(f"sqlite:///{tmp_path}/a.db") as gate, gate.store.transaction():
        with pytest.raises(StoreError, match="this task has an open transaction"):
            await gate.submit(calls(1)[0], user=ANN)


# ---------------------------------------------------------------------- the application's transaction


@pytest.mark.parametrize("engine", [lambda: EmbeddedJobs(0), ProcrastinateJobs])
@pytest.mark.parametrize("commits", [True, False])
async def test_a_job_of_the_applications_transaction_exists_if_it_commits(
    postgres: str, engine: Any, commits: bool
) -> None:
    """With the rows of the domain: both or neither."""
    own = create_async_engine(postgres.replace("postgresql:", "postgresql+psycopg:"))
    async with a_gate(postgres, engine()) as gate, AsyncSession(own) as session:
        await session.execute(text("CREATE TABLE orders (id integer)"))
        await session.commit()
        await session.execute(text("INSERT INTO orders VALUES (7)"))
        job = await gate.submit(calls(7)[0], user=ANN, within=session)
        with pytest.raises(NotPending):
            await job.status()
        await (session.commit() if commits else session.rollback())
        assert len((await session.execute(text("SELECT id FROM orders"))).all()) == commits
        found = [one.id for _, one in await gate.store.jobs.list(None)]
        assert found == [job.id] * commits
        if engine is ProcrastinateJobs:
            rows = await session.execute(text("SELECT args ->> 'id' FROM procrastinate_jobs"))
            assert [id for (id,) in rows] == found
        if commits:
            await run_all(gate)
            assert (await job).output == 7
    await own.dispose()


@pytest.mark.parametrize("kind", ["sqlite-file", "postgresql"])
async def test_a_sync_transaction_takes_a_job_which_the_engine_gets_with_the_next_maintenance(
    tmp_path: Path, kind: str
) -> None:
    with place(kind, tmp_path) as (address, _):
        own = create_engine(address.replace("postgresql:", "postgresql+psycopg:"))
        async with a_gate(address) as gate:
            with own.begin() as connection:
                jobs = await gate.submit_many(calls(1, 2), user=ANN, within=connection)
            unsent = await gate.store.jobs.unsent(gate.jobs.now() + 1.0, 0.0)
            assert {one.id for _, one in unsent} == {job.id for job in jobs}
            await run_all(gate)
            assert [(await job).output for job in jobs] == [1, 2]
        own.dispose()


async def test_procrastinate_gets_a_job_of_a_sync_transaction_from_its_maintenance(postgres: str) -> None:
    own, engine = create_engine(postgres.replace("postgresql:", "postgresql+psycopg:")), ProcrastinateJobs()
    async with a_gate(postgres, engine) as gate:
        with own.begin() as connection:
            job = await gate.submit(calls(3)[0], user=ANN, within=connection)
        assert await enqueued(gate) == []
        async with engine._opened(["default"]):  # as in a worker
            await gate.maintain()
        assert await enqueued(gate) == [job.id]
    own.dispose()


async def test_a_transaction_that_the_store_cannot_join_is_refused(tmp_path: Path) -> None:
    other = create_engine("sqlite://")
    async with a_gate("memory://") as gate:
        with other.connect() as connection, pytest.raises(RegistrationError, match="needs a store in the database"):
            await gate.submit(calls(1)[0], user=ANN, within=connection)
    async with a_gate(f"sqlite:///{tmp_path}/a.db") as gate:
        with pytest.raises(StoreError, match="takes a Session"):
            await gate.submit(calls(1)[0], user=ANN, within=object())


async def test_a_conflict_in_the_applications_transaction_is_raised_before_it_commits(postgres: str) -> None:
    own = create_async_engine(postgres.replace("postgresql:", "postgresql+psycopg:"))
    async with a_gate(postgres) as gate, own.connect() as connection:
        await gate.submit(calls(1)[0], user=ANN, key="a")
        with pytest.raises(Conflict):
            await gate.submit(calls(2)[0], user=ANN, key="a", within=connection)
    await own.dispose()


# ---------------------------------------------------------------------- attempts, and what is dead


async def test_each_tool_has_its_attempts_and_its_backoff_which_doubles() -> None:
    clock, by_tool = FakeClock(), {"busy": JobRetries(max_attempts=4, backoff=10.0, max_backoff=25.0)}
    async with a_gate("memory://", clock=clock, by_tool=by_tool) as gate:
        job = await gate.submit("busy", user=ANN)
        other = await gate.submit(calls(1)[0], user=ANN)
        assert {one.tool: one.max_attempts for _, one in await gate.store.jobs.list(None)} == {"send": 5, "busy": 4}
        pauses = []
        while (await run_one(gate, job.id)) is JobState.QUEUED:
            pause = (await job.status()).run_at.timestamp() - gate.jobs.now()
            pauses.append(round(pause, 3))
            clock.advance(pause)
        assert pauses == [10.0, 20.0, 25.0]
        assert (await job.status()).state is JobState.DEAD
        assert (await other.status()).state is JobState.QUEUED


async def run_one(gate: Gate, id: str) -> JobState | None:
    return await gate.jobs.run_invocation(id)


def test_attempts_out_of_range_are_refused() -> None:
    wrongs: list[dict[str, Any]] = [{"max_attempts": 0}, {"backoff": -1.0}, {"backoff": 9.0, "max_backoff": 1.0}]
    for wrong in wrongs:
        with pytest.raises(RegistrationError, match="JobRetries"):
            JobRetries(**wrong)


async def test_dead_letters_are_listed_and_replayed_one_or_all(address: str) -> None:
    async with a_gate(address, max_attempts=1, backoff=0.0) as gate:
        mine = [
            await gate.submit("busy", user=user, queue=queue) for user, queue in [(ANN, "a"), (BOB, "b"), (ANN, "b")]
        ]
        for job in mine:
            assert await run_one(gate, job.id) is JobState.DEAD
        letters = gate.jobs.dead_letters
        assert {one.id for one in await letters.list()} == {job.id for job in mine}
        assert {one.id for one in await letters.list(queue="b")} == {mine[1].id, mine[2].id}
        assert await letters.list(tool="send") == []
        assert await letters.replay(mine[0].id)
        assert not await letters.replay(mine[0].id)
        assert (await mine[0].status()).state is JobState.QUEUED
        assert await letters.replay_all(queue="b") == 2
        assert [(await job.status()).attempts for job in mine] == [0, 0, 0]


async def test_a_replayed_job_reaches_the_engine(postgres: str) -> None:
    async with a_gate(postgres, ProcrastinateJobs(), max_attempts=1) as gate:
        job = await gate.submit("busy", user=ANN)
        await enqueued(gate, "DELETE FROM procrastinate_jobs RETURNING queueing_lock")
        assert await run_one(gate, job.id) is JobState.DEAD
        assert await gate.jobs.dead_letters.replay(job.id)
        assert await enqueued(gate) == [job.id]
