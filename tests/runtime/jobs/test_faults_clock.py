"""A clock is set, forward or back, while jobs wait and run: no effect twice, none lost, all end (Issue 8, I3, I4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, JobHandle, Outcome, ToolCall
from callgate.errors import StoreError
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.jobs import FINAL_STATES
from callgate.stores import JobState
from callgate.testing import FakeClock
from tests.runtime.jobs import engine_app
from tests.runtime.jobs.engine_app import ANN, HELD, effects

HOUR = 3600.0
STEP = 300.0


@dataclass
class Two:
    """Two processes on one store: one that is running a call, and another."""

    first: Gate
    other: Gate
    clocks: tuple[FakeClock, FakeClock]

    def advance(self, seconds: float) -> None:
        """Time passes, for both."""
        for clock in self.clocks:
            clock.advance(seconds)

    async def until_over(self, jobs: list[JobHandle]) -> None:
        """Let time pass, less than twice the jump, and both work."""
        for _ in range(int(2 * HOUR / STEP)):
            for gate in (self.first, self.other):
                await gate.maintain()
                with suppress(StoreError):
                    while await gate.jobs.run_invocation() is not None:
                        pass
            if all([(await job.status()).state in FINAL_STATES for job in jobs]):
                return
            self.advance(STEP)
        raise AssertionError([await job.status() for job in jobs])


@pytest.fixture
async def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Two]:
    monkeypatch.setenv("CALLGATE_TEST_FOLDER", str(tmp_path))
    HELD.__init__()  # type: ignore[misc]
    clocks = FakeClock(), FakeClock()
    store = f"sqlite:///{tmp_path}/store.db"
    async with AsyncExitStack() as stack:
        gates = [
            await stack.enter_async_context(engine_app.gate(EmbeddedJobs(0), store=store, clock=clock))
            for clock in clocks
        ]
        await stack.enter_async_context(asyncio.timeout(300))
        yield Two(gates[0], gates[1], clocks)


async def submit(gate: Gate, name: str, arguments: dict[str, Any], **options: Any) -> JobHandle:
    return await gate.submit(ToolCall(id="c1", name=name, arguments=arguments), user=ANN, **options)


@asynccontextmanager
async def running(gate: Gate, job: JobHandle) -> AsyncGenerator[None]:
    """It runs there, and has had its effect."""
    task = asyncio.create_task(gate.jobs.run_invocation(job.id))
    await HELD.begun.wait()
    yield
    HELD.end.set()
    with suppress(StoreError):  # how it ended is not written down, where another has taken it
        await task


JUMPS = {
    "both go forward": (HOUR, HOUR),
    "both go back": (-HOUR, -HOUR),
    "one began ahead": (0, HOUR),
    "one began behind": (0, -HOUR),
}


@pytest.mark.parametrize("jump", JUMPS)
async def test_whenever_the_clock_is_set_jobs_end_and_no_effect_is_run_twice(two: Two, jump: str) -> None:
    """Jobs that wait, that run, that are for later, and that were put off. ``unknown`` where the lease seemed over."""
    waits = await submit(two.first, "pay", {"who": "waits"})
    later = await submit(two.first, "pay", {"who": "later"}, delay=STEP)
    put_off = await submit(two.first, "busy", {"n": 1, "who": "put off"})
    assert await two.first.jobs.run_invocation(put_off.id) is JobState.QUEUED
    held = await submit(two.first, "hold", {"who": "held"})
    async with running(two.first, held):
        for clock, seconds in zip(two.clocks, JUMPS[jump], strict=True):
            clock.advance(seconds)
        await two.other.jobs.run_invocation(held.id)  # it is tried, and may be given to it
        await two.other.jobs.run_invocation(waits.id)
    await two.until_over(jobs := [waits, later, put_off, held])
    assert [(await job.status()).state for job in jobs] == [JobState.DONE] * 4
    assert [(await job).output for job in (waits, later)] == ["paid waits", "paid later"]
    assert (await held).outcome in {Outcome.SUCCESS, Outcome.UNKNOWN}
    assert sorted(effects()) == ["held", "later", "put off", "put off", "waits"]


async def test_a_call_without_a_claim_is_run_twice_by_such_a_jump(two: Two) -> None:
    """The control: what the ledger prevents would happen."""
    held = await submit(two.first, "hold_unclaimed", {"who": "held"})
    async with running(two.first, held):
        two.advance(HOUR)
        assert await two.other.jobs.run_invocation(held.id) is JobState.DONE
    assert effects() == ["held", "held"]
