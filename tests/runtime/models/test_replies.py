"""A whole answer as a reply: text, reasoning, usage, and the messages for the history, which the provider must take."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.runtime.models import codec
from callgate.runtime.models.wire.codec import WireError
from callgate.runtime.models.wire.history import arguments_object, arguments_text, join_pieces, legal_name
from callgate.runtime.models.wire.reply import Usage
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
    tool_use,
)

USED: dict[str, tuple[dict[str, Any], Usage]] = {
    "openai_chat": (
        {
            "usage": {
                "prompt_tokens": 5,
                "completion_tokens": 7,
                "total_tokens": 12,
                "prompt_tokens_details": {"cached_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 3},
            }
        },
        Usage(5, 7, 12, 2, 3),
    ),
    "openai_responses": (
        {
            "usage": {
                "input_tokens": 5,
                "output_tokens": 7,
                "total_tokens": 12,
                "input_tokens_details": {"cached_tokens": 2},
                "output_tokens_details": {"reasoning_tokens": 3},
            }
        },
        Usage(5, 7, 12, 2, 3),
    ),
    "anthropic": (
        {
            "usage": {
                "input_tokens": 2,
                "cache_read_input_tokens": 2,
                "cache_creation_input_tokens": 1,
                "output_tokens": 7,
            }
        },
        Usage(5, 7, None, 2, None),
    ),
    "gemini": (
        {
            "usageMetadata": {
                "promptTokenCount": 5,
                "candidatesTokenCount": 4,
                "thoughtsTokenCount": 3,
                "totalTokenCount": 12,
                "cachedContentTokenCount": 2,
            }
        },
        Usage(5, 7, 12, 2, 3),
    ),
    "ollama": ({"prompt_eval_count": 5, "eval_count": 7}, Usage(5, 7)),
}


@pytest.mark.parametrize("wire", WIRES)
def test_a_reply_has_the_calls_that_the_codec_reads(wire: str) -> None:
    answer = calling(wire, ("f", {"a": 1}, "x"), ("g", "{}", "x"), ("h", None, None))
    reply = codec(wire).reply(answer)
    assert list(reply.calls) == codec(wire).calls(answer)
    assert reply.body is answer
    assert reply.error is None


@pytest.mark.parametrize("wire", WIRES)
def test_tokens_are_counted_as_the_provider_counts_them(wire: str) -> None:
    fields, usage = USED[wire]
    assert codec(wire).reply({**calling(wire), **fields}).usage == usage
    assert codec(wire).reply(calling(wire)).usage == Usage()
    odd = json.loads(json.dumps(fields).replace("5", "true").replace("7", '"7"'))
    found = codec(wire).reply({**calling(wire), **odd}).usage
    assert found.input in {None, usage.input}
    assert found.output in {None, usage.output}


@pytest.mark.parametrize("wire", WIRES)
def test_a_response_that_is_no_mapping_is_a_wire_error(wire: str) -> None:
    with pytest.raises(WireError, match="a response must be a JSON object"):
        codec(wire).reply([])  # type: ignore[arg-type]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("error", "read"),
    [({"message": "no"}, {"message": "no"}), ("no", {"message": "no"}), ([1], {"message": "list"})],
    ids=["object", "text", "odd"],
)
def test_an_error_is_read_and_nothing_goes_to_the_history(wire: str, error: Any, read: dict[str, Any]) -> None:
    reply = codec(wire).reply({**calling(wire, ("f", {}, "x")), "error": error})
    assert (reply.error, reply.calls, reply.messages) == (read, (), ())


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_with_nothing_in_it_gives_nothing(wire: str) -> None:
    reply = codec(wire).reply({})
    assert (reply.calls, reply.text, reply.reasoning, reply.messages, reply.stop) == ((), "", "", (), None)
    assert not reply.truncated


def test_text_and_reasoning_are_read_wherever_they_are() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "hi"}]
    answers: list[tuple[str, dict[str, Any]]] = [
        ("openai_chat", chat(content="hi", reasoning_content="hm")),
        ("openai_chat", chat(content="hi", reasoning="hm")),
        ("openai_chat", chat(content="hi", reasoning_details=[{"type": "reasoning.summary", "summary": "hm"}])),
        ("openai_chat", chat(content=parts)),
        (
            "openai_responses",
            response(
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "message", "content": [{"type": "output_text", "text": "hi"}]},
            ),
        ),
        (
            "anthropic",
            message({"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "hi"}),
        ),
        ("gemini", gemini({"text": "hm", "thought": True}, {"text": "hi"})),
        ("ollama", ollama(content="hi", thinking="hm")),
    ]
    for wire, answer in answers:
        reply = codec(wire).reply(answer)
        assert (reply.text, reply.reasoning) == ("hi", "hm"), wire


# ---------------------------------------------------------------------------------------------------------- history


def sent_calls(wire: str, answer: dict[str, Any]) -> list[tuple[Any, Any, Any]]:
    """The calls in the messages for the history: name, arguments, id."""
    found: list[tuple[Any, Any, Any]] = []
    for sent in codec(wire).reply(answer).messages:
        for call in sent.get("tool_calls", ()):
            found.append((call["function"]["name"], call["function"]["arguments"], call.get("id")))
        for block in sent.get("content") or () if wire == "anthropic" else ():
            found.append((block["name"], block["input"], block["id"]))
        for part in sent.get("parts", ()):
            found.append((part["functionCall"]["name"], part["functionCall"]["args"], part["functionCall"].get("id")))
        if wire == "openai_responses":
            found.append((sent["name"], sent["arguments"], sent["call_id"]))
    return found


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("arguments", "kept"),
    [({"a": 1}, {"a": 1}), ('{"a": 1}', {"a": 1}), (None, {}), ("", {}), ('{"a": ', {}), ([1], {}), (5, {})],
    ids=["object", "text", "none", "empty", "cut", "list", "number"],
)
def test_arguments_in_the_history_are_what_the_provider_takes(wire: str, arguments: Any, kept: dict[str, Any]) -> None:
    ((_, sent, _),) = sent_calls(wire, calling(wire, ("f", arguments, "x")))
    if wire in {"openai_chat", "openai_responses"}:
        assert isinstance(sent, str)
        assert sent == arguments or not isinstance(arguments, str) or not kept
        sent = json.loads(sent)
    assert sent == kept


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses", "anthropic"])
def test_ids_in_the_history_are_those_that_the_results_will_bear(wire: str) -> None:
    """Contract C10b."""
    answer = calling(wire, ("f", {}, "x"), ("g", {}, "x"), ("h", {}, None))
    calls = codec(wire).calls(answer)
    assert [call_id for _, _, call_id in sent_calls(wire, answer)] == [call.id for call in calls]
    assert len({call.id for call in calls}) == 3


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses", "anthropic"])
def test_a_name_that_the_api_would_refuse_is_made_legal_in_the_history(wire: str) -> None:
    answer = calling(wire, ("functions.get weather", {"a": 1}, "x"), (None, {"a": 1}, "y"))
    assert [name for name, _, _ in sent_calls(wire, answer)] == ["functions_get_weather", "unnamed"]
    assert codec(wire).calls(answer)[0].name == "functions.get weather"


def test_a_phantom_is_neither_a_call_nor_in_the_history() -> None:
    empty = {"name": "", "arguments": ""}
    (sent,) = (
        codec("openai_chat").reply(chat({"function": empty}, content="hi", function_call=empty, finish="stop")).messages
    )
    assert sent == {"role": "assistant", "content": "hi"}
    assert codec("anthropic").reply(message({"type": "tool_use"})).messages == ()
    assert codec("openai_responses").reply(response({"type": "function_call"})).messages == ()
    assert codec("gemini").reply(gemini({"functionCall": {}})).messages == ()


def test_what_chat_servers_send_but_do_not_take_stays_out_of_the_history() -> None:
    entry = function("f", "{}", "x", index=0, extra_content={"google": {"thought_signature": "T+/=="}})
    answer = chat(
        entry, content=None, annotations=[], audio=None, refusal=None, reasoning_content="hm", channel="final"
    )
    assert codec("openai_chat").reply(answer).messages == (
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "x",
                    "type": "function",
                    "function": {"name": "f", "arguments": "{}"},
                    "extra_content": {"google": {"thought_signature": "T+/=="}},
                }
            ],
        },
    )
    assert codec("openai_chat").reply(chat(audio={"id": "a", "data": "b"}, finish="stop")).messages[0]["audio"] == {
        "id": "a"
    }


def test_what_the_sdk_of_openai_adds_to_a_call_stays_out_of_the_history() -> None:
    """``chat.completions.parse`` adds the parsed arguments; a request has no such member."""
    entry = function("f", "{}", "a")
    entry["function"]["parsed_arguments"] = {"x": 1}
    (sent,) = codec("openai_chat").reply(chat(entry)).messages
    assert sent["tool_calls"] == [function("f", "{}", "a")]


def test_blocks_of_anthropic_go_back_as_they_are_save_empty_text() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "S+/=="},
        {"type": "redacted_thinking", "data": "R+/=="},
        {"type": "text", "text": "hi", "citations": None},
        tool_use("f", {"a": 1}, "x"),
    ]
    answer = message(*blocks[:2], {"type": "text", "text": " \n"}, *blocks[2:])
    assert codec("anthropic").reply(answer).messages == ({"role": "assistant", "content": blocks},)


def test_items_of_responses_go_back_without_their_nulls() -> None:
    reasoning = {"type": "reasoning", "id": "rs", "encrypted_content": "E+/==", "summary": []}
    call = function_call("f", '{"a": 1}', "x")
    sent = codec("openai_responses").reply(response({**reasoning, "status": None}, call)).messages
    assert sent == (reasoning, call)


def test_parts_of_gemini_go_back_with_their_signatures() -> None:
    parts = [
        {"text": "hm", "thought": True},
        gemini_call("f", {"a": 1}, thoughtSignature="T+/=="),
        gemini_call("g", {}, "id"),
    ]
    answer = gemini(*parts, {"text": ""})
    assert codec("gemini").reply(answer).messages == ({"role": "model", "parts": parts},)


def test_the_answer_itself_is_not_changed() -> None:
    for wire in WIRES:
        answer = calling(wire, ("a b", "{bad", None), ("f", {"a": 1}, "x"))
        before = json.dumps(answer)
        for sent in codec(wire).reply(answer).messages:
            sent.clear()
        assert json.dumps(answer) == before


# ------------------------------------------------------------------------------------------------------------ helpers


@given(st.one_of(st.text(), st.binary(), st.none(), st.dictionaries(st.text(), st.integers())))
def test_arguments_for_a_history_are_always_of_the_right_kind(value: Any) -> None:
    assert isinstance(arguments_object(value), dict)
    json.loads(arguments_text(value))
    assert 1 <= len(legal_name(value)) <= 64


def test_deep_or_odd_arguments_for_a_history_are_an_empty_object() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert arguments_text(deep) == "{}"
    assert arguments_object("[" * 9999) == {}
    assert arguments_text({"a": object()}) == "{}"
    assert arguments_text("\ud800") == "{}"


@given(st.text(alphabet=st.characters()), st.integers(1, 5))
def test_text_cut_anywhere_between_utf_16_units_is_joined_whole(text: str, size: int) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    pieces = [units[at : at + 2 * size].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2 * size)]
    assert join_pieces(pieces) == text
