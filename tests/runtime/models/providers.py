"""Each wire with hand-written responses, streamed and not, and servers for the tests of clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import httpx
import pytest

from callgate import ToolDefinition
from callgate.errors import ModelError
from callgate.runtime.models.anthropic import Anthropic
from callgate.runtime.models.gemini import Gemini
from callgate.runtime.models.ollama import Ollama
from callgate.runtime.models.openai_chat import OpenAIChat
from callgate.runtime.models.openai_responses import OpenAIResponses
from callgate.runtime.models.wire.client import Client
from callgate.runtime.models.wire.retry_policy import Retries

KEY = "sk-canary-7f3a9c1e5b"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = ToolDefinition("get_weather", "The weather in a city.", CITY)
EVENT_STREAM = "text/event-stream"
Piece: TypeAlias = bytes | Exception | Callable[[], Awaitable[object]]


def call(name: str = "get_weather", arguments: Any = None) -> tuple[str, Any]:
    return name, {"city": "Porto"} if arguments is None else arguments


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def sse(*payloads: Any, named: bool = False) -> list[bytes]:
    made = []
    for payload in payloads:
        event = f"event: {payload['type']}\n" if named else ""
        made.append(f"{event}data: {payload if isinstance(payload, str) else json.dumps(payload)}\n\n".encode())
    return made


# Chat Completions


def chat_body(text: str, calls: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = [
        {"id": f"c{index}", "type": "function", "function": {"name": name, "arguments": _text(arguments)}}
        for index, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text or None, **({"tool_calls": made} if made else {})}
    return {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if made else "stop"}]}


def chat_stream(text: str, calls: Sequence[tuple[str, Any]]) -> list[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    chunks = [chunk({"content": piece}) for piece in text]
    for index, (name, arguments) in enumerate(calls):
        head = {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        chunks.append(chunk({"tool_calls": [head]}))
        chunks += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}) for piece in _text(arguments)
        ]
    return sse(*chunks, chunk({}, "tool_calls" if calls else "stop"), "[DONE]")


# Responses


def responses_body(text: str, calls: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    output: list[Any] = (
        [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}] if text else []
    )
    output += [
        {
            "type": "function_call",
            "id": f"fc{index}",
            "call_id": f"c{index}",
            "name": name,
            "arguments": _text(arguments),
            "status": "completed",
        }
        for index, (name, arguments) in enumerate(calls)
    ]
    return {"id": "r", "object": "response", "status": "completed", "model": "m", "output": output}


def responses_stream(text: str, calls: Sequence[tuple[str, Any]]) -> list[bytes]:
    body = responses_body(text, calls)
    events: list[Any] = [{"type": "response.created", "response": {**body, "status": "in_progress", "output": []}}]
    for index, item in enumerate(body["output"]):
        is_call = item["type"] == "function_call"
        empty = {**item, "status": "in_progress", **({"arguments": ""} if is_call else {"content": []})}
        events.append({"type": "response.output_item.added", "output_index": index, "item": empty})
        kind = "response.function_call_arguments.delta" if is_call else "response.output_text.delta"
        where = {"type": kind, "item_id": item["id"], "output_index": index, "content_index": 0}
        pieces = item["arguments"] if is_call else text
        events += [{**where, "delta": piece} for piece in pieces]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return sse(*events, {"type": "response.completed", "response": body}, named=True)


# Anthropic


def anthropic_body(text: str, calls: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    content: list[Any] = [{"type": "text", "text": text}] if text else []
    content += [
        {"type": "tool_use", "id": f"c{index}", "name": name, "input": arguments}
        for index, (name, arguments) in enumerate(calls)
    ]
    stop = "tool_use" if calls else "end_turn"
    return {"id": "x", "type": "message", "role": "assistant", "content": content, "stop_reason": stop}


def anthropic_stream(text: str, calls: Sequence[tuple[str, Any]]) -> list[bytes]:
    body = anthropic_body(text, calls)
    events: list[Any] = [{"type": "message_start", "message": {**body, "content": [], "stop_reason": None}}]
    for index, block in enumerate(body["content"]):
        is_call = block["type"] == "tool_use"
        empty = {**block, **({"input": {}} if is_call else {"text": ""})}
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [
            {
                "type": "content_block_delta",
                "index": index,
                "delta": {"type": "input_json_delta", "partial_json": piece}
                if is_call
                else {"type": "text_delta", "text": piece},
            }
            for piece in (_text(block["input"]) if is_call else text)
        ]
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": body["stop_reason"]}, "usage": {}})
    return sse(*events, {"type": "message_stop"}, named=True)


# Gemini


def gemini_body(text: str, calls: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    parts: list[Any] = [{"text": text}] if text else []
    parts += [{"functionCall": {"name": name, "args": arguments}} for name, arguments in calls]
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}]}


def gemini_stream(text: str, calls: Sequence[tuple[str, Any]]) -> list[bytes]:
    parts: list[Any] = [{"text": piece} for piece in text]
    parts += [{"functionCall": {"name": name, "args": arguments}} for name, arguments in calls]
    chunks: list[Any] = [{"candidates": [{"content": {"role": "model", "parts": [part]}}]} for part in parts]
    chunks.append({"candidates": [{"content": {"role": "model", "parts": []}, "finishReason": "STOP"}]})
    return sse(*chunks)


# Ollama


def ollama_body(text: str, calls: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    message = {"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}
    return {"model": "m", "message": message, "done": True, "done_reason": "stop"}


def ollama_stream(text: str, calls: Sequence[tuple[str, Any]]) -> list[bytes]:
    chunks: list[Any] = [{"message": {"role": "assistant", "content": piece}, "done": False} for piece in text]
    for name, arguments in calls:
        made = [{"function": {"name": name, "arguments": arguments}}]
        chunks.append({"message": {"role": "assistant", "content": "", "tool_calls": made}, "done": False})
    chunks.append({"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"})
    return [json.dumps(chunk).encode() + b"\n" for chunk in chunks]


@dataclass(frozen=True)
class Wire:
    """One wire, with the client's and the provider's side of it."""

    client: type[Client]
    path: str
    stream_path: str
    key_header: str
    key_value: str
    variable: str
    body: Callable[[str, Sequence[tuple[str, Any]]], dict[str, Any]]
    chunks: Callable[[str, Sequence[tuple[str, Any]]], list[bytes]]
    tool_name: Callable[[Any], str]
    media: str = EVENT_STREAM

    @property
    def name(self) -> str:
        return self.client.codec.name

    def whole(self, text: str = "", *calls: tuple[str, Any]) -> httpx.Response:
        return httpx.Response(200, json=self.body(text, calls))

    def streamed(self, text: str = "", *calls: tuple[str, Any]) -> httpx.Response:
        return self.flowing(self.chunks(text, calls))

    def flowing(self, pieces: Iterable[Piece]) -> httpx.Response:
        """The beginning of a stream, whose body comes in these pieces."""
        return httpx.Response(200, headers={"content-type": self.media}, stream=Pieces(pieces))

    def make(self, handler: Callable[[httpx.Request], Any] | None = None, **options: Any) -> Client:
        """A client that asks the handler; without real waits."""
        if handler is not None:
            options["http"] = httpx.AsyncClient(transport=httpx.MockTransport(handler))
        known: dict[str, Any] = {"model": "m", "api_key": KEY, "retries": quick(), **options}
        return self.client(known.pop("base_url", "https://provider.example/v1"), **known)


WIRES = [
    Wire(
        OpenAIChat,
        "chat/completions",
        "chat/completions",
        "authorization",
        f"Bearer {KEY}",
        "OPENAI_API_KEY",
        chat_body,
        chat_stream,
        lambda sent: sent["tools"][0]["function"]["name"],
    ),
    Wire(
        OpenAIResponses,
        "responses",
        "responses",
        "authorization",
        f"Bearer {KEY}",
        "OPENAI_API_KEY",
        responses_body,
        responses_stream,
        lambda sent: sent["tools"][0]["name"],
    ),
    Wire(
        Anthropic,
        "messages",
        "messages",
        "x-api-key",
        KEY,
        "ANTHROPIC_API_KEY",
        anthropic_body,
        anthropic_stream,
        lambda sent: sent["tools"][0]["name"],
    ),
    Wire(
        Gemini,
        "models/m:generateContent",
        "models/m:streamGenerateContent?alt=sse",
        "x-goog-api-key",
        KEY,
        "GEMINI_API_KEY",
        gemini_body,
        gemini_stream,
        lambda sent: sent["tools"][0]["functionDeclarations"][0]["name"],
    ),
    Wire(
        Ollama,
        "api/chat",
        "api/chat",
        "authorization",
        f"Bearer {KEY}",
        "OLLAMA_API_KEY",
        ollama_body,
        ollama_stream,
        lambda sent: sent["tools"][0]["function"]["name"],
        "application/x-ndjson",
    ),
]
CHAT = WIRES[0]
each_wire = pytest.mark.parametrize("wire", WIRES, ids=[wire.name for wire in WIRES])


def quick(times: int = 2, **options: Any) -> Retries:
    """Retries that do not wait."""

    async def at_once(_seconds: float) -> None:
        await asyncio.sleep(0)

    known: dict[str, Any] = {"sleep": at_once, **options}
    return Retries(times, **known)


@dataclass
class Recorder:
    """A provider that keeps the requests it is sent, and gives what *answer* makes of each."""

    answer: Callable[[httpx.Request], httpx.Response]
    requests: list[httpx.Request] = field(default_factory=list[httpx.Request])

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answer(request)


@dataclass
class Pieces(httpx.AsyncByteStream):
    """A body in pieces; an error among them is raised in its turn, an awaitable function is waited for."""

    pieces: Iterable[Piece]
    closed: bool = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, bytes):
                yield piece
            else:
                await piece()

    async def aclose(self) -> None:
        self.closed = True


async def read(events: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in events]


async def failure(asking: Awaitable[Any]) -> ModelError:
    with pytest.raises(ModelError) as raised:
        await asking
    return raised.value


def chain(error: BaseException | None) -> list[BaseException]:
    """An error and all that hangs on it."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in found:
            found.append(one)
            waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return found


# A server on a real socket


@dataclass
class Served:
    """A server on loopback that reads requests and leaves the answers to the test."""

    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # a client has closed its side
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def served(answering: Answering) -> AsyncGenerator[Served, None]:
    """Serve: for each request on each connection, *answering* writes what it likes; then the client's end is awaited."""
    told = Served()
    open_ones: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.connections += 1
        open_ones.add(writer)
        try:
            while request := await _request(reader):
                told.requests.append(request)
                await answering(reader, writer)
                if writer.is_closing():
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            told.gone.set()
            open_ones.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    told.port = server.sockets[0].getsockname()[1]
    try:
        yield told
    finally:
        server.close()
        for writer in open_ones:
            writer.close()
        await server.wait_closed()


async def _request(reader: asyncio.StreamReader) -> bytes:
    """One request, whole; nothing once the client has gone."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
    )
    return head + await reader.readexactly(length)


def whole(body: bytes, media: str = "application/json", status: str = "200 OK", *headers: str) -> bytes:
    """An answer with its length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {media}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def head(media: str = EVENT_STREAM, *headers: str) -> bytes:
    """The beginning of an answer in chunks."""
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {media}", "Transfer-Encoding: chunked", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
