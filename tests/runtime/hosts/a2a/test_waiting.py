"""Calls that wait: who is shown what, who may decide, what becomes of the task."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from a2a import helpers as h
from a2a import types as p
from a2a.utils.errors import (
    A2AError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from callgate import Effects, Gate, Respond, ToolContext, ToolError, tool
from callgate.errors import Stale
from callgate.hooks import Authorize, RequireApproval, permit
from callgate.providers.clock import FakeClock
from callgate.runtime.suspensions.pending import Answer, PendingTasks, Wanted
from callgate.tools.approval import Approval
from tests.runtime.conversation.conversing import asks, call, says, told
from tests.runtime.hosts.a2a.making import ANN, MAX, SEARCH, Desk, Plain, approve, as_json, running


async def test_who_asks_cannot_approve_with_what_they_are_shown() -> None:
    """B7: no handle leaves the gate this way."""
    desk = Desk()
    gate = desk.gate()
    async with running(gate) as agent:
        ann = await agent.as_user("ann")
        seen = await ann.call("refund", {"order_id": "A-1", "cents": 5}, id="c1")
        assert (seen.state, [one["type"] for one in seen.data]) == ("input-required", ["approval"])
        assert 'refund(order_id="A-1", cents=5)' in seen.text
        (waiting,) = await gate.waits.pending(MAX)
        shown = json.dumps(as_json(await ann.client.get_task(p.GetTaskRequest(id=seen.task))))
        assert waiting.handle not in shown
        assert waiting.handle.partition(".")[0] not in shown
        for deed in (
            ann.decide(seen.task, "c1", "approve"),
            ann.answer(seen.task, "c1", "5 cents for A-1"),
            ann.data({"type": "answer", "id": "c1", "value": None}, task=seen.task),
            ann.send(h.new_text_part("Yes, do it."), task=seen.task),
        ):
            with pytest.raises(A2AError):
                await deed
        assert (desk.refunds, (await ann.look(seen.task)).state) == ([], "input-required")


@pytest.mark.parametrize("how", ["elsewhere", "recorded elsewhere", "on the task"])
async def test_a_call_goes_on_when_somebody_else_has_approved_it(how: str) -> None:
    """B7, I5: once."""
    desk = Desk()
    gate = desk.gate()
    async with running(gate) as agent:
        ann, ben = await agent.as_user("ann"), await agent.as_user("ben")
        task = (await ann.call("refund", {"order_id": "A-1", "cents": 5}, id="c1")).task
        with pytest.raises(TaskNotFoundError):
            await ben.decide(task, "c1", "approve")  # no manager
        if "elsewhere" in how:
            await approve(gate, here=how == "elsewhere")
        else:
            await (await agent.as_user("max", Plain)).decide(task, "c1", "approve")
        for _ in range(2):
            seen = await ann.look(task)
            assert (seen.state, seen.data[0]["result"]) == ("completed", "5 cents for A-1")
        assert desk.refunds == [("A-1", 5)]


@pytest.mark.parametrize("decision", ["deny", Respond("nothing for A-1"), Respond(error="Ask again tomorrow.")])
async def test_what_an_approver_says_instead_is_what_the_task_comes_to(decision: Any) -> None:
    """B7."""
    desk = Desk()
    gate = desk.gate()
    async with running(gate) as agent:
        ann = await agent.as_user("ann")
        task = (await ann.call("refund", {"order_id": "A-1", "cents": 5})).task
        (waiting,) = await gate.waits.pending(MAX)
        await gate.resume(waiting.handle, decision, approver=MAX)
        seen = await ann.look(task)
        assert desk.refunds == []
        if decision == "deny":
            assert (seen.state, seen.data[0]["error"]["code"]) == ("rejected", "declined")
        elif decision.error:
            assert (seen.state, seen.data[0]["error"]["message"]) == ("rejected", "Ask again tomorrow.")
        else:
            assert (seen.state, seen.data[0]["result"]) == ("completed", "nothing for A-1")


ENDS: dict[str, tuple[Exception, str]] = {
    "nothing was done": (ToolError("No such order.", no_effect=True), "no_effect"),
    "it is the answer": (ToolError("No such order.", code="no_order"), "no_order"),
    "unknown outcome": (ConnectionError("CANARY"), "outcome_unknown"),
}


@pytest.mark.parametrize(("error", "code"), ENDS.values(), ids=ENDS)
async def test_how_an_approved_call_failed_elsewhere_is_told_to_who_asked(error: Exception, code: str) -> None:
    """I3, I9."""

    @tool(effect="irreversible", requires_approval=True)
    async def pay() -> str:
        """Pay."""
        raise error

    gate = Gate([pay], allow_unguarded=True, effects=Effects(durable=False), signing_keys=["a key that is long enough"])
    async with running(gate) as agent:
        ann = await agent.as_user("ann")
        task = (await ann.call("pay")).task
        assert not (await approve(gate)).ok
        seen = await ann.look(task)
        assert (seen.state, seen.data[0]["error"]["code"]) == ("failed", code)
        assert "CANARY" not in str(seen)


async def test_a_read_that_was_approved_elsewhere_gives_its_output_to_who_asked() -> None:
    """I5: a read has no receipt; its result is kept for its requester, and it runs once."""
    desk = Desk()
    gate = desk.gate()
    async with running(gate) as agent:
        ann = await agent.as_user("ann")
        task = (await ann.call("salary", {"name": "Kim"})).task
        assert desk.reads == []
        await approve(gate)
        await asyncio.gather(*(ann.look(task) for _ in range(4)))
        seen = await ann.look(task)
        assert (seen.state, seen.data[0]["result"]) == ("completed", 5000)
        assert desk.reads == ["Kim"]


async def test_a_task_waits_until_every_approver_has_spoken() -> None:
    """B7: a quorum."""
    ran = []

    @tool(effect="irreversible", requires_approval=Approval(quorum=2))
    async def launch() -> str:
        ran.append(1)
        return "launched"

    gate = Gate(
        [launch], allow_unguarded=True, effects=Effects(durable=False), signing_keys=["a key that is long enough"]
    )
    async with running(gate) as agent:
        ann, ben, max_ = [await agent.as_user(name) for name in ("ann", "ben", "max")]
        task = (await ann.call("launch", id="c1")).task
        assert (await ben.decide(task, "c1", "approve")).data[0]["outcome"] == "suspended"
        assert ((await ann.look(task)).state, ran) == ("input-required", [])
        assert (await max_.decide(task, "c1", "approve")).data[0]["outcome"] == "success"
        assert ((await ann.look(task)).state, ran) == ("completed", [1])


@pytest.mark.parametrize("answer", ["text", "data"])
async def test_a_question_is_answered_by_its_owner_in_words_or_as_data(answer: str) -> None:
    """Contract 39."""

    @tool(effect="read", resumable=True)
    async def book(ctx: ToolContext) -> str:
        day = ctx.suspend("input", "Which day?", schema={"type": "string", "maxLength": 10})
        return f"booked for {day}"

    gate = Gate([book], allow_unguarded=True, effects=Effects(durable=False))
    async with running(gate) as agent:
        ann = await agent.as_user("ann")
        seen = await ann.call("book", id="c1")
        assert (seen.state, seen.text) == ("input-required", "Which day?")
        assert seen.data[0] | {"expires_at": 0} == {
            "type": "input",
            "kind": "input",
            "id": "c1",
            "name": "book",
            "prompt": "Which day?",
            "schema": {"type": "string", "maxLength": 10.0},
            "expires_at": 0,
        }
        if answer == "text":
            seen = await ann.send(h.new_text_part("Monday"), task=seen.task)
        else:
            seen = await ann.data({"type": "answer", "id": "c1", "value": "Monday"}, task=seen.task)
        assert (seen.state, seen.data[0]["result"]) == ("completed", "booked for Monday")


async def test_an_answer_that_does_not_fit_fails_the_call_and_not_the_server() -> None:
    """B6, C30: results are checked."""
    heard: list[Any] = []

    def failed(messages: Any, _: Any) -> Any:
        heard.append(told(messages)["c1"])
        return says("Odd.")

    tools = SEARCH | {"outputSchema": {"type": "object", "required": ["files"]}}
    async with running(Desk().gate(), asks(call("c1", "search", query="x")), failed) as agent:
        ann = await agent.as_user("ann")
        seen = await ann.start("Find it.", tools)
        seen = await ann.answer(seen.task, "c1", {"CANARY": 1})
        assert (seen.state, seen.text) == ("completed", "Odd.")
        assert "files" in heard[0]["error"]["message"]
        assert "CANARY" not in str(heard)


async def test_consent_is_the_owners_to_give() -> None:
    ran = []

    @tool(effect="read", resumable=True)
    async def locate(ctx: ToolContext) -> str:
        ctx.suspend("consent", "May I look where you are?")
        ran.append(ctx.user.id)
        return "at home"

    gate = Gate([locate], allow_unguarded=True, effects=Effects(durable=False))
    async with running(gate) as agent:
        ann, max_ = await agent.as_user("ann"), await agent.as_user("max")
        seen = await ann.call("locate", id="c1")
        with pytest.raises(TaskNotFoundError):
            await max_.decide(seen.task, "c1", "approve")
        seen = await ann.decide(seen.task, "c1", "approve")
        assert (seen.state, seen.data[0]["result"], ran) == ("completed", "at home", ["ann"])


def twice(kind: str) -> Gate:
    """A gate whose tool asks two questions of a kind."""

    @tool(effect="read", resumable=True)
    async def wipe(ctx: ToolContext) -> str:
        found = [ctx.suspend(kind, text) for text in ("Wipe the trial?", "Wipe everything?")]
        return f"wiped {found}"

    return Gate([wipe], allow_unguarded=True, effects=Effects(durable=False))


@pytest.mark.parametrize("sabotaged", [False, True], ids=["ours", "sabotaged"])
@pytest.mark.parametrize("how", ["answer", "tool_result", "decision", "text"])
async def test_an_answer_that_arrives_twice_answers_one_question(
    how: str, sabotaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gets no response sends its message again, and the next question of the call is open by then."""
    if sabotaged:
        monkeypatch.setattr(Wanted, "id", property(lambda one: one.call_id))
    async with running(twice("consent" if how == "decision" else "input")) as agent:
        ann = await agent.as_user("ann")
        first = await ann.call("wipe", id="c1")
        parts = {
            "answer": {"type": "answer", "id": "c1", "value": "yes"},
            "tool_result": {"type": "tool_result", "id": "c1", "result": "yes"},
            "decision": {"type": "decision", "id": "c1", "decision": "approve"},
        }
        part = h.new_text_part("yes") if how == "text" else h.new_data_part(parts[how])
        message = h.new_message([part], role=p.Role.ROLE_USER)
        message.task_id = first.task

        async def send() -> None:
            if sabotaged and how == "text":
                message.message_id += "x"
            async for _ in ann.client.send_message(p.SendMessageRequest(message=message)):
                pass

        await send()
        second = await ann.look(first.task)
        assert (second.state, second.text.partition("\n")[0], second.data[0]["id"] != "c1") == (
            "input-required",
            "Wipe everything?",
            not sabotaged,
        )
        if sabotaged:
            await send()
            assert (await ann.look(first.task)).state == "completed"
            return
        with pytest.raises(A2AError):
            await send()
        assert await ann.look(first.task) == second
        message.message_id += "x"
        if how != "text":
            message.parts[0].CopyFrom(h.new_data_part(parts[how] | {"id": second.data[0]["id"]}))
        await send()
        assert (await ann.look(first.task)).state == "completed"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "tool_call", "name": "add", "arguments": {"a": 1}, "idempotencyKey": "k"},
        {"type": "decision", "id": "c1", "decision": "approve", "arguments": {"cents": 1}},
    ],
    ids=["misspelt key", "edited approval"],
)
async def test_a_member_without_an_effect_is_an_error(part: dict[str, Any]) -> None:
    """A repeated call was a second effect, and an approver's edit was left out."""
    desk = Desk()
    async with running(desk.gate()) as agent:
        task = (await (await agent.as_user("ann")).call("refund", {"order_id": "A-1", "cents": 5}, id="c1")).task
        user = await agent.as_user("max")
        with pytest.raises(InvalidParamsError, match="has a member that is not known"):
            await user.data(part, task=task if part["type"] == "decision" else "")
        assert (desk.refunds, desk.seen) == ([], [])


async def test_a_message_that_asks_for_push_notifications_is_refused() -> None:
    """Its client would wait for them; the agent sends nothing to an address of a client."""
    desk = Desk()
    async with running(desk.gate()) as agent:
        ann = await agent.as_user("ann")
        message = h.new_message([h.new_data_part({"type": "tool_call", "name": "add", "arguments": {"a": 1}})])
        request = p.SendMessageRequest(message=message)
        request.configuration.task_push_notification_config.url = "http://127.0.0.1:1/x"
        with pytest.raises(PushNotificationNotSupportedError):
            async for _ in ann.client.send_message(request):
                pass
        assert desk.seen == []


async def test_a_client_tool_that_needs_approval_waits_twice() -> None:
    """B2, B7: approved elsewhere, then run by the client."""

    gate = Gate(
        [],
        [RequireApproval()],
        allow_unguarded=True,
        effects=Effects(durable=False),
        signing_keys=["a key that is long"],
    )
    async with running(gate, asks(call("c1", "search", query="x")), says("Done.")) as agent:
        ann = await agent.as_user("ann")
        seen = await ann.start("Find it.", SEARCH)
        assert (seen.state, seen.calls) == ("input-required", ())
        with pytest.raises(InvalidParamsError):
            await ann.answer(seen.task, "c1", 1)
        await (await agent.as_user("max")).decide(seen.task, "c1", "approve")
        seen = await ann.look(seen.task)
        assert (seen.state, [one["id"] for one in seen.calls]) == ("input-required", ["c1"])
        seen = await ann.answer(seen.task, "c1", 1)
        assert (seen.state, seen.text) == ("completed", "Done.")


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_policy_decides_about_a_clients_tools_by_their_tag(allowed: bool) -> None:
    """B2, I6: a user does not see a tool that no rule permits."""
    heard: list[Any] = []

    def denied(messages: Any, _: Any) -> Any:
        heard.append(told(messages)["c1"]["error"]["code"])
        return says("No.")

    rules = Authorize(permit("clients", tags={"client"} if allowed else {"other"}))
    gate = Gate([], [rules], effects=Effects(durable=False))
    async with running(gate, asks(call("c1", "search", query="x")), denied) as agent:
        seen = await (await agent.as_user("ann")).start("Find it.", SEARCH)
        assert (seen.state, heard) == (("input-required", []) if allowed else ("completed", ["unknown_tool"]))
        with pytest.raises(InvalidParamsError, match="tags is set by the application"):
            await (await agent.as_user("ann")).start("Find it.", SEARCH | {"tags": ["client"]})


async def test_what_nobody_answers_in_time_ends_the_call_and_then_the_task() -> None:
    """Contract 40, C8: expiry."""
    clock = FakeClock()
    heard: list[Any] = []

    def late(messages: Any, _: Any) -> Any:
        heard.append(told(messages)["c1"])
        return says("Too late.")

    async with running(Desk().gate(clock=clock), asks(call("c1", "search", query="x")), late) as agent:
        ann = await agent.as_user("ann")
        seen = await ann.start("Find it.", SEARCH)
        clock.advance(86_400)
        with pytest.raises(InvalidParamsError):
            await ann.answer(seen.task, "c1", 1)
        seen = await ann.look(seen.task)
        assert (seen.state, seen.text) == ("completed", "Too late.")
        assert heard[0]["error"]["code"] == "expired"


async def test_a_clients_tool_whose_name_the_gate_has_taken_since_ends_its_call_alone() -> None:
    """B2, I5: a redeploy."""
    heard: list[Any] = []

    def stale(messages: Any, _: Any) -> Any:
        heard.append(told(messages)["c1"]["error"]["code"])
        return says("Ask again.")

    gate = Desk().gate()
    async with running(gate, asks(call("c1", "search", query="x")), stale) as agent:
        ann = await agent.as_user("ann")
        task = (await ann.start("Find it.", SEARCH)).task

        @tool(effect="read")
        async def search(query: str) -> str:
            """Search here."""
            return query

        gate.add(search)
        assert (await ann.look(task)).state == "input-required"
        seen = await ann.answer(task, "c1", 1)
        assert (seen.state, seen.text, heard) == ("completed", "Ask again.", ["stale"])


@pytest.mark.parametrize("how", ["swept", "forgotten"])
async def test_a_call_that_nobody_can_decide_any_more_ends(how: str) -> None:
    """I5, C8."""
    clock, desk = FakeClock(), Desk()
    gate = desk.gate(clock=clock)
    async with running(gate) as agent:
        ann = await agent.as_user("ann")
        task = (await ann.call("refund", {"order_id": "A-1", "cents": 5})).task
        clock.advance(86_400)
        await gate.maintain()
        if how == "forgotten":
            await gate.store.suspensions.prune(clock.now + 1)
        seen = await ann.look(task)
        codes = {"swept": "expired", "forgotten": "not_pending"}
        assert (seen.state, seen.data[0]["error"]["code"]) == ("rejected", codes[how])
        assert desk.refunds == []


async def test_a_decision_in_a_process_with_other_policies_leaves_the_task_waiting() -> None:
    """Issue 16 B4: a process with the right policies takes the decision later."""
    desk = Desk()
    gate = desk.gate()
    async with running(gate) as agent:
        ann = await agent.as_user("ann")
        seen = await ann.call("refund", {"order_id": "A-1", "cents": 5})
        (waiting,) = await gate.waits.pending(MAX)
        undo = gate.use(Authorize(permit("all")))
        with pytest.raises(Stale):
            await gate.resume(waiting.handle, "approve", approver=MAX)
        assert (await ann.look(seen.task)).state == seen.state
        undo()
        assert (await gate.resume(waiting.handle, "approve", approver=MAX)).ok
        assert (await ann.look(seen.task)).state == "completed"
        assert desk.refunds == [("A-1", 5)]


async def test_work_that_was_interrupted_is_said_to_have_failed_and_never_done_again() -> None:
    """I3, I16: a process that ended in the middle of it."""
    desk, clock = Desk(), FakeClock()
    gate = desk.gate(clock=clock)
    async with running(gate, asks(call("c1", "search", query="x")), says("never")) as agent:
        ann = await agent.as_user("ann")
        seen = await ann.start("Find it.", SEARCH)
        pending = await agent_pending(gate).find(ANN, seen.task)
        await agent_pending(gate).take(await agent_pending(gate).answer(pending, {"c1": answer(1)}))
        assert (await ann.look(seen.task)).state == "input-required"  # another process may be at it
        with pytest.raises(InvalidParamsError):
            await ann.answer(seen.task, "c1", 1)
        clock.advance(3600)
        seen = await ann.look(seen.task)
        assert (seen.state, seen.text) == ("failed", "The task was interrupted, or waited too long.")
        with pytest.raises(UnsupportedOperationError):
            await ann.answer(seen.task, "c1", 1)
        assert await gate.waits.pending(ANN) == []


def answer(value: Any) -> Any:
    return Answer(value)


def agent_pending(gate: Gate) -> Any:
    return PendingTasks(lambda: gate.store.suspensions, gate.waits.keys, gate.waits.now)


async def test_looking_at_a_task_from_many_sides_goes_on_with_it_once() -> None:
    """I16: duplicate delivery."""
    desk = Desk()
    gate = desk.gate()
    async with running(gate, asks(call("c1", "refund", order_id="A-1", cents=5)), says("Paid.")) as agent:
        ann = await agent.as_user("ann")
        task = (await ann.start("Pay.")).task
        await approve(gate)
        await asyncio.gather(*(ann.look(task) for _ in range(8)))
        seen = await ann.look(task)
        assert (seen.state, seen.text, desk.refunds) == ("completed", "Paid.", [("A-1", 5)])
