"""Streams: a model's answer decoded by Callgate's client and by the provider's own, both over the same bytes.

The answers are recorded ones, made long by repeating their own deltas. Both sides get them through an in-memory httpx
transport (the official clients but Ollama's use httpx2), and have to yield the same text, reasoning and arguments.
The bytes come in pieces of 64 KiB, which is what httpx reads from a socket at once; and for reading, in a piece for
each event: then httpx itself, which is the same for both sides, is most of the work.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import httpx2
import ollama
import openai
from google import genai

from benchmarks.floors import floor1
from benchmarks.timing import EXPECTED, Call, Effort, interleave
from callgate import Gate, codec, tool
from callgate.runtime.models.anthropic import Anthropic
from callgate.runtime.models.gemini import Gemini
from callgate.runtime.models.ollama import Ollama
from callgate.runtime.models.openai_chat import OpenAIChat
from callgate.runtime.models.openai_responses import OpenAIResponses
from callgate.runtime.models.wire.reply import CallDelta, ReasoningDelta, TextDelta
from callgate.tools.calls import ANONYMOUS
from tests.conftest import DATA

DELTAS = {"openai_chat": 600, "openai_responses": 600, "anthropic": 2_000, "gemini": 300, "ollama": 5_000}
"""Deltas in a stream: the more, the faster the official client, so that the request itself weighs little."""
READ_BYTES = 65_536
"""What httpx reads from a socket at once."""
RECORDED = {
    "openai_chat": "openai_chat/single_thinking_has_tool_results_stream-pydantic-ai-8886fe",
    "openai_responses": "openai_responses_compat/single_thinking_stream-pydantic-ai-5a2476",
    "anthropic": "anthropic/parallel_tool_plus_text_stream-openllmetry-bc5425",
    "gemini": "gemini/single_thinking_stream-prism-148306",
    "ollama": "ollama/text_only-prism-7d3b42",
}
Read = Callable[[], Awaitable[str]]


def pieces_of(wire: str) -> list[bytes]:
    """A long stream of a wire, in the pieces in which it is sent: its own deltas, over and over."""
    recorded = json.loads((DATA / "recordings" / f"{RECORDED[wire]}.json").read_text("utf-8"))
    if wire == "ollama":  # no stream of it was recorded: an answer in one piece, word by word
        return list(_ollama_lines(recorded["response"]))
    numbers = r'"sequence_number": ?\d+, ?|, ?"sequence_number": ?\d+'  # a repeated one would be a second answer
    text = re.sub(numbers, "", recorded["response_sse"])
    events = [event.encode() + b"\n\n" for event in text.replace("\r\n", "\n").strip().split("\n\n")]
    marks = {
        "openai_chat": (b'"reasoning":', b'"content":"'),
        "openai_responses": (b"reasoning_text.delta", b"arguments.delta"),
        "anthropic": (b"text_delta",),
        "gemini": (b'"thought": true',),
    }[wire]
    deltas = [event for event in events if any(mark in event for mark in marks) and b'"role":"assistant"' not in event]
    first = events.index(deltas[0])
    again = [event for event in deltas if event.split(b"delta", 1)[0] == deltas[0].split(b"delta", 1)[0]] or deltas
    more = (again * (DELTAS[wire] // len(again) + 1))[: DELTAS[wire]]
    if wire == "gemini":  # the first chunk once more would be a second answer
        more[0] = more[0].replace(b'"text": "', b'"text": "+', 1)
    return [*events[:first], *more, *events[first:]]


def _ollama_lines(answer: dict[str, Any]) -> Iterator[bytes]:
    words = [f"{word} " for word in answer["message"]["content"].split(" ")]
    for word in (words * (DELTAS["ollama"] // len(words) + 1))[: DELTAS["ollama"]]:
        row = {"model": answer["model"], "created_at": answer["created_at"]}
        yield json.dumps({**row, "message": {"role": "assistant", "content": word}, "done": False}).encode() + b"\n"
    yield json.dumps({**answer, "message": {"role": "assistant", "content": ""}}).encode() + b"\n"


class _Body(httpx.AsyncByteStream, httpx2.AsyncByteStream):
    """The pieces, for either of the two."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


@dataclass
class Transport(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):
    """Answers every request with the same pieces."""

    pieces: list[bytes]
    media: str
    made: Any = httpx

    async def handle_async_request(self, request: Any) -> Any:
        return self.made.Response(200, headers={"content-type": self.media}, stream=_Body(self.pieces), request=request)

    async def aclose(self) -> None: ...


def ours(wire: str, pieces: list[bytes], media: str) -> Read:
    """Callgate's client."""
    made: dict[str, Any] = {
        "openai_chat": OpenAIChat,
        "openai_responses": OpenAIResponses,
        "anthropic": Anthropic,
        "gemini": Gemini,
        "ollama": Ollama,
    }
    http = httpx.AsyncClient(transport=Transport(pieces, media))
    client = made[wire]("http://localhost/v1", model="m", api_key="k", http=http)

    async def read() -> str:
        shown: list[str] = []
        async with aclosing(client.stream("hi")) as events:
            async for event in events:
                kind = event.__class__
                if kind is TextDelta or kind is ReasoningDelta:
                    shown.append(event.text)
                elif kind is CallDelta:
                    shown.append(event.arguments)
        return "".join(shown)

    return read


def official(wire: str, pieces: list[bytes], media: str) -> Read:
    """The provider's own client, in its form with the least on top: raw events."""
    http: Any = httpx2.AsyncClient(transport=Transport(pieces, media, httpx2))
    return {
        "openai_chat": _openai_chat,
        "openai_responses": _openai_responses,
        "anthropic": _anthropic,
        "gemini": _gemini,
        "ollama": _ollama,
    }[wire](http, pieces, media)


def _openai_chat(http: Any, pieces: list[bytes], media: str) -> Read:
    client = openai.AsyncOpenAI(api_key="k", http_client=http)
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}

    async def read() -> str:
        shown: list[str] = []
        async for chunk in await client.chat.completions.create(**asked):
            for choice in chunk.choices:
                delta = choice.delta
                shown.append(getattr(delta, "reasoning", None) or delta.content or "")
                shown += [call.function.arguments or "" for call in delta.tool_calls or ()]
        return "".join(shown)

    return read


def _openai_responses(http: Any, pieces: list[bytes], media: str) -> Read:
    client = openai.AsyncOpenAI(api_key="k", http_client=http)
    asked: Any = {"model": "m", "input": "hi", "stream": True}

    async def read() -> str:
        shown: list[str] = []
        async for event in await client.responses.create(**asked):
            if event.type.endswith(".delta"):
                shown.append(event.delta)
        return "".join(shown)

    return read


def _anthropic(http: Any, pieces: list[bytes], media: str) -> Read:
    client = anthropic.AsyncAnthropic(api_key="k", http_client=http)
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": True}

    async def read() -> str:
        shown: list[str] = []
        async for event in await client.messages.create(**asked):
            if event.type == "content_block_delta":
                delta = event.delta
                shown.append(delta.text if delta.type == "text_delta" else delta.partial_json)
        return "".join(shown)

    return read


def _gemini(http: Any, pieces: list[bytes], media: str) -> Read:
    client = genai.Client(api_key="k", http_options=genai.types.HttpOptions(httpx_async_client=http))

    async def read() -> str:
        shown: list[str] = []
        answer: Any = await client.aio.models.generate_content_stream(model="m", contents="hi")
        async for chunk in answer:
            for part in chunk.candidates[0].content.parts:
                shown.append(part.text or "")
                if part.function_call:
                    shown.append(json.dumps(part.function_call.args, separators=(",", ":")))
        return "".join(shown)

    return read


def _ollama(http: Any, pieces: list[bytes], media: str) -> Read:
    client = ollama.AsyncClient("http://localhost", transport=Transport(pieces, media))

    async def read() -> str:
        shown: list[str] = []
        async for part in await client.chat("m", [{"role": "user", "content": "hi"}], stream=True):
            shown.append(part.message.content or "")
        return "".join(shown)

    return read


async def measure(effort: Effort) -> dict[str, float]:
    found: dict[str, float] = {}
    for wire in RECORDED:
        found |= await _measure_wire(wire, effort)
    ratios = [found[f"stream_{wire}_x_sdk"] for wire in RECORDED]
    return {"stream_decode_x_sdk": min(ratios), **found, **await _hydrate(effort)}


async def _measure_wire(wire: str, effort: Effort) -> dict[str, float]:
    events = pieces_of(wire)
    ratio, us = await _ratio(wire, _in_reads(events), effort)
    paced, paced_us = await _ratio(wire, events, effort)
    count = len(events)
    return {
        f"stream_{wire}_x_sdk": ratio,
        f"stream_{wire}_us": us / count,
        f"stream_{wire}_paced_x_sdk": paced,
        f"stream_{wire}_paced_us": paced_us / count,
    }


def _in_reads(events: list[bytes]) -> list[bytes]:
    whole = b"".join(events)
    return [whole[at : at + READ_BYTES] for at in range(0, len(whole), READ_BYTES)]


async def _ratio(wire: str, pieces: list[bytes], effort: Effort) -> tuple[float, float]:
    """How many times the time the official client takes, and what ours takes (µs)."""
    media = "application/x-ndjson" if wire == "ollama" else "text/event-stream"
    mine, theirs = ours(wire, pieces, media), official(wire, pieces, media)
    expected = await mine()
    if expected != await theirs() or len(expected) < DELTAS[wire]:
        raise SystemExit(f"the benchmark is broken: {wire} is not read alike")
    slow = Effort(rounds=max(3, effort.rounds // 20), batch_us=effort.batch_us)
    timed = await interleave({"official": _checked(theirs, expected)}, {"ours": _checked(mine, expected)}, slow)
    return timed["official"].x("ours"), timed["ours"].us


def _checked(read: Read, expected: str) -> Call:
    async def call() -> Any:
        return EXPECTED if await read() == expected else None

    return call


async def _hydrate(effort: Effort) -> dict[str, float]:
    """One recorded call: read from the provider's answer, and then checked."""
    recorded = json.loads((DATA / "recordings" / "openai_chat" / "single-logfire-59646c.json").read_text("utf-8"))
    answer, chat = recorded["response"], codec("openai_chat")
    async with Gate([joker]) as gate:
        translation = chat.translate(gate.tools_for(ANONYMOUS))

        async def read() -> Any:
            (call,) = chat.calls(answer, translation)
            return EXPECTED if call.name == "joker" else None

        (call,) = chat.calls(answer, translation)

        async def hydrate() -> Any:
            return EXPECTED if gate.hydrate(call, wire="openai_chat").success else None

        found = await interleave({"read": read, "hydrate": hydrate}, {"floor1": floor1()}, effort)
    return {
        "hydrate_recorded_x_floor1": found["hydrate"].x("floor1"),
        "calls_recorded_x_floor1": found["read"].x("floor1"),
    }


@tool(effect="read", strict=True)
async def joker(theme: str) -> str:
    """Poem generator."""
    return theme
