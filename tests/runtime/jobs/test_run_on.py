"""Several calls, some of which run in workers: to whoever asked, a model too, all look alike."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callgate import Approve, DefinitionError, Effects, Gate, Outcome, ToolCall, ToolResult, User, converse, tool
from callgate.errors import StoreError
from callgate.jobs import EmbeddedJobs
from callgate.runtime.jobs.records import JobRequest
from callgate.stores import JobState
from tests.harness.gate_options import gate_options
from tests.runtime.conversation.conversing import FakeModel, asks, check_paired, says, told
from tests.runtime.jobs.engine_app import until

ANN, BOB = User("ann", "acme"), User("bob", "acme")


@tool(effect="read", run_on="worker")
async def heavy(n: int) -> int:
    """Count for long."""
    return n


@tool(effect="read")
async def light(n: int) -> int:
    """Count at once."""
    return n


@tool(effect="irreversible", run_on="worker")
async def send(n: int) -> int:
    """Send something."""
    return n


def gate(**options: Any) -> Gate:
    return Gate([heavy, light], allow_unguarded=True, **gate_options(**options))


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(id=f"c{number}", name=name, arguments={"n": number}) for number, name in enumerate(names)]


async def submitted(gate: Gate) -> set[str]:
    """The ids of the calls that were submitted as jobs."""
    return {JobRequest.load(job.body).call_id for _, job in await gate.store.jobs.list(None)}


def last_is_light(call: ToolCall) -> Any:
    return "worker" if call.name == "light" else "caller"


@pytest.mark.parametrize(
    ("run_on", "expected"),
    [
        (None, {"c0", "c2"}),
        ("worker", {"c0", "c1", "c2", "c3"}),
        ("caller", set[str]()),
        (last_is_light, {"c1", "c3"}),
    ],
)
async def test_calls_run_where_their_tool_or_the_rule_says_with_the_same_results(
    run_on: Any, expected: set[str]
) -> None:
    """Issue 8."""
    async with gate() as g:
        results = await g.call_many(calls("heavy", "light", "heavy", "light"), user=ANN, run_on=run_on)
        assert [(one.call_id, one.outcome, one.output) for one in results] == [
            (f"c{n}", Outcome.SUCCESS, n) for n in range(4)
        ]
        assert await submitted(g) == expected


@pytest.mark.parametrize("run_on", ["worker", "caller"])
async def test_one_key_with_other_arguments_is_a_conflict_wherever_it_runs(run_on: Any) -> None:
    """Issue 16 B5: the result is the same."""
    async with Gate([send, light], allow_unguarded=True, effects=Effects(durable=False)) as g:
        options: Any = {"user": ANN, "run_on": run_on, "idempotency_key": "k"}
        asked = [ToolCall(id="c", name="send", arguments={"n": number}) for number in range(3)]
        (first,) = await g.call_many(asked[:1], **options)
        results = await g.call_many(asked, **options)
        assert [one.outcome for one in (first, *results)] == [Outcome.SUCCESS] * 2 + [Outcome.CONFLICT] * 2
        assert {one.error.code for one in results if one.error} == {"conflict"}


async def test_a_model_cannot_tell_which_of_its_calls_ran_in_a_worker() -> None:
    """Issue 8: the same messages, whatever ran where."""
    histories: list[Any] = []
    for run_on in (None, "caller"):
        bad = [ToolCall(id="x", name="heavy", arguments={"n": "many"}), ToolCall(id="y", name="nothing", arguments={})]
        client = FakeModel(asks(*calls("heavy", "light"), *bad), says("done"))
        async with gate() as g:
            done = await converse(client, g, "count", user=ANN, run_on=run_on)
            assert await submitted(g) == ({"c0"} if run_on is None else set()), "what is invalid is refused here"
        check_paired(done.messages)
        answers = told(done.messages)
        for answer in answers.values():
            if isinstance(answer, dict):
                answer.get("error", {}).pop("correlation_id", None)
        histories.append((done.ended, done.text, answers, [one.result.outcome for one in done.calls]))
    assert histories[0] == histories[1]


async def test_one_call_alone_runs_here_and_a_job_does_not_become_another_job() -> None:
    """``gate.call`` is what workers do."""
    async with gate() as g:
        assert (await g.call(*calls("heavy"), user=ANN)).output == 0
        assert await submitted(g) == set()


async def test_whoever_is_cancelled_while_it_waits_for_a_worker_cancels_the_job() -> None:
    """Issue 8; design 6."""
    async with gate(jobs=EmbeddedJobs(0)) as g:
        asked = asyncio.ensure_future(g.call_many(calls("heavy"), user=ANN))

        async def is_there() -> bool:
            return bool(await submitted(g))

        await until(is_there)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert [job.state for _, job in await g.store.jobs.list(None)] == [JobState.CANCELLED]


@pytest.mark.parametrize("step", range(12))
async def test_a_caller_that_is_cancelled_while_its_job_is_stored_leaves_no_job_behind(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing runs after a cancellation. The caller is cancelled at each step of the loop, before and after the commit."""
    kept = {"store": f"sqlite:///{tmp_path}/jobs.db", "signing_keys": ["a key of the tests, long enough"]}
    async with gate(jobs=EmbeddedJobs(0), **kept) as g:
        begun, add = asyncio.Event(), g.jobs.writer.add

        async def added(*given: Any, **more: Any) -> Any:
            begun.set()
            return await add(*given, **more)

        monkeypatch.setattr(g.jobs.writer, "add", added)
        asked = asyncio.ensure_future(g.call_many(calls("heavy"), user=ANN))
        await begun.wait()
        for _ in range(step):
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await g.jobs.writer.close()  # what was on its way is stored now
        assert {job.state for _, job in await g.store.jobs.list(None)} <= {JobState.CANCELLED}


@pytest.mark.parametrize(
    "bad", [{"idempotency_key": ""}, {"idempotency_key": 5}, {"session_id": "a\0"}, {"request_id": 5}]
)
async def test_a_wrong_id_is_a_result_also_where_a_worker_would_run_the_call(bad: Any) -> None:
    """As in this process. One raised an error, which took the other results along; another one was ``unknown``."""
    async with gate() as g:
        results = await g.call_many(calls("heavy", "light"), user=ANN, **bad)
        assert [one.outcome for one in results] == [Outcome.INVALID] * 2
        assert not await submitted(g)


def ask(g: Gate, **options: Any) -> asyncio.Future[list[ToolResult]]:
    """Call a tool in a worker, under a key."""
    return asyncio.ensure_future(g.call_many(calls("heavy"), user=ANN, idempotency_key="k", **options))


async def states(g: Gate) -> list[JobState]:
    return [job.state for _, job in await g.store.jobs.list(None)]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_caller_that_gives_up_cancels_no_job_for_which_another_one_waits(
    how: str, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two callers with one key share a job: the other one got ``cancelled``. The last one cancels it."""
    monkeypatch.setattr("callgate.runtime.jobs.in_worker.SLACK", 0.0)
    async with gate(jobs=EmbeddedJobs(0)) as g:
        limits = {"deadline": 0.05} if how == "deadline" else {}
        one = ask(g, **limits) if first else ask(g)
        await asyncio.sleep(0.02)
        other = ask(g) if first else ask(g, **limits)
        given_up, waits = (one, other) if first else (other, one)
        await asyncio.sleep(0.02)
        if how == "cancel":
            given_up.cancel()
        await asyncio.wait([given_up])
        if how == "deadline":
            assert given_up.result()[0].outcome is Outcome.ERROR
        assert await states(g) == [JobState.QUEUED]
        if first and how == "cancel":
            waits.cancel()
            await asyncio.wait([waits])
            assert await states(g) == [JobState.CANCELLED]
        elif how == "cancel":  # a deadline of the first one is also that of the job
            assert await g.jobs.run_invocation() is JobState.DONE
            assert (await waits)[0].output == 0
        else:
            waits.cancel()
            await asyncio.wait([waits])


@pytest.mark.parametrize("when", ["before", "after", "awaited"])
async def test_a_caller_that_gives_up_cancels_no_job_that_was_submitted_for_later(when: str) -> None:
    """``submit`` promises that a worker runs the job, whoever joins it under its key, and before or after."""
    async with gate(jobs=EmbeddedJobs(0)) as g:
        job = await g.submit(calls("heavy")[0], user=ANN, key="k") if when == "before" else None
        one = ask(g)
        await asyncio.sleep(0.05)
        if when == "after":
            job = await g.submit(calls("heavy")[0], user=ANN, key="k")
        if when == "awaited":
            ((_, kept),) = await g.store.jobs.list(None)
            job = g.job(kept.id, user=ANN)
        assert job is not None
        waits = asyncio.ensure_future(job.result()) if when == "awaited" else None
        await asyncio.sleep(0.05)
        one.cancel()
        await asyncio.wait([one])
        assert await states(g) == [JobState.QUEUED]
        if waits is not None:
            waits.cancel()


@pytest.mark.parametrize("step", range(12))
async def test_a_caller_that_is_cancelled_while_it_joins_a_job_leaves_it_to_the_first_one(step: int) -> None:
    """At each step of the loop."""
    async with gate(jobs=EmbeddedJobs(0)) as g:
        one = ask(g)
        await asyncio.sleep(0.05)
        other = ask(g)
        for _ in range(step):
            await asyncio.sleep(0)
        other.cancel()
        await asyncio.wait([other])
        assert await states(g) == [JobState.QUEUED]
        one.cancel()
        await asyncio.wait([one])
        assert await states(g) == [JobState.CANCELLED]


async def test_a_deadline_ends_the_waiting_for_a_worker_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 5: one deadline, waiting included."""
    monkeypatch.setattr("callgate.runtime.jobs.in_worker.SLACK", 0.0)
    async with gate(jobs=EmbeddedJobs(0)) as g:
        (result,) = await g.call_many(calls("heavy"), user=ANN, deadline=0.01)
        assert result.error is not None
        assert (result.outcome, result.error.code) == (Outcome.ERROR, "deadline_exceeded")
        assert [job.state for _, job in await g.store.jobs.list(None)] == [JobState.CANCELLED]


@pytest.mark.parametrize("error", [StoreError, OSError, KeyError, TimeoutError])
@pytest.mark.parametrize("fails", ["before it is kept", "after it is kept", "while it is awaited"])
async def test_what_may_have_run_while_the_store_failed_is_unknown_unless_its_tool_reads(
    fails: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4, contract 76: a store may have kept what it could not say; to call that not run would have it run twice.

    A store of another package may raise any error.
    """
    async with Gate([heavy, send], allow_unguarded=True, effects=Effects(durable=False)) as g, asyncio.timeout(300):
        submit = g.submit

        async def cut(*args: Any, **options: Any) -> Any:
            job = None if fails == "before it is kept" else await submit(*args, **options)
            if fails != "while it is awaited":
                raise error("the line is cut")
            assert job is not None
            monkeypatch.setattr(job, "_job", cut_off)
            return job

        async def cut_off() -> Any:
            raise error("the line is cut")

        monkeypatch.setattr(g, "submit", cut)
        reads, acts = await g.call_many(calls("heavy", "send"), user=ANN)
        assert (reads.outcome, acts.outcome) == (Outcome.ERROR, Outcome.UNKNOWN)
        assert [one.error and one.error.code for one in (reads, acts)] == ["not_recorded", "outcome_unknown"]


async def test_a_store_that_fails_is_a_result_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 76."""
    async with gate() as g:

        def fails() -> None:
            raise StoreError("the disk is full")

        monkeypatch.setattr(g.store, "transaction", fails)
        here, there = await g.call_many(calls("light", "heavy"), user=ANN)
        assert here.ok
        assert there.error is not None
        assert (there.outcome, there.error.code) == (Outcome.ERROR, "not_recorded")
        assert "disk" not in repr(there)


@tool(effect="irreversible", run_on="worker", requires_approval=True)
async def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_call_that_waits_in_a_worker_is_approved_by_the_handle_that_its_caller_gets(
    kind: str, tmp_path: Path
) -> None:
    """Issue 8, I5: and the store has no handle that somebody who reads it could use."""
    store = f"sqlite:///{tmp_path}/store.db" if kind == "sqlite" else None
    options: dict[str, Any] = {"durable": False, "signing_keys": ["a key of the tests, long enough"]}
    async with Gate([pay], allow_unguarded=True, store=store, **gate_options(**options)) as g, asyncio.timeout(300):
        (result,) = await g.call_many([ToolCall(id="c1", name="pay", arguments={"n": 5})], user=ANN)
        assert (result.outcome, result.pending.kind) == (Outcome.SUSPENDED, "approval")
        shown = await g.waits.pending(BOB)
        assert [one.handle for one in shown] == [result.pending.handle]
        ((_, job),) = await g.store.jobs.list(None)
        assert result.pending.handle.encode() not in (job.result or b"")
        assert (await g.resume(result.pending.handle, Approve(), approver=BOB)).output == "paid 5"


async def test_a_place_that_is_none_is_refused() -> None:
    with pytest.raises(DefinitionError, match="run_on"):
        tool(name="fly", run_on="moon")(lambda: None)  # type: ignore[call-overload]
    async with gate() as g:

        def rule(_: ToolCall) -> Any:
            return "moon"

        with pytest.raises(ValueError, match="moon"):
            await g.call_many(calls("light"), user=ANN, run_on=rule)


def test_hosts_that_are_not_async_submit_and_wait() -> None:
    """Design 4."""
    with gate().sync() as g:
        job = g.submit(calls("heavy")[0], user=ANN)
        result: ToolResult = job.result(timeout=300)
        assert result.output == 0
        same = g.job(job.id, user=ANN)
        assert same.status().state is JobState.DONE
        assert not same.cancel()
        later = g.submit(ToolCall(id="c9", name="heavy", arguments={"n": 9}), user=ANN, delay=3600.0)
        with pytest.raises(TimeoutError):
            later.result(timeout=0.01)
        assert later.cancel()
        assert later.result().outcome is Outcome.CANCELLED
        assert [one.ok for one in g.call_many(calls("heavy", "light"), user=ANN, run_on="worker")] == [True, True]
