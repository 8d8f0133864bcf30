"""OpenAI's Chat Completions, and the many servers that speak it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from callgate.runtime.wire.codec import Codec, Translation, translated
from callgate.runtime.wire.reading import RawCall, answer, cut_short, tool_calls
from callgate.runtime.wire.result_text import result_text
from callgate.runtime.wire.schema_views import View
from callgate.runtime.wire.shapes import items, mapping
from callgate.runtime.wire.strict_view import openai_view
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.definition import ToolDefinition


class OpenAIChat:
    """The codec of ``/v1/chat/completions``, not streamed (contract 57, 58, C3).

    Only the first choice is read: the others are alternatives to it. The legacy ``function_call`` is read where there
    are no ``tool_calls``. The text of a ``custom`` tool call becomes its arguments, for hydration to refuse.
    """

    name = "openai_chat"

    def translate(self, definitions: Sequence[ToolDefinition]) -> Translation:
        """``{"tools": [{type, function: {name, description, parameters, strict}}]}``; see ``Codec``."""
        return translated(definitions, openai_view, _tool)

    def calls(self, response: Mapping[str, Any], translation: Translation | None = None) -> list[ToolCall]:
        """``choices[0].message.tool_calls``; all are truncated if the answer was cut short. See ``Codec``."""
        body = answer(response)
        return [] if body.get("error") else tool_calls(_found(body), translation)

    def results(self, results: Sequence[ToolResult], translation: Translation | None = None) -> list[dict[str, Any]]:
        """One ``tool`` message for each result; see ``Codec``."""
        return [{"role": "tool", "tool_call_id": result.call_id, "content": result_text(result)} for result in results]


def _tool(definition: ToolDefinition, wire_name: str, view: View) -> dict[str, Any]:
    function: dict[str, Any] = {"name": wire_name}
    if definition.description is not None:
        function["description"] = definition.description
    function["parameters"] = view.schema
    if view.strict is not None:
        function["strict"] = view.strict
    return {"type": "function", "function": function}


def _found(body: Mapping[str, Any]) -> list[RawCall]:
    choice = mapping(next(iter(items(body.get("choices"))), None))
    message = mapping(choice.get("message"))
    cut = cut_short(choice.get("finish_reason"))
    found = [call for call in _modern(message, cut) if not call.phantom]
    legacy = mapping(message.get("function_call"))
    return found or [RawCall(legacy.get("name"), legacy.get("arguments"), None, legacy, cut)]


def _modern(message: Mapping[str, Any], cut: bool) -> Iterator[RawCall]:
    for entry in items(message.get("tool_calls")):
        call = mapping(entry)
        function, custom = mapping(call.get("function")), mapping(call.get("custom"))
        if call.get("type") == "custom" or (custom and not function):
            yield RawCall(custom.get("name"), custom.get("input"), call.get("id"), entry, cut)
        else:
            yield RawCall(function.get("name"), function.get("arguments"), call.get("id"), entry, cut)


CODEC: Codec = OpenAIChat()
