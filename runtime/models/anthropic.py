"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from callgate.runtime.models.wire.anthropic_view import strict_views
from callgate.runtime.models.wire.base import BaseCodec, Rest, described
from callgate.runtime.models.wire.client import Client
from callgate.runtime.models.wire.codec import Codec, Request, Translation, translated, without_system
from callgate.runtime.models.wire.folds.anthropic import AnthropicFold
from callgate.runtime.models.wire.history import arguments_object, legal_name
from callgate.runtime.models.wire.reading import RawCall, count, cut_short, placed, text_of, word
from callgate.runtime.models.wire.reply import Usage
from callgate.runtime.models.wire.result_text import result_text
from callgate.runtime.models.wire.schema_views import View, plain_view
from callgate.runtime.models.wire.shapes import items, mapping
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.definition import ToolDefinition

MAX_TOKENS = 4096
"""What ``max_tokens`` is where the options do not say: the API asks for it."""
_SERVER_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})


class AnthropicCodec(BaseCodec):
    """The codec of ``/v1/messages`` (contract 57, 58, C3).

    ``strict`` is not sent (contract 12) unless the codec is made with ``strict=True``: then it is for definitions that
    set it, within the budget of a request (``strict_views``). Of a streamed call the text of its input is kept as it
    came: it need not be JSON.
    """

    name = "anthropic"

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict

    def translate(self, definitions: Sequence[ToolDefinition]) -> Translation:
        """``{"tools": [{name, description, input_schema}]}``; see ``Codec``."""
        return translated(definitions, strict_views() if self._strict else plain_view, _tool)

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

    def _found(self, body: Mapping[str, Any]) -> list[RawCall]:
        """The ``tool_use`` blocks. What the provider ran itself (``server_tool_use``, ``mcp_tool_use``) is not ours.

        Blocks are written one after the other: of an answer that was cut short only the last may be incomplete, and
        only if it is the last block.
        """
        blocks = items(body.get("content"))
        found: list[RawCall] = []
        for block in blocks:
            call = mapping(block)
            if call.get("type") == "tool_use":
                found.append(RawCall(call.get("name"), call.get("input"), call.get("id"), block))
        if found and found[-1].chunk is blocks[-1] and cut_short(body.get("stop_reason")):
            found[-1] = found[-1]._replace(truncated=True)
        return found

    def _read(self, body: Mapping[str, Any]) -> Rest:
        """All blocks. ``usage.input`` counts what was read from and written to the cache, too."""
        blocks = [mapping(block) for block in items(body.get("content"))]
        return Rest(
            text="".join(text_of(block.get("text")) for block in blocks if block.get("type") == "text"),
            reasoning="".join(text_of(block.get("thinking")) for block in blocks if block.get("type") == "thinking"),
            stop=word(body.get("stop_reason")),
            truncated=cut_short(body.get("stop_reason")),
            usage=_usage(mapping(body.get("usage"))),
            model=word(body.get("model")),
            id=word(body.get("id")),
        )

    def _history(self, body: Mapping[str, Any], found: Sequence[tuple[RawCall, ToolCall]]) -> list[dict[str, Any]]:
        """The message: blocks with their signatures. Text without a word in it would be refused."""
        sent: list[dict[str, Any]] = []
        for block, call in placed(items(body.get("content")), found):
            kind = text_of(block.get("type"))
            if call is not None:
                taken = arguments_object(block.get("input"))
                sent.append({**block, "id": call.id, "name": legal_name(block.get("name")), "input": taken})
            elif kind in _SERVER_CALLS:
                sent.append({**block, "input": arguments_object(block.get("input"))})
            elif kind and kind != "tool_use" and (kind != "text" or text_of(block.get("text")).strip()):
                sent.append(dict(block))
        return [{"role": "assistant", "content": sent}] if sent else []

    def _fold(self, tool_of: Callable[[str], str]) -> AnthropicFold:
        return AnthropicFold(tool_of)

    def _asked(self, messages: list[dict[str, Any]], model: str, stream: bool) -> Request:
        """``messages``; simple system messages become the ``system`` parameter."""
        system, rest = without_system(messages)
        body = {"model": model, "max_tokens": MAX_TOKENS, "messages": rest}
        return Request("messages", {**body, "system": system or None, "stream": stream or None})


def _tool(definition: ToolDefinition, wire_name: str, view: View) -> dict[str, Any]:
    strict = {} if view.strict is None else {"strict": view.strict}
    return {"name": wire_name, **described(definition), "input_schema": view.schema, **strict}


def _usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(
        input=count(usage, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
        output=count(usage, "output_tokens"),
        cached=count(usage, "cache_read_input_tokens"),
        reasoning=count(mapping(usage.get("output_tokens_details")), "thinking_tokens"),
    )


CODEC: Codec = AnthropicCodec()


class Anthropic(Client):
    """A client of Anthropic's Messages; the key comes from ``ANTHROPIC_API_KEY``. See ``Client``."""

    codec = CODEC
    default_url = "https://api.anthropic.com/v1"
    key_variables = ("ANTHROPIC_API_KEY",)
    key_header = "x-api-key"
    key_prefix = ""
    fixed_headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}
