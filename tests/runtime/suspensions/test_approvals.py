"""Approve, deny, edit, respond: what each does to a call that waits, who may, how many, and until when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callgate import Approval, Approve, Deny, Edit, GateClosed, Hook, InvokeContext, Outcome, Respond, User
from callgate.errors import DefinitionError, Denied, Invalid
from callgate.hooks import RequireApproval
from callgate.providers.principal import ANONYMOUS
from callgate.testing import FakeClock
from tests.runtime.effects.scene_desk import (
    AMY,
    ANN,
    BOB,
    CID,
    DAN,
    EVE,
    LEAD,
    NOBODY,
    ONE_AND_THE_SAME,
    RAE,
    ROB,
    Desk,
    asked,
    call,
    code,
    gate_of,
    handle_of,
    refused,
    states,
)

EVERY_STORE = pytest.mark.parametrize("store", ["memory://", "sqlite://"])


# ---------------------------------------------------------------------- the four decisions


@EVERY_STORE
async def test_an_approval_runs_exactly_what_was_shown_once(store: str) -> None:
    """I5, I16."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=LEAD), store=store) as gate:
        result = await gate.call(call(5), user=ANN)
        handle = handle_of(result)
        assert desk.paid == []
        shown = await gate.waits.look(handle, BOB)
        assert (shown.tool, shown.arguments, shown.text) == ("pay", {"cents": 5, "how": "ok"}, 'pay(cents=5, how="ok")')
        assert (shown.requested_by, shown.needed, shown.approvals, shown.schema) == ("ann", (1,), (), None)
        done = await gate.resume(handle, Approve(), approver=BOB)
        assert (done.outcome, done.output, done.call_id, done.replayed) == (Outcome.SUCCESS, "paid 1", "c1", False)
        for decision in (Approve(), Deny(), Edit({"cents": 6}), Respond("x")):
            assert await refused(gate.resume(handle, decision, approver=BOB)) == ONE_AND_THE_SAME
        assert desk.paid == [5]
        assert await states(gate) == ["committed"]


async def test_the_two_words_are_decisions_and_anything_else_is_none() -> None:
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=True)) as gate:
        one, two = await asked(gate), await asked(gate)
        assert (await gate.resume(one, "approve", approver=BOB)).output == "paid 1"
        assert code(await gate.resume(two, "deny", approver=BOB)) == "declined"
        for nonsense in ("yes", None, True, Edit("cents=5")):  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                await gate.resume(two, nonsense, approver=BOB)  # type: ignore[arg-type]


@EVERY_STORE
async def test_a_denial_ends_it_and_only_its_public_text_is_told(store: str) -> None:
    """I5, I7."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=LEAD), store=store) as gate:
        one, two = await asked(gate), await asked(gate)
        result = await gate.resume(one, Deny("fraud suspected", public="Please call us."), approver=BOB)
        assert (result.outcome, code(result)) == (Outcome.DENIED, "declined")
        assert result.error is not None
        assert result.error.public == "Please call us."
        silent = await gate.resume(two, Deny("fraud suspected"), approver=BOB)
        assert "fraud" not in str(silent.error)
        for handle in (one, two):
            assert await refused(gate.resume(handle, Approve(), approver=CID)) == ONE_AND_THE_SAME
        assert desk.paid == []
        assert await states(gate) == []


class NoLargeSums(Hook):
    """A policy on arguments."""

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        if ctx.input["cents"] > 1000:
            ctx.abort("too much", code="too_much")


async def test_an_edit_is_validated_authorised_and_bound_anew() -> None:
    """I2, I5."""
    desk = Desk()
    rule = Approval(roles={"lead"}, quorum=2)
    async with gate_of(desk.tool(requires_approval=rule), [NoLargeSums()]) as gate:
        handle = await asked(gate)
        await gate.resume(handle, Approve(), approver=BOB)
        for wrong in ({"cents": "6"}, {"cents": 6, "to": "me"}, {}, {"cents": 6.5}):
            with pytest.raises(Invalid):
                await gate.resume(handle, Edit(wrong), approver=CID)
        assert (await gate.waits.look(handle, CID)).approvals == ("bob",), "a wrong edit changes nothing"
        still = await gate.resume(handle, Edit({"cents": 6}), approver=CID)
        assert still.outcome is Outcome.SUSPENDED
        shown = await gate.waits.look(handle, CID)
        assert (shown.text, shown.approvals) == ('pay(cents=6, how="ok")', ("cid",)), (
            "who approved of 5 cents did not approve of 6"
        )
        done = await gate.resume(handle, Approve(), approver=BOB)
        assert done.output == "paid 1"
        assert desk.paid == [6]


async def test_an_edit_that_a_policy_forbids_does_not_run_and_uses_nothing_up() -> None:
    """I5, I6, I7."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=LEAD), [NoLargeSums()]) as gate:
        handle = await asked(gate)
        result = await gate.resume(handle, Edit({"cents": 5000}), approver=BOB)
        assert (result.outcome, code(result)) == (Outcome.DENIED, "too_much")
        assert desk.paid == []
        assert (await gate.waits.look(handle, BOB)).text == 'pay(cents=5, how="ok")'
        assert (await gate.resume(handle, Approve(), approver=BOB)).output == "paid 1"
        assert desk.paid == [5]


async def test_an_edit_that_needs_more_approval_waits_for_it() -> None:
    """I5: the rule is asked again, of the arguments as they are now."""
    desk = Desk()
    large = Approval(roles={"lead"}, quorum=2)
    needs: Any = lambda arguments: large if arguments["cents"] >= 100 else LEAD
    async with gate_of(desk.tool(requires_approval=needs)) as gate:
        handle = await asked(gate)
        result = await gate.resume(handle, Edit({"cents": 100}), approver=BOB)
        again = handle_of(result)
        assert again != handle
        assert (await gate.waits.look(again, CID)).approvals == ("bob",)
        assert await refused(gate.resume(handle, Approve(), approver=CID)) == ONE_AND_THE_SAME
        assert (await gate.resume(again, Approve(), approver=CID)).output == "paid 1"
        assert desk.paid == [100]


async def test_a_response_takes_the_place_of_running_the_tool() -> None:
    """I2, I5."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=LEAD)) as gate:
        handle = await asked(gate)
        for wrong in (5, None, object(), float("nan")):
            with pytest.raises(Invalid):
                await gate.resume(handle, Respond(wrong), approver=BOB)
        result = await gate.resume(handle, Respond("paid by hand"), approver=BOB)
        assert (result.outcome, result.output) == (Outcome.SUCCESS, "paid by hand")
        refusal = await gate.resume(await asked(gate), Respond(error="Ask the bank."), approver=BOB)
        assert refusal.outcome is Outcome.DENIED
        assert refusal.error is not None
        assert refusal.error.public == "Ask the bank."
        assert await refused(gate.resume(handle, Approve(), approver=BOB)) == ONE_AND_THE_SAME
        assert desk.paid == []
        assert await states(gate) == []


async def test_a_response_is_the_answer_also_where_an_edit_has_made_approval_needless() -> None:
    """I5: who answers in the tool's place did not say that it may run."""
    desk = Desk()

    def needs(arguments: Any) -> Any:
        return Approval(roles={"lead"}, quorum=2) if arguments["cents"] > 1 else False

    async with gate_of(desk.tool(requires_approval=needs)) as gate:
        handle = await asked(gate)
        assert handle_of(await gate.resume(handle, Edit({"cents": 1}), approver=BOB)) == handle
        result = await gate.resume(handle, Respond("paid by hand"), approver=CID)
        assert (result.outcome, result.output) == (Outcome.SUCCESS, "paid by hand")
        assert desk.paid == []


async def test_an_answer_to_other_arguments_lets_nothing_run() -> None:
    """I5."""
    desk, added = Desk(), [1]

    class Rounds(Hook):
        def will_normalize_input(self, ctx: InvokeContext) -> None:
            ctx.input = {**ctx.input, "cents": ctx.input["cents"] + added[0]}

    def needs(arguments: Any) -> Any:
        return LEAD if arguments["cents"] > 5 else False

    async with gate_of(desk.tool(requires_approval=needs), [Rounds()]) as gate:
        handle = await asked(gate)
        added[0] = -1
        result = await gate.resume(handle, Respond("paid by hand"), approver=BOB)
        assert (result.outcome, code(result)) == (Outcome.DENIED, "stale")
        assert desk.paid == []


# ---------------------------------------------------------------------- who


async def test_only_a_person_with_the_role_of_the_same_tenant_may_decide_and_never_the_caller() -> None:
    """I5, I8."""
    desk = Desk()
    caller = User("ann", "acme", {"clerk", "lead"})
    async with gate_of(desk.tool(requires_approval=LEAD)) as gate:
        handle = await asked(gate, caller)
        for person in (DAN, EVE, AMY, ROB, RAE, NOBODY, ANONYMOUS, User("bob"), User("ann", None, {"lead"})):
            for decision in (Approve(), Deny(), Edit({"cents": 6}), Respond("x")):
                assert await refused(gate.resume(handle, decision, approver=person)) == ONE_AND_THE_SAME
        for decision in (Approve(), Deny(), Edit({"cents": 6}), Respond("x")):
            with pytest.raises(Denied) as own:
                await gate.resume(handle, decision, approver=caller)
            assert own.value.code == "not_an_approver"
        assert desk.paid == []
        assert (await gate.resume(handle, Approve(), approver=BOB)).ok


async def test_a_rule_may_let_the_caller_approve_its_own_call_but_nobody_anonymous() -> None:
    """I5."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=Approval(requester=True))) as gate:
        assert (await gate.resume(await asked(gate), Approve(), approver=ANN)).ok
        handle = await asked(gate, ANONYMOUS)
        with pytest.raises(Denied):
            await gate.resume(handle, Approve(), approver=ANONYMOUS)
        assert desk.paid == [5]


@EVERY_STORE
async def test_a_quorum_is_of_different_people(store: str) -> None:
    """I5."""
    desk = Desk()
    rule = Approval(roles={"lead"}, quorum=3)
    third = User("fay", "acme", {"lead"})
    async with gate_of(desk.tool(requires_approval=rule), store=store) as gate:
        handle = await asked(gate)
        for person, so_far in ((BOB, ("bob",)), (BOB, ("bob",)), (CID, ("bob", "cid")), (BOB, ("bob", "cid"))):
            assert handle_of(await gate.resume(handle, Approve(), approver=person)) == handle
            shown = await gate.waits.look(handle, BOB)
            assert (set(shown.approvals), shown.needed) == (set(so_far), (3,))
        assert desk.paid == []
        assert (await gate.resume(handle, Approve(), approver=third)).ok
        assert desk.paid == [5]


async def test_one_person_may_deny_what_several_have_to_approve() -> None:
    """I6: forbid wins."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=Approval(roles={"lead"}, quorum=2))) as gate:
        handle = await asked(gate)
        await gate.resume(handle, Approve(), approver=BOB)
        assert code(await gate.resume(handle, Deny(), approver=CID)) == "declined"
        assert await refused(gate.resume(handle, Approve(), approver=BOB)) == ONE_AND_THE_SAME
        assert desk.paid == []


async def test_every_rule_is_met_by_its_own_people_and_one_person_may_count_for_several() -> None:
    """I5."""
    desk = Desk()
    hooks = [RequireApproval(Approval(roles={"boss"})), RequireApproval(Approval(quorum=2))]
    async with gate_of(desk.tool(requires_approval=LEAD), hooks) as gate:
        handle = await asked(gate)
        assert (await gate.waits.look(handle, DAN)).needed == (1, 1, 2)
        for person in (DAN, EVE):
            assert (await gate.resume(handle, Approve(), approver=person)).outcome is Outcome.SUSPENDED
        assert (await gate.resume(handle, Approve(), approver=BOB)).ok
        both = User("fay", "acme", {"lead", "boss"})
        handle = await asked(gate)
        assert (await gate.resume(handle, Approve(), approver=both)).outcome is Outcome.SUSPENDED
        assert (await gate.resume(handle, Approve(), approver=EVE)).ok
        assert desk.paid == [5, 5]


async def test_after_a_while_others_may_approve_too() -> None:
    """I5: escalation."""
    desk, clock = Desk(), FakeClock()
    rule = Approval(roles={"lead"}, quorum=2, escalate_after=60.0, escalate_to={"boss"})
    async with gate_of(desk.tool(requires_approval=rule), clock=clock) as gate:
        handle = await asked(gate)
        clock.advance(59.9)
        assert await refused(gate.resume(handle, Approve(), approver=DAN)) == ONE_AND_THE_SAME
        assert [one.handle for one in await gate.waits.pending(DAN)] == []
        clock.advance(0.1)
        shown = await gate.waits.look(handle, DAN)
        assert shown.escalated
        await gate.resume(handle, Approve(), approver=DAN)
        clock.now -= 30  # what he approved when he might stays approved
        assert (await gate.resume(handle, Approve(), approver=BOB)).ok
        assert desk.paid == [5]


async def test_nobody_may_decide_after_the_time_is_over() -> None:
    """I5: before expiry."""
    desk, clock = Desk(), FakeClock()
    hooks = [RequireApproval(Approval(expires=90.0))]
    async with gate_of(desk.tool(requires_approval=Approval(expires=60.0)), hooks, clock=clock) as gate:
        handle, other = await asked(gate), await asked(gate)
        assert (await gate.waits.look(handle, BOB)).expires_at == clock.now + 60.0, "the shortest of all rules"
        clock.advance(59.999)
        assert (await gate.resume(other, Approve(), approver=BOB)).ok
        clock.advance(0.001)
        for swept in (False, True):
            if swept:
                await gate.maintain()
            for decision in (Approve(), Deny(), Respond("x")):
                assert await refused(gate.resume(handle, decision, approver=BOB)) == ONE_AND_THE_SAME
            assert await gate.waits.pending(BOB) == []
        clock.advance(-30.0)  # what was swept is over, whatever a clock says later
        assert await refused(gate.resume(handle, Approve(), approver=BOB)) == ONE_AND_THE_SAME
        assert desk.paid == [5]


async def test_a_quorum_has_to_be_there_before_the_time_is_over() -> None:
    """I5."""
    desk, clock = Desk(), FakeClock()
    async with gate_of(desk.tool(requires_approval=Approval(quorum=2, expires=60.0)), clock=clock) as gate:
        handle = await asked(gate)
        await gate.resume(handle, Approve(), approver=BOB)
        clock.advance(60.0)
        assert await refused(gate.resume(handle, Approve(), approver=CID)) == ONE_AND_THE_SAME
        assert desk.paid == []


@EVERY_STORE
@pytest.mark.parametrize("quorum", [1, 2])
async def test_of_many_who_approve_at_once_one_lets_it_run(store: str, quorum: int) -> None:
    """I5, I16."""
    desk = Desk()
    people = [User(f"lead {number}", "acme", {"lead"}) for number in range(20)]
    async with gate_of(desk.tool(requires_approval=Approval(roles={"lead"}, quorum=quorum)), store=store) as gate:
        handle = await asked(gate)
        if quorum == 2:
            await gate.resume(handle, Approve(), approver=BOB)
        told = await asyncio.gather(
            *(gate.resume(handle, Approve(), approver=person) for person in people), return_exceptions=True
        )
        errors = [each for each in told if isinstance(each, BaseException)]
        assert len(errors) == 19
        for each in errors:
            shown: Any = each
            assert (type(each), shown.code, shown.public, shown.http_status, shown.correlation_id) == ONE_AND_THE_SAME
        assert desk.paid == [5]
        assert await states(gate) == ["committed"]


async def test_a_caller_may_take_its_call_back_and_nobody_else() -> None:
    """I5, I8."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=LEAD)) as gate:
        handle = await asked(gate)
        for person in (BOB, AMY, RAE, ANONYMOUS):
            assert await refused(gate.waits.withdraw(handle, person)) == ONE_AND_THE_SAME
        await gate.waits.withdraw(handle, ANN)
        assert await refused(gate.waits.withdraw(handle, ANN)) == ONE_AND_THE_SAME
        assert await refused(gate.resume(handle, Approve(), approver=BOB)) == ONE_AND_THE_SAME
        assert desk.paid == []


@pytest.mark.parametrize("option", ["idempotency_key", "request_id", "session_id"])
async def test_whoever_decides_cannot_make_another_call_of_it(option: str) -> None:
    """I4, I5: its key, request and session are those it was asked with."""
    desk = Desk()
    others: Any = {option: "another"}
    async with gate_of(desk.tool(requires_approval=LEAD)) as gate:
        handle = await asked(gate, idempotency_key="k", request_id="r", session_id="s")
        with pytest.raises(TypeError, match=option):
            await gate.resume(handle, Approve(), approver=BOB, **others)
        assert desk.paid == []
        assert (await gate.resume(handle, Approve(), approver=BOB, deadline=60.0)).ok
        assert desk.keys == ["k"]


async def test_a_closed_gate_resumes_nothing() -> None:
    desk = Desk()
    gate = gate_of(desk.tool(requires_approval=LEAD))
    async with gate:
        handle = await asked(gate)
    with pytest.raises(GateClosed):
        await gate.resume(handle, Approve(), approver=BOB)
    assert desk.paid == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"quorum": 0},
        {"quorum": True},
        {"quorum": 1.5},
        {"expires": 0.0},
        {"expires": float("inf")},
        {"expires": float("nan")},
        {"escalate_after": 5.0},
        {"escalate_to": {"boss"}},
        {"roles": [1]},
        {"requester": "no"},  # a text from a file: the caller could approve
        {"requester": 1},
    ],
)
def test_a_rule_that_nobody_could_meet_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        Approval(**wrong)
