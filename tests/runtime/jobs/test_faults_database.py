"""PostgreSQL goes away, or is slow: an error that says so or another try, nothing lost, nothing done twice (Issue 8, I20)."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest

from callgate import Effects, Gate, JobHandle, Jobs, Outcome, ToolCall
from callgate.errors import NotPending, StoreError
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.jobs import Job
from callgate.runtime.hosts.procrastinate import ProcrastinateJobs
from callgate.runtime.options.job_engine import Tally
from callgate.stores import JobState
from callgate.testing import FakeClock
from tests.harness.tcp_way import Way, way_to
from tests.providers.stores.backends import schema
from tests.runtime.jobs import engine_app
from tests.runtime.jobs.engine_app import ANN, HELD, LEASE, effects, until

Submit = Callable[[Gate, str], Awaitable[JobHandle]]
When = Literal["before", "after"]
WHENS: tuple[When, ...] = ("before", "after")
ENGINES: dict[str, Callable[[], Any]] = {
    "embedded": lambda: EmbeddedJobs(0),
    "procrastinate": lambda: ProcrastinateJobs(poll=0.1),
}


@pytest.fixture(scope="module")
def straight() -> Generator[str]:
    """The database, and no way in between."""
    with schema() as address:
        yield address


@pytest.fixture(scope="module")
def the_way(straight: str) -> Generator[tuple[Way, str]]:
    with way_to(straight) as found:
        yield found


@pytest.fixture
def way(the_way: tuple[Way, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Way]:
    monkeypatch.setenv("CALLGATE_TEST_STORE", the_way[1])
    monkeypatch.setenv("CALLGATE_TEST_FOLDER", str(tmp_path))
    HELD.__init__()  # type: ignore[misc]
    yield the_way[0]
    the_way[0].delay = 0.0
    the_way[0].let_through()


@asynccontextmanager
async def a_gate(jobs: Any, **options: Any) -> AsyncGenerator[Gate]:
    async with engine_app.gate(jobs, **options) as gate, asyncio.timeout(300):
        yield gate


async def submit(gate: Gate, who: str, name: str = "pay") -> JobHandle:
    return await gate.submit(ToolCall(id="c1", name=name, arguments={"who": who}), user=ANN)


async def submitted_at_last(gate: Gate, who: str) -> JobHandle:
    """Submitted as soon as that can be done: connections that are dead are noticed by those who use them."""
    while True:
        with suppress(StoreError):
            return await submit(gate, who)


@asynccontextmanager
async def working(gate: Gate) -> AsyncGenerator[Tally]:
    """A worker in this process."""
    stop, tally = asyncio.Event(), Tally()
    work = asyncio.create_task(gate.jobs.backend.work(4, (), stop, 20.0, tally))
    try:
        yield tally
    finally:
        stop.set()
        await work


async def none_is_left(gate: Gate) -> bool:
    counted = await gate.store.jobs.count()
    return not counted[JobState.QUEUED] + counted[JobState.RUNNING]


async def nothing_runs(gate: Gate) -> bool:
    return not gate.jobs.runner.running


# ---------------------------------------------------------------------- while calls are submitted


async def submitted_on_a_bad_way(
    gate: Gate, way: Way, when: When, submit: Submit
) -> tuple[dict[str, JobHandle], dict[str, str]]:
    """For each n, cut at the n-th piece: whose call was submitted, and whose was refused; to an n that is never reached."""
    taken: dict[str, JobHandle] = {}
    refused: dict[str, str] = {}
    for n in range(1, 100):
        who = f"{n}-{uuid.uuid4().hex[:8]}"
        way.cut_at(n, when)
        try:
            taken[who] = await submit(gate, who)
        except StoreError as error:
            refused[who] = str(error)
        whole = not way.is_cut
        way.let_through()
        if whole and who in taken:
            return taken, refused
    raise AssertionError("the way is never whole")


async def lost_of(gate: Gate, taken: dict[str, JobHandle]) -> set[str]:
    """Whose call was submitted, and is not known."""
    lost: set[str] = set()
    for who, job in taken.items():
        try:
            await gate.job(job.id, user=ANN).status()
        except NotPending:
            lost.add(who)
    return lost


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("engine", ENGINES)
async def test_whichever_packet_of_a_submit_is_lost_it_says_so_or_the_call_is_run_once(
    engine: str, when: When, way: Way
) -> None:
    """The message holds nothing of the call."""
    async with a_gate(ENGINES[engine]()) as gate:
        taken, refused = await submitted_on_a_bad_way(gate, way, when, submit)
        assert len(refused) > 3
        assert all(said and who not in said for who, said in refused.items())
        assert await lost_of(gate, taken) == set()
        async with working(gate):
            assert [(await job).output for job in taken.values()] == [f"paid {who}" for who in taken]
            await until(lambda: none_is_left(gate))
    done = effects()
    assert [done.count(who) for who in taken] == [1] * len(taken)
    assert max(done.count(who) for who in refused) <= 1  # it may be in all the same: the answer was lost


async def test_a_submit_that_keeps_an_error_to_itself_is_found_out(way: Way) -> None:
    """The control."""

    async def keeps_quiet(gate: Gate, who: str) -> JobHandle:
        with suppress(StoreError):
            return await submit(gate, who)
        return gate.job(who, user=ANN)

    async with a_gate(EmbeddedJobs(0)) as gate:
        taken, refused = await submitted_on_a_bad_way(gate, way, "before", keeps_quiet)
        assert refused == {}
        assert len(await lost_of(gate, taken)) == len(taken) - 1
        async with working(gate):
            await until(lambda: none_is_left(gate))


# ---------------------------------------------------------------------- while they run


@pytest.mark.parametrize("when", WHENS)
async def test_whichever_packet_of_a_run_is_lost_it_has_one_outcome_and_one_effect(when: When, way: Way) -> None:
    """The lease of a run that broke off is over by the clock."""
    clock = FakeClock(time.time())
    outcomes: set[Outcome] = set()
    async with a_gate(EmbeddedJobs(0), clock=clock) as gate:
        for n in count(1):
            job = await submit(gate, who := f"{when}-{n}")
            way.cut_at(n, when)
            with suppress(StoreError):
                await gate.jobs.run_invocation(job.id)
            whole = not way.is_cut
            way.let_through()
            while (await job.status()).state is not JobState.DONE:
                clock.advance(LEASE)
                await gate.maintain()
                await gate.jobs.run_invocation(job.id)
            outcome = (await job).outcome
            outcomes.add(outcome)
            assert (effects().count(who), outcome) in {(1, Outcome.SUCCESS), (1, Outcome.UNKNOWN), (0, Outcome.UNKNOWN)}
            if whole:
                assert n > 4
                break
    assert Outcome.SUCCESS in outcomes


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_worker_goes_on_when_the_database_is_back_and_meanwhile_who_submits_is_told(
    engine: str, way: Way, straight: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut while a call runs: how it ended cannot be written down for some time. The worker is not begun again."""
    async with a_gate(ENGINES[engine]()) as gate, working(gate) as tally:
        waits = [await submit(gate, f"before-{n}") for n in range(3)]
        held = await submit(gate, "held", "hold")
        await HELD.begun.wait()
        way.cut()
        for _ in range(3):
            with pytest.raises(StoreError):
                await submit(gate, "refused")
        HELD.end.set()
        await until(lambda: nothing_runs(gate))
        way.let_through()
        waits.append(await submitted_at_last(gate, "after"))
        assert [(await job).output for job in waits] == [
            f"paid {who}" for who in ("before-0", "before-1", "before-2", "after")
        ]
        assert ((await held).output, (await held.status()).attempts) == ("held", 2)
    assert tally.failures > 0
    assert "job.store_failed" in caplog.text
    done = effects()
    assert sorted(done) == ["after", "before-0", "before-1", "before-2", "held"]


async def test_a_worker_goes_on_when_its_connections_say_nothing_any_more(way: Way, straight: str) -> None:
    """None is lost, as far as it can see, and new ones are as good as ever: a proxy that lost the server does that."""
    async with a_gate(EmbeddedJobs(0), store=straight) as near, a_gate(EmbeddedJobs(0)) as gate, working(gate) as tally:
        assert (await (await submit(near, "before"))).ok
        way.silence()
        asked = way.pieces
        await until(lambda: has_asked(way, asked + 4))  # each of the four that take jobs
        way.forsake()
        assert (await (await submit(near, "after"))).ok
    assert tally.failures > 0
    assert effects() == ["before", "after"]


async def has_asked(way: Way, pieces: int) -> bool:
    return way.pieces >= pieces


# ---------------------------------------------------------------------- a slow database

SLOW: dict[str, Any] = {"job_options": Jobs(lease=6.0), "effects": Effects(lease=6.0)}


@pytest.mark.parametrize("engine", ENGINES)
async def test_on_a_slow_database_leases_are_renewed_and_nothing_is_run_twice(
    engine: str, way: Way, straight: str
) -> None:
    """For longer than a lease lasts. Somebody near the database would take the job as soon as that is over."""
    async with a_gate(EmbeddedJobs(0), store=straight) as near, a_gate(ENGINES[engine](), **SLOW) as gate:
        way.delay = 0.02
        async with working(gate):
            held = await submit(gate, "held", "hold")
            others = [await submit(gate, f"other-{n}") for n in range(5)]
            await HELD.begun.wait()
            over = await leased_until(near, held) + gate.jobs.options.valid

            async def long_renewed() -> bool:
                assert await taken_by_another(near, held) is None
                return await leased_until(near, held) > over

            await until(long_renewed)
            HELD.end.set()
            assert ((await held).output, (await held.status()).attempts) == ("held", 1)
            assert {(await job).outcome for job in others} == {Outcome.SUCCESS}
    assert sorted(effects()) == ["held", *(f"other-{n}" for n in range(5))]


async def test_a_worker_that_does_not_renew_its_leases_is_found_out(
    way: Way, straight: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""

    async def renews_nothing() -> None:
        pass

    async with a_gate(EmbeddedJobs(0), store=straight) as near, a_gate(EmbeddedJobs(0)) as gate:
        monkeypatch.setattr(gate.jobs.runner, "renew", renews_nothing)
        async with working(gate):
            held = await submit(gate, "held", "hold")
            await HELD.begun.wait()
            while (taken := await taken_by_another(near, held)) is None:  # noqa: ASYNC110  (the lease is over in its time)
                await asyncio.sleep(0.02)
            HELD.end.set()
            end = near.store.jobs.end
            assert await end("acme", held.id, taken.token, JobState.DEAD, at=0.0, result=None, reason=None)


async def leased_until(gate: Gate, job: JobHandle) -> float:
    found = await gate.store.jobs.get("acme", job.id)
    assert found is not None
    assert found.lease_until is not None
    return found.lease_until


async def taken_by_another(gate: Gate, job: JobHandle) -> Job | None:
    """The job, if somebody else is given it."""
    now = gate.jobs.now()
    taken = await gate.store.jobs.take("another", now, now + 60.0, id=job.id)
    return None if taken is None else taken[1]
