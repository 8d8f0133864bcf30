"""Chat Completions as streamed by servers in the wild: which call does a piece belong to? (contract 61, C10a, C10b)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from callgate.runtime.models.wire.reply import CallDelta, ReasoningDelta, TextDelta
from callgate.tools.arguments.parse_errors import ParseError
from callgate.tools.arguments.parsing import parse_arguments
from tests.harness.cpu import cpu_seconds
from tests.runtime.models.streaming import (
    brief,
    chat_chunk,
    chat_stream,
    decode,
    piece,
    read,
    reply_of,
    shown_calls,
    sse,
    texts,
)
from tests.runtime.models.wires import chat, function

A, B = '{"a": 1}', '{"b": 2}'
TWO = [("f", A, "x"), ("g", B, "y")]
NO_IDS = [("f", A, None), ("g", B, None)]
WILD: dict[str, tuple[Sequence[Any], Sequence[tuple[str, Any, str | None]]]] = {
    "as_openai_does": (
        [piece(0, "x", "f", ""), piece(0, arguments='{"a"'), piece(0, arguments=": 1}"), piece(1, "y", "g", B)],
        TWO,
    ),
    "the_name_repeated": ([piece(0, "x", "f", '{"a"'), piece(0, "x", "f", ": 1}"), piece(1, "y", "g", B)], TWO),
    "the_name_repeated_without_id": ([piece(0, "x", "f", '{"a"'), piece(0, None, "f", ": 1}")], TWO[:1]),
    "the_name_repeated_at_the_end": ([piece(0, "x", "f", A), piece(0, "x", "f", ""), piece(0, "x", "f")], TWO[:1]),
    "the_name_in_pieces": (
        [piece(0, "x", "get_"), piece(0, None, "weather"), piece(0, arguments=A)],
        [("get_weather", A, "x")],
    ),
    "the_name_growing": (
        [piece(0, "x", "get"), piece(0, "x", "get_weather"), piece(0, arguments=A)],
        [("get_weather", A, "x")],
    ),
    "the_id_repeated": ([piece(0, "x", "f", '{"a"'), piece(0, "x", None, ": 1}")], TWO[:1]),
    "a_new_id_for_every_piece": (
        [piece(0, "x", "f"), piece(0, "x2", None, '{"a"'), piece(0, "x3", None, ": 1}"), piece(0, "x4", None, "")],
        TWO[:1],
    ),
    "texts_as_index": (
        [piece("0", "x", "f", ""), piece("1", "y", "g", ""), piece("0", arguments=A), piece("1", arguments=B)],
        TWO,
    ),
    "floats_as_index": (
        [piece(0.0, "x", "f", ""), piece(1.0, "y", "g", ""), piece(0.0, arguments=A), piece(1.0, arguments=B)],
        TWO,
    ),
    "no_ids": ([piece(0, None, "f", A), piece(1, None, "g", B)], NO_IDS),
    "empty_ids": ([piece(0, "", "f", A), piece(1, "", "g", B)], NO_IDS),
    "no_ids_and_no_index": ([piece(None, None, "f", A), piece(None, None, "g", B)], NO_IDS),
    "no_ids_no_index_one_delta": ([[piece(None, None, "f", A), piece(None, None, "g", B)]], NO_IDS),
    "no_ids_no_index_same_tool": ([[piece(None, None, "f", A), piece(None, None, "f", A)]], [("f", A, None)] * 2),
    "no_ids_no_index_same_tool_later": ([piece(None, None, "f", "{}")] * 3, [("f", "{}", None)] * 3),
    "no_ids_index_0_for_all": ([piece(0, None, "f", A), piece(0, None, "f", A)], [("f", A, None)] * 2),
    "no_arguments_no_ids_no_index": (
        [piece(None, None, "f"), piece(None, None, "g")],
        [("f", "", None), ("g", "", None)],
    ),
    "no_arguments_one_delta_index_0": ([[piece(0, "x", "f"), piece(0, "y", "f")]], [("f", "", "x"), ("f", "", "y")]),
    "ids_reused": ([piece(0, "0", "f", A), piece(1, "0", "g", B)], [("f", A, "0"), ("g", B, None)]),
    "ids_reused_same_tool": ([piece(0, "0", "f", A), piece(1, "0", "f", A)], [("f", A, "0")]),
    "ids_reused_one_delta_no_index": (
        [[piece(None, "0", "f", A), piece(None, "0", "f", A)]],
        [("f", A, "0")],
    ),
    "ids_reused_no_index": ([piece(None, "0", "f", A), piece(None, "0", "g", B)], [("f", A, "0"), ("g", B, None)]),
    "index_0_for_all": ([piece(0, "x", "f", A), piece(0, "y", "g", B)], TWO),
    "index_0_for_all_in_pieces": (
        [piece(0, "x", "f", '{"a"'), piece(0, arguments=": 1}"), piece(0, "y", "g"), piece(0, arguments=B)],
        TWO,
    ),
    "index_0_for_all_one_delta": ([[piece(0, "x", "f", A), piece(0, "y", "g", B)]], TWO),
    "index_0_for_all_interleaved": (
        [piece(0, "x", "f"), piece(0, "y", "g"), piece(0, "x", None, A), piece(0, "y", None, B)],
        TWO,
    ),
    "index_0_for_all_name_late": ([piece(0, "x", "f", A), piece(0, "y", None, B), piece(0, "y", "g")], TWO),
    "no_index": ([piece(None, "x", "f", A), piece(None, "y", "g", B)], TWO),
    "no_index_in_pieces": (
        [piece(None, "x", "f"), piece(None, None, None, A), piece(None, "y", "g"), piece(None, None, None, B)],
        TWO,
    ),
    "no_index_by_id": (
        [piece(None, "x", "f"), piece(None, "y", "g"), piece(None, "x", None, A), piece(None, "y", None, B)],
        TWO,
    ),
    "index_from_1": ([piece(1, "x", "f", A), piece(2, "y", "g", B)], TWO),
    "index_sparse": ([piece(7, "x", "f"), piece(3, "y", "g"), piece(7, None, None, A), piece(3, None, None, B)], TWO),
    "index_as_text": ([piece("0", "x", "f", A), piece("1", "y", "g", B)], TWO),
    "interleaved": (
        [
            piece(0, "x", "f"),
            piece(1, "y", "g"),
            [piece(0, arguments='{"a"'), piece(1, arguments=B)],
            piece(0, arguments=": 1}"),
        ],
        TWO,
    ),
    "arguments_before_the_name": (
        [piece(0, "x", None, '{"a"'), piece(0, None, None, ": 1}"), piece(0, None, "f")],
        TWO[:1],
    ),
    "arguments_before_the_name_no_index": ([piece(None, None, None, A), piece(None, "x", "f")], TWO[:1]),
    "arguments_as_an_object": (
        [piece(0, "x", "f", {"a": 1}), piece(1, "y", "g", {"b": 2})],
        [("f", {"a": 1}, "x"), ("g", {"b": 2}, "y")],
    ),
    "arguments_as_an_object_no_ids": ([piece(0, None, "f", {"a": 1})] * 2, [("f", {"a": 1}, None)] * 2),
    "arguments_null": (
        [piece(0, "x", "f"), {"index": 0, "function": {"name": None, "arguments": None}}],
        [("f", "", "x")],
    ),
    "sent_a_second_time": ([piece(0, "x", "f", '{"a"'), piece(0, None, None, ": 1}"), piece(0, "x", "f", A)], TWO[:1]),
    "whole_calls_in_the_last_chunk": ([[piece(0, "x", "f", A), piece(1, "y", "g", B)]], TWO),
    "nothing_but_phantoms": ([[None, 5, "x", {}, {"index": 0}, {"function": None}, {"function": {"name": ""}}]], []),
    "a_name_alone": ([piece(0, "x", "f")], [("f", "", "x")]),
    "a_call_without_a_name": ([piece(0, "x", None, A)], [("", A, "x")]),
    "custom": (
        [piece(0, "x", type="custom", custom={"name": "sh", "input": "l"}), {"index": 0, "custom": {"input": "s"}}],
        [("sh", "ls", "x")],
    ),
}


@pytest.mark.parametrize("case", WILD, ids=list(WILD))
@pytest.mark.parametrize("done", [True, False], ids=["done", "no_done"])
def test_each_call_gets_its_own_pieces(case: str, done: bool) -> None:
    """Contract C10a, C10b."""
    deltas, expected = WILD[case]
    stream = chat_stream(*deltas, done=done)
    events = decode("openai_chat", [stream])
    reply = reply_of(events)
    assert brief(reply) == expected
    assert reply.truncated is (not expected)  # a finish reason that announces calls, and no call
    for (tool, shown), call in zip(shown_calls(events), reply.calls, strict=False):
        assert tool == call.name
        assert isinstance(call.arguments, dict) or shown == call.arguments


@pytest.mark.parametrize(
    ("end", "done"), [("tool_calls", False), ("stop", True), (None, True), ("function_call", True)]
)
def test_a_finish_reason_or_done_ends_an_answer(end: str | None, done: bool) -> None:
    reply = read("openai_chat", chat_stream(piece(0, "x", "f", A), finish=end, done=done))
    assert (reply.truncated, reply.stop) == (False, end)


def test_without_either_the_answer_was_cut_and_no_call_is_ready() -> None:
    reply = read("openai_chat", chat_stream(piece(0, "x", "f", A), finish=None, done=False))
    assert reply.truncated
    assert [call.truncated for call in reply.calls] == [True]


def test_a_piece_of_a_call_after_the_finish_reason_takes_the_end_back() -> None:
    late = sse(
        chat_chunk("tool_calls", tool_calls=[piece(0, "x", "f", '{"a"')]),
        chat_chunk(tool_calls=[piece(0, arguments=": 1")]),
    )
    assert read("openai_chat", late).truncated
    assert not read("openai_chat", late + sse(chat_chunk(tool_calls=[piece(0, arguments="}")]), done=True)).truncated


def test_a_finish_reason_in_the_chunk_of_the_calls_or_in_each_chunk_is_an_end() -> None:
    chunks = [
        chat_chunk("tool_calls", tool_calls=[piece(0, "x", "f", A)]),
        chat_chunk("tool_calls", tool_calls=[piece(1, "y", "g", B)]),
    ]
    assert brief(read("openai_chat", sse(*chunks))) == TWO
    assert not read("openai_chat", sse(*chunks)).truncated


@pytest.mark.parametrize("reason", ["length", "content_filter", "error"])
def test_a_streamed_answer_cut_for_length_marks_its_calls_and_readies_none(reason: str) -> None:
    reply = read("openai_chat", chat_stream(piece(0, "x", "f", '{"a'), finish=reason))
    assert (reply.truncated, reply.stop, [call.truncated for call in reply.calls]) == (True, reason, [True])


def test_usage_comes_in_a_chunk_without_choices() -> None:
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    stream = sse(chat_chunk(content="hi"), chat_chunk("stop"), {"choices": [], "usage": usage}, done=True)
    reply = read("openai_chat", stream)
    assert (reply.usage.input, reply.usage.output, reply.usage.total, reply.usage.cached) == (5, 7, 12, 3)
    later = sse({"choices": [], "usage": usage}, {"choices": [], "usage": None}, done=True)
    assert read("openai_chat", later).usage.total == 12


def test_one_call_that_is_in_no_list_is_read() -> None:
    assert brief(read("openai_chat", sse(chat_chunk("tool_calls", tool_calls=piece(0, "x", "f", A))))) == TWO[:1]


def test_nulls_in_every_place_are_passed_over() -> None:
    nulls = [
        *({}, {"choices": None}, {"choices": [None]}, {"choices": [{}]}, {"choices": [{"delta": None}]}),
        {"choices": [{"delta": {"content": None, "tool_calls": None, "function_call": None, "role": None}}]},
        {"choices": [{"delta": {"tool_calls": [None, {"function": None}]}, "finish_reason": None}], "usage": None},
        {"choices": [], "error": None},
    ]
    reply = read("openai_chat", sse(*nulls, chat_chunk(content="x"), chat_chunk("stop"), done=True))
    assert (reply.text, reply.calls, reply.error) == ("x", (), None)


def test_keep_alive_comments_and_chunks_that_are_no_json_are_passed_over() -> None:
    noise = b": OPENROUTER PROCESSING\n\nevent: ping\n\ndata:\n\ndata: keep-alive\n\ndata: 5\n\ndata: null\n\n"
    stream = noise + sse(chat_chunk(content="a")) + noise + sse(chat_chunk("stop"), done=True) + noise
    reply = read("openai_chat", stream)
    assert (reply.text, reply.truncated) == ("a", False)


def test_json_that_is_broken_counts_as_a_cut_answer() -> None:
    """Something was lost: the arguments may lack a piece, and still be JSON."""
    stream = sse(chat_chunk(tool_calls=[piece(0, "x", "f", A)])) + b'data: {"choices": [{"del\n\n'
    reply = read("openai_chat", stream + sse(chat_chunk("tool_calls"), done=True))
    assert reply.truncated
    assert [call.truncated for call in reply.calls] == [True]


def test_events_without_a_blank_line_between_them_are_read() -> None:
    stream = sse(chat_chunk(content="a"), chat_chunk(content="b"), chat_chunk("stop"), done=True).replace(
        b"\n\n", b"\n"
    )
    reply = read("openai_chat", stream)
    assert (reply.text, reply.truncated, reply.stop) == ("ab", False, "stop")


def test_a_legacy_function_call_is_streamed_too() -> None:
    deltas = [{"function_call": {"name": "f", "arguments": ""}}, {"function_call": {"arguments": '{"a"'}}]
    deltas += [{"function_call": {"arguments": ": 1}"}}]
    events = decode(
        "openai_chat", [sse(*(chat_chunk(**each) for each in deltas), chat_chunk("function_call"), done=True)]
    )
    assert brief(reply_of(events)) == [("f", A, None)]
    assert shown_calls(events) == [("f", A)]


FORMS: dict[str, tuple[list[Any], Any]] = {
    "an_empty_object_first": ([{}, '{"a"', ": 1}"], A),
    "an_empty_object_last": (['{"a"', ": 1}", {}], A),
    "null_last": ([{"a": 1}, None], {"a": 1}),
    "an_empty_text_last": ([{"a": 1}, ""], {"a": 1}),
    "the_same_twice": ([A, {"a": 1}], A),
    "an_object_that_grows": ([{"a": 1}, {"a": 1, "b": 2}], {"a": 1, "b": 2}),
    "nothing_but_an_empty_object": ([{}], {}),
}
DISAGREE: list[list[Any]] = [
    [{"a": 1}, {"b": 2}],
    [{"a": 1}, {"a": 2}],
    [{"a": 1}, B],
    [A, {"b": 2}],
    [A, False],
    ['{"a"', {"b": 2}],
]


def in_forms(forms: Sequence[Any], *, legacy: bool, ids: bool = False) -> bytes:
    """A stream of one call whose pieces of arguments have these forms."""
    if legacy:
        sent: list[dict[str, Any]] = [{"name": "f", "arguments": forms[0]}, *({"arguments": one} for one in forms[1:])]
        return sse(*(chat_chunk(function_call=one) for one in sent), chat_chunk("function_call"), done=True)
    rest = [piece(0, "x" if ids else None, "f" if ids else None, one) for one in forms[1:]]
    return chat_stream(piece(0, "x", "f", forms[0]), *rest)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("case", FORMS)
def test_a_form_of_the_arguments_that_says_nothing_takes_nothing_away(case: str, legacy: bool) -> None:
    """Some servers send an empty object before or after the text; a call without its arguments has a wider effect."""
    forms, expected = FORMS[case]
    (call,) = read("openai_chat", in_forms(forms, legacy=legacy)).calls
    assert (call.name, call.arguments, call.truncated) == ("f", expected, False)


@pytest.mark.parametrize("forms", [[A, {"b": 2}] * 20_000, ['"x', {}] * 20_000, [{"a": 1}] * 40_000])
def test_any_number_of_forms_takes_linear_time(forms: list[Any]) -> None:
    stream = in_forms(forms, legacy=False)
    assert cpu_seconds(lambda: read("openai_chat", stream), 3.0) < 3.0


def test_an_empty_object_announces_the_arguments_of_the_same_call() -> None:
    assert brief(read("openai_chat", in_forms([{}, A], legacy=False, ids=True))) == TWO[:1]


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("forms", DISAGREE)
def test_of_two_forms_of_the_arguments_that_disagree_none_is_taken(forms: list[Any], legacy: bool) -> None:
    """Fail closed: what the model meant is not known."""
    (call,) = read("openai_chat", in_forms(forms, legacy=legacy)).calls
    with pytest.raises(ParseError):
        parse_arguments(call.arguments)


def test_a_phantom_function_call_in_every_chunk_is_no_call() -> None:
    phantom = {"function_call": {"name": "", "arguments": ""}}
    chunks = [chat_chunk(content="x", **phantom), chat_chunk(tool_calls=[piece(0, "x", "f", A)], **phantom)]
    events = decode("openai_chat", [sse(*chunks, chat_chunk("tool_calls", **phantom), done=True)])
    assert brief(reply_of(events)) == TWO[:1]
    assert brief(read("openai_chat", sse(chunks[0], done=True))) == []


def test_only_the_first_choice_is_streamed() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no", "tool_calls": [piece(0, "z", "z", A)]}}]}
    reply = read("openai_chat", sse(chat_chunk(content="yes"), other, chat_chunk("stop"), done=True))
    assert (reply.text, reply.calls) == ("yes", ())


@pytest.mark.parametrize("whole", [False, True], ids=["in_the_stream", "in_its_place"])
def test_an_error_in_a_stream_is_the_replys_error_and_there_are_no_calls(whole: bool) -> None:
    error = {"error": {"message": "overloaded", "code": 502}}
    before = [] if whole else [chat_chunk(content="Hi", tool_calls=[piece(0, "x", "f", A)])]
    for stream in (
        sse(*before, error),
        sse(*before, error, done=True),
        json.dumps(error).encode() if whole else sse(*before, error),
    ):
        reply = read("openai_chat", stream)
        assert (dict(reply.error or {}), reply.calls, reply.messages) == (error["error"], (), ())
    in_choice = {"choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": error["error"]}]}
    assert read("openai_chat", sse(*before, in_choice, done=True)).error == error["error"]
    assert read("openai_chat", sse({"error": "just text"})).error == {"message": "just text"}


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_shown_and_kept_wherever_a_server_puts_it(key: str) -> None:
    events = decode("openai_chat", [sse(chat_chunk(**{key: "a"}), chat_chunk(**{key: "b", "content": "c"}), done=True)])
    assert texts(events) == ("c", "ab")
    (message,) = reply_of(events).messages
    assert message == {"role": "assistant", "content": "c", key: "ab"}


def test_reasoning_that_is_sent_in_two_places_is_shown_once_and_kept_twice() -> None:
    details = [[{"type": "reasoning.text", "index": 0, "text": text}] for text in ("a", "b")]
    details += [
        [{"type": "reasoning.text", "index": 0, "signature": "S=="}],
        [{"type": "reasoning.encrypted", "index": 1, "data": "D=="}],
    ]
    chunks = [
        chat_chunk(reasoning=text, reasoning_details=each)
        for text, each in zip(["a", "b", "", ""], details, strict=True)
    ]
    events = decode("openai_chat", [sse(*chunks, chat_chunk("stop"), done=True)])
    assert texts(events) == ("", "ab")
    assert reply_of(events).reasoning == "ab"
    assert reply_of(events).messages[0]["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "S=="},
        {"type": "reasoning.encrypted", "index": 1, "data": "D=="},
    ]
    alone = decode("openai_chat", [sse(*(chat_chunk(reasoning_details=each) for each in details), done=True)])
    assert texts(alone) == ("", "ab")
    assert reply_of(alone).reasoning == "ab"


def test_content_as_a_list_of_parts_with_thinking_is_read() -> None:
    """Mistral's reasoning models."""
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": text}]} for text in ("a", "b")]
    chunks = [chat_chunk(content=[part]) for part in thinking]
    chunks += [chat_chunk(content=[{"type": "text", "text": "c"}]), chat_chunk(content="d"), chat_chunk("stop")]
    events = decode("openai_chat", [sse(*chunks, done=True)])
    assert texts(events) == ("cd", "ab")
    reply = reply_of(events)
    assert (reply.text, reply.reasoning) == ("cd", "ab")
    assert reply.messages[0]["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "ab"}]},
        {"type": "text", "text": "cd"},
    ]


def test_a_refusal_is_text() -> None:
    events = decode(
        "openai_chat", [sse(chat_chunk(refusal="I "), chat_chunk(refusal="won't"), chat_chunk("stop"), done=True)]
    )
    assert texts(events) == ("I won't", "")
    assert reply_of(events).text == "I won't"


def test_a_character_cut_in_half_is_put_together_again() -> None:
    """In UTF-8 between two pieces of the bytes, and in JSON escapes between two chunks."""
    stream = sse(chat_chunk(content="né😀"), chat_chunk("stop"), done=True)
    assert reply_of(decode("openai_chat", (stream[at : at + 1] for at in range(len(stream))))).text == "né😀"
    halves = b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\ndata: {"choices":[{"delta":{"content":"\\ude00"}}]}\n\n'
    assert read("openai_chat", halves + sse(done=True)).text == "😀"


def test_numbers_keep_every_digit() -> None:
    reply = read("openai_chat", chat_stream(piece(0, "x", "f", {"n": 12345678901234567890123})))
    assert reply.calls[0].arguments == {"n": 12345678901234567890123}


def test_a_whole_answer_in_the_place_of_a_stream_is_read_as_such() -> None:
    """Some servers pass ``stream`` over."""
    body = {**chat(function("f", A, "x"), content="hi"), "id": "1", "object": "chat.completion", "model": "m"}
    for stream in (json.dumps(body, indent=1).encode(), sse(body), sse(body, done=True)):
        events = decode("openai_chat", [stream])
        reply = reply_of(events)
        assert (brief(reply), reply.text, reply.truncated, reply.id) == (TWO[:1], "hi", False, "1")
        assert texts(events) == ("hi", "")


def test_deltas_come_at_once_and_one_for_each_piece() -> None:
    from callgate.runtime.models import codec

    decoder = codec("openai_chat").decoder()
    assert decoder.feed(sse(chat_chunk(content="a"))) == [TextDelta("a")]
    assert decoder.feed(sse(chat_chunk(reasoning="b"))) == [ReasoningDelta("b")]
    assert decoder.feed(sse(chat_chunk(tool_calls=[piece(0, "x", "f", "")]))) == [CallDelta(0, "f", "")]
    assert decoder.feed(sse(chat_chunk(tool_calls=[piece(0, arguments="{")]))) == [CallDelta(0, "f", "{")]
    assert not decoder.ended
    assert decoder.feed(sse(chat_chunk("tool_calls"))) == []
    assert decoder.ended
    assert len(decoder.end()) == 2
    assert decoder.end() == []
