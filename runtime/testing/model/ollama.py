"""The scripted model's side of Ollama's chat API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from callgate.runtime.models.wire.shapes import items, mapping
from callgate.runtime.testing.model.checks import check_tools, field, pair_results, require
from callgate.runtime.testing.model.requests import (
    GivenResult,
    Message,
    ModelRequest,
    OfferedTool,
    ParsedRequest,
    SeenCall,
    SeenThought,
)
from callgate.runtime.testing.model.script import Call, Say, Turn
from callgate.runtime.testing.model.wire_format import WireFormat, pieces, read_each

_STOP_REASONS = {"stop": "stop", "calls": "stop", "length": "length", "filter": "stop"}
_CREATED_AT = "2025-10-09T08:53:20.000000Z"


class OllamaFormat(WireFormat):
    """``/api/chat``, streamed unless the request says ``"stream": false``.

    Malformed arguments never reach a client of Ollama: the server fails, here too. Unlike the real server it requires a
    result for every call.
    """

    name = "ollama"
    stream_type = "application/x-ndjson"

    def parse(self, path: str, body: Mapping[str, object]) -> ParsedRequest:
        messages = read_each(field(body, "messages", list), _message)
        tools = read_each(body.get("tools"), _tool)
        stream = body.get("stream", True) is not False
        return ParsedRequest(
            field(body, "model", str),
            stream,
            check_tools(tools, r".+"),
            pair_results(messages, together=False),
        )

    def answer(self, turn: Turn, request: ModelRequest) -> dict[str, object]:
        if failed := _failed(turn):
            return {"error": failed}
        message: dict[str, object] = {"role": "assistant", "content": turn.text}
        if turn.reasoning:
            message["thinking"] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = [_call(call, index) for index, call in enumerate(turn.calls)]
        return _line(request, message) | _end(turn)

    def events(self, turn: Turn, request: ModelRequest) -> list[bytes]:
        events = [_line(request, {"role": "assistant", "content": "", **message}) for message in _messages(turn)]
        if failed := _failed(turn):
            events.append({"error": failed})
        else:
            events.append(_line(request, {"role": "assistant", "content": ""}) | _end(turn))
        return [_framed(line) for line in events]

    def error(self, status: int, message: str) -> dict[str, object]:
        return {"error": message}

    def error_event(self, message: str, number: int) -> bytes:
        return _framed({"error": message})


def _message(message: Mapping[str, Any], index: int) -> Message:
    place = f"messages.{index}"
    role = field(message, "role", str, place)
    require(role in {"system", "user", "assistant", "tool"}, f"{place}.role: {role!r} is not a role")
    text = message.get("content") or ""
    require(isinstance(text, str), f"json: cannot unmarshal into field {place}.content of type string")
    if role == "tool":
        tool, call_id = message.get("tool_name"), message.get("tool_call_id")
        return Message("tool", results=(GivenResult(text, call_id, tool),))
    calls = tuple(_seen(mapping(call), f"{place}.tool_calls") for call in items(message.get("tool_calls")))
    thought = message.get("thinking")
    return Message(role, text, calls, thoughts=(SeenThought(thought),) if thought else ())


def _seen(call: Mapping[str, Any], place: str) -> SeenCall:
    function = field(call, "function", dict, place)
    return SeenCall(field(function, "name", str, place), field(function, "arguments", dict, place), call.get("id"))


def _tool(tool: Mapping[str, object], index: int) -> OfferedTool:
    function = field(tool, "function", dict, f"tools.{index}")
    name = field(function, "name", str, f"tools.{index}")
    return OfferedTool(name, function.get("description"), mapping(function.get("parameters")))


def _failed(turn: Turn) -> str | None:
    for call in turn.calls:
        if not isinstance(call.value, dict):
            return f"error parsing tool call: raw='{call.written}', err=invalid JSON"
    return None


def _call(call: Call, index: int) -> dict[str, object]:
    return {"id": call.id, "function": {"index": index, "name": call.tool, "arguments": call.value}}


def _messages(turn: Turn) -> Iterator[dict[str, Any]]:
    index = 0
    for part in turn.parts:
        if isinstance(part, Say):
            yield from ({"content": piece} for piece in pieces(part.text))
        elif not isinstance(part, Call):
            yield from ({"thinking": piece} for piece in pieces(part.text))
        elif isinstance(part.value, dict):
            yield {"tool_calls": [_call(part, index)]}
            index += 1


def _line(request: ModelRequest, message: Mapping[str, object]) -> dict[str, object]:
    return {"model": request.model, "created_at": _CREATED_AT, "message": message, "done": False}


def _end(turn: Turn) -> dict[str, object]:
    counted = {"prompt_eval_count": turn.usage.input or 0, "eval_count": turn.usage.output or 0}
    spent = {"total_duration": 3, "load_duration": 1, "prompt_eval_duration": 1, "eval_duration": 1}
    return {"done": True, "done_reason": turn.stop_reason(_STOP_REASONS), **counted, **spent}


def _framed(line: Mapping[str, object]) -> bytes:
    return json.dumps(line).encode() + b"\n"


FORMAT = OllamaFormat()
