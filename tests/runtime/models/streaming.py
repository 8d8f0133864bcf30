"""Helpers for tests of streams: decoding pieces, and encoding events as bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from callgate.runtime.models import codec
from callgate.runtime.models.wire.codec import Translation
from callgate.runtime.models.wire.reply import CallDelta, CallReady, Done, ReasoningDelta, Reply, ReplyEvent, TextDelta


def decode(wire: str, pieces: Iterable[bytes], translation: Translation | None = None) -> list[ReplyEvent]:
    """All events of one stream."""
    decoder = codec(wire).decoder(translation)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    assert not any(isinstance(event, CallReady | Done) for event in events)
    return events + decoder.end()


def reply_of(events: Sequence[ReplyEvent]) -> Reply:
    """The reply at the end of a stream; it asserts the promises of every stream."""
    last = events[-1]
    assert isinstance(last, Done)
    assert sum(isinstance(event, Done) for event in events) == 1
    ready = [event.call for event in events if isinstance(event, CallReady)]
    assert ready == [call for call in last.reply.calls if not call.truncated]
    assert all(isinstance(event, CallReady) for event in events[len(events) - 1 - len(ready) : -1])
    return last.reply


def texts(events: Sequence[ReplyEvent]) -> tuple[str, str]:
    """The text and reasoning of the deltas."""
    shown = "".join(event.text for event in events if isinstance(event, TextDelta))
    return shown, "".join(event.text for event in events if isinstance(event, ReasoningDelta))


def shown_calls(events: Sequence[ReplyEvent]) -> list[tuple[str, str]]:
    """The last name and all arguments of the call deltas."""
    shown: dict[int, tuple[str, str]] = {}
    for event in events:
        if isinstance(event, CallDelta):
            shown[event.index] = (event.tool, shown.get(event.index, ("", ""))[1] + event.arguments)
    assert list(shown) == sorted(shown)
    return list(shown.values())


def sse(*chunks: Any, done: bool = False) -> bytes:
    """Server-sent events; text goes out as it is."""
    datas = [chunk if isinstance(chunk, str) else json.dumps(chunk, ensure_ascii=False) for chunk in chunks]
    return "".join(f"data: {data}\n\n" for data in [*datas, *(["[DONE]"] if done else [])]).encode()


def lines(*chunks: Any) -> bytes:
    """NDJSON."""
    return "".join(json.dumps(chunk, ensure_ascii=False) + "\n" for chunk in chunks).encode()


def chat_chunk(finish: Any = None, **delta: Any) -> dict[str, Any]:
    """One chunk of Chat Completions."""
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def piece(
    index: Any = None, call_id: Any = None, name: Any = None, arguments: Any = None, **fields: Any
) -> dict[str, Any]:
    """One entry of a chunk's ``tool_calls``, without what is None."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    entry = {"index": index, "id": call_id, **fields}
    return {**{key: value for key, value in entry.items() if value is not None}, "function": function}


def chat_stream(*deltas: Any, finish: Any = "tool_calls", done: bool = True) -> bytes:
    """Chat Completions: each delta's ``tool_calls``, and the end."""
    chunks = [chat_chunk(tool_calls=delta if isinstance(delta, list) else [delta]) for delta in deltas]
    return sse(*chunks, *([chat_chunk(finish)] if finish else []), done=done)


def read(wire: str, stream: bytes) -> Reply:
    """The reply of a whole stream."""
    return reply_of(decode(wire, [stream]))


def brief(reply: Reply) -> list[tuple[str, Any, str | None]]:
    """Its calls: tool, arguments, and the provider's id."""
    return [(call.name, call.arguments, None if call.synthetic_id else call.id) for call in reply.calls]
