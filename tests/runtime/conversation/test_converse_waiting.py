"""Items that the client must answer, and calls that the provider ran: approvals, the state, and the audit log."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from callgate import Gate, codec, converse
from callgate.hooks import Audit
from callgate.providers.stores.base import AuditRow
from callgate.runtime.conversation.events import Conversation, Ending
from callgate.runtime.replay.report import ReplayReport
from tests.runtime.conversation.conversing import ANN, Asking, Notes
from tests.runtime.models.wires import function_call, gemini, message, response

APPROVAL = {
    "type": "mcp_approval_request",
    "id": "ap",
    "server_label": "crm",
    "name": "refund",
    "arguments": '{"n": 1}',
}
SHELL = {"type": "shell_call", "id": "sh", "call_id": "s1", "action": {"commands": ["ls"]}, "status": "completed"}
SEARCH = {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "x"}}
TEXT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "bye"}]}
CALL = function_call("note", '{"n": 1}', "c1")


class Script:
    """A model that gives these bodies one after the other, whole or streamed, and keeps what it was asked with."""

    def __init__(self, *bodies: dict[str, Any], wire: str = "openai_responses") -> None:
        self.codec = codec(wire)
        self.bodies = list(bodies)
        self.seen: list[list[Mapping[str, Any]]] = []

    async def reply(self, messages: Any, tools: Any) -> Any:
        self.seen.append(list(messages))
        return self.codec.reply(self.bodies.pop(0), tools)

    async def stream(self, messages: Any, tools: Any) -> AsyncGenerator[Any, None]:
        self.seen.append(list(messages))
        decoder = self.codec.decoder(tools)
        for event in [*decoder.feed(json.dumps(self.bodies.pop(0)).encode()), *decoder.end()]:
            yield event


async def talk(
    model: Script, rows: list[AuditRow], *hooks: Any, notes: Notes | None = None, **options: Any
) -> Conversation:
    """Converse with a gate that has the tool ``note`` and writes its audit log to *rows*."""
    kept = (notes or Notes()).tool(effect="read")
    messages = () if "resume" in options else options.pop("messages", "go")
    async with Gate([kept], [Audit(sink=rows.append), *hooks], allow_unguarded=True) as gate:
        return await converse(model, gate, messages, user=ANN, **options)


def called(rows: list[AuditRow]) -> list[tuple[str | None, str, str | None]]:
    return [(row.body["called"], row.body["outcome"], row.body.get("code")) for row in rows]


REQUESTED = "openai_responses.mcp_approval_request.crm.refund"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("item", [APPROVAL, SHELL], ids=["approval", "shell"])
async def test_a_conversation_waits_after_its_own_calls_are_answered_and_goes_on_with_the_answers(
    item: dict[str, Any], stream: bool
) -> None:
    notes, model = Notes(), Script(response(item, CALL), response(TEXT))
    waits = await talk(model, [], notes=notes, stream=stream)
    assert (waits.ended, waits.waiting, waits.ok, waits.state) == (Ending.WAITING, (item,), False, None)
    assert notes.ran == [1]
    assert [one.get("type") for one in waits.messages[1:]] == [item["type"], "function_call", "function_call_output"]
    answer = {"type": "shell_call_output", "call_id": "s1", "output": []}
    done = await talk(model, [], messages=[*waits.messages, answer], stream=stream)
    assert (done.ended, done.waiting) == (Ending.DONE, ())
    assert model.seen[1] == [*waits.messages, answer]


@pytest.mark.parametrize("calls", [(), (CALL,)], ids=["alone", "beside_a_call"])
@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_a_decision_answers_an_approval_and_is_recorded(calls: Any, approve: bool, is_async: bool) -> None:
    asked: list[Mapping[str, Any]] = []

    def decide(item: Mapping[str, Any]) -> bool:
        asked.append(item)
        return approve

    async def decide_later(item: Mapping[str, Any]) -> bool:
        return decide(item)

    rows: list[AuditRow] = []
    model = Script(response(APPROVAL, *calls), response(TEXT))
    done = await talk(model, rows, decide=decide_later if is_async else decide)
    assert (done.ended, done.waiting, asked) == (Ending.DONE, (), [APPROVAL])
    answer = {"type": "mcp_approval_response", "approval_request_id": "ap", "approve": approve}
    assert model.seen[1][-1] == answer
    assert done.messages.count(answer) == 1
    expected = (REQUESTED, "success", None) if approve else (REQUESTED, "denied", "denied")
    assert called(rows)[-1] == expected
    assert rows[-1].body["executed"] is False


def fails(_: Mapping[str, Any]) -> bool:
    raise RuntimeError("a bug")


@pytest.mark.parametrize("decide", [lambda _: None, lambda _: "yes", fails], ids=["none", "no_bool", "raises"])
async def test_without_a_decision_the_item_waits(decide: Any) -> None:
    model = Script(response(APPROVAL, CALL))
    waits = await talk(model, [], decide=decide)
    assert (waits.ended, waits.waiting, len(model.seen)) == (Ending.WAITING, (APPROVAL,), 1)


async def test_only_what_asks_for_an_approval_is_decided() -> None:
    waits = await talk(Script(response(APPROVAL, SHELL)), [], decide=lambda _: True)
    assert (waits.ended, waits.waiting) == (Ending.WAITING, (SHELL,))
    assert waits.messages[-1]["type"] == "mcp_approval_response"


async def test_an_item_waits_on_while_a_call_is_suspended_and_after_it_is_resumed() -> None:
    model, asking = Script(response(APPROVAL, CALL), response(TEXT)), Asking(suspends=[1])
    first = await talk(model, [], asking)
    assert (first.ended, first.waiting) == (Ending.SUSPENDED, (APPROVAL,))
    state = json.loads(json.dumps(first.state))
    waits = await talk(model, [], resume=state)
    assert (waits.ended, waits.waiting, len(model.seen)) == (Ending.WAITING, (APPROVAL,), 1)
    done = await talk(model, [], resume=state, decide=lambda _: True)
    assert (done.ended, done.waiting) == (Ending.DONE, ())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_what_the_provider_ran_is_in_the_audit_log(stream: bool) -> None:
    server = {"type": "server_tool_use", "id": "st", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "st", "content": []}
    ran = [{"executableCode": {"code": "1"}}, {"codeExecutionResult": {"outcome": "OUTCOME_OK"}}]
    cases = [
        ("openai_responses", response(SEARCH, TEXT), "openai_responses.web_search_call", Ending.DONE),
        ("openai_responses", response(SEARCH, TEXT, status="new"), "openai_responses.web_search_call", Ending.LOST),
        (
            "openai_responses",
            response({"type": "mcp_call", "id": "m", "server_label": "crm", "name": "pay", "output": "x"}, TEXT),
            "openai_responses.mcp_call.crm.pay",
            Ending.DONE,
        ),
        (
            "anthropic",
            message(server, found, {"type": "text", "text": "bye"}, stop="end_turn"),
            "anthropic.server_tool_use.web_search",
            Ending.DONE,
        ),
        ("gemini", gemini(*ran, {"text": "bye"}), "gemini.executableCode", Ending.DONE),
    ]
    for wire, body, name, ending in cases:
        rows: list[AuditRow] = []
        done = await talk(Script(body, wire=wire), rows, stream=stream)
        assert (done.ended, called(rows)) == (ending, [(name, "success", None)])
        assert (rows[0].body["executed"], rows[0].body["tool"], rows[0].body["user"]) == (False, "ran_elsewhere", "ann")


async def test_the_control_an_answer_without_such_items_adds_no_row() -> None:
    rows: list[AuditRow] = []
    await talk(Script(response(TEXT)), rows)
    assert rows == []


async def test_a_replay_finds_nothing_to_judge_in_what_ran_elsewhere() -> None:
    rows: list[AuditRow] = []
    await talk(Script(response(SEARCH, TEXT)), rows)
    async with Gate([Notes().tool(effect="read")], [Audit()], allow_unguarded=True) as gate:
        report: ReplayReport = await gate.replay(rows, [Asking(denies=[1])])
    assert (report.rows, report.same) == (1, 1)


@pytest.mark.parametrize("suspended", [False, True], ids=["at_once", "resumed"])
async def test_an_answer_has_the_form_and_the_caller_of_its_call(suspended: bool) -> None:
    caller = {"type": "program", "caller_id": "p"}
    custom = {"type": "custom_tool_call", "id": "i", "call_id": "c2", "name": "note", "input": "{}", "caller": caller}
    other = function_call("note", '{"n": 2}', "c3", namespace="crm")
    notes, hooks = Notes(), [Asking(suspends=[1])] if suspended else []
    model = Script(response({**CALL, "caller": caller}, custom, other), response(TEXT))
    done = await talk(model, [], *hooks, notes=notes)
    if suspended:
        done = await talk(model, [], notes=notes, resume=json.loads(json.dumps(done.state)))
    assert (done.ended, notes.ran) == (Ending.DONE, [1]), "a custom call, and one of a namespace, are no calls of note"
    first, second, third = model.seen[1][4:]
    assert (first["type"], first["caller"]) == ("function_call_output", caller)
    assert (second["type"], second["caller"]) == ("custom_tool_call_output", caller)
    assert (third["type"], third["namespace"]) == ("function_call_output", "crm")
