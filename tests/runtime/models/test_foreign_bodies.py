"""A body that is no answer is an error, whole, as a stream and inside one; it never counts as a final answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import httpx
import pytest

from callgate.errors import ModelError
from callgate.runtime.models import codec
from callgate.runtime.models.wire.endings import ReplyEnding
from callgate.runtime.models.wire.reply import CallReady
from tests.runtime.models.providers import EVENT_STREAM, KEY, Wire, call, each_wire, read
from tests.runtime.models.providers import WIRES as PROVIDERS
from tests.runtime.models.streaming import decode, reply_of

END = b"data: [DONE]\n\n"
ERRORS: dict[str, Any] = {
    "detail": {"detail": "upstream timed out"},
    "details": {"detail": [{"loc": ["body", "model"], "msg": "bad"}]},
    "success": {"success": False, "message": "quota"},
    "status code": {"statusCode": 429, "message": "slow down"},
    "status_code": {"status_code": 500},
    "status": {"status": 503, "message": "busy"},
    "an object error": {"object": "error", "message": "bad", "code": 40001},
    "a type error": {"type": "error", "error": {"message": "overloaded"}},
    "errors": {"errors": [{"message": "bad"}]},
    "an error": {"error": "bad"},
    "a message": {"message": "Internal server error"},
    "an error with a code": {"error": {"code": 500, "message": "bad", "status": "INTERNAL"}},
}
"""Errors of providers and proxies."""
OTHERS: dict[str, Any] = {
    "empty": {},
    "no error": {"error": None},
    "no choices": {"choices": []},
    "no candidates": {"candidates": []},
    "no output": {"id": "r", "object": "response", "status": "completed"},
    "usage alone": {"usage": {"total_tokens": 3}},
    "an answer of an embedding": {"object": "list", "data": [{"embedding": [0.1]}]},
    "a list of models": {"object": "list", "data": [{"id": "gpt", "object": "model"}]},
}
TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "a page": b"<!doctype html><html><body><h1>502 Bad Gateway</h1></body></html>",
    "a text": b"upstream connect error or disconnect/reset before headers",
    "a list": b"[]",
    "a list of objects": b'[{"a": 1}]',
    "a value": b"null",
    "a string": b'"ok"',
    "half of a body": b'{"id": "x", "cho',
    "no text": b"\xff\xfe\x00",
    "an end mark": END,
    "a comment": b": keep-alive\n\n",
    "usage and an end mark": b'data: {"usage": {"total_tokens": 3}}\n\n' + END,
}
NAMED: dict[str, bytes] = {
    f"an event error with {data!r}": b"event: error\ndata: " + data + b"\n\n" + END
    for data in (b'{"a": 1}', b"overloaded", b"[]", b'"text"', b"")
}
ANSWERS = {wire.name: wire.body("hi", ()) for wire in PROVIDERS}
BODIES: dict[str, Any] = {
    **ERRORS,
    **OTHERS,
    **{f"an answer of {name}": body for name, body in ANSWERS.items()},
    **TEXTS,
    **NAMED,
}
each_body = pytest.mark.parametrize("name", BODIES)


def encodings(wire: Wire, body: Any) -> list[bytes]:
    """A body in place of a stream, in every form in which servers send it."""
    if isinstance(body, bytes):
        return [body]
    data = json.dumps(body).encode()
    if wire.media != EVENT_STREAM:
        return [data, data + b"\n"]
    event = b"data: " + data + b"\n\n"
    return [data, event, event + END, b"event: error\n" + event + END]


def answer(body: bytes, headers: dict[str, str], _: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=body, headers=headers)


@each_wire
def test_an_answer_of_the_wire_is_done(wire: Wire) -> None:
    """The control."""
    assert codec(wire.name).reply(ANSWERS[wire.name]).ending is ReplyEnding.DONE
    streams = [json.dumps(ANSWERS[wire.name]).encode(), b"".join(wire.chunks("hi", ()))]
    assert [reply_of(decode(wire.name, [one])).ending for one in streams] == [ReplyEnding.DONE] * 2


@each_wire
@each_body
def test_a_body_that_is_no_answer_is_an_error_and_never_done(name: str, wire: Wire) -> None:
    if name == f"an answer of {wire.name}":
        return
    body = BODIES[name]
    replies = [reply_of(decode(wire.name, [data])) for data in encodings(wire, body)]
    replies += [] if isinstance(body, bytes) else [codec(wire.name).reply(body)]
    assert {reply.ending for reply in replies} == {ReplyEnding.FAILED}
    assert all(reply.error and not reply.calls and not reply.messages for reply in replies)


@each_wire
@each_body
async def test_a_client_raises_an_error_with_the_wires_name_and_the_first_200_characters(name: str, wire: Wire) -> None:
    body = BODIES[name]
    if name == f"an answer of {wire.name}":
        return
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    for content_type in ("application/json", wire.media, "text/html", None):
        headers = {"content-type": content_type} if content_type else {}
        for padded in (data, data and data + f' {KEY} "{KEY}'.encode() * 99):
            client = wire.make(partial(answer, padded, headers))
            for ask in (client.reply("go"), read(client.stream("go"))):
                with pytest.raises(ModelError) as raised:
                    await ask
                text = str(raised.value)
                assert text.startswith(f"{wire.name}: ")
                assert KEY[:5] not in text, "the whole key is scrubbed before the text is cut"
                assert len(text) < 330
                if padded is data and not data.startswith((b"{", b"event")):
                    shown = " ".join(data.decode("utf-8", "replace").split())
                    refused = b"\0" in data and "is not JSON in UTF-8" in text  # before it is read as an answer
                    assert refused or (shown.replace("\0", "") or "it is empty") in text


@each_wire
@pytest.mark.parametrize("name", [*ERRORS, *TEXTS, *NAMED])
def test_a_stream_with_an_error_in_it_is_no_answer_and_hands_no_call_on(name: str, wire: Wire) -> None:
    """After an error the rest may come all the same, or an end mark; after a text of a proxy comes nothing more."""
    for chunks in (wire.chunks("hi", ()), wire.chunks("", [call()])):
        for place in range(1, len(chunks)):
            begun, rests = chunks[:place], [[], chunks[-1:], chunks[place:], [END]]
            if name in TEXTS or (name in NAMED and wire.media != EVENT_STREAM):
                rests = [] if ended(wire, begun) else [[]]
            middles = {one.removesuffix(END) for one in encodings(wire, BODIES[name])}
            for stream in ([*begun, middle + b"\n", *rest] for middle in middles for rest in rests):
                events = decode(wire.name, [b"".join(stream)])
                reply = reply_of(events)
                assert reply.ending in {ReplyEnding.FAILED, ReplyEnding.LOST}, stream
                assert not [one for one in events if isinstance(one, CallReady)]
                assert all(one.truncated for one in reply.calls)


@each_wire
@pytest.mark.parametrize("other", PROVIDERS, ids=[one.name for one in PROVIDERS])
def test_a_stream_with_an_answer_of_another_api_in_it_hands_no_call_on(other: Wire, wire: Wire) -> None:
    if other is wire:
        return  # a second answer: see test_splices
    mark = b"\n" if wire.media != EVENT_STREAM else b"\n\n"
    pieces = [one.split(b"data: ")[-1].strip() for one in other.chunks("hi", [call()]) if one != END]
    middles = [*pieces[1:2], json.dumps(ANSWERS[other.name]).encode()]
    for chunks in (wire.chunks("hi", ()), wire.chunks("", [call()])):
        for place in range(1, len(chunks)):
            for middle in middles:
                framed = middle + mark if wire.media != EVENT_STREAM else b"data: " + middle + mark
                reply = reply_of(decode(wire.name, [*chunks[:place], framed, *chunks[place:]]))
                assert reply.ending in {ReplyEnding.FAILED, ReplyEnding.LOST}, (place, framed)
                assert all(one.truncated for one in reply.calls)


def ended(wire: Wire, chunks: Sequence[bytes]) -> bool:
    """True if the chunks are a whole answer."""
    return reply_of(decode(wire.name, chunks)).ending is not ReplyEnding.LOST
