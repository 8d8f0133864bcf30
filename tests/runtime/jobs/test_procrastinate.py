"""Procrastinate as the engine, on a real PostgreSQL: nothing is enqueued without its record, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from callgate import Gate, JobHandle, Outcome, RegistrationError, ToolCall
from callgate.errors import StoreError
from callgate.runtime.hosts.celery import CeleryJobs
from callgate.runtime.hosts.procrastinate import ProcrastinateJobs
from callgate.runtime.hosts.procrastinate.rows import SLACK
from callgate.runtime.options.job_engine import Tally
from callgate.stores import JobState
from callgate.testing import FakeClock
from tests.providers.stores.backends import schema
from tests.runtime.jobs import engine_app
from tests.runtime.jobs.engine_app import ANN, LEASE, effects, until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def address() -> Generator[str]:
    """A schema that the tests share; each has a queue of its own."""
    with schema() as where:
        yield where


@pytest.fixture(autouse=True)
def _settings(address: str, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLGATE_TEST_QUEUES", f"{queue} {queue}-2")
    monkeypatch.setenv("CALLGATE_TEST_STORE", address)
    monkeypatch.setenv("CALLGATE_TEST_FOLDER", str(tmp_path))


@pytest.fixture
def queue() -> str:
    return f"q-{uuid.uuid4().hex[:12]}"


@asynccontextmanager
async def a_gate(jobs: ProcrastinateJobs | None = None, **options: Any) -> AsyncGenerator[Gate]:
    async with engine_app.gate(jobs or engine_app.procrastinate(), **options) as gate, asyncio.timeout(300):
        yield gate


@asynccontextmanager
async def working(gate: Gate, *queues: str, concurrency: int = 4, grace: float = 20.0) -> AsyncGenerator[list[Any]]:
    """A worker in this process; what it did, and how many jobs it handed back, once it has ended."""
    stop, tally = asyncio.Event(), Tally()
    work = asyncio.create_task(gate.jobs.backend.work(concurrency, queues, stop, grace, tally))
    told: list[Any] = [tally]
    backend: Any = gate.jobs.backend

    async def works() -> bool:
        return backend._is_working or work.done()

    try:
        await until(works)
        yield told
    finally:
        stop.set()
        told.append(await work)


async def submit(gate: Gate, name: str, queue: str, arguments: dict[str, Any], **options: Any) -> JobHandle:
    return await gate.submit(ToolCall(id="c1", name=name, arguments=arguments), user=ANN, queue=queue, **options)


async def sql(gate: Gate, text: str, *values: Any) -> Any:
    """The rows that a statement gives, on a connection of the store."""
    async with gate.store.transaction() as within:
        done = await within.driver().execute(text, values)  # type: ignore[attr-defined]
        return await done.fetchall() if done.description else []


async def has_begun() -> bool:
    return bool(effects())


async def rows(gate: Gate, queue: str) -> Any:
    """What the engine has in a queue: ids and states."""
    found = "SELECT args ->> 'id', status::text FROM procrastinate_jobs WHERE queue_name = %s ORDER BY id"
    return await sql(gate, found, queue)


# ---------------------------------------------------------------------- one job


async def test_what_is_submitted_runs_in_a_worker_and_leaves_nothing_in_the_engine(queue: str) -> None:
    """Design 8: one row waits for each job, with its id and nothing else."""
    async with a_gate() as gate:
        jobs = [await submit(gate, "pay", queue, {"who": str(n)}) for n in range(8)]
        (args,) = {tuple(found) for (found,) in await sql(gate, "SELECT args FROM procrastinate_jobs")}
        assert args == ("id",)
        assert await rows(gate, queue) == [(job.id, "todo") for job in jobs]
        async with working(gate, queue) as told:
            assert [(await job).output for job in jobs] == [f"paid {n}" for n in range(8)]
        tally, handed_back = told
        assert (tally.done, tally.dead, tally.put_back, tally.failures, handed_back) == (8, 0, 0, 0, 0)
        assert await rows(gate, queue) == []
        assert await sql(gate, "SELECT count(*) FROM procrastinate_workers") == [(0,)]
    assert sorted(effects()) == [str(n) for n in range(8)]


async def test_not_now_is_delivered_again_after_the_time_that_was_asked_for(queue: str) -> None:
    """Contract 88."""
    async with a_gate() as gate, working(gate, queue) as told:
        job = await submit(gate, "busy", queue, {"n": 2, "who": "you"})
        assert (await job).output == 3
        assert (await job.status()).attempts == 3
    assert told[0].put_back == 2


async def test_a_job_for_later_is_not_delivered_before(queue: str) -> None:
    async with a_gate() as gate, working(gate, queue):
        job = await submit(gate, "look", queue, {"n": 7}, delay=0.4)
        ((at,),) = await sql(
            gate, "SELECT extract(epoch FROM scheduled_at)::float8 FROM procrastinate_jobs WHERE queue_name = %s", queue
        )
        assert abs(at - (await job.status()).run_at.timestamp() - SLACK) < 1e-4
        assert (await job).output == 7
        status = await job.status()
        assert (status.attempts, status.ended_at is not None and status.ended_at >= status.run_at) == (1, True)


async def test_urgent_jobs_come_first_and_other_queues_are_left_alone(queue: str) -> None:
    async with a_gate() as gate:
        asked = [("low", -1), ("usual", 0), ("high", 5), ("usual too", 0)]
        jobs = [await submit(gate, "pay", queue, {"who": who}, priority=priority) for who, priority in asked]
        other = await submit(gate, "pay", f"{queue}-2", {"who": "other"}, priority=9)
        async with working(gate, queue, concurrency=1):
            for job in jobs:
                await job
        assert effects() == ["high", "usual", "usual too", "low"]
        assert await rows(gate, f"{queue}-2") == [(other.id, "todo")]
        assert await other.cancel()


async def test_a_cancelled_job_is_taken_out_of_the_engine(queue: str) -> None:
    async with a_gate() as gate:
        job = await submit(gate, "pay", queue, {"who": "you"})
        assert await job.cancel()
        assert await rows(gate, queue) == []
        assert (await job).outcome is Outcome.CANCELLED


async def test_a_job_takes_the_place_of_a_cancelled_one_whose_row_is_left(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I20: the connection broke after the cancellation, and the row waits for its time."""
    async with a_gate() as gate:
        job = await submit(gate, "pay", queue, {"who": "them"}, key=queue, delay=3_600.0)
        with monkeypatch.context() as broken:

            async def fails(*_: Any) -> None:
                raise StoreError("the connection broke")

            broken.setattr(gate.jobs.backend.rows, "cancel", fails)  # type: ignore[attr-defined]
            assert await job.cancel()
        assert await rows(gate, queue) == [(job.id, "todo")]
        again = await submit(gate, "pay", queue, {"who": "you"}, key=queue)
        assert await rows(gate, queue) == [(job.id, "todo")]
        async with working(gate, queue):
            assert (await again).output == "paid you"
    assert effects() == ["you"]


async def test_one_key_is_one_job_and_one_row(queue: str) -> None:
    """I4."""
    async with a_gate() as gate:
        jobs = [await submit(gate, "pay", queue, {"who": "you"}, key=queue) for _ in range(3)]
        assert await rows(gate, queue) == [(jobs[0].id, "todo")]
        async with working(gate, queue):
            assert {(await job).output for job in jobs} == {"paid you"}
        again = await submit(gate, "pay", queue, {"who": "you"}, key=queue)
        assert ((await again).output, await rows(gate, queue)) == ("paid you", [])
    assert effects() == ["you"]


async def test_what_runs_when_the_worker_is_to_end_is_handed_back(queue: str) -> None:
    """The attempt does not count, and the next worker has it."""
    async with a_gate() as gate:
        async with working(gate, queue, grace=0.0) as told:
            job = await submit(gate, "unclaimed", queue, {"who": "you"})
            await until(has_begun)
        assert told[1] == 1
        status = await job.status()
        assert (status.state, status.attempts) == (JobState.QUEUED, 0)
        assert await rows(gate, queue) == [(job.id, "todo")]
        async with working(gate, queue):
            assert (await job).output == "paid you"


# ---------------------------------------------------------------------- one transaction


@pytest.mark.parametrize("sabotaged", [False, True])
async def test_a_record_that_is_rolled_back_leaves_no_row(
    queue: str, monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    """I20. The control enqueues in a transaction of its own, and leaves one for a job that is not there."""
    async with a_gate() as gate:
        backend: Any = gate.jobs.backend
        enqueue = backend.submit

        async def fails(tenant: str, job: Any, within: Any) -> None:
            if sabotaged:
                await backend._enqueue(backend._delivery(job, 0.0))
            else:
                await enqueue(tenant, job, within)
            raise StoreError("the last statement failed")

        monkeypatch.setattr(backend, "submit", fails)
        with pytest.raises(StoreError, match="the last statement failed"):
            await submit(gate, "pay", queue, {"who": "you"}, key=queue)
        monkeypatch.undo()
        left = await rows(gate, queue)
        assert len(left) == sabotaged
        assert not [found for _, found in await gate.store.jobs.list("acme") if found.queue == queue]
        for id, _ in left:
            await sql(gate, "DELETE FROM procrastinate_jobs WHERE args ->> 'id' = %s", id)


# ---------------------------------------------------------------------- what is lost


async def test_a_job_that_the_engine_has_lost_is_enqueued_again(queue: str) -> None:
    """I20: once nobody has taken it for its time; one that waits in the engine is not enqueued twice."""
    clock = FakeClock()
    async with a_gate(clock=clock) as gate:
        waits = await submit(gate, "look", f"{queue}-2", {"n": 1})
        lost = await submit(gate, "look", queue, {"n": 2})
        async with working(gate, queue):
            await sql(gate, "DELETE FROM procrastinate_jobs WHERE queue_name = %s", queue)
            await gate.maintain()
            assert await rows(gate, queue) == []
            clock.advance(LEASE + 1.0)
            await gate.maintain()
            assert (await lost).output == 2
        assert await rows(gate, f"{queue}-2") == [(waits.id, "todo")]
        assert await waits.cancel()


@pytest.mark.parametrize("leased", [False, True])
async def test_what_a_worker_that_died_had_is_delivered_again(queue: str, leased: bool) -> None:
    """I3. Also where it took the job, and its lease is not over yet; its row does not stay."""
    async with a_gate() as gate:
        job = await submit(gate, "look", queue, {"n": 3})
        ((dead,),) = await sql(gate, "SELECT * FROM procrastinate_register_worker_v1()")
        await sql(gate, "SELECT id FROM procrastinate_fetch_job_v2(ARRAY[%s]::varchar[], %s)", queue, dead)
        silent = "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour' WHERE id = %s"
        await sql(gate, silent, dead)
        if leased:
            now = gate.jobs.now()
            assert await gate.store.jobs.take("dead", now, now + LEASE / 2, id=job.id)
        assert await rows(gate, queue) == [(job.id, "doing")]
        async with working(gate, queue):
            assert (await job).output == 3
        assert (await job.status()).attempts == 1 + leased
        assert await rows(gate, queue) == []


async def test_a_job_whose_end_could_not_be_written_is_delivered_again(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4, I20: its effect is in the ledger, and is not run twice. Also while the worker is busy with others."""
    async with a_gate() as gate:
        end, failures = gate.store.jobs.end, [StoreError("the disk is full")]

        async def fails(*facts: Any, **more: Any) -> bool:
            if failures:
                raise failures.pop()
            return await end(*facts, **more)

        monkeypatch.setattr(gate.store.jobs, "end", fails)
        async with working(gate, queue, grace=0.0) as told:
            await submit(gate, "unclaimed", queue, {"who": "busy"})
            await until(has_begun)
            job = await submit(gate, "pay", queue, {"who": "you"})
            assert (await job).output == "paid you"
        assert (await job.status()).attempts == 2
        assert (told[0].failures, told[1]) == (1, 1)
    assert effects() == ["busy", "you"]


async def test_a_worker_whose_connections_are_cut_goes_on(queue: str, address: str) -> None:
    """I20: recovered without a restart. Whoever submits meanwhile is told."""
    async with a_gate(store=f"{address}&application_name={queue}") as gate, a_gate() as other, working(gate, queue):
        first = await submit(other, "look", queue, {"n": 1})
        assert (await other.job(first.id, user=ANN)).output == 1
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
        assert await sql(other, cut, queue)
        jobs = [await submit(other, "look", queue, {"n": n}) for n in range(5)]
        assert [(await job).output for job in jobs] == list(range(5))


async def test_what_a_killed_worker_was_running_is_taken_by_another(queue: str) -> None:
    """I3, I4. Killed between the effect and its record; the control, the same tool without a claim, has its effect twice."""

    async def both_have_begun() -> bool:
        return len(effects()) == 2

    async def nothing_left() -> bool:
        return not await rows(gate, queue)

    async with a_gate() as gate:
        jobs = [await submit(gate, name, queue, {"who": name}) for name in ("claimed", "unclaimed")]
        command = (
            "-m",
            "callgate",
            "worker",
            "--app",
            "tests.runtime.jobs.engine_app:with_procrastinate",
            "--queues",
            queue,
        )
        worker = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=DEVNULL
        )
        try:
            await until(both_have_begun)
        finally:
            worker.kill()
            await worker.wait()
        assert await rows(gate, queue) == [(job.id, "doing") for job in jobs]
        async with working(gate, queue):
            assert [(await job).outcome for job in jobs] == [Outcome.UNKNOWN, Outcome.SUCCESS]
            await until(nothing_left)
        assert [(await job.status()).attempts for job in jobs] == [2, 2]
    assert sorted(effects()) == ["claimed", "unclaimed", "unclaimed"]


# ---------------------------------------------------------------------- what is refused


async def test_it_is_of_one_gate_whose_store_is_a_postgresql(tmp_path: Path) -> None:
    """Fail closed: elsewhere there is no transaction that both could be in."""
    for store in (None, f"sqlite:///{tmp_path}/store.db"):
        with pytest.raises(RegistrationError, match="PostgreSQL"):
            engine_app.gate(ProcrastinateJobs(), store=store)
    jobs = ProcrastinateJobs()
    engine_app.gate(jobs)
    with pytest.raises(RegistrationError, match="another gate"):
        engine_app.gate(jobs)
    refused: list[dict[str, Any]] = [
        {"poll": 0.0},
        {"resend": 0.0},
        {"poll": float("nan")},
        {"queues": ()},
        {"queues": "a"},
    ]
    for wrong in refused:
        with pytest.raises(RegistrationError):
            ProcrastinateJobs(**wrong)


def test_a_queue_that_the_engine_could_not_name_is_refused() -> None:
    for namespace, wrong in [("", "q" * 41), ("", "ü" * 21), ("n" * 24, "default")]:
        with pytest.raises(RegistrationError, match="40 bytes"):
            engine_app.gate(ProcrastinateJobs(queues=[wrong]), namespace=namespace)
    engine_app.gate(ProcrastinateJobs(queues=["ü" * 20]))
    engine_app.gate(ProcrastinateJobs(), namespace="n" * 23)


def test_a_queue_with_the_name_of_another_namespaces_is_refused(tmp_path: Path) -> None:
    """``eu.default`` of ``billing`` and ``default`` of ``billing.eu`` were one queue, and took each other's messages."""
    store = f"sqlite:///{tmp_path}/jobs.db"
    engines: list[tuple[Any, str | None]] = [(ProcrastinateJobs, None), (partial(CeleryJobs, "memory://"), store)]
    for engine, place in engines:
        given: dict[str, Any] = {} if place is None else {"store": place}
        with pytest.raises(RegistrationError, match=r"the queue 'eu\.default' has a dot"):
            engine_app.gate(engine(queues=["eu.default"]), namespace="billing", **given)
        engine_app.gate(engine(queues=["default"]), namespace="billing.eu", **given)
        engine_app.gate(engine(queues=["eu.default"]), **given)


async def test_a_job_of_a_queue_that_no_worker_serves_is_refused() -> None:
    """And nothing is written down."""
    async with a_gate() as gate:
        with pytest.raises(RegistrationError, match="no worker serves the queue 'other'"):
            await submit(gate, "look", "other", {"n": 1})
        assert "other" not in {found.queue for _, found in await gate.store.jobs.list("acme")}


async def test_a_worker_does_not_take_the_jobs_of_another_application(queue: str) -> None:
    """It would fail them. Other queues may have them."""
    theirs = "INSERT INTO procrastinate_jobs (queue_name, task_name) VALUES (%s, 'theirs')"
    with schema() as own:
        async with a_gate(store=own) as gate:
            await sql(gate, theirs, "default")
            async with working(gate):
                assert (await (await submit(gate, "look", queue, {"n": 1}))).output == 1
            await sql(gate, theirs, queue)
            with pytest.raises(RegistrationError, match=f"queues {queue} "):
                async with working(gate):
                    pass


async def test_processes_that_open_at_once_make_the_tables_once_and_other_versions_are_refused() -> None:
    async def opened(store: str) -> None:
        async with a_gate(store=store):
            pass

    with schema() as own:
        await asyncio.gather(*(opened(own) for _ in range(3)))
        async with a_gate(store=own) as gate:
            await sql(gate, "DROP FUNCTION procrastinate_fetch_job_v2")
            with pytest.raises(RegistrationError, match="migrations"):
                await gate.jobs.backend.open()


# ---------------------------------------------------------------------- namespaces

OTHERS = ["", "billing", "shipping"]


@pytest.mark.parametrize("mine", OTHERS)
async def test_a_service_never_takes_nor_retries_the_jobs_of_others(mine: str, queue: str) -> None:
    """Issue 34. Its worker names no queue, and the rows of a dead worker wait in each service."""
    async with AsyncExitStack() as closing:
        gates = {name: await closing.enter_async_context(a_gate(namespace=name)) for name in OTHERS}
        ((dead,),) = await sql(gates[""], "SELECT * FROM procrastinate_register_worker_v1()")
        stalled = {name: await submit(gate, "look", queue, {"n": 1}) for name, gate in gates.items()}
        for _ in OTHERS:
            taken = "SELECT id FROM procrastinate_fetch_job_v2(ARRAY[%s, %s, %s]::varchar[], %s)"
            await sql(gates[""], taken, *(in_tables(name, queue) for name in OTHERS), dead)
        await sql(
            gates[""],
            "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour' WHERE id = %s",
            dead,
        )
        waiting = {name: await submit(gate, "look", queue, {"n": 2}) for name, gate in gates.items()}
        async with working(gates[mine]):
            assert [(await one[mine]).output for one in (stalled, waiting)] == [1, 2]
        for name, gate in gates.items():
            left = [(stalled[name].id, "doing"), (waiting[name].id, "todo")]
            assert await rows(gate, in_tables(name, queue)) == ([] if name == mine else left)


def in_tables(namespace: str, queue: str) -> str:
    return f"callgate.{namespace}.{queue}" if namespace else queue


async def test_a_row_that_the_version_before_put_into_the_queue_of_all_is_moved(queue: str) -> None:
    """No worker of the service takes from there."""
    clock = FakeClock()
    async with a_gate(clock=clock, namespace="billing") as gate:
        job = await submit(gate, "look", queue, {"n": 2})
        before = "UPDATE procrastinate_jobs SET queue_name = %s, task_name = 'callgate.run_invocation' WHERE queueing_lock = %s"
        await sql(gate, before, queue, job.id)
        async with working(gate):
            clock.advance(LEASE + 1.0)
            await gate.maintain()
            assert (await job).output == 2
        assert await rows(gate, queue) == []
