"""Forms of responses, and the tool calls in them (contract 46, 50, 55, 61, C10a, C10b)."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

import pytest

from callgate import ToolCall, ToolDefinition
from callgate.errors import CallgateError
from callgate.runtime.models import codec
from callgate.runtime.models.wire.codec import Codec, Translation, WireError
from callgate.runtime.models.wire.names import NameMap
from callgate.tools.arguments.hydration import unknown
from tests.runtime.models.wires import (
    WIRES,
    calling,
    chat,
    function,
    function_call,
    gemini,
    gemini_call,
    message,
    ollama,
    response,
    tool,
    tool_use,
)

OPENAI, ANTHROPIC, OLLAMA = codec("openai_chat"), codec("anthropic"), codec("ollama")
RESPONSES, GEMINI = codec("openai_responses"), codec("gemini")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("wrong", [None, "text", b"{}", 5, [], [{}], object()])
def test_a_response_that_is_no_mapping_is_a_wire_error(wire: str, wrong: Any) -> None:
    with pytest.raises(WireError, match="a response must be a JSON object") as caught:
        codec(wire).calls(wrong)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, CallgateError)


def test_the_object_of_an_sdk_is_refused_with_the_way_to_give_it() -> None:
    class Completion:
        def model_dump(self) -> dict[str, Any]:
            return {}

    with pytest.raises(WireError, match="model_dump"):
        OPENAI.calls(Completion())  # type: ignore[arg-type]


def test_the_way_to_give_the_object_of_an_sdk_gives_the_names_that_the_provider_sends() -> None:
    """Google's SDK dumps ``finish_reason`` where nothing else is asked for; a blocked answer has no reason then."""
    types = pytest.importorskip("google.genai.types")
    sent = gemini({"text": "Hm."}, gemini_call("f", {"n": 1}), finish="SAFETY")
    answer = types.GenerateContentResponse.model_validate(sent)
    with pytest.raises(WireError) as caught:
        GEMINI.calls(answer)
    way = re.search(r"response\.model_dump\((.*)\)", str(caught.value))
    assert way is not None
    given = answer.model_dump(**eval(f"dict({way[1]})"))
    assert GEMINI.reply(given).ending == "refused"
    assert [call.truncated for call in GEMINI.calls(given)] == [True]
    assert GEMINI.reply(given).messages == GEMINI.reply(sent).messages


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"error": {"message": "no"}},
        {"error": "model not found"},
        {"type": "error", "error": {"type": "overloaded_error"}},
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": {"0": {}}},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"tool_calls": None, "function_call": None}}]},
        {"choices": [{"message": {"tool_calls": "x", "function_call": "x"}}]},
        {"choices": [{"message": {"tool_calls": [None, 5, "x", [], {}], "function_call": {}}}]},
        {"message": None},
        {"message": {"tool_calls": None}},
        {"message": {"tool_calls": [None, 5, "x", [], {}]}},
        {"content": None},
        {"content": "text"},
        {"content": [None, 5, "x", [], {}, {"type": ["tool_use"]}]},
        {"output": None},
        {"output": [None, 5, "x", [], {}, {"type": ["function_call"]}, {"type": "function_call"}]},
        {"candidates": None},
        {"candidates": [None]},
        {"candidates": [{"content": None}]},
        {"candidates": [{"content": {"parts": [None, 5, "x", [], {}, {"functionCall": None}, {"functionCall": {}}]}}]},
    ],
)
def test_contract_61_an_answer_without_calls_gives_none_and_does_not_raise(wire: str, body: dict[str, Any]) -> None:
    """Contract 61."""
    assert codec(wire).calls(body) == []
    assert codec(wire).calls(MappingProxyType(body), codec(wire).translate([tool(strict=True)])) == []


@pytest.mark.parametrize("error", [{"message": "cut"}, "cut"])
@pytest.mark.parametrize("wire", WIRES)
def test_calls_beside_an_error_are_not_read(wire: str, error: Any) -> None:
    answer = calling(wire, ("f", {}, "c"))
    assert len(codec(wire).calls({**answer, "error": None})) == 1
    assert codec(wire).calls({**answer, "error": error}) == []


@pytest.mark.parametrize(
    "arguments", [None, "", "{}", {}, '{"city": "Paris"}', {"city": "Paris"}, "{bad", [1], 5, True]
)
@pytest.mark.parametrize("wire", WIRES)
def test_contract_46_arguments_are_handed_on_as_they_were_sent(wire: str, arguments: Any) -> None:
    """Contract 46."""
    (call,) = codec(wire).calls(calling(wire, ("f", arguments, "c")), codec(wire).translate([tool(name="f")]))
    assert call.arguments is arguments
    assert not call.synthetic_id


def test_contract_46_the_chunk_is_the_fragment_itself() -> None:
    """Contract 46."""
    fragment = function("f", "{}")
    assert OPENAI.calls(chat(fragment))[0].chunk is fragment
    block = tool_use("f", {})
    assert ANTHROPIC.calls(message({"type": "text", "text": "x"}, block))[0].chunk is block


# --------------------------------------------------------------------------------------------------------------- ids


def test_contract_c10b_missing_ids_are_made_by_position_and_flagged() -> None:
    """Contract C10b."""
    calls = OLLAMA.calls(ollama(*({"function": {"name": name, "arguments": {}}} for name in "abc")))
    assert [(call.id, call.synthetic_id) for call in calls] == [(f"call_{n}", True) for n in (1, 2, 3)]


def test_contract_c10b_a_repeated_id_is_kept_once_and_then_made_anew() -> None:
    """Contract C10b."""
    calls = OPENAI.calls(chat(function("a", "{}", "x"), function("b", "{}", "x"), function("c", "{}", "y")))
    assert [(call.id, call.synthetic_id) for call in calls] == [("x", False), ("call_2", True), ("y", False)]


def test_contract_c10b_a_made_id_never_equals_one_that_the_provider_sent() -> None:
    """Contract C10b."""
    sent = [None, "call_1", "call_3", 7, "", "call_1_"]
    calls = OPENAI.calls(chat(*(function("f", "{}", call_id) for call_id in sent)))
    assert len({call.id for call in calls}) == len(sent)
    assert [call.id for call in calls if not call.synthetic_id] == ["call_1", "call_3", "call_1_"]
    assert [call.id for call in calls] == [call.id for call in OPENAI.calls(chat(*(c.chunk for c in calls)))]


# ------------------------------------------------------------------------------------------------------------- names


def test_contract_50_wire_names_are_mapped_back_to_tool_ids() -> None:
    """Contract 50."""
    names = NameMap.of(["fs.read"])
    translation = Translation({"tools": []}, {}, names)
    for wire in WIRES:
        answer = calling(wire, (names.wire("fs.read"), {}, "c"))
        assert [call.name for call in codec(wire).calls(answer, translation)] == ["fs.read"]


def test_contract_c10a_a_call_of_an_unknown_tool_is_not_dropped() -> None:
    """Contract C10a."""
    translation = OPENAI.translate([tool()])
    assert [call.name for call in OPENAI.calls(chat(function("nope", "{}")), translation)] == ["nope"]


@pytest.mark.parametrize("name", [None, "", 5, ["f"]])
def test_contract_c10a_a_call_without_a_usable_name_is_kept_for_hydration_to_refuse(name: Any) -> None:
    """Contract C10a."""
    for wire in WIRES:
        (call,) = codec(wire).calls(calling(wire, (name, {"a": 1}, None)))
        assert call.name == ""


# --------------------------------------------------------------------------------------------------------- truncation


@pytest.mark.parametrize("reason", ["length", "LENGTH", "content_filter", "max_tokens", "error"])
def test_a_chat_answer_cut_short_marks_its_calls(reason: str) -> None:
    calls = OPENAI.calls(chat(function("a", "{}", "1"), function("b", '{"x', "2"), finish=reason))
    assert [call.truncated for call in calls] == [True, True]
    assert OPENAI.calls(chat(function_call={"name": "f", "arguments": "{"}, finish=reason))[0].truncated
    assert OLLAMA.calls(ollama(function("f", {}), reason=reason))[0].truncated


@pytest.mark.parametrize("reason", ["tool_calls", "stop", "function_call", "eos", "", None])
def test_a_good_finish_reason_marks_none(reason: Any) -> None:
    assert not OPENAI.calls(chat(function("f", "{}"), finish=reason))[0].truncated
    assert not OLLAMA.calls(ollama(function("f", {}), reason="stop" if reason else reason))[0].truncated
    if reason:
        assert not ANTHROPIC.calls(message(tool_use("f", {}), stop="tool_use"))[0].truncated


@pytest.mark.parametrize("reason", ["abort", "some_new_reason", 5, ["length"], {"length": 1}])
def test_any_other_finish_reason_marks_all(reason: Any) -> None:
    assert OPENAI.calls(chat(function("f", "{}"), finish=reason))[0].truncated
    assert OLLAMA.calls(ollama(function("f", {}), reason=reason))[0].truncated
    assert ANTHROPIC.calls(message(tool_use("f", {}), stop=reason))[0].truncated


@pytest.mark.parametrize("stop", ["max_tokens", "model_context_window_exceeded"])
def test_of_an_anthropic_answer_cut_short_the_last_block_is_marked(stop: str) -> None:
    calls = ANTHROPIC.calls(message(tool_use("a", {}, "1"), tool_use("b", {}, "2"), stop=stop))
    assert [call.truncated for call in calls] == [False, True]


def test_an_anthropic_call_that_was_complete_before_the_cut_is_not_marked() -> None:
    cut_in_text = message(tool_use("a", {}), {"type": "text", "text": "I wi"}, stop="max_tokens")
    assert [call.truncated for call in ANTHROPIC.calls(cut_in_text)] == [False]


@pytest.mark.parametrize("status", ["incomplete"])
def test_of_a_response_cut_short_the_last_item_and_those_not_completed_are_marked(status: str) -> None:
    first, second, third = (function_call("f", "{}", name) for name in "abc")
    cut = response(first, {**second, "status": "in_progress"}, third, status=status)
    assert [call.truncated for call in RESPONSES.calls(cut)] == [False, True, True]
    incomplete = response({**first, "status": "incomplete"}, second)
    assert [call.truncated for call in RESPONSES.calls(incomplete)] == [True, False]


@pytest.mark.parametrize("finish", ["STOP", 1, "UNEXPECTED_TOOL_CALL"])
def test_finish_reasons_of_gemini_that_end_an_answer_well(finish: Any) -> None:
    assert [call.truncated for call in GEMINI.calls(gemini(gemini_call("f", {}), finish=finish))] == [False]


@pytest.mark.parametrize("finish", ["MAX_TOKENS", 2, "SAFETY", 3, "MALFORMED_FUNCTION_CALL", 10, "SOME_NEW_REASON"])
def test_any_other_finish_reason_of_gemini_marks_all_calls(finish: Any) -> None:
    calls = GEMINI.calls(gemini(gemini_call("f", {}), gemini_call("g", {}), finish=finish))
    assert [call.truncated for call in calls] == [True, True]


UNFINISHED: list[tuple[Codec, dict[str, Any]]] = [
    *((ANTHROPIC, message(tool_use("f", {}), stop=reason)) for reason in ("", None)),
    *((GEMINI, gemini(gemini_call("f", {}), finish=reason)) for reason in (0, "", None, "FINISH_REASON_UNSPECIFIED")),
    (GEMINI, {"candidates": [{"content": {"parts": [gemini_call("f", {})]}, "finish_reason": "SAFETY"}]}),
    (OLLAMA, ollama(function("f", {})) | {"done": False}),
    (RESPONSES, response(function_call("f", "{}"), status=None)),
    (RESPONSES, response(function_call("f", "{}"), {"type": "computer_call", "call_id": "c", "status": "incomplete"})),
]


@pytest.mark.parametrize(("wire", "body"), UNFINISHED)
def test_no_call_of_an_answer_that_is_not_known_to_be_finished_runs(wire: Codec, body: dict[str, Any]) -> None:
    """An answer so far, as an SDK shows it while it streams, has whole calls with half of their arguments."""
    assert [call.truncated for call in wire.calls(body)] == [True]
    assert wire.reply(body).calls == tuple(wire.calls(body))


# ------------------------------------------------------------------------------------------------- one wire's oddities


def test_of_responses_only_our_own_tools_are_read() -> None:
    theirs = [{"type": kind, "id": "x", "name": "f", "arguments": "{}"} for kind in ("mcp_call", "web_search_call")]
    answer = response({"type": "reasoning", "id": "rs"}, *theirs, function_call("f", "{}"))
    assert [call.id for call in RESPONSES.calls(answer)] == ["r1"]


def test_a_call_of_responses_without_a_call_id_takes_the_items_id() -> None:
    (call,) = RESPONSES.calls(response({**function_call("f", "{}", "x"), "call_id": None}))
    assert (call.id, call.synthetic_id) == ("fc_x", False)


def test_a_custom_tool_call_of_responses_is_kept_with_its_text() -> None:
    item = {"type": "custom_tool_call", "id": "ctc", "call_id": "c", "name": "shell", "input": "ls"}
    (call,) = RESPONSES.calls(response(item))
    assert (call.name, call.arguments, call.id) == ("shell", "ls", "c")


def test_a_call_of_gemini_spelled_with_an_underscore_is_read() -> None:
    (call,) = GEMINI.calls(gemini({"function_call": {"name": "f", "args": {"a": 1}, "id": "g"}}))
    assert (call.name, call.arguments, call.id) == ("f", {"a": 1}, "g")


def test_only_the_first_candidate_of_gemini_is_read() -> None:
    answer = gemini(gemini_call("a", {}))
    answer["candidates"] += gemini(gemini_call("b", {}))["candidates"]
    assert [call.name for call in GEMINI.calls(answer)] == ["a"]


def test_anthropics_server_tools_are_not_ours() -> None:
    answer = message(
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": 1}},
        {"type": "mcp_tool_use", "id": "m", "name": "f", "input": {}},
        tool_use("f", {}),
    )
    assert [call.id for call in ANTHROPIC.calls(answer)] == ["t1"]


def test_a_legacy_function_call_is_read_where_there_are_no_tool_calls() -> None:
    (call,) = OPENAI.calls(chat(function_call={"name": "f", "arguments": "{}"}))
    assert (call.name, call.arguments, call.id, call.synthetic_id) == ("f", "{}", "call_1", True)
    both = chat(function("g", "{}"), function_call={"name": "f", "arguments": "{}"})
    assert [call.name for call in OPENAI.calls(both)] == ["g"]


@pytest.mark.parametrize("phantom", [{}, None, {"name": "", "arguments": ""}, {"name": None, "arguments": None}])
def test_a_phantom_function_call_is_no_call(phantom: Any) -> None:
    assert OPENAI.calls(chat(function_call=phantom)) == []
    assert OPENAI.calls(chat({"function": phantom}, {"custom": {"name": "", "input": ""}})) == []


def test_a_phantom_custom_part_does_not_hide_the_function() -> None:
    (call,) = OPENAI.calls(chat(function("f", "{}", custom={"name": "", "input": ""})))
    assert (call.name, call.arguments) == ("f", "{}")


def test_a_custom_tool_call_is_kept_with_its_text_for_hydration_to_judge() -> None:
    answer = chat({"id": "c", "type": "custom", "custom": {"name": "shell", "input": "rm -rf /"}})
    (call,) = OPENAI.calls(answer)
    assert (call.name, call.arguments, call.id) == ("shell", "rm -rf /", "c")


def test_only_the_first_choice_is_read() -> None:
    answer = chat(function("a", "{}"))
    answer["choices"] += chat(function("b", "{}"))["choices"]
    assert [call.name for call in OPENAI.calls(answer)] == ["a"]


@pytest.mark.parametrize("known", [False, True])
def test_contract_52_the_provider_tool_id_is_spelt_as_the_provider_spelt_it(known: bool) -> None:
    gemini = codec("gemini")
    definition = ToolDefinition("2fast", "x", {"type": "object"})
    translation = gemini.translate([definition])
    wire_name = translation.names.wire("2fast") if known else "2FAST!"
    body = {"candidates": [{"content": {"parts": [{"functionCall": {"name": wire_name, "args": {}}}]}}]}
    (call,) = gemini.calls(body, translation)
    assert (call.name, call.wire_name) == ("2fast" if known else wire_name, wire_name)
    assert unknown(call, "gemini").provenance.provider_tool_id == wire_name
    assert ToolCall.from_dict(call.to_dict()).wire_name == wire_name
