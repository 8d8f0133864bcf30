"""A job whose worker ended during the call, and that no worker runs again: its result says what may have taken place."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, JobHandle, Jobs, Outcome, ToolCall, User, tool
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.effects import EffectState
from callgate.stores import JobState
from callgate.testing import FakeClock
from tests.providers.stores.backends import place
from tests.runtime.jobs.test_job_news import Body, a_gate, begun

ANN = User("ann", "acme")
ENDS = [("look", Outcome.CANCELLED), ("send", Outcome.UNKNOWN)]
"""The tools of ``Body``, and the result of their jobs that were cut short and then cancelled."""


@pytest.fixture(params=["memory", "sqlite-file", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Any]:
    with place(request.param, tmp_path) as (where, _):
        yield where


async def died(gate: Gate, clock: FakeClock, name: str, **options: Any) -> JobHandle:
    """A job whose worker has died during the call."""
    job = await gate.submit(ToolCall(id="c1", name=name, arguments={"n": 3}), user=ANN, **options)
    assert await gate.store.jobs.take("a worker that dies", clock.time(), clock.time() + 1.0) is not None
    return job


@pytest.mark.parametrize(("name", "outcome"), ENDS)
async def test_a_job_that_is_cancelled_after_its_worker_ended_says_unknown_if_it_may_have_an_effect(
    address: Any, name: str, outcome: Outcome
) -> None:
    """A deployment ends the worker in the middle of the call, and the user cancels before another one takes the job."""
    body = Body()
    async with a_gate(body, address, jobs=EmbeddedJobs(1, grace=0.0)) as gate:
        job = await begun(body, gate, name)
        await gate.jobs.backend.close()
        status = await job.status()
        assert (status.state, status.attempts) == (JobState.QUEUED, 0)
        assert await job.cancel()
        assert ((await job).outcome, (await job).call_id) == (outcome, "c1")
        told = await gate.outcome(job.id, user=ANN)
        assert told.result is not None
        assert told.result.outcome is outcome
    assert body.ran == 1


@pytest.mark.parametrize(("name", "outcome"), ENDS)
async def test_a_job_that_is_cancelled_while_its_worker_is_dead_says_unknown_if_it_may_have_an_effect(
    address: Any, name: str, outcome: Outcome
) -> None:
    body, clock = Body(), FakeClock()
    async with a_gate(body, address, jobs=EmbeddedJobs(0), clock=clock) as gate:
        job = await died(gate, clock, name)
        assert await job.cancel()
        clock.advance(2.0)
        assert await gate.jobs.run_invocation(job.id) is JobState.CANCELLED
        assert (await job).outcome is outcome
    assert body.ran == 0


@pytest.mark.parametrize(("name", "outcome"), [("look", Outcome.ERROR), ("send", Outcome.UNKNOWN)])
async def test_a_job_that_is_abandoned_because_its_workers_died_says_unknown_if_it_may_have_an_effect(
    address: Any, name: str, outcome: Outcome
) -> None:
    body, clock = Body(), FakeClock()
    once = Jobs(max_attempts=1)
    async with a_gate(body, address, jobs=EmbeddedJobs(0), clock=clock, job_options=once) as gate:
        job = await died(gate, clock, name)
        clock.advance(2.0)
        assert await gate.jobs.run_invocation(job.id) is JobState.DEAD
        assert (await job).outcome is outcome


async def test_a_worker_with_another_definition_does_not_hide_that_the_call_may_have_taken_effect(
    address: Any,
) -> None:
    """The deployment has changed the tool: the new workers leave the job to others."""
    body = Body()
    async with a_gate(body, address, jobs=EmbeddedJobs(1, grace=0.0)) as gate:
        job = await begun(body, gate, "send")
        await gate.jobs.backend.close()
        gate.add(tool(name="send", effect="irreversible")(_changed), replace=True)
        assert await gate.jobs.run_invocation(job.id) is JobState.QUEUED
        await gate.jobs.runner._misfits.leave_out()
        assert await job.cancel()
        assert (await job).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(("name", "outcome"), [("look", Outcome.SUCCESS), ("send", Outcome.UNKNOWN)])
async def test_a_job_that_another_worker_goes_on_with_has_the_result_of_that_attempt(
    address: Any, name: str, outcome: Outcome
) -> None:
    """The control: a read runs again, the ledger answers for an effect, and the reason of the first attempt goes."""
    body = Body()
    async with a_gate(body, address, jobs=EmbeddedJobs(1, grace=0.0)) as gate:
        job = await begun(body, gate, name)
        await gate.jobs.backend.close()
        body.go.set()
        assert await gate.jobs.run_invocation(job.id) is JobState.DONE
        assert ((await job).outcome, (await job.status()).reason) == (outcome, None)


async def test_a_call_in_a_worker_that_ended_is_not_told_as_late_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller waits with ``run_on="worker"``, and no other worker comes before the deadline."""
    monkeypatch.setattr("callgate.runtime.jobs.in_worker.SLACK", 0.0)
    body = Body()
    async with a_gate(body, None, jobs=EmbeddedJobs(1, grace=0.0)) as gate:
        calls = [ToolCall(id="c1", name="send", arguments={"n": 3})]

        waiting = asyncio.create_task(gate.call_many(calls, user=ANN, run_on="worker", deadline=0.2))
        await body.begun.wait()
        await gate.jobs.backend.close()
        [result] = await waiting
        assert result.outcome is Outcome.UNKNOWN
        assert [effect.state for _, effect in await gate.store.effects.list(None)] == [EffectState.UNKNOWN]


def _changed(n: int, to: str) -> int:
    """Work in another way."""
    return len(to) + n
