"""Ollama's own ``/api/chat``. Its ``/v1`` is a Chat Completions server: read that with ``openai_chat``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from callgate.runtime.wire.codec import Codec, Translation, translated
from callgate.runtime.wire.reading import RawCall, answer, cut_short, tool_calls
from callgate.runtime.wire.result_text import result_text
from callgate.runtime.wire.schema_views import View, plain_view
from callgate.runtime.wire.shapes import items, mapping
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.definition import ToolDefinition


class Ollama:
    """The codec of ``/api/chat``, not streamed (contract 57, 59, C3).

    The schema goes out as raw JSON: Ollama's Python client would silently drop most keywords. Nothing constrains what
    the model writes, and ``strict`` is not sent (contract 12). Older servers give calls no id (C10b).
    """

    name = "ollama"

    def translate(self, definitions: Sequence[ToolDefinition]) -> Translation:
        """``{"tools": [{type, function: {name, description, parameters, type}}]}``; see ``Codec``."""
        return translated(definitions, plain_view, _tool)

    def calls(self, response: Mapping[str, Any], translation: Translation | None = None) -> list[ToolCall]:
        """``message.tool_calls``; all are truncated if the answer was cut short. See ``Codec``."""
        body = answer(response)
        return [] if body.get("error") else tool_calls(_found(body), translation)

    def results(self, results: Sequence[ToolResult], translation: Translation | None = None) -> list[dict[str, Any]]:
        """One ``tool`` message for each result, matched by order and tool name; see ``Codec``."""
        names = [translation.names.wire(result.tool) if translation else result.tool for result in results]
        return [
            {"role": "tool", "tool_name": name, "content": result_text(result)}
            for name, result in zip(names, results, strict=True)
        ]


def _tool(definition: ToolDefinition, wire_name: str, view: View) -> dict[str, Any]:
    function: dict[str, Any] = {"name": wire_name}
    if definition.description is not None:
        function["description"] = definition.description
    function["parameters"] = view.schema
    if isinstance(view.schema.get("type"), str):
        function["type"] = view.schema["type"]  # contract 59: for compatibility
    return {"type": definition.type, "function": function}


def _found(body: Mapping[str, Any]) -> Iterator[RawCall]:
    cut = cut_short(body.get("done_reason"))
    for entry in items(mapping(body.get("message")).get("tool_calls")):
        call = mapping(entry)
        function = mapping(call.get("function"))
        yield RawCall(function.get("name"), function.get("arguments"), call.get("id"), entry, cut)


CODEC: Codec = Ollama()
