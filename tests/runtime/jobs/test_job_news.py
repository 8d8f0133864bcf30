"""While a job runs: how far it is, how it is cancelled from anywhere, and the trace that goes on in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callgate import Gate, JobHandle, Jobs, Outcome, ToolCall, ToolContext, User, tool
from callgate.hooks import Tracing
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.effects import EffectState
from callgate.stores import JobState
from callgate.testing import FakeClock
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place

ANN = User("ann", "acme")
KEY = "a key of the tests, long enough"


class Body:
    """A body that says that it has begun, and goes on when it is let."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.ran = 0

    def tools(self) -> list[Any]:
        async def work(n: int, ctx: ToolContext) -> int:
            """Work for some time."""
            self.ran += 1
            ctx.progress(n, 10, "on the way")
            self.begun.set()
            await self.go.wait()
            return n

        return [tool(name="look", effect="read")(work), tool(name="send", effect="irreversible")(work)]


@pytest.fixture(params=["memory", "sqlite-file", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with place(request.param, tmp_path) as (where, _):
        yield where


@asynccontextmanager
async def a_gate(body: Body, store: Any, *hooks: Any, **options: Any) -> AsyncGenerator[Gate]:
    options = {"job_options": Jobs(backoff=0.0), "signing_keys": [KEY], "durable": False, **options}
    async with (
        Gate(body.tools(), hooks, allow_unguarded=True, store=store, **gate_options(**options)) as gate,
        asyncio.timeout(300),
    ):
        yield gate


async def begun(body: Body, gate: Gate, name: str = "look", **options: Any) -> JobHandle:
    """A job whose body runs."""
    job = await gate.submit(ToolCall(id="c1", name=name, arguments={"n": 3}), user=ANN, **options)
    await body.begun.wait()
    return job


# ---------------------------------------------------------------------- progress


async def test_whoever_waits_sees_how_far_a_job_is(address: str) -> None:
    """Issue 8: progress is streamed, from whatever process the job runs in."""
    body = Body()
    async with a_gate(body, address) as gate:
        job = await begun(body, gate)
        seen: list[Any] = []
        async for status in job.events():
            if status.progress is not None and not body.go.is_set():
                seen.append((status.progress.progress, status.progress.total, status.progress.message))
                body.go.set()
        assert seen == [(3, 10, "on the way")]
        assert (await job).output == 3
        assert (await job.status()).state is JobState.DONE


# ---------------------------------------------------------------------- cancelling what runs


@pytest.mark.parametrize(
    ("name", "outcome", "settled"),
    [("look", Outcome.CANCELLED, []), ("send", Outcome.UNKNOWN, [EffectState.UNKNOWN])],
)
async def test_a_job_that_runs_is_cancelled_and_says_unknown_where_its_effect_may_have_taken_place(
    address: str, name: str, outcome: Outcome, settled: list[EffectState]
) -> None:
    """Issue 8, I4."""
    body = Body()
    async with a_gate(body, address) as gate:
        job = await begun(body, gate, name)
        assert await job.cancel()
        result = await job
        assert (result.outcome, result.call_id) == (outcome, "c1")
        status = await job.status()
        assert (status.state, status.reason) == (JobState.CANCELLED, "cancelled by its user")
        assert not await job.cancel(), "it is over"
        assert [effect.state for _, effect in await gate.store.effects.list(None)] == settled
        assert body.ran == 1, "it is not run again"
        body.go.set()
        assert (await (await gate.submit(ToolCall(id="c2", name="look", arguments={"n": 1}), user=ANN))).ok, (
            "its worker takes others"
        )


@pytest.mark.parametrize("kind", ["sqlite-file", "postgresql"])
async def test_a_job_that_runs_in_another_process_is_cancelled_from_here(kind: str, tmp_path: Path) -> None:
    """Issue 8. The processes are two gates with nothing in common but the store."""
    body = Body()
    with place(kind, tmp_path) as (where, _):
        async with a_gate(body, where) as worker, a_gate(Body(), where, jobs=EmbeddedJobs(0)) as other:
            job = await begun(body, worker)
            assert await other.job(job.id, user=ANN).cancel()
            assert (await other.job(job.id, user=ANN)).outcome is Outcome.CANCELLED


async def test_a_body_that_ends_all_the_same_has_its_result_kept() -> None:
    """What was done is told."""
    began = asyncio.Event()

    @tool(effect="read")
    async def stubborn(n: int) -> int:
        """Do not hear of a cancellation."""
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        return n

    async with Gate([stubborn], allow_unguarded=True) as gate:
        job = await gate.submit(ToolCall(id="c1", name="stubborn", arguments={"n": 3}), user=ANN)
        await began.wait()
        await job.cancel()
        assert (await job).output == 3


async def test_a_job_that_was_cancelled_while_its_worker_died_is_not_run_again() -> None:
    """Issue 8: whoever takes it next ends it."""
    body, clock = Body(), FakeClock()
    async with a_gate(body, None, jobs=EmbeddedJobs(0), clock=clock) as gate:
        job = await gate.submit(ToolCall(id="c1", name="look", arguments={"n": 3}), user=ANN)
        assert await gate.store.jobs.take("a worker that dies", clock.time(), clock.time() + 1.0) is not None
        assert await job.cancel()
        assert (await job.status()).state is JobState.RUNNING
        clock.advance(2.0)
        assert await gate.jobs.run_invocation(job.id) is JobState.CANCELLED
        assert (await job).outcome is Outcome.CANCELLED
    assert body.ran == 0


async def test_a_worker_that_ends_hands_a_job_back_and_does_not_cancel_it(tmp_path: Path) -> None:
    """The control of the tests above: a cancellation of the worker is none of the job."""
    body, store = Body(), f"sqlite:///{tmp_path}/jobs.db"
    async with a_gate(body, store, jobs=EmbeddedJobs(1, grace=0.0)) as gate:
        job = await begun(body, gate)
    body.go.set()
    async with a_gate(body, store) as gate:
        assert (await gate.job(job.id, user=ANN)).output == 3
    assert body.ran == 2


async def test_nobody_looks_after_jobs_while_none_runs() -> None:
    body = Body()
    async with a_gate(body, None) as gate:
        job = await begun(body, gate)
        looks = [task for task in asyncio.all_tasks() if task.get_name() == "callgate jobs poll"]
        assert len(looks) == 1
        body.go.set()
        await job
        await asyncio.wait(looks)
        assert gate.jobs._polling is not None
        assert gate.jobs._polling.done()


# ---------------------------------------------------------------------- what is over


async def test_what_is_over_is_forgotten_after_a_time_and_what_is_not_stays() -> None:
    body, clock = Body(), FakeClock()
    body.go.set()
    options = Jobs(keep=100.0)
    async with a_gate(body, None, jobs=EmbeddedJobs(0), clock=clock, job_options=options) as gate:
        over, waits = [await gate.submit(ToolCall(id="c1", name="look", arguments={"n": n}), user=ANN) for n in (1, 2)]
        await gate.jobs.run_invocation(over.id)
        clock.advance(99.0)
        await gate.maintain()
        assert (await over.status()).state is JobState.DONE
        clock.advance(4000.0)
        await gate.maintain()
        assert await gate.store.jobs.get("acme", over.id) is None
        assert (await waits.status()).state is JobState.QUEUED


# ---------------------------------------------------------------------- traces


async def test_the_trace_of_whoever_submits_goes_on_in_the_worker(address: str) -> None:
    """Issue 8: the span of the call is a child of the one that was current when it was submitted."""
    provider, spans = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracer = provider.get_tracer("tests")
    body = Body()
    body.go.set()
    async with a_gate(body, address, Tracing(provider), jobs=EmbeddedJobs(0)) as gate:
        with tracer.start_as_current_span("request"):
            job = await gate.submit(ToolCall(id="c1", name="look", arguments={"n": 3}), user=ANN)
        alone = await gate.submit(ToolCall(id="c1", name="look", arguments={"n": 3}), user=ANN)
        for one in (job, alone):
            await gate.jobs.run_invocation(one.id)
            assert (await one).ok
    request, within, without = sorted(spans.get_finished_spans(), key=lambda span: span.start_time or 0)
    assert within.parent is not None
    assert within.context is not None
    assert request.context is not None
    assert (within.parent.span_id, within.context.trace_id) == (request.context.span_id, request.context.trace_id)
    assert without.parent is None
