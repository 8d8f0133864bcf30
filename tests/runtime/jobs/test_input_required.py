"""A submitted call that is suspended: one handle, from the first run to the outcome, whoever decides and wherever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import Approval, Approve, Deny, Edit, Effects, Gate, Jobs, Outcome, Respond, ToolContext, User, tool
from callgate.errors import Conflict, NotPending, StoreError
from callgate.jobs import CallState, EmbeddedJobs
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.effects.ledger import Ledger
from callgate.runtime.jobs.resuming import SuspendedJobs
from callgate.stores import JobState, Store
from callgate.testing import FakeClock
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place
from tests.runtime.effects.scene_desk import ANN, BOB, CID, DAN, KEY, LEAD, RAE, Desk, call, code, states

TWO = Approval(roles={"lead"}, quorum=2)
STORES = ["memory", "sqlite-file", "postgresql"]


@pytest.fixture(params=STORES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Store | str]:
    """A store for several gates."""
    if request.param == "memory":
        yield MemoryStore(FakeClock().time)
        return
    with place(request.param, tmp_path) as (where, _):
        yield where


class Processes:
    """The gates of several processes on one store and one clock: no job runs, unless a test runs one."""

    def __init__(self, store: Store | str, tools: list[Any], **options: Any) -> None:
        self.clock = FakeClock()
        self._store, self._tools, self._options = store, tools, options

    @asynccontextmanager
    async def gate(self, **more: Any) -> AsyncGenerator[Gate]:
        options: dict[str, Any] = {"jobs": EmbeddedJobs(0), "job_options": Jobs(backoff=0.0), "clock": self.clock}
        options |= {"effects": Effects(durable=False, wait=0.0), "signing_keys": [KEY], **self._options, **more}
        tools = options.pop("tools", self._tools)
        async with Gate(tools, store=self._store, allow_unguarded=True, **gate_options(**options)) as gate:
            yield gate


def approved_desk(store: Store | str, rule: Approval = LEAD, **options: Any) -> tuple[Desk, Processes]:
    """A desk whose payments need approval, and its processes."""
    desk = Desk()
    return desk, Processes(store, [desk.tool(requires_approval=rule, **options)])


async def suspended(gate: Gate, **options: Any) -> Any:
    """A job of Ann's that waits for a decision."""
    job = await gate.submit(call(5), user=ANN, **options)
    assert await gate.jobs.run_invocation(job.id) is JobState.INPUT_REQUIRED
    return job


async def handle_of(job: Any) -> str:
    pending = (await job.status()).pending
    assert pending is not None
    assert pending.handle is not None
    return str(pending.handle)


# ---------------------------------------------------------------------- the outcome


async def test_the_requester_gets_the_outcome_of_what_an_approver_decided_elsewhere(address: Store | str) -> None:
    """Issue 16 B2: three processes, one handle; the output goes to who asked for it."""
    desk, processes = approved_desk(address)
    async with processes.gate() as requester, processes.gate() as approver, processes.gate() as worker:
        job = await requester.submit(call(5), user=ANN, key="k")
        waiting = asyncio.ensure_future(job.result())
        assert (await requester.outcome(job, user=ANN)).state is CallState.WORKING
        assert await worker.jobs.run_invocation() is JobState.INPUT_REQUIRED
        status = await job.status()
        assert (status.state, status.ended_at) == (JobState.INPUT_REQUIRED, None)
        assert status.pending is not None
        assert status.pending.prompt == "pay needs approval before it runs."
        asked = await requester.outcome(job.id, user=ANN)
        assert (asked.state, asked.result, asked.pending) == (CallState.INPUT_REQUIRED, None, status.pending)
        assert await worker.jobs.run_invocation() is None, "it waits"

        (shown,) = await approver.waits.pending(BOB)
        accepted = await approver.resume(shown.handle, Approve(), approver=BOB, deadline=0.0)
        assert (accepted.outcome, desk.paid) == (Outcome.IN_FLIGHT, []), "the decision is recorded; a worker runs it"
        assert await approver.waits.pending(BOB) == []
        with pytest.raises(NotPending):
            await approver.resume(shown.handle, Deny(), approver=CID)

        assert await worker.jobs.run_invocation() is JobState.DONE
        result = await waiting
        assert (result.outcome, result.output, result.call_id) == (Outcome.SUCCESS, "paid 1", "c1")
        ways: list[dict[str, Any]] = [{"call": job}, {"call": status.pending.handle}, {"call": "k", "tool": "pay"}]
        for which in ways:
            told = await requester.outcome(**which, user=ANN)
            assert told.state is CallState.COMPLETED
            assert told.result is not None
            assert told.result.output == "paid 1"
        assert await states(requester) == ["committed"]
    assert desk.paid == [5]


async def test_an_approver_in_a_process_that_runs_jobs_gets_the_outcome_too(address: Store | str) -> None:
    desk, processes = approved_desk(address)
    async with processes.gate(jobs=EmbeddedJobs(1), effects=Effects(durable=False)) as gate:
        job = await gate.submit(call(5), user=ANN)
        assert (await job.settled()).outcome is Outcome.SUSPENDED
        assert (await gate.resume(await handle_of(job), Approve(), approver=BOB)).output == "paid 1"
        assert (await job).output == "paid 1"
    assert desk.paid == [5]


async def test_every_vote_counts_and_the_last_one_queues_the_job(address: Store | str) -> None:
    """Contract I5: quorum."""
    desk, processes = approved_desk(address, TWO)
    async with processes.gate() as gate:
        job = await suspended(gate)
        handle = await handle_of(job)
        first = await gate.resume(handle, Approve(), approver=BOB)
        assert (first.outcome, (await job.status()).state) == (Outcome.SUSPENDED, JobState.INPUT_REQUIRED)
        assert await gate.jobs.run_invocation() is None
        await gate.resume(handle, Approve(), approver=CID, deadline=0.0)
        assert await gate.jobs.run_invocation() is JobState.DONE
        assert (await job).output == "paid 1"
    assert desk.paid == [5]


@pytest.mark.parametrize("ending", ["denied", "expired", "withdrawn", "approved too late"])
async def test_a_call_that_is_not_approved_ends_denied_for_its_requester(address: Store | str, ending: str) -> None:
    """Issue 16 B2; I5, I7."""
    desk, processes = approved_desk(address)
    async with processes.gate() as gate:
        job = await suspended(gate, key="k")
        handle = await handle_of(job)
        if ending == "denied":
            told = Deny("fraud suspected", public="Please call us.")
            await gate.resume(handle, told, approver=BOB, deadline=0.0)
        elif ending == "withdrawn":
            await gate.waits.withdraw(handle, ANN)
        elif ending == "expired":
            processes.clock.advance(86_401.0)
            await gate.maintain()
        else:
            await gate.resume(handle, Approve(), approver=BOB, deadline=0.0)
            processes.clock.advance(86_401.0)
        assert await gate.jobs.run_invocation() is JobState.DONE
        result = await job
        assert (result.outcome, code(result)) == (
            Outcome.DENIED,
            "declined" if ending in {"denied", "withdrawn"} else "expired",
        )
        assert result.error is not None
        assert (result.error.public == "Please call us.") is (ending == "denied")
        assert "fraud" not in str(result)
        assert (await gate.outcome(job, user=ANN)).state is CallState.FAILED
        with pytest.raises(NotPending):
            await gate.resume(handle, Approve(), approver=BOB)
        assert await states(gate) == []
    assert desk.paid == []


@pytest.mark.parametrize("when", ["waiting", "decided"])
async def test_cancelling_ends_the_job_and_its_suspension(address: Store | str, when: str) -> None:
    desk, processes = approved_desk(address)
    async with processes.gate() as gate:
        job = await suspended(gate)
        handle = await handle_of(job)
        if when == "decided":
            await gate.resume(handle, Approve(), approver=BOB, deadline=0.0)
        assert await job.cancel()
        assert (await job).outcome is Outcome.CANCELLED
        assert (await gate.outcome(job, user=ANN)).state is CallState.CANCELLED
        assert await gate.waits.pending(BOB) == []
        with pytest.raises(NotPending):
            await gate.resume(handle, Approve(), approver=CID)
        assert await gate.jobs.run_invocation() is None
        assert not await job.cancel()
    assert desk.paid == []


async def test_a_job_that_is_cancelled_as_it_is_suspended_is_cancelled(address: Store | str) -> None:
    """The request comes between the suspension and its record."""
    desk, processes = approved_desk(address)
    async with processes.gate() as gate:
        job = await gate.submit(call(5), user=ANN)
        keep = gate.waits.keep

        async def cancelled_then(*args: Any) -> Any:
            kept = await keep(*args)
            await gate.store.jobs.cancel("acme", job.id, processes.clock.time())  # as another process does it
            return kept

        gate.waits.keep = cancelled_then  # type: ignore[method-assign,assignment]
        assert await gate.jobs.run_invocation() is JobState.CANCELLED
        assert (await job).outcome is Outcome.CANCELLED
        assert await gate.waits.pending(BOB) == []
    assert desk.paid == []


async def test_an_edit_and_an_answer_are_what_the_job_goes_on_with(address: Store | str) -> None:
    desk, processes = approved_desk(address)
    async with processes.gate() as gate:
        outputs = {}
        for name, decision in (("edit", Edit({"cents": 7})), ("answer", Respond("a voucher"))):
            job = await suspended(gate)
            await gate.resume(await handle_of(job), decision, approver=BOB, deadline=0.0)
            assert await gate.jobs.run_invocation() is JobState.DONE
            outputs[name] = (await job).output
    assert (outputs, desk.paid) == ({"edit": "paid 1", "answer": "a voucher"}, [7])


async def test_a_job_may_be_suspended_more_than_once(address: Store | str) -> None:
    """An edit needs two approvals; then the tool itself asks."""
    paid: list[int] = []

    @tool(effect="irreversible", resumable=True, requires_approval=lambda given: TWO if given["cents"] > 9 else LEAD)
    async def pay(cents: int, ctx: ToolContext) -> str:
        """Pay."""
        what = ctx.suspend("input", "What for?", schema={"type": "string"})
        paid.append(cents)
        return f"{cents} for {what}"

    async with Processes(address, [pay]).gate() as gate:
        job = await suspended(gate)
        first = await handle_of(job)
        await gate.resume(first, Edit({"cents": 100}), approver=BOB, deadline=0.0)
        assert await gate.jobs.run_invocation() is JobState.INPUT_REQUIRED
        second = await handle_of(job)
        assert second != first
        await gate.resume(second, Approve(), approver=CID, deadline=0.0)
        assert await gate.jobs.run_invocation() is JobState.INPUT_REQUIRED
        third = await handle_of(job)
        assert (await job.status()).pending.prompt == "What for?"
        await gate.resume(third, Respond("tea"), approver=ANN, deadline=0.0)
        assert await gate.jobs.run_invocation() is JobState.DONE
        assert (await job).output == "100 for tea"
    assert paid == [100]


# ---------------------------------------------------------------------- crashes


async def test_a_decision_and_the_queueing_of_its_job_are_one(address: Store | str) -> None:
    """A crash between the two loses neither: both are undone, and the decision can be made again."""
    desk, processes = approved_desk(address)
    async with processes.gate() as gate:
        job = await suspended(gate)
        handle, begin = await handle_of(job), gate.store.transaction

        @asynccontextmanager
        async def dying() -> AsyncGenerator[Any]:
            async with begin() as within:
                yield within
                raise StoreError("the process died before the commit")

        gate.store.transaction = dying  # type: ignore[method-assign]
        with pytest.raises(StoreError):
            await gate.resume(handle, Approve(), approver=BOB)
        gate.store.transaction = begin  # type: ignore[method-assign]
        assert (await job.status()).state is JobState.INPUT_REQUIRED
        assert [one.handle for one in await gate.waits.pending(BOB)] == [handle]
        await gate.resume(handle, Approve(), approver=BOB, deadline=0.0)
        assert await gate.jobs.run_invocation() is JobState.DONE
    assert desk.paid == [5]


@pytest.mark.parametrize("checks", [True, False], ids=["", "control: without the check"])
async def test_a_decision_that_comes_before_the_job_waits_is_not_lost(address: Store | str, checks: bool) -> None:
    """The approver is faster than the worker, which has stored the suspension and not yet that the job waits."""
    desk, processes = approved_desk(address)
    async with processes.gate() as gate, processes.gate() as approver:
        job = await gate.submit(call(5), user=ANN)
        keep = gate.waits.keep

        async def decided_then(*args: Any) -> Any:
            kept: Any = await keep(*args)
            await approver.resume(kept.handle, Approve(), approver=BOB, deadline=0.0)
            return kept

        gate.waits.keep = decided_then  # type: ignore[method-assign,assignment]
        with pytest.MonkeyPatch.context() as patch:
            if not checks:
                patch.setattr(SuspendedJobs, "is_decided", lambda *_: asyncio.sleep(0, result=False))
            state = await gate.jobs.run_invocation()
        assert state is (JobState.QUEUED if checks else JobState.INPUT_REQUIRED)
        assert await gate.jobs.run_invocation() is (JobState.DONE if checks else None)
        if checks:
            assert (await job).output == "paid 1"
    assert desk.paid == ([5] if checks else [])


DIES = ["before it runs", "before the outcome is recorded", "before the end is stored"]
TIMES = {"irreversible": (1, 1, 1), "idempotent": (1, 2, 1), "read": (1, 2, 2)}


@pytest.mark.parametrize("dies", DIES)
@pytest.mark.parametrize("effect", TIMES)
async def test_another_worker_goes_on_and_nobody_is_asked_again(address: Store | str, dies: str, effect: str) -> None:
    """I3, I4, I5: one approval is one effect, wherever the first worker died; what may be repeated is repeated."""
    if isinstance(address, MemoryStore) and dies == DIES[1]:
        pytest.skip("the ledger of a store in memory ends with its process")
    desk, processes = approved_desk(address, effect=effect)
    async with processes.gate() as gate, processes.gate() as other:
        job = await suspended(gate, key="k")
        await gate.resume(await handle_of(job), Approve(), approver=BOB, deadline=0.0)
        with pytest.MonkeyPatch.context() as patch:
            runner = gate.jobs.runner
            patch.setattr(runner, "_result" if dies == DIES[0] else "_conclude", die)
            if dies == DIES[1]:
                patch.setattr(Ledger, "settle", die)
            with pytest.raises(StoreError):
                await gate.jobs.run_invocation()
        processes.clock.advance(61.0)  # the leases of the job and of the effect are over
        assert (await job.status()).state is JobState.RUNNING
        assert await other.jobs.run_invocation() is JobState.DONE
        result = await job
        assert await other.waits.pending(BOB) == []
    is_lost = effect == "irreversible" and dies == DIES[1]
    assert result.outcome is (Outcome.UNKNOWN if is_lost else Outcome.SUCCESS)
    assert len(desk.paid) == TIMES[effect][DIES.index(dies)]


async def die(*_: Any, **__: Any) -> Any:
    raise StoreError("the worker is dead")


# ---------------------------------------------------------------------- one key, one suspension


async def test_a_repeat_of_what_waits_gets_the_same_suspension_and_asks_nobody_twice(address: Store | str) -> None:
    """Issue 16 B2: by call and by job, in any process; another user, tool or call without a key has its own."""
    desk, processes = approved_desk(address)
    async with processes.gate() as gate, processes.gate() as other:
        first = await gate.call(call(5), user=ANN, idempotency_key="k")
        again = await asyncio.gather(*(one.call(call(5), user=ANN, idempotency_key="k") for one in (gate, other) * 3))
        assert {one.pending.handle for one in again} == {first.pending.handle}
        job = await suspended(other, key="k")
        assert await handle_of(job) == first.pending.handle
        assert len(await gate.waits.pending(BOB)) == 1
        assert (await gate.call(call(6), user=ANN, idempotency_key="k")).outcome is Outcome.CONFLICT
        with pytest.raises(Conflict):
            await gate.submit(call(6), user=ANN, key="k")
        own = [await gate.call(call(5), user=ANN, idempotency_key="l"), await gate.call(call(5), user=ANN)]
        own += [await gate.call(call(5), user=ANN), await gate.call(call(5), user=RAE, idempotency_key="k")]
        assert len({one.pending.handle for one in (first, *own)}) == 5
        asked: Any = await gate.outcome("k", tool="pay", user=ANN)
        assert (asked.state, asked.pending.handle) == (CallState.INPUT_REQUIRED, first.pending.handle)

        await gate.resume(first.pending.handle, Approve(), approver=BOB, deadline=0.0)
        assert await other.jobs.run_invocation() is JobState.DONE
        for one in (gate, other):
            replay = await one.call(call(5), user=ANN, idempotency_key="k")
            assert (replay.outcome, replay.output, replay.replayed) == (Outcome.SUCCESS, "paid 1", True)
        assert (await (await gate.submit(call(5), user=ANN, key="k"))).output == "paid 1"
    assert desk.paid == [5]


async def test_the_ledger_answers_only_who_may_still_make_the_call(address: Store | str) -> None:
    """I8: authorisation comes first, and a key is its user's."""
    desk = Desk()
    tools = [desk.tool(requires_approval=LEAD, allowed_roles=["clerk"])]
    async with Processes(address, tools).gate() as gate:
        waits = await gate.call(call(5), user=ANN, idempotency_key="k")
        assert (await gate.resume(waits.pending.handle, Approve(), approver=BOB)).output == "paid 1"
        assert (await gate.call(call(5), user=ANN, idempotency_key="k")).replayed
        no_clerk = await gate.call(call(5), user=User("ann", "acme"), idempotency_key="k")
        assert (no_clerk.outcome, no_clerk.output) == (Outcome.DENIED, None)
        other = await gate.call(call(5), user=User("amy", "acme", {"clerk"}), idempotency_key="k")
        assert (other.outcome, other.output) == (Outcome.SUSPENDED, None)
        assert (await gate.call(call(6), user=ANN, idempotency_key="k")).outcome is Outcome.CONFLICT
    assert desk.paid == [5]


async def test_a_repeat_of_a_call_that_an_approver_edited_gets_its_outcome(address: Store | str) -> None:
    """The caller knows only what it asked for; a third set of arguments is a conflict."""
    desk, processes = approved_desk(address, TWO)
    async with processes.gate() as gate:
        waits = await gate.call(call(5), user=ANN, idempotency_key="k")
        handle = waits.pending.handle
        await gate.resume(handle, Edit({"cents": 7}), approver=BOB)
        assert (await gate.call(call(5), user=ANN, idempotency_key="k")).pending.handle == handle
        assert (await gate.resume(handle, Approve(), approver=CID)).output == "paid 1"
        repeat = await gate.call(call(5), user=ANN, idempotency_key="k")
        assert (repeat.output, repeat.replayed) == ("paid 1", True)
        assert (await gate.call(call(6), user=ANN, idempotency_key="k")).outcome is Outcome.CONFLICT
    assert desk.paid == [7]


async def test_after_a_denial_the_same_key_may_ask_again(address: Store | str) -> None:
    desk, processes = approved_desk(address)
    async with processes.gate() as gate:
        handles, told = set(), None
        for decision in (Deny(), Deny(), Approve()):
            waits = await gate.call(call(5), user=ANN, idempotency_key="k")
            handles.add(waits.pending.handle)
            result = await gate.resume(waits.pending.handle, decision, approver=BOB)
            told = await gate.outcome("k", tool="pay", user=ANN)
            assert told.result is not None
            assert told.result.outcome is result.outcome
        assert len(handles) == 3
        assert told is not None
        assert told.state is CallState.COMPLETED
    assert desk.paid == [5]


# ---------------------------------------------------------------------- asking for the outcome


@pytest.mark.parametrize("effect", ["irreversible", "read"])
async def test_the_outcome_of_a_call_without_a_job_is_found_by_its_handle(address: Store | str, effect: str) -> None:
    desk, processes = approved_desk(address, effect=effect)
    async with processes.gate() as gate:
        handle = (await gate.call(call(5), user=ANN)).pending.handle
        assert (await gate.outcome(handle, user=ANN)).state is CallState.INPUT_REQUIRED
        await gate.resume(handle, Approve(), approver=BOB)
        told = await gate.outcome(handle, user=ANN)
        assert told.state is CallState.COMPLETED
        assert told.result is not None
        assert told.result.output == "paid 1"
    assert desk.paid == [5]


async def test_nobody_else_learns_an_outcome(address: Store | str) -> None:
    """I8: an unknown call and somebody else's are the same."""
    _, processes = approved_desk(address)
    async with processes.gate() as gate:
        job = await suspended(gate, key="k")
        handle = await handle_of(job)
        for user in (BOB, DAN, RAE):
            for which in ({"call": job.id}, {"call": handle}, {"call": "k", "tool": "pay"}):
                with pytest.raises(NotPending):
                    await gate.outcome(**which, user=user)
        for which in ({"call": "nothing"}, {"call": "l", "tool": "pay"}, {"call": "k", "tool": "refund"}):
            with pytest.raises(NotPending):
                await gate.outcome(**which, user=ANN)


async def test_a_suspension_of_another_job_is_not_taken_for_its_own(address: Store | str) -> None:
    """T7: who can write to the store cannot let one approval run another job."""
    desk, processes = approved_desk(address)
    async with processes.gate() as gate:
        job, other = await suspended(gate), await suspended(gate)
        await gate.resume(await handle_of(job), Approve(), approver=BOB, deadline=0.0)
        stolen = await gate.store.jobs.get("acme", job.id)
        assert stolen is not None
        assert await gate.store.jobs.wake("acme", other.id, processes.clock.time()) is JobState.QUEUED
        taken = await gate.store.jobs.take("thief", processes.clock.time(), processes.clock.time(), id=other.id)
        assert taken is not None
        at: Any = {"at": None, "result": stolen.result, "reason": None}
        assert await gate.store.jobs.end("acme", other.id, taken[1].token, JobState.INPUT_REQUIRED, **at)
        await gate.store.jobs.wake("acme", other.id, processes.clock.time())
        assert await gate.jobs.run_invocation(other.id) is JobState.DONE
        assert code(await other) == "stale"
        assert desk.paid == []
        assert await gate.jobs.run_invocation(job.id) is JobState.DONE
    assert desk.paid == [5]
