"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from callgate.runtime.wire.codec import Codec, Translation, translated
from callgate.runtime.wire.reading import RawCall, answer, cut_short, tool_calls
from callgate.runtime.wire.result_text import result_text
from callgate.runtime.wire.schema_views import View, plain_view
from callgate.runtime.wire.shapes import items, mapping
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.definition import ToolDefinition


class Anthropic:
    """The codec of ``/v1/messages``, not streamed (contract 57, 58, C3). ``strict`` is not sent (contract 12)."""

    name = "anthropic"

    def translate(self, definitions: Sequence[ToolDefinition]) -> Translation:
        """``{"tools": [{name, description, input_schema}]}``; see ``Codec``."""
        return translated(definitions, plain_view, _tool)

    def calls(self, response: Mapping[str, Any], translation: Translation | None = None) -> list[ToolCall]:
        """The ``tool_use`` blocks. What the provider ran itself (``server_tool_use``, ``mcp_tool_use``) is not ours.

        Blocks are written one after the other: of an answer that was cut short only the last may be incomplete, and
        only if it is the last block.
        """
        body = answer(response)
        blocks = [] if body.get("error") else items(body.get("content"))
        found = [_found(block) for block in blocks if mapping(block).get("type") == "tool_use"]
        if found and found[-1].chunk is blocks[-1] and cut_short(body.get("stop_reason")):
            found[-1] = replace(found[-1], truncated=True)
        return tool_calls(found, translation)

    def results(self, results: Sequence[ToolResult], translation: Translation | None = None) -> list[dict[str, Any]]:
        """One ``user`` message with a ``tool_result`` block for each result; see ``Codec``."""
        blocks = [
            {
                "type": "tool_result",
                "tool_use_id": result.call_id,
                "content": result_text(result),
                "is_error": not result.ok,
            }
            for result in results
        ]
        return [{"role": "user", "content": blocks}] if blocks else []


def _tool(definition: ToolDefinition, wire_name: str, view: View) -> dict[str, Any]:
    described = {} if definition.description is None else {"description": definition.description}
    return {"name": wire_name, **described, "input_schema": view.schema}


def _found(block: Any) -> RawCall:
    call = mapping(block)
    return RawCall(call.get("name"), call.get("input"), call.get("id"), block)


CODEC: Codec = Anthropic()
