"""OpenAI's Chat Completions, and the many servers that speak it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from callgate.runtime.wire.client import Client
from callgate.runtime.wire.codec import Codec, Messages, Request, Translation, as_messages, request_body, translated
from callgate.runtime.wire.decoder import Decoder
from callgate.runtime.wire.folds.chat import REASONING, ChatFold, details_text, thinking_text
from callgate.runtime.wire.framing import Sniffed
from callgate.runtime.wire.history import arguments_text, legal_name, without_nulls
from callgate.runtime.wire.reading import (
    RawCall,
    answer,
    count,
    cut_short,
    error_of,
    pair,
    text_of,
    tool_calls,
    tool_namer,
    word,
)
from callgate.runtime.wire.reply import Reply, Usage
from callgate.runtime.wire.result_text import result_text
from callgate.runtime.wire.schema_views import View
from callgate.runtime.wire.shapes import items, mapping
from callgate.runtime.wire.strict_view import openai_view
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.definition import ToolDefinition

_NOT_SENT_BACK = ("annotations", "audio", "channel", "function_call", "parsed", "refusal", "tool_calls")


class ChatCodec:
    """The codec of ``/v1/chat/completions`` (contract 57, 58, C3).

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
        choice = _choice(body)
        return [] if body.get("error") or choice.get("error") else tool_calls(_found(choice), translation)

    def results(self, results: Sequence[ToolResult], translation: Translation | None = None) -> list[dict[str, Any]]:
        """One ``tool`` message for each result; see ``Codec``."""
        return [{"role": "tool", "tool_call_id": result.call_id, "content": result_text(result)} for result in results]

    def reply(self, response: Mapping[str, Any], translation: Translation | None = None) -> Reply:
        """The first choice; a refusal is read as text. See ``Codec``."""
        body = answer(response)
        choice = _choice(body)
        message = mapping(choice.get("message"))
        error = error_of(body) or error_of(choice)
        found = [] if error else pair(_found(choice), translation)
        content = message.get("content")
        return Reply(
            calls=tuple(call for _, call in found),
            text=_text(content) + text_of(message.get("refusal")),
            reasoning=_reasoning(message),
            messages=() if error else _history(message, found),
            stop=word(choice.get("finish_reason")),
            truncated=cut_short(choice.get("finish_reason")),
            usage=_usage(mapping(body.get("usage") or mapping(body.get("x_groq")).get("usage"))),
            model=word(body.get("model")),
            id=word(body.get("id")),
            error=error,
            body=body,
        )

    def decoder(self, translation: Translation | None = None) -> Decoder:
        """For chunks as server-sent events; a whole answer in their place is read, too. See ``Codec``."""
        fold = ChatFold(tool_namer(translation))
        return Decoder(fold, lambda body: self.reply(body, translation), Sniffed())

    def request(
        self,
        messages: Messages,
        translation: Translation | None = None,
        *,
        model: str,
        stream: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> Request:
        """``chat/completions``; a stream is asked for its usage, too. See ``Codec``."""
        base: dict[str, Any] = {"model": model, "messages": as_messages(messages)}
        if stream:
            base |= {"stream": True, "stream_options": {"include_usage": True}}
        return Request("chat/completions", request_body(base, translation, options))


def _tool(definition: ToolDefinition, wire_name: str, view: View) -> dict[str, Any]:
    function: dict[str, Any] = {"name": wire_name}
    if definition.description is not None:
        function["description"] = definition.description
    function["parameters"] = view.schema
    if view.strict is not None:
        function["strict"] = view.strict
    return {"type": "function", "function": function}


def _choice(body: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = items(body.get("choices"))
    return mapping(choices[0]) if choices else {}


def _found(choice: Mapping[str, Any]) -> list[RawCall]:
    message = mapping(choice.get("message"))
    cut = cut_short(choice.get("finish_reason"))
    found: list[RawCall] = []
    for entry in items(message.get("tool_calls")):
        call = mapping(entry)
        function, custom = mapping(call.get("function")), call.get("custom")
        if call.get("type") == "custom" or (custom and not function):
            custom = mapping(custom)
            raw = RawCall(custom.get("name"), custom.get("input"), call.get("id"), entry, cut)
        else:
            raw = RawCall(function.get("name"), function.get("arguments"), call.get("id"), entry, cut)
        if not raw.phantom:
            found.append(raw)
    if found or not message.get("function_call"):
        return found
    legacy = mapping(message["function_call"])
    return [RawCall(legacy.get("name"), legacy.get("arguments"), None, legacy, cut)]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(text_of(mapping(part).get("text")) for part in items(content))


def _reasoning(message: Mapping[str, Any]) -> str:
    for name in REASONING[:2]:
        if word(message.get(name)):
            return text_of(message[name])
    thoughts = "".join(thinking_text(part) for part in items(message.get("content")))
    return thoughts or details_text(message.get("reasoning_details"))


def _history(message: Mapping[str, Any], found: Sequence[tuple[RawCall, ToolCall]]) -> tuple[dict[str, Any], ...]:
    """The message for the history: reasoning in any form goes back, what servers refuse in a request does not."""
    if not message:
        return ()
    sent = {**without_nulls(message, *_NOT_SENT_BACK), "role": "assistant"}
    if word(message.get("refusal")):
        sent["refusal"] = message["refusal"]
    if word(mapping(message.get("audio")).get("id")):
        sent["audio"] = {"id": message["audio"]["id"]}
    if found:
        sent["tool_calls"] = [_call_back(raw, call) for raw, call in found]
    sent.setdefault("content", None if found else "")
    return (sent,)


def _call_back(raw: RawCall, call: ToolCall) -> dict[str, Any]:
    entry = mapping(raw.chunk)
    extra = without_nulls(entry, "id", "index", "type", "function", "custom", "name", "arguments")
    if entry.get("type") == "custom":
        return {"id": call.id, "type": "custom", "custom": entry.get("custom"), **extra}
    function = {
        **without_nulls(mapping(entry.get("function")), "name", "arguments"),
        "name": legal_name(raw.name),
        "arguments": arguments_text(raw.arguments),
    }
    return {"id": call.id, "type": "function", "function": function, **extra}


def _usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(
        input=count(usage, "prompt_tokens"),
        output=count(usage, "completion_tokens"),
        total=count(usage, "total_tokens"),
        cached=count(mapping(usage.get("prompt_tokens_details")), "cached_tokens"),
        reasoning=count(mapping(usage.get("completion_tokens_details")), "reasoning_tokens"),
    )


CODEC: Codec = ChatCodec()


class OpenAIChat(Client):
    """A client of Chat Completions: OpenAI's, and the servers that speak it; name theirs by ``base_url``. See ``Client``.

    The key, from ``OPENAI_API_KEY``, goes out as a bearer token. A server that wants it elsewhere, such as Azure's
    ``api-key``, gets it by ``headers=``.
    """

    codec = CODEC
    default_url = "https://api.openai.com/v1"
    key_variables = ("OPENAI_API_KEY",)
