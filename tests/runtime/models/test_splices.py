"""A proxy that asks again in mid-stream: nothing of an answer that a second one follows is handed on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from callgate.runtime.models.wire import decoder as decoding
from callgate.runtime.models.wire.reply import CallReady
from tests.runtime.models.streaming import chat_chunk, decode, piece, reply_of, sse
from tests.runtime.models.wires import CODEC_OF, streams, wire_of

PLACES = 8
_IDS = re.compile(rb'"(?:id|call_id|item_id|responseId|response_id)"\s*:\s*"([^"]{4,})"')


def rotated(data: bytes) -> bytes:
    """The same answer, asked for again: every id is another one."""
    for known in sorted(set(_IDS.findall(data)), key=len, reverse=True):
        data = data.replace(b'"' + known + b'"', b'"' + known[:-3] + known[-3:][::-1] + b'x9"')
    return data


def handed_on(wire: str, data: bytes) -> list[Any]:
    """The calls that a stream hands on, and those of its reply that may run."""
    events = decode(wire, [data])
    ready = [event.call for event in events if isinstance(event, CallReady)]
    return ready + [call for call in reply_of(events).calls if not call.truncated]


def spliced(first: bytes, second: bytes) -> list[bytes]:
    return [first[: len(first) * number // (PLACES + 1)] + second for number in range(1, PLACES + 1)]


STREAMS = [(name, data) for name, data, recorded in streams() if recorded["expect_calls"]] or [("none", b"")]


@pytest.mark.needs_data
@pytest.mark.parametrize("again", [lambda data: data, rotated], ids=["plain", "rotated"])
@pytest.mark.parametrize(("name", "data"), STREAMS, ids=[name for name, _ in STREAMS])
def test_a_recorded_stream_that_begins_again_hands_no_call_on(name: str, data: bytes, again: Any) -> None:
    wire = CODEC_OF[wire_of(name)]
    for place, stream in enumerate(spliced(data, again(data))):
        assert handed_on(wire, stream) == [], place


@pytest.mark.needs_data
def test_a_decoder_that_ignores_a_second_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(decoding.Decoder, "ended", property(lambda self: self._fold.ended))
    found = [
        name for name, data in STREAMS if any(handed_on(CODEC_OF[wire_of(name)], one) for one in spliced(data, data))
    ]
    assert len(found) > 10


START = {"type": "message_start", "message": {"id": "m1", "role": "assistant", "content": []}}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "a", "name": "f"}}
INPUT = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}}
END = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
CALL = {
    "type": "function_call",
    "id": "i1",
    "call_id": "c1",
    "name": "f",
    "arguments": '{"a": 1}',
    "status": "completed",
}
RESPONSE = {"id": "r1", "object": "response", "status": "completed", "output": [CALL]}
PART = {"functionCall": {"id": "g1", "name": "f", "args": {"a": 1}}}
WHOLE: dict[str, list[dict[str, Any]]] = {
    "openai_chat": [
        chat_chunk(role="assistant", content=""),
        chat_chunk(tool_calls=[piece(0, "call_1", "f", '{"a"')]),
        chat_chunk(tool_calls=[piece(0, arguments=": 1}")]),
        chat_chunk("tool_calls"),
    ],
    "openai_responses": [
        {"type": "response.created", "sequence_number": 0, "response": {**RESPONSE, "status": "in_progress"}},
        {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": CALL},
        {"type": "response.output_item.done", "sequence_number": 2, "output_index": 0, "item": CALL},
        {"type": "response.completed", "sequence_number": 3, "response": RESPONSE},
    ],
    "anthropic": [START, BLOCK, INPUT, {"type": "content_block_stop", "index": 0}, END, {"type": "message_stop"}],
    "gemini": [
        {"responseId": "resp-1", "candidates": [{"content": {"parts": [{"text": "I will "}]}}]},
        {"responseId": "resp-1", "candidates": [{"content": {"parts": [PART]}, "finishReason": "STOP"}]},
    ],
}


@pytest.mark.parametrize("wire", WHOLE)
def test_a_made_stream_that_begins_again_with_new_ids_hands_no_call_on(wire: str) -> None:
    chunks = WHOLE[wire]
    whole = sse(*chunks, done=wire == "openai_chat")
    assert len(handed_on(wire, whole)) == 2, "the control: the call is ready, and may run"
    for number in range(1, len(chunks)):
        assert handed_on(wire, sse(*chunks[:number]) + rotated(whole)) == [], number
    assert handed_on(wire, sse(*chunks) + rotated(whole)) == [], "after its end, too"


@pytest.mark.parametrize("wire", WHOLE)
def test_a_stream_that_is_cut_inside_the_name_of_a_field_hands_no_call_on(wire: str) -> None:
    whole = sse(*WHOLE[wire], done=wire == "openai_chat")
    for cut in (b"da", b"data:", b"data: "):
        assert handed_on(wire, cut + whole) == [], cut
        assert handed_on(wire, cut + b"event: x\n" + whole) == [], cut
