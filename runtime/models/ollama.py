"""Ollama's own ``/api/chat``. Its ``/v1`` is a Chat Completions server: read that with ``openai_chat``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from callgate.runtime.models.wire.base import BaseCodec, Rest, described
from callgate.runtime.models.wire.client import Client
from callgate.runtime.models.wire.codec import Codec, Request, Translation, translated
from callgate.runtime.models.wire.folds.ollama import OllamaFold
from callgate.runtime.models.wire.framing import JsonLines
from callgate.runtime.models.wire.history import arguments_object, without_nulls
from callgate.runtime.models.wire.reading import RawCall, count, cut_short, text_of, word
from callgate.runtime.models.wire.reply import Usage
from callgate.runtime.models.wire.result_text import result_text
from callgate.runtime.models.wire.schema_views import View, plain_view
from callgate.runtime.models.wire.shapes import items, mapping
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.definition import ToolDefinition


class OllamaCodec(BaseCodec):
    """The codec of ``/api/chat`` (contract 57, 59, C3).

    The schema goes out as raw JSON: Ollama's Python client would silently drop most keywords. Nothing constrains what
    the model writes, and ``strict`` is not sent (contract 12). Older servers give calls no id (C10b).
    """

    name = "ollama"
    framing = JsonLines

    def translate(self, definitions: Sequence[ToolDefinition]) -> Translation:
        """``{"tools": [{type, function: {name, description, parameters, type}}]}``; see ``Codec``."""
        return translated(definitions, plain_view, _tool)

    def results(self, results: Sequence[ToolResult], translation: Translation | None = None) -> list[dict[str, Any]]:
        """One ``tool`` message for each result, matched by order and tool name; see ``Codec``."""
        names = [translation.names.wire(result.tool) if translation else result.tool for result in results]
        return [
            {"role": "tool", "tool_name": name, "content": result_text(result)}
            for name, result in zip(names, results, strict=True)
        ]

    def _found(self, body: Mapping[str, Any]) -> Iterator[RawCall]:
        """``message.tool_calls``; all are truncated if the answer was cut short."""
        cut = cut_short(body.get("done_reason"))
        for entry in items(mapping(body.get("message")).get("tool_calls")):
            call = mapping(entry)
            function = mapping(call.get("function"))
            yield RawCall(function.get("name"), function.get("arguments"), call.get("id"), entry, cut)

    def _read(self, body: Mapping[str, Any]) -> Rest:
        message = mapping(body.get("message"))
        return Rest(
            text=text_of(message.get("content")),
            reasoning=text_of(message.get("thinking")),
            stop=word(body.get("done_reason")),
            truncated=cut_short(body.get("done_reason")),
            usage=Usage(count(body, "prompt_eval_count"), count(body, "eval_count")),
            model=word(body.get("model")),
        )

    def _history(self, body: Mapping[str, Any], found: Sequence[tuple[RawCall, ToolCall]]) -> list[dict[str, Any]]:
        """The message. Ollama refuses arguments that are no object."""
        message = mapping(body.get("message"))
        if not message:
            return []
        sent = {"content": "", **without_nulls(message, "tool_calls"), "role": "assistant"}
        if found:
            sent["tool_calls"] = [_call_back(raw) for raw, _ in found]
        return [sent]

    def _fold(self, tool_of: Callable[[str], str]) -> OllamaFold:
        return OllamaFold(tool_of)

    def _asked(self, messages: list[dict[str, Any]], model: str, stream: bool) -> Request:
        """``api/chat``; ``stream`` is always said, for Ollama streams by itself."""
        return Request("api/chat", {"model": model, "messages": messages, "stream": stream})


def _tool(definition: ToolDefinition, wire_name: str, view: View) -> dict[str, Any]:
    function = {"name": wire_name, **described(definition), "parameters": view.schema}
    if isinstance(view.schema.get("type"), str):
        function["type"] = view.schema["type"]  # contract 59: for compatibility
    return {"type": definition.type, "function": function}


def _call_back(raw: RawCall) -> dict[str, Any]:
    call = mapping(raw.chunk)
    function = {**mapping(call.get("function")), "name": text_of(raw.name)}
    return {**without_nulls(call), "function": {**function, "arguments": arguments_object(raw.arguments)}}


CODEC: Codec = OllamaCodec()


class Ollama(Client):
    """A client of Ollama's own API, by default of the server on this machine. See ``Client``.

    It needs no key; one in ``OLLAMA_API_KEY`` goes out as a bearer token.
    """

    codec = CODEC
    default_url = "http://127.0.0.1:11434"
    key_variables = ("OLLAMA_API_KEY",)
    needs_key = False
