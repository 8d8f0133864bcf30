"""Calls that are submitted: written down, run by the embedded engine, each with one outcome."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from callgate import (
    DefinitionError,
    Gate,
    GateClosed,
    Hook,
    InvokeContext,
    Jobs,
    Options,
    Outcome,
    RegistrationError,
    Stage,
    ToolCall,
    ToolContext,
    ToolError,
    UnknownTool,
    User,
    tool,
)
from callgate.errors import NotPending, StoreError
from callgate.providers.stores.base import Store
from callgate.runtime.jobs.embedded import EmbeddedJobs
from callgate.stores import JobState
from callgate.testing import FakeClock, FaultyStore
from tests.harness.gate_options import gate_options
from tests.hooks.making import Watch
from tests.providers.stores.backends import place

ANN, BOB, EVE = User("ann", "acme"), User("bob", "acme"), User("ann", "other")
KEY = "a key of the tests, long enough"
EFFECTS: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran_yet() -> None:
    EFFECTS.clear()


@pytest.fixture(params=["memory", "sqlite-file", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with place(request.param, tmp_path) as (where, _):
        yield where


@tool(effect="irreversible")
async def send(to: str) -> str:
    """Send something."""
    EFFECTS.append(to)
    return f"sent to {to}"


@tool(effect="read")
async def look(n: int) -> int:
    """Look something up."""
    return n


@tool(effect="read")
async def busy(n: int, ctx: ToolContext) -> int:
    """Be busy the first *n* times."""
    EFFECTS.append("busy")
    if EFFECTS.count("busy") <= n:
        ctx.retry_after(5, "busy")
    return EFFECTS.count("busy")


@tool(effect="read")
async def fails(n: int) -> int:
    """Say why not."""
    raise ToolError("not that one")


@asynccontextmanager
async def a_gate(store: Any, *hooks: Hook, **options: Any) -> AsyncGenerator[Gate]:
    options = {"job_options": Jobs(backoff=0.0), "signing_keys": [KEY], "durable": False, **options}
    async with Gate(
        [send, look, busy, fails], hooks, allow_unguarded=True, store=store, **gate_options(**options)
    ) as gate:
        yield gate


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="c1", name=name, arguments=arguments)


# ---------------------------------------------------------------------- one job


async def test_a_submitted_call_runs_and_whoever_awaits_it_has_its_result(address: str) -> None:
    """Design 8: the result is that of ``Gate.call``."""
    async with a_gate(address) as gate:
        job = await gate.submit(call("send", to="you"), user=ANN)
        result = await job
        assert (result.outcome, result.output, result.call_id) == (Outcome.SUCCESS, "sent to you", "c1")
        status = await job.status()
        assert (status.state, status.attempts, status.reason) == (JobState.DONE, 1, None)
    assert EFFECTS == ["you"]


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [(call("look", n="x"), Outcome.INVALID), (call("fails", n=1), Outcome.ERROR), (call("look", n=1), Outcome.DENIED)],
)
async def test_a_call_that_fails_or_is_denied_is_done_with_that_outcome(asked: ToolCall, outcome: Outcome) -> None:
    """Contract 76: a failure is a result."""

    class Nobody(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None:
            if outcome is Outcome.DENIED:
                ctx.abort("no")

    async with a_gate(None, Nobody()) as gate:
        job = await gate.submit(asked, user=ANN)
        assert (await job).outcome is outcome
        assert (await job.status()).state is JobState.DONE


async def test_a_tool_that_yields_parts_or_sends_them_runs_as_a_job() -> None:
    """Contract C12: the parts are dropped, and the result has the whole."""

    @tool(effect="read", name="parts")
    async def parts(n: int) -> AsyncGenerator[int]:
        """Yield parts."""
        for part in range(n):
            yield part

    @tool(effect="read", name="sends")
    async def sends(n: int, ctx: ToolContext) -> int:
        """Send a part."""
        await ctx.send(n)
        return n

    async with Gate([parts, sends], allow_unguarded=True) as gate:
        assert (await (await gate.submit("parts", {"n": 3}, user=ANN))).output == [0, 1, 2]
        assert (await (await gate.submit("sends", {"n": 3}, user=ANN))).output == 3


async def test_submitting_again_under_one_key_gives_the_same_job_and_one_effect(address: str) -> None:
    """I4: other users, tenants and tools have their own."""
    async with a_gate(address) as gate:
        jobs = [await gate.submit(call("send", to="you"), user=ANN, key="k") for _ in range(3)]
        assert len({job.id for job in jobs}) == 1
        assert {(await job).output for job in jobs} == {"sent to you"}
        others = [await gate.submit(call("send", to="you"), user=user, key="k") for user in (BOB, EVE)]
        assert len({job.id for job in (*jobs, *others)}) == 3
        for job in others:
            await job
    assert EFFECTS == ["you"] * 3


async def test_two_submits_of_the_same_call_without_a_key_are_two_calls(address: str) -> None:
    """Design 7: two intended identical calls are two calls, also with ids that a wire made up."""
    made_up = ToolCall(id="call_1", name="send", arguments={"to": "you"}, synthetic_id=True)
    async with a_gate(address) as gate:
        for asked in (call("send", to="you"), made_up):
            first, second = [await gate.submit(asked, user=ANN, request_id=None) for _ in range(2)]
            assert ((await first).call_id, (await second).call_id) == (asked.id, asked.id)
    assert EFFECTS == ["you"] * 4


async def test_not_now_is_tried_again_after_the_time_that_was_asked_for(address: str) -> None:
    """Contract 88."""
    async with a_gate(address) as gate:
        job = await gate.submit(call("busy", n=2), user=ANN)
        assert (await job).output == 3
        assert (await job.status()).attempts == 3


async def test_what_is_put_off_too_often_is_dead_and_says_why(address: str) -> None:
    async with a_gate(address, job_options=Jobs(backoff=0.0, max_attempts=3)) as gate:
        job = await gate.submit(call("busy", n=99), user=ANN)
        assert (await job).outcome is Outcome.RETRY_LATER
        status = await job.status()
        assert (status.state, status.attempts) == (JobState.DEAD, 3)
        assert status.reason == "retry_later: retry_later, 3 times"


async def test_a_job_for_later_waits_and_can_be_cancelled_until_it_runs(address: str) -> None:
    async with a_gate(address) as gate:
        job = await gate.submit(call("send", to="you"), user=ANN, delay=3600.0)
        assert (await job.status()).state is JobState.QUEUED
        assert await job.cancel()
        result = await job
        assert (result.outcome, result.error.code if result.error else None) == (Outcome.CANCELLED, "cancelled")
        done = await gate.submit(call("look", n=1), user=ANN)
        await done
        assert not await done.cancel()
    assert EFFECTS == []


async def test_a_deadline_counts_the_time_in_the_queue() -> None:
    """Design 5: one deadline."""
    clock = FakeClock()
    async with a_gate(None, jobs=EmbeddedJobs(0), clock=clock) as gate:
        job = await gate.submit(call("look", n=1), user=ANN, deadline=10.0)
        clock.advance(60.0)
        assert await gate.jobs.run_invocation(job.id) is JobState.DONE
        result = await job
        assert result.error is not None
        assert result.error.code == "deadline_exceeded"


async def test_nobody_else_sees_or_cancels_a_job(address: str) -> None:
    """I8: an unknown job and somebody else's are the same."""
    async with a_gate(address) as gate:
        job = await gate.submit(call("look", n=1), user=ANN, delay=3600.0)
        for other in (gate.job(job.id, user=BOB), gate.job(job.id, user=EVE), gate.job("none", user=ANN)):
            for asked in (other.status(), other.cancel(), other.result()):
                with pytest.raises(NotPending):
                    await asked
        assert (await gate.job(job.id, user=ANN).status()).state is JobState.QUEUED


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(("options", "code"), [({"deadline": 10.0}, "deadline_exceeded"), ({}, "no_user")])
async def test_what_must_not_run_any_more_is_refused_by_the_gate_and_recorded(options: Any, code: str) -> None:
    """Issue 8: no way leads past the hooks that record, in a worker neither."""
    clock, watch = FakeClock(), Watch()
    refresh = None if options else lambda user: None
    async with a_gate(None, watch.hook, jobs=EmbeddedJobs(0), clock=clock, refresh_user=refresh) as gate:
        job = await gate.submit(call("send", to="you"), user=ANN, request_id="r", **options)
        clock.advance(60.0)
        assert await gate.jobs.run_invocation(job.id) is JobState.DONE
        result = await job
    assert result.error is not None
    assert (result.error.code, result.error.correlation_id, watch.ctx.user) == (code, "r", ANN)
    assert {Stage.ON_ERROR, Stage.WILL_AUDIT, Stage.DID_AUDIT, Stage.ON_METRICS} <= set(watch.stages)
    assert Stage.WILL_AUTHORIZE not in watch.stages
    assert EFFECTS == []


async def test_what_could_not_run_is_refused_before_it_is_written_down(tmp_path: Path) -> None:
    async with a_gate(None) as gate:
        with pytest.raises(UnknownTool):
            await gate.submit(call("no_such"), user=ANN)
        with pytest.raises(DefinitionError):
            await gate.submit(call("look", n=object()), user=ANN)
    with pytest.raises(GateClosed):
        await gate.submit(call("look", n=1), user=ANN)
    async with a_gate(f"sqlite:///{tmp_path}/store.db", signing_keys=[]) as gate:
        with pytest.raises(RegistrationError, match="signing_keys"):
            await gate.submit(call("look", n=1), user=ANN)


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        *[("delay", value, "seconds, a number at least 0") for value in (-1, math.nan, math.inf, 1e11, "5", True)],
        ("delay", timedelta(seconds=5), "seconds, so write 5"),
        ("at", datetime.max.replace(tzinfo=UTC), "more than 300 years ahead"),
        *[("priority", value, "give an integer") for value in (1.5, True, "1", None, 2**31, -(2**31) - 1)],
    ],
)
async def test_a_time_or_a_priority_that_no_store_keeps_is_refused(option: str, value: Any, says: str) -> None:
    """A float was rounded by PostgreSQL, and its job then seemed to be changed: it never ran."""
    async with a_gate(None) as gate:
        with pytest.raises(TypeError, match=says):
            await gate.submit(call("look", n=1), user=ANN, **{option: value})
        with pytest.raises(TypeError, match=says):
            await gate.submit_many([call("look", n=1)], user=ANN, **{option: value})


# ---------------------------------------------------------------------- crashes


async def test_a_job_whose_worker_died_is_delivered_again_and_its_effect_is_not_run_twice(tmp_path: Path) -> None:
    """I3, I4: what began and did not say how it ended is ``unknown``; what had ended is a receipt."""
    clock, store = FakeClock(), f"sqlite:///{tmp_path}/store.db"
    async with a_gate(store, jobs=EmbeddedJobs(0), clock=clock) as gate:
        done = await gate.submit(call("send", to="done"), user=ANN)
        taken = await gate.store.jobs.take("dead worker", clock.time(), clock.time() + 30.0, id=done.id)
        assert taken is not None
        assert await gate.jobs.run_invocation(done.id) is None
        clock.advance(31.0)
        assert await gate.jobs.run_invocation(done.id) is JobState.DONE
        assert (await done).output == "sent to done"
    assert EFFECTS == ["done"]


async def test_a_job_that_no_worker_survives_is_isolated(tmp_path: Path) -> None:
    """Poison: after *most* attempts it is dead, and the others go on."""
    clock, store = FakeClock(), f"sqlite:///{tmp_path}/store.db"
    async with a_gate(store, jobs=EmbeddedJobs(0), clock=clock, job_options=Jobs(max_attempts=2)) as gate:
        poison = await gate.submit(call("look", n=1), user=ANN)
        other = await gate.submit(call("look", n=2), user=ANN)
        for _ in range(2):
            assert await gate.store.jobs.take("dies", clock.time(), clock.time() + 30.0, id=poison.id)
            clock.advance(31.0)
        while await gate.jobs.run_invocation() is not None:
            pass
        assert (await poison.status()).state is JobState.DEAD
        assert "each worker died" in ((await poison.status()).reason or "")
        assert (await poison).error is not None
        assert (await other).output == 2


async def test_a_record_that_was_changed_in_the_store_never_runs(tmp_path: Path) -> None:
    """T7, B8: whoever can write to the store cannot make a worker run anything."""
    store = f"sqlite:///{tmp_path}/store.db"
    async with a_gate(store, jobs=EmbeddedJobs(0)) as gate:
        job = await gate.submit(call("send", to="you"), user=ANN)
        async with gate.store._database.writing() as connection:  # type: ignore[attr-defined]
            changed = b"REPLACE(CAST(body AS TEXT), 'you', 'eve')".decode()
            await connection.exec_driver_sql(f"UPDATE callgate_jobs SET body = CAST({changed} AS BLOB)")
        assert await gate.jobs.run_invocation(job.id) is JobState.DEAD
        with pytest.raises(StoreError, match="was changed"):
            await job.status()
        ((_, row),) = await gate.store.jobs.list(None)
        assert "signing key" in (row.reason or "")
    assert EFFECTS == []


async def test_a_gate_that_opens_goes_on_with_what_a_crash_left(tmp_path: Path) -> None:
    """Design 8: the embedded default."""
    store = f"sqlite:///{tmp_path}/store.db"
    async with a_gate(store, jobs=EmbeddedJobs(0)) as gate:
        left = [await gate.submit(call("send", to=str(n)), user=ANN) for n in range(5)]
    async with a_gate(store) as gate:
        for job in left:
            assert (await gate.job(job.id, user=ANN)).ok
    assert sorted(EFFECTS) == list("01234")


async def test_a_closing_gate_hands_back_what_does_not_end_in_time(tmp_path: Path) -> None:
    """The attempt does not count."""
    begun, store = asyncio.Event(), f"sqlite:///{tmp_path}/store.db"

    @tool(effect="read")
    async def slow(n: int) -> int:
        """Take long, the first time."""
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return n

    async def opened() -> Gate:
        return Gate([slow], store=store, signing_keys=[KEY], jobs=EmbeddedJobs(2, grace=0.0))

    async with await opened() as gate:
        job = await gate.submit(call("slow", n=7), user=ANN)
        await begun.wait()
    async with await opened() as gate:
        again = gate.job(job.id, user=ANN)
        assert (await again).output == 7
        assert (await again.status()).attempts == 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", range(2, 10))  # the first is that it is opened
async def test_whichever_operation_of_the_store_fails_there_is_one_outcome_and_one_effect(nth: int, when: Any) -> None:
    """I20: a job is not lost, and its effect not run twice, when the store fails, or says that it did."""
    clock = FakeClock()
    inner = Gate([look], options=Options(clock=clock)).store
    faulty: Store = FaultyStore(inner, nth, when=when)
    async with a_gate(faulty, jobs=EmbeddedJobs(0), clock=clock) as gate:
        for _ in range(8):
            with contextlib.suppress(Exception):  # that is the fault; whoever asked asks again
                job = await gate.submit(call("send", to="you"), user=ANN, key="k")
                await gate.jobs.run_invocation(job.id)
            clock.advance(120.0)
            await gate.maintain()
        again = await gate.submit(call("send", to="you"), user=ANN, key="k")
        assert (await again.status()).state is JobState.DONE
    assert EFFECTS in ([], ["you"])
