"""Properties of any stream: it reads as the same response in one piece, at any cut; garbage never raises (contract 61)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.runtime.models import codec
from callgate.runtime.models.wire.reply import CallReady
from tests.runtime.models.spelling import answer, streamed
from tests.runtime.models.streaming import chat_chunk, decode, lines, piece, reply_of, shown_calls, sse, texts
from tests.runtime.models.wires import WIRES, tool

names = st.sampled_from(["f", "get_weather", "search"])
arguments = st.dictionaries(
    st.sampled_from(["a", "city", "né"]),
    st.one_of(st.integers(), st.text(max_size=6), st.lists(st.integers(), max_size=3), st.none()),
    max_size=3,
)
calls = st.lists(
    st.tuples(names, arguments, st.text("abc123", min_size=3, max_size=8)), max_size=4, unique_by=lambda call: call[2]
)
words = st.text(max_size=30).map(lambda text: text.encode("utf-8", "ignore").decode())
each_wire = pytest.mark.parametrize("wire", WIRES)


@each_wire
@settings(max_examples=40, deadline=None)
@given(text=words, thought=words, asked=calls, size=st.integers(1, 9), chunk=st.integers(1, 400))
def test_a_stream_reads_as_the_same_answer_in_one_piece(
    wire: str, text: str, thought: str, asked: list[Any], size: int, chunk: int
) -> None:
    """Contract 46, 61: calls, text, reasoning, stop and history are the same, however the answer came."""

    def cut(whole: str) -> list[str]:
        return [whole[at : at + size] for at in range(0, len(whole), size)]

    body = answer(wire, text, thought, asked)
    data = streamed(wire, body, cut)
    events = decode(wire, [data[at : at + chunk] for at in range(0, len(data), chunk)])
    read, whole = reply_of(events), codec(wire).reply(body)
    assert [(call.name, plain(call.arguments), call.id, call.synthetic_id, call.truncated) for call in read.calls] == [
        (call.name, plain(call.arguments), call.id, call.synthetic_id, call.truncated) for call in whole.calls
    ]
    assert (read.text, read.reasoning, read.stop, read.truncated) == (text, thought, whole.stop, False)
    assert texts(events) == (text, thought)
    assert shown_names(events) == [name for name, _, _ in asked]
    assert shape(read.messages) == shape(whole.messages)
    assert [event.call for event in events if isinstance(event, CallReady)] == list(read.calls)


def plain(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def shown_names(events: list[Any]) -> list[str]:
    return [name for name, _ in shown_calls(events)]


def shape(messages: Any) -> Any:
    """The messages without the difference between an empty text and none."""
    return [{key: value for key, value in message.items() if value not in ("", None)} for message in messages]


json_garbage = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=5), st.just("function_call")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=10,
)
KEYS = [
    *("choices", "delta", "message", "tool_calls", "function", "function_call", "custom", "name", "arguments", "id"),
    *(
        "index",
        "type",
        "content",
        "reasoning",
        "reasoning_details",
        "finish_reason",
        "usage",
        "error",
        "refusal",
        "role",
    ),
    *("content_block", "partial_json", "text", "thinking", "input", "signature", "citation", "stop_reason", "audio"),
    *("response", "item", "output_index", "item_id", "output", "summary", "call_id", "status", "part", "object"),
    *("candidates", "parts", "functionCall", "args", "partialArgs", "jsonPath", "willContinue", "finishReason"),
    *("promptFeedback", "blockReason", "done", "done_reason", "stringValue", "numberValue"),
]
TYPES = [
    *("message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop", "message"),
    *("text_delta", "input_json_delta", "thinking_delta", "signature_delta", "citations_delta", "tool_use", "text"),
    *("response.created", "response.output_item.added", "response.output_item.done", "response.completed", "error"),
    *("response.function_call_arguments.delta", "response.function_call_arguments.done", "function_call", "$.a[0].b"),
    *("response.output_text.delta", "response.reasoning_summary_text.delta", "response.failed", "custom", "thinking"),
]
leaves = st.one_of(
    json_garbage, st.sampled_from(TYPES), st.sampled_from(["{}", '{"a"', "}", "f", "x"]), st.integers(0, 2), st.none()
)
near_garbage = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)),
    max_leaves=25,
)


@each_wire
@settings(max_examples=100, deadline=None)
@given(chunks=st.lists(st.one_of(near_garbage, json_garbage), max_size=6), done=st.booleans())
def test_garbage_in_chunks_never_raises_and_ends_with_done(wire: str, chunks: list[Any], done: bool) -> None:
    """Contract 61. Whatever was made of it, the reply can be read and its messages are JSON objects."""
    translation = codec(wire).translate([tool(name="f")])
    for data in (sse(*chunks, done=done), lines(*chunks)):
        reply = reply_of(decode(wire, [data], translation))
        assert all(isinstance(call.id, str) and isinstance(call.name, str) for call in reply.calls)
        assert all(isinstance(message, dict) for message in reply.messages)
        assert isinstance(reply.text, str)
        half = len(data) // 2
        assert str(decode(wire, [data[:half], data[half:]], translation)) == str(decode(wire, [data], translation))


@each_wire
@settings(max_examples=50, deadline=None)
@given(
    pieces=st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([b"data: ", b"\n", b"\r", b"{", b'"', b"}\n\n"])))
)
def test_bytes_that_are_nothing_at_all_never_raise(wire: str, pieces: list[bytes]) -> None:
    """Contract 61."""
    assert reply_of(decode(wire, pieces)).calls == ()


index_or_none = st.one_of(st.none(), st.integers(0, 2))
entries = st.builds(
    piece,
    index_or_none,
    st.one_of(st.none(), st.sampled_from(["x", "y", ""])),
    st.one_of(st.none(), st.sampled_from(["f", "g"])),
    st.one_of(st.none(), st.sampled_from(['{"a": 1}', '{"a"', ": 1}", ""]), st.just({"a": 1})),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(entries, min_size=1, max_size=3), max_size=6))
def test_no_mixture_of_pieces_of_calls_raises_or_loses_a_named_call(deltas: list[list[dict[str, Any]]]) -> None:
    """Contract C10a, C10b: every name that came is a call's name, and every call has an id of its own."""
    events = decode("openai_chat", [sse(*(chat_chunk(tool_calls=delta) for delta in deltas), done=True)])
    reply = reply_of(events)
    assert len({call.id for call in reply.calls}) == len(reply.calls)
    sent = {entry["function"].get("name") for delta in deltas for entry in delta} - {None}
    read = "".join(call.name for call in reply.calls)
    assert all(name in read for name in sent)
