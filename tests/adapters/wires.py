"""What the adapters' tests share: the recorded exchanges, and short makers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from callgate.tools.definition import ToolDefinition
from tests.conftest import DATA

CODEC_OF = {
    "openai_chat": "openai_chat",
    "openai_compat": "openai_compat",
    "anthropic": "anthropic",
    "ollama": "ollama",
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


def recordings(data: Path = DATA) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recorded exchange whose answer is one JSON body, of every provider, by name."""
    for path in sorted((data / "recordings").glob("*/*.json")):
        recorded = json.loads(path.read_text("utf-8"))
        if recorded.get("response") is not None:
            yield f"{path.parent.name}/{path.stem}", recorded


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


def tool_use(name: Any, arguments: Any, call_id: Any = "t1") -> dict[str, Any]:
    """One call of Anthropic Messages."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
