"""A body that is no answer is an error, whole and as a stream; it never counts as a final answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callgate.errors import ModelError
from callgate.runtime.models import codec
from callgate.runtime.models.wire.endings import ReplyEnding
from tests.runtime.models.providers import WIRES as PROVIDERS
from tests.runtime.models.providers import read
from tests.runtime.models.streaming import decode, reply_of, sse
from tests.runtime.models.wires import WIRES, chat, gemini, message, response

ANSWERS: dict[str, Any] = {
    "openai_chat": chat(content="hi", finish="stop"),
    "openai_responses": response({"type": "message", "content": [{"type": "output_text", "text": "hi"}]}),
    "anthropic": message({"type": "text", "text": "hi"}, stop="end_turn"),
    "gemini": gemini({"text": "hi"}, finish="STOP"),
    "ollama": {"model": "m", "message": {"role": "assistant", "content": "hi"}, "done": True, "done_reason": "stop"},
}
FOREIGN: dict[str, Any] = {
    "detail": {"detail": "upstream timed out"},
    "success": {"success": False, "message": "quota"},
    "status code": {"statusCode": 429, "message": "slow down"},
    "status": {"status": 503, "message": "busy"},
    "empty": {},
    "no choices": {"choices": []},
    "no candidates": {"candidates": []},
    "an object error": {"object": "error", "message": "bad", "code": 40001},
    "a type error": {"type": "error", "error": {"message": "overloaded"}},
    "errors": {"errors": [{"message": "bad"}]},
    "an error": {"error": "bad"},
    "usage alone": {"usage": {"total_tokens": 3}},
    "a message as text": {"message": "bad"},
}
ERROR_SHAPED = [name for name in FOREIGN if name not in {"empty", "no choices", "no candidates", "usage alone"}]
GOOD_BEGINNING: dict[str, Any] = {
    "openai_chat": {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "h"}}]},
    "openai_responses": {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "delta": "h"},
    "anthropic": {"type": "message_start", "message": {"role": "assistant", "content": []}},
    "gemini": {"candidates": [{"content": {"parts": [{"text": "h"}]}}]},
    "ollama": {"message": {"role": "assistant", "content": "h"}, "done": False},
}


def encodings(wire: str, body: Any) -> list[bytes]:
    """The body in place of a stream, in every form in which servers send it."""
    if wire == "ollama":
        return [json.dumps(body).encode(), json.dumps(body).encode() + b"\n"]
    data = json.dumps(body).encode()
    return [data, sse(body), sse(body, done=True), b"event: error\ndata: " + data + b"\n\ndata: [DONE]\n\n"]


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_of_the_wire_is_done(wire: str) -> None:
    """The control."""
    assert codec(wire).reply(ANSWERS[wire]).ending is ReplyEnding.DONE
    assert reply_of(decode(wire, [json.dumps(ANSWERS[wire]).encode()])).ending is ReplyEnding.DONE


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", [*FOREIGN, *(f"an answer of {wire}" for wire in WIRES)])
def test_a_body_that_is_no_answer_is_an_error_and_never_done(name: str, wire: str) -> None:
    body = FOREIGN.get(name) or (ANSWERS[name.removeprefix("an answer of ")] if name.startswith("an answer") else {})
    if name == f"an answer of {wire}":
        return
    replies = [codec(wire).reply(body), *(reply_of(decode(wire, [data])) for data in encodings(wire, body))]
    assert {reply.ending for reply in replies} == {ReplyEnding.FAILED}
    assert all(reply.error and not reply.calls and not reply.messages for reply in replies)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", ERROR_SHAPED)
def test_an_error_in_mid_stream_that_an_end_mark_follows_is_an_error(name: str, wire: str) -> None:
    if name in {"status", "a message as text"} and wire != "ollama":
        name = "detail"
    chunks = [GOOD_BEGINNING[wire], FOREIGN[name]]
    stream = (
        b"".join(json.dumps(one).encode() + b"\n" for one in chunks) if wire == "ollama" else sse(*chunks, done=True)
    )
    assert reply_of(decode(wire, [stream])).ending in {ReplyEnding.FAILED, ReplyEnding.LOST}


@pytest.mark.parametrize("wire", [one for one in WIRES if one != "ollama"])
def test_the_data_of_an_event_named_error_is_an_error_whatever_it_is(wire: str) -> None:
    for data in (b'{"a": 1}', b"overloaded", b"[]", b'"text"'):
        stream = sse(GOOD_BEGINNING[wire]) + b"event: error\ndata: " + data + b"\n\ndata: [DONE]\n\n"
        assert reply_of(decode(wire, [stream])).ending is ReplyEnding.FAILED, data


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda one: one.name)
async def test_the_error_of_a_client_has_the_wires_name_and_the_first_200_characters(provider: Any) -> None:
    body = {"hello": "world " * 100}
    import httpx

    client = provider.make(lambda _: httpx.Response(200, json=body))
    for ask in (client.reply("go"), read(client.stream("go"))):
        with pytest.raises(ModelError) as raised:
            await ask
        text = str(raised.value)
        assert text.startswith(f"{provider.name}: ")
        assert '{"hello":"world world' in text
        assert len(text) < 320


@pytest.mark.parametrize("wire", ["anthropic", "gemini"])
@pytest.mark.parametrize("other", WIRES)
def test_a_chunk_of_another_api_inside_a_stream_loses_it(other: str, wire: str) -> None:
    ends: dict[str, list[Any]] = {
        "anthropic": [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}],
        "gemini": [{"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]}],
    }
    begin = (
        [GOOD_BEGINNING["gemini"]]
        if wire == "gemini"
        else [
            GOOD_BEGINNING[wire],
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "h"}},
        ]
    )
    assert reply_of(decode(wire, [sse(*begin, *ends[wire])])).ending is ReplyEnding.DONE, "the control"
    if other == wire:
        return
    for chunk in (GOOD_BEGINNING[other], ANSWERS[other]):
        assert reply_of(decode(wire, [sse(*begin, chunk, *ends[wire])])).ending is ReplyEnding.LOST, chunk
