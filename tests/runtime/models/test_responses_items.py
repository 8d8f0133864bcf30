"""Output items of the Responses API: which run, which wait, which the provider ran, and what goes back."""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest
import typing_extensions

from callgate import ToolResult
from callgate.runtime.models import codec
from callgate.runtime.models.wire.codec import ApprovalCodec
from callgate.runtime.models.wire.endings import ReplyEnding
from callgate.runtime.models.wire.folds.responses_items import CALLS, WAITING
from callgate.runtime.models.wire.reply import Reply
from callgate.tools.arguments.hydration import unknown
from callgate.tools.calls import Outcome
from tests.runtime.models.streaming import read, sse
from tests.runtime.models.wires import function_call, response, tool

WIRE = codec("openai_responses")
WHOLE: dict[str, dict[str, Any]] = {
    "apply_patch_call": {"operation": {"type": "delete_file", "path": "a"}},
    "computer_call": {"action": {"type": "wait"}, "pending_safety_checks": []},
    "local_shell_call": {"action": {"type": "exec", "command": ["ls"], "env": {}}},
    "mcp_approval_request": {"server_label": "crm", "name": "refund", "arguments": "{}"},
    "shell_call": {"action": {"commands": ["ls"]}, "environment": {"type": "local"}},
    "tool_search_call": {"arguments": {"q": "x"}, "execution": "client"},
}


def item(kind: str, **fields: Any) -> dict[str, Any]:
    status = {} if kind == "mcp_approval_request" else {"status": "completed"}
    return {"type": kind, "id": "i1", "call_id": "c1", **status, **WHOLE.get(kind, {}), **fields}


def answer_of(kind: str) -> dict[str, Any]:
    """The provider's own answer of an item, in the field that the API uses."""
    name = {"mcp_approval_request": "approval_request_id", "local_shell_call": "id"}.get(kind, "call_id")
    return {"type": WAITING[kind], "id": "o1", name: "i1" if kind == "mcp_approval_request" else "c1"}


def both(*output: Any, **fields: Any) -> list[Reply]:
    """The reply of a response in one piece, and as a stream that ends with it."""
    body = response(*output, **fields)
    return [WIRE.reply(body), read("openai_responses", sse({"type": "response.completed", "response": body}))]


def test_the_table_of_this_test_has_all_kinds() -> None:
    assert set(WHOLE) == set(WAITING)


@pytest.mark.parametrize("kind", WAITING)
def test_an_item_waits_for_the_client_until_it_is_answered(kind: str) -> None:
    waits = item(kind)
    for reply in both(waits):
        assert (reply.waiting, reply.ending, reply.provider_ran) == ((waits,), ReplyEnding.WAITING, ())
        assert reply.messages == (waits,)
    for reply in both(waits, answer_of(kind)):
        assert (reply.waiting, reply.ending) == ((), ReplyEnding.EMPTY)
        assert reply.provider_ran == (() if kind == "mcp_approval_request" else (waits,))


@pytest.mark.parametrize("kind", WAITING)
def test_an_item_of_a_response_that_was_cut_or_refused_does_not_wait(kind: str) -> None:
    waits = item(kind)
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    cut = both(waits, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    for reply in [*cut, *both(waits, refusal)]:
        assert reply.waiting == ()
        assert reply.ending in {ReplyEnding.TRUNCATED, ReplyEnding.REFUSED}
        assert waits not in reply.messages, "nobody could answer it"


@pytest.mark.parametrize("kind", [kind for kind in WAITING if kind != "mcp_approval_request"])
def test_an_item_that_is_not_complete_makes_the_answer_lost(kind: str) -> None:
    for reply in both(item(kind, status="incomplete"), function_call("pay", "{}")):
        assert reply.ending is ReplyEnding.LOST
        assert [call.truncated for call in reply.calls] == [True]
    beginning = [
        {"type": "response.output_item.added", "output_index": 0, "item": item(kind, status="in_progress")},
        {"type": "response.completed", "response": response()},
    ]
    assert read("openai_responses", sse(*beginning)).ending is ReplyEnding.LOST


def test_a_shell_of_the_provider_and_its_own_tool_search_do_not_wait() -> None:
    hosted = [
        item("shell_call", environment={"type": "container_reference", "container_id": "c"}),
        item("tool_search_call", execution="server", call_id=None),
    ]
    for one in hosted:
        for reply in both(one):
            assert (reply.waiting, reply.provider_ran) == ((), (one,))


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_that_the_provider_has_answered_is_not_ours(kind: str) -> None:
    call = {"type": kind, "id": "i1", "call_id": "c1", "name": "pay", CALLS[kind]: "{}"}
    output = {"type": f"{kind}_output", "id": "o1", "call_id": "c1", "output": "paid"}
    for reply in both(call, output):
        assert (reply.calls, reply.provider_ran) == ((), (call,))
        assert reply.messages == (call, output)
    for reply in both(call, {**output, "call_id": "other"}):
        assert len(reply.calls) == 1


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize(
    ("status", "runs"),
    [("completed", True), (None, True), *((one, False) for one in ("in_progress", "incomplete", "x"))],
)
def test_a_call_runs_only_if_its_own_status_is_completed(kind: str, status: str | None, runs: bool) -> None:
    call = {"type": kind, "id": "i1", "call_id": "c1", "name": "pay", CALLS[kind]: "{}", "status": status}
    for reply in both(call):
        assert [not call.truncated for call in reply.calls] == [runs]


@pytest.mark.parametrize("status", ["queued", "in_progress", None, "", "new", "COMPLETE"])
def test_a_response_that_is_not_completed_runs_nothing(status: str | None) -> None:
    for reply in both(function_call("pay", "{}"), status=status):
        assert reply.ending is ReplyEnding.LOST
        assert [call.truncated for call in reply.calls] == [True]


@pytest.mark.parametrize("status", ["queued", "in_progress", "incomplete", "failed", "cancelled"])
def test_calls_that_are_read_without_their_reply_run_only_from_a_whole_answer(status: str) -> None:
    assert [call.truncated for call in WIRE.calls(response(function_call("pay", "{}"), status=status))] == [True]
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    assert [call.truncated for call in WIRE.calls(response(refusal, function_call("pay", "{}")))] == [True]
    assert [call.truncated for call in WIRE.calls(response(function_call("pay", "{}")))] == [False]


def test_ten_thousand_repeats_of_one_call_are_one_call_and_other_arguments_are_another() -> None:
    same = [function_call("pay", '{"cents": 1}', call_id="c1")] * 10_000
    other = function_call("pay", '{"cents": 2}', call_id="c1")
    found = WIRE.calls(response(*same, other))
    assert [json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments for call in found] == [
        {"cents": 1},
        {"cents": 2},
    ]


def test_a_custom_call_is_no_call_of_a_function_and_is_answered_as_custom() -> None:
    translation = WIRE.translate([tool(name="pay")])
    call = {"type": "custom_tool_call", "id": "i1", "call_id": "c1", "name": "pay", "input": "{}"}
    (read_back,) = WIRE.calls(response(call), translation)
    assert read_back.name not in translation.tools
    (answer,) = WIRE.results([result_of(call)])
    assert (answer["type"], answer["call_id"]) == ("custom_tool_call_output", "c1")


def result_of(call: dict[str, Any]) -> ToolResult:
    (made,) = WIRE.calls(response(call))
    return ToolResult(made.id, made.name, Outcome.SUCCESS, "ok", provenance={"hydration": unknown(made).provenance})


def test_an_answer_repeats_the_caller_and_the_namespace_of_its_call() -> None:
    caller = {"type": "program", "caller_id": "p1"}
    (answer,) = WIRE.results([result_of(function_call("refund", "{}", "c1", caller=caller, namespace="crm"))])
    assert answer == {
        "type": "function_call_output",
        "call_id": "c1",
        "caller": caller,
        "namespace": "crm",
        "output": "ok",
    }
    (answer,) = WIRE.results([result_of(function_call("refund", "{}", "c1", caller=None))])
    assert set(answer) == {"type", "call_id", "output"}


def test_reasoning_that_is_not_encrypted_does_not_go_back_without_storage() -> None:
    plain, sealed = (
        {"type": "reasoning", "id": "r", "summary": [], **more} for more in ({}, {"encrypted_content": "g"})
    )
    compaction = {"type": "compaction", "id": "c", "encrypted_content": "x"}
    output = (plain, sealed, compaction, function_call("f", "{}"))
    for store, kept in (
        (False, [sealed, compaction]),
        (True, [plain, sealed, compaction]),
        (None, [plain, sealed, compaction]),
    ):
        for reply in both(*output, store=store):
            assert [*reply.messages[:-1]] == kept


def test_an_approval_is_answered_with_its_own_item() -> None:
    assert isinstance(WIRE, ApprovalCodec)
    for approve in (True, False):
        assert WIRE.decision(item("mcp_approval_request"), approve) == {
            "type": "mcp_approval_response",
            "approval_request_id": "i1",
            "approve": approve,
        }
    assert [kind for kind in WAITING if WIRE.decision(item(kind), True)] == ["mcp_approval_request"]


# ---------------------------------------------------------------------- nothing unknown: the official package's own types


def members(union: Any) -> list[Any]:
    if hasattr(union, "model_fields") or hasattr(union, "__required_keys__"):
        return [union]
    return [one for part in typing.get_args(union) if not isinstance(part, str) for one in members(part)]


def literal(annotation: Any) -> str:
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Literal else ""


def input_fields() -> dict[str, set[str]]:
    """The fields that each item may have as input."""
    from openai.types.responses.response_input_item_param import ResponseInputItemParam

    found: dict[str, set[str]] = {}
    for kind in members(ResponseInputItemParam):
        fields = typing_extensions.get_type_hints(kind)
        for name in typing.get_args(fields.get("type")) or ():
            found.setdefault(str(name), set()).update(fields)
    return found


def test_no_item_goes_back_with_a_field_that_the_api_refuses_as_input() -> None:
    from openai.types.responses import ResponseOutputItem

    accepted = input_fields()
    checked: set[str] = set()
    for kind in members(ResponseOutputItem):
        name = literal(kind.model_fields["type"].annotation)
        names = {field.alias or key for key, field in kind.model_fields.items()}
        values: dict[str, Any] = {**dict.fromkeys(names, "x"), **WHOLE.get(name, {}), "type": name, "content": []}
        whole = {key: value for key, value in values.items() if key in names}
        for reply in both({**whole, "status": "completed"} if "status" in names else whole):
            (sent,) = reply.messages
            assert set(sent) <= accepted[name], name
            checked.add(name)
    assert checked == {literal(kind.model_fields["type"].annotation) for kind in members(ResponseOutputItem)}


def test_null_fields_stay_only_where_the_api_requires_them() -> None:
    interpreter: dict[str, Any] = {
        "type": "code_interpreter_call",
        "id": "i",
        "container_id": "c",
        "code": None,
        "outputs": None,
    }
    text: dict[str, Any] = {
        "type": "output_text",
        "text": "hi",
        "annotations": [],
        "logprobs": None,
        "parsed": {"a": 1},
    }
    message = {"type": "message", "id": "m", "role": "assistant", "content": [text], "phase": None}
    (reply, _) = both({**interpreter, "status": None}, message)
    assert reply.messages[0] == interpreter
    assert reply.messages[1] == {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "hi", "annotations": []}],
    }
    assert json.dumps(reply.messages)
