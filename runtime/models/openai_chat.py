"""OpenAI's Chat Completions API, and the servers compatible with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from callgate.runtime.models.wire.base import (
    OPENAI_DESCRIPTION,
    BaseCodec,
    Content,
    ReplyFields,
    described,
    openai_usage,
)
from callgate.runtime.models.wire.calls_in_text import message_with_calls
from callgate.runtime.models.wire.client import Client
from callgate.runtime.models.wire.codec import Codec, Request, Translation, translated
from callgate.runtime.models.wire.endings import table
from callgate.runtime.models.wire.folds.chat import REASONING, ChatFold, details_text, thinking_text
from callgate.runtime.models.wire.history import arguments_text, legal_name, without_nulls
from callgate.runtime.models.wire.members import members
from callgate.runtime.models.wire.reading import (
    PARALLEL,
    RawCall,
    error_of,
    qualified,
    text_or_empty,
    text_or_none,
    wrapped_calls,
)
from callgate.runtime.models.wire.result_content import result_in_text
from callgate.runtime.models.wire.schema_views import View
from callgate.runtime.models.wire.shapes import is_mapping, items, mapping
from callgate.runtime.models.wire.strict_view import openai_view
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.definition import ToolDefinition

ENDINGS = table(
    done="stop eos eos_token end_turn stop_sequence",
    calls="tool_calls function_call tool_use",
    truncated="length max_tokens model_length model_context_window_exceeded time_limit repetition",
    refused="content_filter refusal safety recitation sensitive guardrail_intervened",
    failed="error abort insufficient_system_resource network_error timeout",
)
"""Finish reasons of OpenAI and of servers compatible with it."""
MEMBERS = members(
    call="tool_calls function_call function custom",
    text="content",
    refusal="refusal",
    reasoning=REASONING,
    media="audio",
    metadata="annotations role",
)
"""Fields of the message and of deltas, and kinds of calls."""
_NOT_SENT_BACK = ("annotations", "audio", "channel", "function_call", "parsed", "refusal", "tool_calls")


class ChatCodec(BaseCodec):
    """The codec of ``/v1/chat/completions``.

    It reads the first choice only: the others are alternatives. It reads the legacy ``function_call`` if there are no
    ``tool_calls``. The text of a ``custom`` tool call becomes its arguments, which hydration then refuses.
    """

    name = "openai_chat"
    endings = ENDINGS
    members = MEMBERS

    def translate(self, definitions: Sequence[ToolDefinition]) -> Translation:
        """Build ``{"tools": [{type, function: {name, description, parameters, strict}}]}``; see ``Codec``."""
        return translated(definitions, openai_view, _tool, maximum=OPENAI_DESCRIPTION)

    def results(self, results: Sequence[ToolResult], translation: Translation | None = None) -> list[dict[str, Any]]:
        """Build one ``tool`` message for each result; see ``Codec``. The API takes texts alone: others are left out."""
        return [{"role": "tool", "tool_call_id": one.call_id, "content": result_in_text(one)} for one in results]

    def error_in(self, body: Mapping[str, object]) -> Mapping[str, object] | None:
        """The error of the body, or of the first choice."""
        return error_of(body) or error_of(_choice(body))

    def is_answer(self, body: Mapping[str, object]) -> bool:
        """The first choice has a message."""
        return bool(mapping(_choice(body).get("message")))

    def reason_in(self, body: Mapping[str, object]) -> object:
        """``choices[0].finish_reason``."""
        return _choice(body).get("finish_reason")

    def content_in(self, body: Mapping[str, object]) -> Content:
        """A refusal; audio and images."""
        message = mapping(_choice(body).get("message"))
        parts = [part for part in items(message.get("content")) if text_or_none(mapping(part).get("type")) != "text"]
        media = message.get("audio") or message.get("images") or any(not thinking_text(part) for part in parts)
        return {"refused": bool(text_or_none(message.get("refusal"))), "media": bool(media)}

    def with_calls_of_text(self, body: Mapping[str, object]) -> Mapping[str, object]:
        choice = _choice(body)
        message = message_with_calls(mapping(choice.get("message")))
        return body if message is None else {**body, "choices": [{**choice, "message": message}]}

    def calls_in(self, body: Mapping[str, object], cut: bool) -> list[RawCall]:
        """``choices[0].message.tool_calls``; all count as truncated if the response was cut short."""
        choice = _choice(body)
        message = mapping(choice.get("message"))
        found: list[RawCall] = []
        sent = message.get("tool_calls")
        for entry in [sent] if is_mapping(sent) else items(sent):
            call = mapping(entry)
            function, custom = mapping(call.get("function")), call.get("custom")
            if call.get("type") == "custom" or (custom and not function):
                custom = mapping(custom)
                raw = RawCall(custom.get("name"), custom.get("input"), call.get("id"), entry, cut, custom=True)
            else:
                name = qualified(function.get("name"), call.get("namespace"), function.get("namespace"))
                raw = RawCall(name, function.get("arguments"), call.get("id"), entry, cut)
            if not raw.phantom:
                found += _unpacked(raw)
        if found or not message.get("function_call"):
            return found
        legacy = mapping(message["function_call"])
        return [RawCall(legacy.get("name"), legacy.get("arguments"), None, legacy, cut)]

    def fields_in(self, body: Mapping[str, object]) -> ReplyFields:
        """The fields of the first choice; a refusal is read as text."""
        choice = _choice(body)
        message, reason = mapping(choice.get("message")), choice.get("finish_reason")
        usage = mapping(body.get("usage") or mapping(body.get("x_groq")).get("usage"))
        return ReplyFields(
            text=_text(message.get("content")) + text_or_empty(message.get("refusal")),
            reasoning=_reasoning(message),
            stop=text_or_none(reason),
            usage=openai_usage(usage, "prompt_tokens", "completion_tokens"),
            model=text_or_none(body.get("model")),
            id=text_or_none(body.get("id")),
        )

    def history_of(
        self, body: Mapping[str, object], found: Sequence[tuple[RawCall, ToolCall]]
    ) -> list[dict[str, object]]:
        """The message with its reasoning, without the fields that servers refuse in a request."""
        message = mapping(_choice(body).get("message"))
        if not message:
            return []
        sent = {**without_nulls(message, *_NOT_SENT_BACK), "role": "assistant"}
        if text_or_none(message.get("refusal")):
            sent["refusal"] = message["refusal"]
        if audio_id := text_or_none(mapping(message.get("audio")).get("id")):
            sent["audio"] = {"id": audio_id}
        if found:
            sent["tool_calls"] = [_call_back(raw, call) for raw, call in found]
        sent.setdefault("content", None if found else "")
        return [sent]

    def new_fold(self, tool_of: Callable[[str], str]) -> ChatFold:
        return ChatFold(tool_of)

    def request_for(self, messages: list[dict[str, object]], model: str, stream: bool) -> Request:
        """Ask ``chat/completions``; a streamed request asks for the usage as well."""
        streamed = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        return Request("chat/completions", {"model": model, "messages": messages, **streamed})


def _tool(definition: ToolDefinition, wire_name: str, view: View) -> dict[str, object]:
    strict = {} if view.strict is None else {"strict": view.strict}
    function = {"name": wire_name, **described(definition, OPENAI_DESCRIPTION), "parameters": view.schema, **strict}
    return {"type": "function", "function": function}


def _unpacked(raw: RawCall) -> list[RawCall]:
    """The calls in a wrapper, each with an id of its own; the history has them apart."""
    if not isinstance(raw.name, str) or raw.name not in PARALLEL:
        return [raw]
    calls: list[RawCall] = []
    for call_id, name, arguments in wrapped_calls(raw.id, raw.arguments):
        entry = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        calls.append(RawCall(name, arguments, call_id, entry, raw.truncated))
    return calls or [raw]


def _choice(body: Mapping[str, object]) -> Mapping[str, object]:
    choices = items(body.get("choices"))
    return mapping(choices[0]) if choices else {}


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "".join(text_or_empty(mapping(part).get("text")) for part in items(content))


def _reasoning(message: Mapping[str, object]) -> str:
    for name in REASONING[:2]:
        if text_or_none(message.get(name)):
            return text_or_empty(message[name])
    thoughts = "".join(thinking_text(part) for part in items(message.get("content")))
    return thoughts or details_text(message.get("reasoning_details"))


def _call_back(raw: RawCall, call: ToolCall) -> dict[str, object]:
    entry = mapping(raw.chunk)
    extra = without_nulls(entry, "id", "index", "type", "function", "custom", "name", "arguments")
    if entry.get("type") == "custom":
        return {"id": call.id, "type": "custom", "custom": entry.get("custom"), **extra}
    function = {
        **without_nulls(mapping(entry.get("function")), "name", "arguments", "parsed_arguments"),
        "name": legal_name(mapping(entry.get("function")).get("name", raw.name)),
        "arguments": arguments_text(raw.arguments),
    }
    return {"id": call.id, "type": "function", "function": function, **extra}


CODEC: Codec = ChatCodec()


class OpenAIChat(Client):
    """A client of Chat Completions, of OpenAI or of a compatible server named by ``base_url``. See ``Client``.

    The key, by default ``OPENAI_API_KEY``, is sent as a bearer token. For a server that expects it in another header,
    such as Azure's ``api-key``, use ``headers=``.
    """

    codec = CODEC
    default_url = "https://api.openai.com/v1"
    key_variables = ("OPENAI_API_KEY",)
