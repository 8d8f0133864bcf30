"""An approved call that a limit or a store puts off keeps its approval: it runs when it is resumed again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callgate import Approval, Approve, Deny, Edit, Gate, Hook, InvokeContext, Outcome, Respond, ToolResult, tool
from callgate.errors import NotPending, RetryLater, StoreError
from callgate.hooks import CircuitBreaker, Concurrency, Quota
from callgate.hooks.base import Next
from callgate.jobs import CallState
from callgate.providers.stores.memory.store import MemoryQuotas
from callgate.providers.stores.memory.suspensions import MemorySuspensions
from callgate.runtime.suspensions import put_off, reads
from callgate.testing import FakeClock
from tests.runtime.effects.scene_desk import ANN, BOB, CID, LEAD, Desk, asked, call, code, gate_of, states
from tests.runtime.suspensions.test_handover import EVERY_EFFECT, EVERY_STORE, processes

STAGES = ("will_authorize", "will_acquire_quota", "will_authorize_input", "around_execute", "will_execute")


class Busy(Hook):
    """Refuses in one stage, or lets calls wait there; without a stage, nowhere."""

    stage: str | None = None
    waits: asyncio.Event | None = None
    """Set once a call waits, where it is not refused."""

    async def refuse(self, stage: str) -> None:
        if stage != self.stage:
            return
        if self.waits is None:
            raise RetryLater(500, "busy")
        self.waits.set()
        await asyncio.Event().wait()

    async def will_authorize(self, ctx: InvokeContext) -> None:
        await self.refuse("will_authorize")

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        await self.refuse("will_acquire_quota")

    async def will_authorize_input(self, ctx: InvokeContext) -> None:
        await self.refuse("will_authorize_input")

    async def around_execute(self, ctx: InvokeContext, next: Next) -> object:
        await self.refuse("around_execute")
        return await next()

    async def will_execute(self, ctx: InvokeContext) -> None:
        await self.refuse("will_execute")


async def resumed(gate: Gate, handle: str, *, handed_over: bool = False, decision: Any = None) -> ToolResult:
    """Resume a call; a decision that was handed over is proceeded with."""
    if handed_over:
        return await gate.proceed(handle, user=ANN)
    return await gate.resume(handle, decision or Approve(), approver=BOB)


# ---------------------------------------------------------------------- it waits again, and runs once


@EVERY_STORE
@EVERY_EFFECT
@pytest.mark.parametrize("handed_over", [False, True])
async def test_a_call_that_is_put_off_before_its_tool_runs_is_resumed_again(
    kind: str, effect: str, handed_over: bool, tmp_path: Path
) -> None:
    """In each stage, by any process, under the same handle; then it runs once."""
    desk, hook = Desk(), Busy()
    async with processes(kind, tmp_path, desk, rules={"effect": effect}, hooks=[hook]) as (requester, approver, other):
        for runs, stage in enumerate(STAGES, 1):
            hook.stage = None
            handle = await asked(requester)
            if handed_over:
                await approver.resume(handle, Approve(), approver=BOB, here=False)
            hook.stage = stage
            for gate in (approver, other):
                result = await resumed(gate, handle, handed_over=handed_over)
                assert (result.outcome, result.retry_after) == (Outcome.RETRY_LATER, 500), stage
                assert (result.pending.handle, result.pending.decided) == (handle, handed_over)
                state = (await requester.outcome(handle, user=ANN)).state
                assert state is (CallState.WORKING if handed_over else CallState.INPUT_REQUIRED)
                listed = [one.handle for one in await other.waits.pending(BOB)]
                assert listed == ([] if handed_over else [handle])
            hook.stage = None
            result = await resumed(other, handle, handed_over=handed_over)
            assert (result.output, result.pending) == (f"paid {runs}", None)
            found = (await requester.outcome(handle, user=ANN)).result
            assert found is not None
            assert (found.output, found.replayed) == (f"paid {runs}", True)
            with pytest.raises(NotPending):
                await approver.resume(handle, Approve(), approver=BOB)
            assert len(desk.paid) == runs


LIMITS: dict[str, Any] = {
    "quota": lambda: Quota("1/minute"),
    "concurrency": lambda: Concurrency(1, by=lambda _: "all", name="all"),
    "circuit": lambda: CircuitBreaker(1, by=lambda _: "all", name="all"),
}


@EVERY_EFFECT
@pytest.mark.parametrize("limit", LIMITS)
async def test_the_limits_of_the_stock_hooks_leave_the_approval(effect: str, limit: str) -> None:
    """A quota and a concurrency limit refuse before the claim of the effect, an open circuit after it."""
    desk, clock, holds, free = Desk(), FakeClock(), asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def hold() -> None:
        """Hold a permit, and fail."""
        holds.set()
        await free.wait()
        raise ValueError("failed")

    def rule(given: Any) -> Approval | None:
        return LEAD if given["how"] == "ok" else None

    pay = desk.tool(effect=effect, requires_approval=rule)
    async with gate_of([pay, hold], [LIMITS[limit]()], clock=clock) as gate:
        handle = await asked(gate)
        other = asyncio.create_task(gate.call("hold", user=ANN))
        await holds.wait()
        if limit == "circuit":
            free.set()
            await other
        if limit == "quota":
            await gate.call(call(how="tool_error"), user=ANN)
            desk.paid.clear()
        assert (await resumed(gate, handle)).outcome is Outcome.RETRY_LATER
        assert desk.paid == []
        free.set()
        await other
        clock.advance(120.0)
        assert (await resumed(gate, handle)).output == "paid 1"


@EVERY_EFFECT
@pytest.mark.parametrize("decision", [Edit({"cents": 3}), Respond("a voucher")], ids=["edit", "respond"])
async def test_the_last_decision_of_a_call_that_was_put_off_is_made_again(effect: str, decision: Any) -> None:
    """Earlier approvals of a quorum stay; the last decision may also be another one."""
    desk, hook, twice = Desk(), Busy(), Approval(roles={"lead"}, quorum=2)
    async with gate_of([desk.tool(effect=effect, requires_approval=twice)], [hook]) as gate:
        handle = await asked(gate)
        assert (await gate.resume(handle, Approve(), approver=CID)).outcome is Outcome.SUSPENDED
        hook.stage = "will_acquire_quota"
        assert (await resumed(gate, handle)).outcome is Outcome.RETRY_LATER
        if isinstance(decision, Respond):
            assert (await resumed(gate, handle, decision=decision)).outcome is Outcome.RETRY_LATER
            hook.stage = None
            assert (await resumed(gate, handle, decision=decision)).output == "a voucher"
            assert desk.paid == []
            return
        shown = await gate.waits.look(handle, BOB)
        assert shown.approvals == ("cid",)
        hook.stage = None
        assert (await resumed(gate, handle)).ok
        assert desk.paid == [5]


@EVERY_EFFECT
async def test_a_call_that_was_put_off_may_be_denied_withdrawn_or_expire(effect: str) -> None:
    desk, hook, clock = Desk(), Busy(), FakeClock()
    async with gate_of([desk.tool(effect=effect, requires_approval=LEAD)], [hook], clock=clock) as gate:
        for end in ("denied", "withdrawn", "expired"):
            hook.stage = None
            handle = await asked(gate)
            hook.stage = "will_acquire_quota"
            assert (await resumed(gate, handle)).outcome is Outcome.RETRY_LATER
            hook.stage = None
            if end == "denied":
                await resumed(gate, handle, decision=Deny("no"))
            elif end == "withdrawn":
                await gate.waits.withdraw(handle, ANN)
            else:
                clock.advance(86_400.0)
            with pytest.raises(NotPending):
                await resumed(gate, handle)
            assert (await gate.outcome(handle, user=ANN)).state is CallState.FAILED
    assert desk.paid == []


# ---------------------------------------------------------------------- other reasons that pass


async def cut_off(gate: Gate, handle: str, waits: asyncio.Event) -> None:
    """Approve a call, and cancel that when its hook waits."""
    running = asyncio.create_task(resumed(gate, handle))
    await waits.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@EVERY_EFFECT
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("why", ["cancelled", "deadline"])
async def test_a_request_that_ends_before_the_tool_runs_leaves_the_approval(effect: str, stage: str, why: str) -> None:
    """Such as when the connection of the approver breaks while the call waits for a permit."""
    desk, hook = Desk(), Busy()
    async with gate_of([desk.tool(effect=effect, requires_approval=LEAD)], [hook], clock=None) as gate:
        handle = await asked(gate)
        hook.stage, hook.waits = stage, asyncio.Event()
        if why == "deadline":
            result = await gate.resume(handle, Approve(), approver=BOB, deadline=0.01)
            assert (code(result) in {"deadline_exceeded", "policy_error"}, result.pending.handle) == (True, handle)
        else:
            await cut_off(gate, handle, hook.waits)
        assert desk.paid == []
        hook.stage = None
        assert (await resumed(gate, handle)).output == "paid 1"


@EVERY_EFFECT
async def test_a_quota_whose_store_fails_leaves_the_approval(effect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()

    async def take(*_: object) -> None:
        raise StoreError("down")

    async with gate_of([desk.tool(effect=effect, requires_approval=LEAD)], [Quota("100/minute; 1000/hour")]) as gate:
        handle = await asked(gate)
        with monkeypatch.context() as patch:
            patch.setattr(MemoryQuotas, "take", take)
            result = await resumed(gate, handle)
        assert (code(result), result.pending.handle) == ("quota_unavailable", handle)
        assert (await resumed(gate, handle)).output == "paid 1"


# ---------------------------------------------------------------------- what has run is not put off


@EVERY_STORE
@pytest.mark.parametrize(
    ("how", "state"), [("raise", "unknown"), ("tool_error", "committed"), ("no_effect", "no_effect")]
)
async def test_an_effect_that_has_run_is_not_put_off(kind: str, how: str, state: str, tmp_path: Path) -> None:
    """Whatever became of it, its approval is used."""
    desk = Desk()
    async with processes(kind, tmp_path, desk) as (gate, other, _):
        handle = await asked(gate, wanted=call(how=how))
        result = await resumed(gate, handle)
        assert (result.outcome, result.pending) != (Outcome.RETRY_LATER, None)
        for again in (gate, other):
            with pytest.raises(NotPending):
                await resumed(again, handle)
        assert await states(gate) == [state]
    assert len(desk.paid) <= 1


async def test_an_effect_whose_outcome_is_unknown_is_not_put_off_by_a_later_refusal() -> None:
    """A hook around the tool says ``retry_later`` after the tool has run."""

    class After(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Next) -> object:
            await next()
            raise RetryLater(500, "too late")

    desk = Desk()
    async with gate_of([desk.tool(requires_approval=LEAD)], [After()]) as gate:
        handle = await asked(gate)
        result = await resumed(gate, handle)
        assert (result.outcome, result.pending) == (Outcome.RETRY_LATER, None)
        with pytest.raises(NotPending):
            await resumed(gate, handle)
    assert desk.paid == [5]


class Slow(Hook):
    """Lets calls wait in one stage once the tool has run."""

    def __init__(self, stage: str) -> None:
        self.stage, self.waits = stage, asyncio.Event()

    async def wait(self, stage: str) -> None:
        if stage == self.stage:
            self.waits.set()
            await asyncio.Event().wait()

    async def around_execute(self, ctx: InvokeContext, next: Next) -> object:
        output = await next()
        await self.wait("around_execute")
        return output

    async def did_execute(self, ctx: InvokeContext) -> None:
        await self.wait("did_execute")

    async def will_transform_output(self, ctx: InvokeContext) -> None:
        await self.wait("will_transform_output")


@EVERY_EFFECT
@pytest.mark.parametrize("stage", ["around_execute", "did_execute", "will_transform_output"])
@pytest.mark.parametrize("why", ["cancelled", "deadline"])
async def test_a_request_that_ends_after_the_tool_has_run_uses_the_approval(effect: str, stage: str, why: str) -> None:
    """One approval runs a read once. It ran again each time that a hook held its result past the deadline."""
    desk, hook = Desk(), Slow(stage)
    async with gate_of([desk.tool(effect=effect, requires_approval=LEAD)], [hook], clock=None) as gate:
        handle = await asked(gate)
        if why == "deadline":
            result = await gate.resume(handle, Approve(), approver=BOB, deadline=0.05)
            assert (code(result), result.pending) == ("deadline_exceeded", None)
        else:
            await cut_off(gate, handle, hook.waits)
        with pytest.raises(NotPending):
            await resumed(gate, handle)
    assert desk.paid == [5]


@pytest.mark.parametrize("effect", ["irreversible", "read"])
async def test_control_a_call_that_has_run_would_run_again_if_it_counted_as_put_off(
    effect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger answers the repeat of an effect even so; a read runs again."""
    monkeypatch.setattr(put_off, "is_put_off", lambda _: True)
    desk = Desk()
    async with gate_of([desk.tool(effect=effect, requires_approval=LEAD)]) as gate:
        handle = await asked(gate)
        assert (await resumed(gate, handle)).ok
        assert (await resumed(gate, handle)).ok
    assert desk.paid == ([5] if effect == "irreversible" else [5, 5])


# ---------------------------------------------------------------------- the requester, and other stores


async def test_a_read_that_its_requester_repeats_is_put_off_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result was too large to keep: the one repeat that the approval allows is left, however often it is put off."""
    monkeypatch.setattr(reads, "MAX_RESULT", 10)
    desk, hook = Desk(), Busy()
    async with gate_of([desk.tool(effect="read", requires_approval=LEAD)], [hook]) as gate:
        handle = await asked(gate)
        assert (await resumed(gate, handle)).ok
        hook.stage = "will_acquire_quota"
        for _ in range(3):
            assert (await gate.repeat_read(handle, ANN, deadline=None)).outcome is Outcome.RETRY_LATER
        hook.stage = None
        assert (await gate.repeat_read(handle, ANN, deadline=None)).ok
        assert code(await gate.repeat_read(handle, ANN, deadline=None)) == "used"
    assert desk.paid == [5, 5]


@pytest.mark.parametrize("fault", ["refuses", "fails"])
async def test_where_the_store_keeps_the_row_used_the_requester_gets_the_refusal(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of another package may not replace such a row, and any store may fail: nothing waits in silence."""
    desk, hook, real = Desk(), Busy(), MemorySuspensions.replace

    async def replace(store: Any, tenant: str, wait: Any) -> bool:
        if wait.number < 3:
            return await real(store, tenant, wait)
        if fault == "fails":
            raise StoreError("down")
        return False

    monkeypatch.setattr(MemorySuspensions, "replace", replace)
    async with gate_of([desk.tool(effect="read", requires_approval=LEAD)], [hook]) as gate:
        handle = await asked(gate)
        hook.stage = "will_acquire_quota"
        result = await resumed(gate, handle)
        assert (result.outcome, result.pending) == (Outcome.RETRY_LATER, None)
        found = (await gate.outcome(handle, user=ANN)).result
        assert found is not None
        assert found.outcome is Outcome.RETRY_LATER


async def test_a_process_that_waits_for_another_goes_on_when_that_one_is_put_off(tmp_path: Path) -> None:
    """It does not wait for a run that no process has begun."""
    desk, hook, running, go = Desk(), Busy(), asyncio.Event(), asyncio.Event()

    class Slow(Hook):
        async def will_acquire_quota(self, ctx: InvokeContext) -> None:
            if hook.stage is not None:
                hook.stage = None
                running.set()
                await go.wait()
                raise RetryLater(500, "busy")

    async with processes("memory", tmp_path, desk, rules={"effect": "read"}, hooks=[Slow()]) as (gate, _, _):
        handle = await asked(gate)
        await gate.resume(handle, Approve(), approver=BOB, here=False)
        hook.stage = "any"
        first = asyncio.create_task(gate.proceed(handle, user=ANN))
        await running.wait()
        second = asyncio.create_task(gate.proceed(handle, user=ANN))
        await asyncio.sleep(0)
        go.set()
        assert (await first).outcome is Outcome.RETRY_LATER
        assert (await second).output == "paid 1"
    assert desk.paid == [5]
