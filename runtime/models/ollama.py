"""Ollama's native ``/api/chat``. For its Chat Completions server under ``/v1`` use ``openai_chat``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from callgate.runtime.models.wire.base import BaseCodec, Content, ReplyFields, described
from callgate.runtime.models.wire.calls_in_text import message_with_calls
from callgate.runtime.models.wire.client import Client
from callgate.runtime.models.wire.codec import Codec, Request, Translation, translated
from callgate.runtime.models.wire.endings import table
from callgate.runtime.models.wire.folds.ollama import OllamaFold
from callgate.runtime.models.wire.framing import JsonLines
from callgate.runtime.models.wire.history import arguments_object, without_nulls
from callgate.runtime.models.wire.members import members
from callgate.runtime.models.wire.reading import RawCall, count, text_or_empty, text_or_none
from callgate.runtime.models.wire.reply import Usage
from callgate.runtime.models.wire.result_content import IMAGES, taken
from callgate.runtime.models.wire.schema_views import View, plain_view
from callgate.runtime.models.wire.shapes import items, mapping
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.definition import ToolDefinition

ENDINGS = table(done="stop", truncated="length", lost="load unload")
"""Done reasons; ``load`` and ``unload`` answer a request without messages."""
MEMBERS = members(call="tool_calls", text="content", reasoning="thinking", media="images", metadata="role tool_name")
"""Fields of the message."""


class OllamaCodec(BaseCodec):
    """The codec of ``/api/chat``.

    Schemas are sent as raw JSON: Ollama's Python client silently drops most keywords. ``strict`` is never sent, since
    the server does not constrain the model's output. Older servers give calls no id.
    """

    name = "ollama"
    framing = JsonLines
    endings = ENDINGS
    members = MEMBERS

    def translate(self, definitions: Sequence[ToolDefinition]) -> Translation:
        """Build ``{"tools": [{type, function: {name, description, parameters, type}}]}``; see ``Codec``."""
        return translated(definitions, plain_view, _tool)

    def results(self, results: Sequence[ToolResult], translation: Translation | None = None) -> list[dict[str, Any]]:
        """Build one ``tool`` message for each result, matched by order and tool name; see ``Codec``. It has images."""
        names = [translation.names.wire(result.tool) if translation else result.tool for result in results]
        return [_result(name, result) for name, result in zip(names, results, strict=True)]

    def is_answer(self, body: Mapping[str, object]) -> bool:
        """It has a message."""
        return bool(mapping(body.get("message")))

    def reason_in(self, body: Mapping[str, object]) -> object:
        """``done_reason``, which older servers do not send."""
        return body.get("done_reason")

    def unfinished_in(self, body: Mapping[str, object]) -> str | None:
        return "done is false" if body.get("done") is False else None

    def content_in(self, body: Mapping[str, object]) -> Content:
        return {"media": bool(items(mapping(body.get("message")).get("images")))}

    def with_calls_of_text(self, body: Mapping[str, object]) -> Mapping[str, object]:
        message = message_with_calls(mapping(body.get("message")))
        return body if message is None else {**body, "message": message}

    def calls_in(self, body: Mapping[str, object], cut: bool) -> Iterator[RawCall]:
        """``message.tool_calls``; all count as truncated if the response was cut short."""
        for entry in items(mapping(body.get("message")).get("tool_calls")):
            call = mapping(entry)
            function = mapping(call.get("function"))
            yield RawCall(function.get("name"), function.get("arguments"), call.get("id"), entry, cut)

    def fields_in(self, body: Mapping[str, object]) -> ReplyFields:
        message = mapping(body.get("message"))
        return ReplyFields(
            text=text_or_empty(message.get("content")),
            reasoning=text_or_empty(message.get("thinking")),
            stop=text_or_none(body.get("done_reason")),
            usage=Usage(count(body, "prompt_eval_count"), count(body, "eval_count")),
            model=text_or_none(body.get("model")),
        )

    def history_of(
        self, body: Mapping[str, object], found: Sequence[tuple[RawCall, ToolCall]]
    ) -> list[dict[str, object]]:
        """The message; arguments become objects, since Ollama refuses other values."""
        message = mapping(body.get("message"))
        if not message:
            return []
        sent = {"content": "", **without_nulls(message, "tool_calls"), "role": "assistant"}
        if found:
            sent["tool_calls"] = [_call_back(raw) for raw, _ in found]
        return [sent]

    def new_fold(self, tool_of: Callable[[str], str]) -> OllamaFold:
        return OllamaFold(tool_of)

    def request_for(self, messages: list[dict[str, object]], model: str, stream: bool) -> Request:
        """Ask ``api/chat``; ``stream`` is always sent, since Ollama streams by default."""
        return Request("api/chat", {"model": model, "messages": messages, "stream": stream})


def _tool(definition: ToolDefinition, wire_name: str, view: View) -> dict[str, object]:
    function = {"name": wire_name, **described(definition), "parameters": view.schema}
    if isinstance(view.schema.get("type"), str):
        function["type"] = view.schema["type"]  # for compatibility
    return {"type": definition.type, "function": function}


def _call_back(raw: RawCall) -> dict[str, object]:
    call = mapping(raw.chunk)
    function = {**mapping(call.get("function")), "name": text_or_empty(raw.name)}
    return {**without_nulls(call), "function": {**function, "arguments": arguments_object(raw.arguments)}}


def _result(name: str, result: ToolResult) -> dict[str, object]:
    text, images = taken(result, IMAGES)
    message: dict[str, object] = {"role": "tool", "tool_name": name, "content": text}
    return {**message, "images": [block["data"] for block in images]} if images else message


CODEC: Codec = OllamaCodec()


class Ollama(Client):
    """A client of Ollama's native API, by default of the server on this machine. See ``Client``.

    A key is optional; ``OLLAMA_API_KEY`` is sent as a bearer token.
    """

    codec = CODEC
    default_url = "http://127.0.0.1:11434"
    key_variables = ("OLLAMA_API_KEY",)
    needs_key = False
