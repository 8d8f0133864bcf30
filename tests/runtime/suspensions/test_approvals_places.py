"""Where people meet calls that wait: consent, tools without a schema, conversations, and what each of them is shown."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from callgate import Approval, Approve, Hook, InvokeContext, Outcome, Respond, invoke_tool
from callgate.errors import Denied, Invalid, NotPending, RegistrationError
from callgate.hooks import Consent
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.conversation.converse import converse
from callgate.runtime.conversation.events import Ending
from callgate.runtime.models.openai_chat import OpenAIChat
from callgate.testing import Call, FakeClock, Say, ScriptedModel
from tests.runtime.effects.scene_desk import (
    ANN,
    BOB,
    CID,
    DAN,
    EVE,
    LEAD,
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
)

# ---------------------------------------------------------------------- consent


@pytest.mark.parametrize("granted", [True, False])
async def test_consent_is_what_the_caller_answers(granted: bool) -> None:
    """I5, I6."""
    desk, clock = Desk(), FakeClock()
    async with gate_of(desk.tool(), [Consent(ask="suspend", expires=60.0)], clock=clock) as gate:
        result = await gate.call(call(), user=ANN)
        assert (result.pending.kind, result.pending.expires) == ("consent", 60.0)
        handle = handle_of(result)
        for person in (BOB, RAE):
            assert await refused(gate.resume(handle, Respond({"granted": True}), approver=person)) == ONE_AND_THE_SAME
        for wrong in ({}, {"granted": "yes"}, {"granted": 1}, True, {"granted": True, "more": 1}):
            with pytest.raises(Invalid):
                await gate.resume(handle, Respond(wrong), approver=ANN)
        with pytest.raises(Invalid):
            await gate.resume(handle, Approve(), approver=ANN)
        assert desk.paid == []
        done = await gate.resume(handle, Respond({"granted": granted}), approver=ANN)
        assert (done.outcome, code(done)) == (
            (Outcome.SUCCESS, None) if granted else (Outcome.DENIED, "consent_refused")
        )
        assert desk.paid == ([5] if granted else [])
        assert (await gate.call(call(), user=ANN)).ok is granted, "asked once; a refusal is no answer for ever"


# ---------------------------------------------------------------------- tools without a schema

FREE: dict[str, Any] = {"parameters": None, "allow_no_schema": True}


async def test_a_tool_without_a_schema_waits_for_a_person_or_runs_as_its_mode_says() -> None:
    """Contract 15, 16, 17, C9."""
    desk = Desk()
    look = desk.tool("look", effect="read", no_schema_mode="read-only", **FREE)
    ask = desk.tool("ask", no_schema_mode="human-approval", **FREE)
    run = desk.tool("run", no_schema_mode="full", **FREE)
    async with gate_of([look, ask, run]) as gate:
        for name, mode in (("look", "read-only"), ("run", "full")):
            result = await gate.call(call(tool=name), user=ANN)
            assert result.ok
            assert (result.provenance["validated"], result.provenance["no_schema_mode"]) == (False, mode)
        assert desk.paid == [5, 5]
        waiting = await gate.call(call(tool="ask"), user=ANN)
        assert (waiting.provenance["validated"], waiting.provenance["no_schema_mode"]) == (False, "human-approval")
        handle = handle_of(waiting)
        assert (await gate.waits.look(handle, EVE)).text == 'ask(cents=5, how="ok")'
        assert desk.paid == [5, 5]
        with pytest.raises(Denied):
            await gate.resume(handle, Approve(), approver=ANN)
        done = await gate.resume(handle, Approve(), approver=EVE)
        assert (done.outcome, done.provenance["validated"]) == (Outcome.SUCCESS, False)
        assert desk.paid == [5, 5, 5]


async def test_without_anybody_to_ask_a_tool_in_need_of_approval_is_denied() -> None:
    """Contract C9: no approver, no run."""
    desk = Desk()
    with pytest.raises(Denied) as denied:
        await invoke_tool(desk.tool(no_schema_mode="human-approval", **FREE), {"cents": 5}, user=ANN)
    assert denied.value.code == "approval_required"
    assert desk.paid == []


@pytest.mark.parametrize(
    "options",
    [{"no_schema_mode": None}, {"no_schema_mode": "read-only"}, {"no_schema_mode": "x"}],
)
def test_a_tool_without_a_schema_and_without_a_fitting_mode_is_refused(options: dict[str, Any]) -> None:
    """Contract 13, 14, 15."""
    with pytest.raises(RegistrationError):
        gate_of(Desk().tool(**{**FREE, **options}))


# ---------------------------------------------------------------------- conversations


async def test_a_conversation_waits_is_approved_elsewhere_and_goes_on() -> None:
    """I16."""
    desk = Desk()
    tools = [desk.tool(requires_approval=LEAD)]
    script: list[Any] = [[Call("pay", {"cents": 5}, id="a")], Say("It is paid.")]
    async with (
        gate_of(tools, store="memory://") as asking,
        gate_of(tools, store=asking.store) as deciding,
        ScriptedModel(script) as model,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        client: Any = OpenAIChat(model.url + "/v1", model="scripted", http=http)
        first = await converse(client, asking, "Pay five cents.", user=ANN)
        assert first.ended is Ending.SUSPENDED
        (seen,) = await deciding.waits.pending(BOB)
        result = await deciding.resume(seen.handle, Approve(), approver=BOB)
        assert (result.call_id, desk.paid) == (first.calls[0].call.id, [5])
        last = await converse(client, asking, user=ANN, resume=first.state, results={result.call_id: result})
        assert (last.ended, desk.paid) == (Ending.DONE, [5])
        assert model.requests[-1].results[0].content == "paid 1"
        assert model.refusals == []


async def test_people_see_what_they_may_decide_and_nothing_else() -> None:
    """I5, I8."""
    desk, clock = Desk(), FakeClock()
    tools = [desk.tool(requires_approval=LEAD), desk.tool("refund", requires_approval=Approval(roles={"boss"}))]
    async with gate_of(tools, clock=clock) as gate:
        for number in range(120):  # more than one look at the store brings
            await asked(gate, wanted=call(number, "refund"))
            clock.advance(1.0)
        mine = [await asked(gate, wanted=call(7))]
        clock.advance(1.0)
        mine.append(await asked(gate, wanted=call(8)))
        theirs = await asked(gate, RAE, call(9))
        assert [one.handle for one in await gate.waits.pending(BOB)] == mine
        assert [one.handle for one in await gate.waits.pending(BOB, limit=1)] == mine[:1]
        assert [one.handle for one in await gate.waits.pending(BOB, kind="input")] == []
        assert [one.handle for one in await gate.waits.pending(ROB)] == [theirs]
        assert len(await gate.waits.pending(DAN)) == 100
        assert len(await gate.waits.pending(DAN, limit=1000)) == 120
        for person in (ANN, EVE, RAE):
            assert await gate.waits.pending(person) == []
        assert (await gate.waits.look(mine[0], ANN)).arguments == {"cents": 7, "how": "ok"}, "who asked may look, too"
        for person in (DAN, EVE, RAE, ROB):
            assert await refused(gate.waits.look(mine[0], person)) == ONE_AND_THE_SAME


# ---------------------------------------------------------------------- answers in place of the tool


class Asks(Hook):
    """Asks a lead in ``will_authorize``, until it is told to stop."""

    stopped = False

    async def will_authorize(self, ctx: InvokeContext) -> None:
        if not self.stopped:
            ctx.suspend("approval", "Is that so?", by=LEAD)


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("effect", ["read", "idempotent", "irreversible"])
@pytest.mark.parametrize(
    "answer", [Respond("a voucher"), Respond(error="There is no receipt.")], ids=["value", "error"]
)
async def test_an_answer_holds_in_a_process_whose_tool_asks_for_no_approval(
    answer: Respond, effect: str, here: bool
) -> None:
    """During a deployment a read ran in place of its answer, and an effect that had not run was ``unknown``."""
    desk, store = Desk(), MemoryStore()
    old, new = (desk.tool(effect=effect, requires_approval=rule) for rule in (LEAD, None))
    async with gate_of(old, store=store) as before, gate_of(new, store=store) as after:
        handle = await asked(before)
        result = await after.resume(handle, answer, approver=BOB, here=here)
        if not here:
            result = await after.proceed(handle, user=ANN)
        assert (result.output, result.outcome) == (answer.value, Outcome.DENIED if answer.error else Outcome.SUCCESS)
        with pytest.raises(NotPending):
            await before.resume(handle, Approve(), approver=BOB)
    assert desk.paid == []


@pytest.mark.parametrize("asks", ["still", "no more"])
@pytest.mark.parametrize("effect", ["read", "idempotent", "irreversible"])
async def test_an_error_as_answer_to_a_hook_ends_its_call(effect: str, asks: str) -> None:
    """The tool ran if the hook asked no more; else an effect waited on, and another approver could let it run."""
    desk, hook = Desk(), Asks()
    async with gate_of(desk.tool(effect=effect), [hook]) as gate:
        handle = await asked(gate)
        hook.stopped = asks == "no more"
        result = await gate.resume(handle, Respond(error="There is no receipt."), approver=BOB)
        assert result.error is not None
        assert (result.outcome, result.error.public) == (Outcome.DENIED, "There is no receipt.")
        with pytest.raises(NotPending):
            await gate.resume(handle, Approve(), approver=CID)
    assert desk.paid == []
