"""A hostile model provider, or a proxy before it: an answer of many values is refused before a parser builds them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx
import pytest

from callgate.errors import ModelError, StreamCut
from callgate.models import OpenAIChat, OpenAIEmbeddings
from callgate.providers.http import bounded
from callgate.runtime.models.wire import client as clients
from callgate.runtime.models.wire import decoder, framing
from callgate.runtime.models.wire.http_request import MAX_VALUES
from tests.harness.memory import peak

MANY = 1_000_000
LIMIT = 40_000_000
"""Bytes of memory that an answer may take."""
JUNK = b"[" + b",".join([b"{}"] * MANY) + b"]"
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
WHOLE = json.dumps({"id": "x", "choices": [CHOICE]}).encode()[:-1] + b', "x": ' + JUNK + b"}"
CHUNK = json.dumps({"choices": [{"index": 0, "delta": {"content": "hi"}}]}).encode()[:-1] + b', "x": ' + JUNK + b"}"
FIRST = json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}).encode()
EVENTS = b"data: " + FIRST + b"\n\ndata: " + CHUNK + b"\n\ndata: [DONE]\n\n"
ERROR = b"event: error\ndata: " + JUNK + b"\n\n"


def client_of(body: bytes, media: str) -> httpx.AsyncClient:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": media}, content=body)

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


async def whole(body: bytes = WHOLE) -> Any:
    http = client_of(body, "application/json")
    return await OpenAIChat(model="m", api_key="k", http=http).reply([{"role": "user", "content": "hi"}])


def streamed(body: bytes, media: str) -> Callable[[], Any]:
    async def read() -> Any:
        client = OpenAIChat(model="m", api_key="k", http=client_of(body, media))
        events: AsyncGenerator[Any, None] = client.stream([{"role": "user", "content": "hi"}])
        return [event async for event in events]

    return read


ANSWERS = {
    "whole": whole,
    "events": streamed(EVENTS, "text/event-stream"),
    "an error event": streamed(ERROR, "text/event-stream"),
    "whole to a stream": streamed(WHOLE, "application/json"),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_an_answer_of_many_values_is_refused_before_it_is_parsed(kind: str) -> None:
    with peak() as memory, pytest.raises((ModelError, StreamCut)):
        await ANSWERS[kind]()
    assert memory.grown < LIMIT


async def test_a_refusal_says_why() -> None:
    with pytest.raises(ModelError, match="the response has too many values"):
        await whole()
    with pytest.raises(StreamCut, match="too many values"):
        await ANSWERS["events"]()


async def test_an_answer_within_the_limit_is_read() -> None:
    junk = b"[" + b",".join([b"0"] * (MAX_VALUES - 100)) + b"]"
    assert (await whole(WHOLE.replace(JUNK, junk))).text == "hi"
    events = await streamed(EVENTS.replace(JUNK, junk), "text/event-stream")()
    assert events[-1].reply.text == "hi"


async def test_vectors_have_as_many_values_as_they_need() -> None:
    rows = [{"index": at, "embedding": [0.5] * 4_096} for at in range(64)]
    assert MAX_VALUES < 64 * 4_096
    http = client_of(json.dumps({"data": rows}).encode(), "application/json")
    vectors = await OpenAIEmbeddings(model="m", api_key="k", http=http).embed(["x"] * 64)
    assert [len(vector) for vector in vectors] == [4_096] * 64
    few = OpenAIEmbeddings(model="m", api_key="k", http=http, dimensions=16)
    with pytest.raises(ModelError, match="too many values"):
        await few.embed(["x"] * 64)


@pytest.mark.parametrize("kind", ANSWERS)
async def test_control_without_the_limit_an_answer_takes_its_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (clients, decoder, framing):
        monkeypatch.setattr(module, "has_more_values", lambda *_: False)
    monkeypatch.setattr(bounded.BoundedBody, "_measure", lambda *_: None)
    with peak() as memory:
        try:
            await ANSWERS[kind]()
        except (ModelError, StreamCut):
            assert kind == "an error event"  # it was parsed, and is a list
    assert memory.grown > LIMIT
