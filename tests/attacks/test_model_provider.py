"""A hostile model provider, or a proxy before it: an answer of many values is refused before a parser builds them."""

from __future__ import annotations

import asyncio
import json
import zlib
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
from tests.harness.cpu import cpu_seconds
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


def client_of(body: bytes, media: str, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    async def whole() -> AsyncGenerator[bytes]:
        yield body

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": media, **(headers or {})}, content=whole())

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


LINES = {"newlines": b"\n" * MANY, "one line": b"a" * MANY, "comments": b": a\n" * (MANY // 4)}


@pytest.mark.parametrize("media", ["text/event-stream", "application/json"])
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("limited", [True, False], ids=["limited", "control that unpacks each part at once"])
async def test_a_compressed_stream_is_unpacked_in_pieces(
    line: str, media: str, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 MB in 8 kB: other tasks run between the pieces."""
    if not limited:
        for module in (bounded, clients):
            monkeypatch.setattr(module, "PIECE", 10**9)
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = b"".join(packed.compress(LINES[line]) for _ in range(8)) + packed.flush()
    http = client_of(body, media, {"content-encoding": "gzip"})
    turns, stop = [0], asyncio.Event()

    async def neighbour() -> None:
        while not stop.is_set():
            turns[0] += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(neighbour())
    with pytest.raises(StreamCut):
        [event async for event in OpenAIChat(model="m", api_key="k", http=http).stream("hi")]
    stop.set()
    await beside
    assert (turns[0] > 50) is limited


@pytest.mark.parametrize("limited", [True, False], ids=["limited", "control with the limit above"])
@pytest.mark.parametrize("line", [b"a", b"data: a\n", b"data: {}\n\n"])
async def test_a_stream_ends_at_a_piece_that_is_too_large_and_after_many_that_are_no_json(
    line: bytes, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "MAX_PIECE", 200_000 if limited else 10**9)
    monkeypatch.setattr(decoder, "MAX_STRANGE", 10 if limited else 10**9)
    if line.endswith(b"\n\n"):
        line = line.replace(b"{}", b"x")
    read = [0]

    async def parts() -> AsyncGenerator[bytes]:
        for _ in range(50):
            read[0] += 1
            yield line * (20_000 // len(line))

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=parts())

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    with pytest.raises(StreamCut):
        [event async for event in OpenAIChat(model="m", api_key="k", http=http).stream("hi")]
    assert (read[0] < 50) is limited


async def test_white_space_before_a_stream_costs_linear_time() -> None:
    """It was copied with each part."""

    def of(size: int) -> float:
        sniffed = framing.Sniffed()
        return cpu_seconds(lambda: [sniffed.feed(b"\n" * 1_000) for _ in range(size)], 0.0, 3)

    assert of(4_000) < 12 * of(1_000)


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
