"""Recorded exchanges and short makers for the tests of codecs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from callgate.tools.definition import ToolDefinition
from tests.conftest import DATA

WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama")
CODEC_OF = {wire: wire for wire in WIRES} | {
    "openai_compat": "openai_compat",
    "openai_responses_compat": "openai_responses_compat",
}

RICH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "description": "Where"},
        "days": {"type": "integer", "minimum": 1, "default": 3},
        "place": {"$ref": "#/$defs/place"},
        "pick": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    },
    "required": ["city"],
    "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}},
}


def exchanges(data: Path = DATA) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recorded exchange, by name."""
    for path in sorted((data / "recordings").glob("*/*.json")):
        yield f"{path.parent.name}/{path.stem}", json.loads(path.read_text("utf-8"))


def recordings(data: Path = DATA) -> Iterator[tuple[str, dict[str, Any]]]:
    """Those whose answer is one JSON body."""
    return ((name, recorded) for name, recorded in exchanges(data) if recorded.get("response") is not None)


def streams(data: Path = DATA) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Those whose answer is a stream, with its bytes."""
    for name, recorded in exchanges(data):
        text = recorded.get("response_sse") or recorded.get("response_ndjson")
        if text is not None:
            yield name, text.encode(), recorded


def wire_of(name: str) -> str:
    """The provider that a recording is of."""
    return name.partition("/")[0]


def ours() -> list[tuple[str, dict[str, Any]]]:
    """Those whose wire has a codec."""
    return [(name, recorded) for name, recorded in recordings() if wire_of(name) in CODEC_OF]


def tool(parameters: Any = None, name: str = "get_weather", **fields: Any) -> ToolDefinition:
    """A definition, with a small schema unless one is given."""
    small = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return ToolDefinition(name=name, parameters=small if parameters is None else parameters, **fields)


def chat(*calls: Any, finish: Any = "tool_calls", **message: Any) -> dict[str, Any]:
    """An answer of Chat Completions."""
    body = {"role": "assistant", "content": None, **message}
    if calls:
        body["tool_calls"] = list(calls)
    return {"choices": [{"index": 0, "message": body, "finish_reason": finish}]}


def function(name: Any, arguments: Any, call_id: Any = "c1", **fields: Any) -> dict[str, Any]:
    """One call of Chat Completions."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def message(*blocks: Any, stop: Any = "tool_use") -> dict[str, Any]:
    """An answer of Anthropic Messages."""
    return {"type": "message", "role": "assistant", "content": list(blocks), "stop_reason": stop}


def response(*output: Any, status: Any = "completed", **fields: Any) -> dict[str, Any]:
    """An answer of the Responses API."""
    return {"object": "response", "status": status, "error": None, "output": list(output), **fields}


def function_call(name: Any, arguments: Any, call_id: Any = "r1", **fields: Any) -> dict[str, Any]:
    """One call of the Responses API."""
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "status": "completed",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        **fields,
    }


def gemini(*parts: Any, finish: Any = "STOP") -> dict[str, Any]:
    """An answer of Gemini."""
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": finish, "index": 0}]}


def gemini_call(name: Any, arguments: Any, call_id: Any = None, **fields: Any) -> dict[str, Any]:
    """One call of Gemini."""
    known = {"id": call_id} if call_id is not None else {}
    return {"functionCall": {"name": name, "args": arguments, **known}, **fields}


def ollama(*calls: Any, reason: Any = "stop", **message: Any) -> dict[str, Any]:
    """An answer of Ollama."""
    body = {"role": "assistant", "content": "", **message}
    return {"message": {**body, **({"tool_calls": list(calls)} if calls else {})}, "done": True, "done_reason": reason}


def calling(wire: str, *calls: tuple[Any, Any, Any]) -> dict[str, Any]:
    """An answer of a wire with these calls: (name, arguments, id)."""
    return {
        "openai_chat": lambda: chat(*(function(*call) for call in calls)),
        "openai_responses": lambda: response(*(function_call(*call) for call in calls)),
        "anthropic": lambda: message(*(tool_use(*call) for call in calls)),
        "gemini": lambda: gemini(*(gemini_call(*call) for call in calls)),
        "ollama": lambda: ollama(*(function(*call) for call in calls)),
    }[wire]()


def tool_use(name: Any, arguments: Any, call_id: Any = "t1") -> dict[str, Any]:
    """One call of Anthropic Messages."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def answered(wire: str, reason: Any, *, calls: bool = True, text: str = "") -> dict[str, Any]:
    """A whole answer with a stop reason: a call of ``pay``, or text."""
    if wire == "openai_chat":
        return chat(*([function("pay", "{}")] if calls else []), content=text or None, finish=reason)
    if wire == "openai_responses":
        shown = {"type": "message", "content": [{"type": "output_text", "text": text}]}
        incomplete = reason not in {"completed", "failed", "cancelled", "incomplete", "queued", "in_progress", None}
        body = response(function_call("pay", "{}") if calls else shown, status="incomplete" if incomplete else reason)
        return {**body, **({"incomplete_details": {"reason": reason}} if incomplete else {})}
    if wire == "anthropic":
        return message(tool_use("pay", {}) if calls else {"type": "text", "text": text}, stop=reason)
    if wire == "gemini":
        return gemini(gemini_call("pay", {}) if calls else {"text": text}, finish=reason)
    return ollama(*([{"function": {"name": "pay", "arguments": {}}}] if calls else []), content=text, reason=reason)
