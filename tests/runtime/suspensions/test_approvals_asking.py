"""What asks for approval or an answer: functions of the arguments, policies, hooks, and bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from callgate import Approval, Approve, Edit, Hook, InvokeContext, Outcome, Respond, ToolCall, ToolContext, tool
from callgate.errors import DefinitionError, Denied, HookError, Invalid, RegistrationError
from callgate.hooks import RequireApproval
from tests.runtime.effects.scene_desk import (
    ANN,
    BOB,
    CID,
    DAN,
    LEAD,
    ONE_AND_THE_SAME,
    RAE,
    Desk,
    asked,
    call,
    code,
    gate_of,
    handle_of,
    refused,
    states,
)

# ---------------------------------------------------------------------- functions of the arguments


async def slowly(answer: Any) -> Any:
    if isinstance(answer, BaseException):
        raise answer
    return answer


def at_once(answer: Any) -> Any:
    if isinstance(answer, BaseException):
        raise answer
    return answer


WAITS, RUNS, DENIED = "waits", "runs", "denied"
ANSWERS: list[tuple[Any, str]] = [
    (True, WAITS),
    (LEAD, WAITS),
    (False, RUNS),
    (None, RUNS),  # of a tool: its function returns a rule, or None; of a policy it is no verdict
    (0, DENIED),
    (1, DENIED),
    ("", DENIED),
    ("yes", DENIED),
    ({}, DENIED),
    ([], DENIED),
    (Approval, DENIED),
    (NotImplemented, DENIED),
    (ValueError("broken"), DENIED),
    (KeyError("x"), DENIED),
]


@pytest.mark.parametrize(("answer", "expected"), ANSWERS)
@pytest.mark.parametrize("says", [at_once, slowly])
@pytest.mark.parametrize("asker", ["tool", "policy"])
async def test_what_says_whether_approval_is_needed_and_fails_or_says_nonsense_denies(
    asker: str, says: Callable[[Any], Any], answer: Any, expected: str
) -> None:
    """I5, I6, I7: a gate that fails to run denies."""
    desk, seen = Desk(), list[Any]()
    if asker == "policy" and answer is None:
        expected = DENIED

    def asks(about: Any) -> Any:
        seen.append(about if asker == "tool" else about.input)
        return says(answer)

    made = desk.tool(requires_approval=asks) if asker == "tool" else desk.tool()
    hooks = [RequireApproval(LEAD, when=asks)] if asker == "policy" else []
    async with gate_of(made, hooks) as gate:
        result = await gate.call(call(5), user=ANN)
        assert seen == [{"cents": 5, "how": "ok"}], "the validated arguments"
        if expected == DENIED:
            assert (result.outcome, code(result)) == (Outcome.DENIED, "policy_error")
        else:
            assert result.outcome is (Outcome.SUSPENDED if expected == WAITS else Outcome.SUCCESS)
        assert desk.paid == ([5] if expected == RUNS else [])


async def test_what_changes_the_arguments_it_is_asked_about_changes_nothing_else() -> None:
    """I2."""
    desk = Desk()

    def meddles(arguments: dict[str, Any]) -> bool:
        arguments["cents"] = 999
        return True

    async with gate_of(desk.tool(requires_approval=meddles)) as gate:
        handle = await asked(gate)
        assert (await gate.waits.look(handle, BOB)).text == 'pay(cents=5, how="ok")'
        await gate.resume(handle, Approve(), approver=BOB)
        assert desk.paid == [5]


@pytest.mark.parametrize("nonsense", ["yes", 1, 0, {}, []])
def test_a_tool_that_demands_nonsense_is_refused_at_registration(nonsense: Any) -> None:
    with pytest.raises(RegistrationError):
        Desk().tool(requires_approval=nonsense)


NO_RULE: dict[str, Any] = {
    "requester": ("no", None, 1),
    "expires": (True, "60", 0, float("nan")),
    "escalate_after": ("5", -1, float("nan"), True),
    "roles": ("", {""}, [None]),
    "reason": (5,),
}


@pytest.mark.parametrize("field", NO_RULE)
def test_a_rule_of_another_kind_is_refused(field: str) -> None:
    """I5: with ``requester="no"`` callers approved their own calls."""
    right: dict[str, Any] = {
        "requester": False,
        "expires": 60,
        "escalate_after": 5.0,
        "escalate_to": "lead",
        "roles": "boss",
    }
    Approval(**right)
    for value in NO_RULE[field]:
        with pytest.raises(DefinitionError, match=field):
            Approval(**{**right, field: value})


# ---------------------------------------------------------------------- policies


async def test_a_policy_asks_for_the_tools_and_tenants_it_names_only() -> None:
    """I5."""
    desk = Desk()
    hooks = [RequireApproval(LEAD, tools=["pay"], tenants=["acme"])]
    async with gate_of([desk.tool(), desk.tool("refund")], hooks) as gate:
        assert (await gate.call(call(), user=ANN)).outcome is Outcome.SUSPENDED
        assert (await gate.call(call(), user=RAE)).ok
        assert (await gate.call(call(tool="refund"), user=ANN)).ok
        assert desk.paid == [5, 5]


async def test_a_policy_in_shadow_mode_asks_nobody_and_one_added_later_does() -> None:
    desk = Desk()

    class Trial(RequireApproval):
        mode = "shadow"

    async with gate_of(desk.tool(), [Trial()]) as gate:
        assert (await gate.call(call(), user=ANN)).ok
        undo = gate.use(RequireApproval(LEAD))
        handle = await asked(gate)
        undo()
        assert (await gate.call(call(), user=ANN)).ok
        assert (await refused(gate.resume(handle, Approve(), approver=BOB)))[1] == "stale"


@pytest.mark.parametrize("wrong", [{"rule": True}, {"rule": "lead"}, {"when": True}, {"roles": ["lead"]}])
def test_a_policy_that_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((HookError, TypeError)):
        RequireApproval(**wrong)


class Drifts(Hook):
    """Normalises so that the same arguments come to something else each time; and asks on its own."""

    def __init__(self, asks: bool) -> None:
        self.asks, self.today = asks, 1

    def will_normalize_input(self, ctx: InvokeContext) -> None:
        ctx.input = {**ctx.input, "cents": self.today}

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        if self.asks:
            ctx.suspend("approval", "Sure?", by=Approval(roles={"lead"}, quorum=2))


@pytest.mark.parametrize("asker", ["policy", "hook"])
async def test_arguments_that_come_to_something_else_when_resumed_are_asked_about_anew(asker: str) -> None:
    """I2, I5: the same value is approved and run, by hash; approvals of another do not count."""
    desk, drifts = Desk(), Drifts(asker == "hook")
    rule = Approval(roles={"lead"}, quorum=2) if asker == "policy" else False
    async with gate_of(desk.tool(requires_approval=rule), [drifts]) as gate:
        handle = await asked(gate)
        await gate.resume(handle, Approve(), approver=BOB)
        drifts.today = 2
        again = handle_of(await gate.resume(handle, Approve(), approver=CID))
        shown = await gate.waits.look(again, BOB)
        assert (shown.text, shown.approvals) == ('pay(cents=2, how="ok")', ())
        assert (await gate.resume(again, Approve(), approver=BOB)).outcome is Outcome.SUSPENDED
        assert desk.paid == []
        assert (await gate.resume(again, Approve(), approver=CID)).ok
        assert desk.paid == [2]


# ---------------------------------------------------------------------- what hooks and bodies ask


def resumable(desk: Desk, **options: Any) -> Any:
    """A tool that asks in its body: what for, and then whether a boss agrees."""

    @tool(effect="irreversible", resumable=True, **options)
    async def pay(cents: int, ctx: ToolContext) -> str:
        """Pay."""
        what = ctx.suspend("input", "What for?", schema={"type": "string", "maxLength": 9}, expires=60.0)
        ctx.suspend("approval", f"Pay for {what}?", by=Approval(roles={"boss"}, expires=30.0))
        desk.paid.append((cents, what))
        desk.keys.append(ctx.idempotency_key)
        return f"paid for {what}"

    return pay


@pytest.mark.parametrize("store", ["memory://", "sqlite://"])
async def test_a_body_that_asks_goes_on_with_the_answers(store: str) -> None:
    """I5, I16; design 10.13."""
    desk = Desk()
    async with gate_of(resumable(desk, requires_approval=LEAD), store=store) as gate:
        handle = await asked(gate, idempotency_key="order 7")
        first = await gate.resume(handle, Approve(), approver=BOB)
        question = await gate.waits.look(handle_of(first), ANN)
        assert (question.kind, question.prompt, question.schema) == (
            "input",
            "What for?",
            {"type": "string", "maxLength": 9},
        )
        assert question.expires_at == question.made_at + 60.0
        for person in (BOB, DAN, RAE):
            assert await refused(gate.resume(question.handle, Respond("tea"), approver=person)) == ONE_AND_THE_SAME
        for wrong in (7, None, "far too long a text"):
            with pytest.raises(Invalid):
                await gate.resume(question.handle, Respond(wrong), approver=ANN)
        for no_answer in (Approve(), Edit({"cents": 6})):
            with pytest.raises(Invalid) as expected:
                await gate.resume(question.handle, no_answer, approver=ANN)
            assert expected.value.code == "answer_expected"
        second = await gate.resume(question.handle, Respond("tea"), approver=ANN)
        sure = await gate.waits.look(handle_of(second), DAN)
        assert (sure.prompt, sure.expires_at) == ("Pay for tea?", sure.made_at + 30.0)
        assert set(await states(gate)) == {"no_effect"}
        done = await gate.resume(sure.handle, Approve(), approver=DAN)
        assert done.output == "paid for tea"
        assert (desk.paid, desk.keys) == ([(5, "tea")], ["order 7"])
        for used in (handle, question.handle, sure.handle):
            assert await refused(gate.resume(used, Approve(), approver=DAN)) == ONE_AND_THE_SAME
        again = await gate.call(call(), user=ANN, idempotency_key="order 7")
        assert (again.output, again.replayed) == ("paid for tea", True), "the caller's key outlives the questions"


async def test_an_edit_while_a_body_asks_needs_every_earlier_approval_again() -> None:
    """I5: who approved of 5 cents did not approve of 999."""
    desk = Desk()
    async with gate_of(resumable(desk, requires_approval=LEAD)) as gate:
        first = await gate.resume(await asked(gate), Approve(), approver=BOB)
        second = await gate.resume(handle_of(first), Respond("tea"), approver=ANN)
        edited = await gate.resume(handle_of(second), Edit({"cents": 999}), approver=DAN)
        assert desk.paid == []
        shown = await gate.waits.look(handle_of(edited), BOB)
        assert (shown.text, shown.approvals) == ("pay(cents=999)", ())
        assert await refused(gate.resume(shown.handle, Approve(), approver=DAN)) == ONE_AND_THE_SAME


async def test_an_answer_that_several_have_to_give_is_given_by_several() -> None:
    """I5: a response is no way past a quorum."""
    desk = Desk()

    class Asks(Hook):
        def will_authorize_input(self, ctx: InvokeContext) -> None:
            answer = ctx.suspend("approval", "Sure?", by=Approval(roles={"lead"}, quorum=2))
            desk.keys.append(answer)

    async with gate_of(desk.tool(), [Asks()]) as gate:
        handle = await asked(gate)
        for decision, person in ((Respond(1), BOB), (Respond(True), CID), (Respond(1), BOB), (Approve(), CID)):
            assert (await gate.resume(handle, decision, approver=person)).outcome is Outcome.SUSPENDED
        assert desk.paid == []
        assert (await gate.resume(handle, Approve(), approver=BOB)).ok
        assert (desk.paid, desk.keys[0]) == ([5], None), "what the last two agreed on"
        declined = await gate.resume(await asked(gate), Respond(error="No."), approver=BOB)
        assert declined.outcome is Outcome.DENIED
        assert desk.paid == [5]


async def test_a_body_may_suspend_only_where_the_tool_says_so() -> None:
    """Design 10.13."""

    @tool(effect="irreversible")
    async def pay(cents: int, ctx: ToolContext) -> str:
        """Pay."""
        return str(ctx.suspend("input", "What for?"))

    async with gate_of(pay) as gate:
        result = await gate.call(call(), user=ANN)
        assert result.outcome is Outcome.ERROR
        assert await gate.waits.pending(ANN) == []


async def test_a_call_within_a_call_cannot_wait() -> None:
    """I5: nobody could go on with it."""
    desk = Desk()
    told: list[Any] = []

    @tool(effect="irreversible")
    async def outer(ctx: ToolContext) -> str:
        """Call another."""
        try:
            return str(await ctx.call("pay", {"cents": 5}))
        except Denied as error:
            told.append((error.code, error.no_effect))
            raise

    async with gate_of([outer, desk.tool(requires_approval=LEAD)]) as gate:
        result = await gate.call(ToolCall(id="c1", name="outer", arguments={}), user=ANN)
        assert (result.outcome, code(result)) == (Outcome.DENIED, "nested_wait")
        assert told == [("nested_wait", False)]
        assert await gate.waits.pending(BOB) == []
        assert desk.paid == []
        assert await states(gate) == ["unknown"], "what else the outer one did, nobody knows"


async def test_a_call_that_was_cut_off_is_refused_also_when_it_has_waited() -> None:
    """Contract 45; I2."""
    desk = Desk()

    class AsksEarly(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None:
            ctx.suspend("approval", "Sure?")

    async with gate_of(desk.tool(), [AsksEarly()]) as gate:
        cut = ToolCall(id="c1", name="pay", arguments='{"cents": 5}', truncated=True)
        handle = await asked(gate, wanted=cut)
        assert (await gate.waits.look(handle, BOB)).text == "pay(…)", "what was not read yet is not shown"
        with pytest.raises(Invalid):
            await gate.resume(handle, Edit({"cents": 6}), approver=BOB)
        result = await gate.resume(handle, Approve(), approver=BOB)
        assert (result.outcome, desk.paid) == (Outcome.INVALID, [])
        whole = await asked(gate, wanted=ToolCall(id="c1", name="pay", arguments='{"cents": 5}'))
        assert (await gate.resume(whole, Approve(), approver=BOB)).ok
