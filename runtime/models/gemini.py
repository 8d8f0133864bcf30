"""Google's Gemini API: ``generateContent`` and ``streamGenerateContent``, of AI Studio and of Vertex."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from callgate.runtime.models.wire.base import BaseCodec, Content, ReplyFields, described
from callgate.runtime.models.wire.client import Client
from callgate.runtime.models.wire.codec import Codec, Request, Translation, translated, without_system
from callgate.runtime.models.wire.endings import table
from callgate.runtime.models.wire.folds.gemini import PROVIDER_RAN, UNSPECIFIED, UNSPECIFIED_BLOCK, GeminiFold, call_of
from callgate.runtime.models.wire.gemini_view import JSON_SCHEMA, gemini_view, openapi_view
from callgate.runtime.models.wire.history import arguments_object, provider_call_id, without_nulls
from callgate.runtime.models.wire.members import members
from callgate.runtime.models.wire.names import GEMINI_NAME
from callgate.runtime.models.wire.reading import NO_REASON, RawCall, count, text_or_empty, text_or_none, with_calls
from callgate.runtime.models.wire.reply import Usage
from callgate.runtime.models.wire.result_content import IMAGES, PDF, taken
from callgate.runtime.models.wire.result_text import told_arguments
from callgate.runtime.models.wire.schema_views import View
from callgate.runtime.models.wire.shapes import items, mapping
from callgate.tools.arguments.parsing import parse_strict
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.definition import ToolDefinition
from callgate.tools.values import thaw

ENDINGS = table(
    done="STOP",
    calls="UNEXPECTED_TOOL_CALL TOO_MANY_TOOL_CALLS",
    truncated="MAX_TOKENS CONTINUATION MALFORMED_FUNCTION_CALL MALFORMED_RESPONSE",
    refused="SAFETY RECITATION LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT"
    " IMAGE_RECITATION MODEL_ARMOR ESCALATION JAILBREAK PUP_LIMITED_DISABLED BLOCKED_REASON_UNSPECIFIED BLOCKED_OTHER",
    failed="OTHER IMAGE_OTHER NO_IMAGE MISSING_THOUGHT_SIGNATURE",
    lost=UNSPECIFIED,
)
"""Finish reasons, and reasons why a prompt was blocked; of the latter, ``OTHER`` is ``BLOCKED_OTHER``."""
_NUMBERED = (UNSPECIFIED, "STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "OTHER")
"""Names of numeric finish reasons, which some clients of Vertex keep; above 5 the two APIs number differently."""
_BLOCKS = (UNSPECIFIED_BLOCK, "SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT")
"""Names of numeric block reasons; above 4 the two APIs number differently."""
_SIMPLE = {"user": "user", "assistant": "model", "model": "model"}
"""Roles of simple messages, and of their turns."""
_TAKEN = (IMAGES - {"image/gif"}) | {PDF}
MEDIA = ("inlineData", "fileData", "audioTranscription")
"""Parts with data that is no text; an answer that has nothing else is not empty."""
MEMBERS = members(
    call="functionCall",
    text="text",
    reasoning="thought",
    media=MEDIA,
    provider_ran=PROVIDER_RAN,
    history="functionResponse",
    metadata="thoughtSignature audioMetadata documentMetadata mediaProcessing mediaResolution partMetadata speechMetadata"
    " spreadsheetMetadata videoMetadata",
)
"""Fields of parts."""


class GeminiCodec(BaseCodec):
    """The codec of ``generateContent``.

    It reads the first candidate only. Calls often have no id; their results are then matched by name and order. A
    finish reason that is not known as a normal end marks the calls as truncated.

    Args:
        openapi: send schemas in the older OpenAPI subset (see ``openapi_view``) instead of JSON Schema.
    """

    name = "gemini"
    endings = ENDINGS
    members = MEMBERS

    def __init__(self, *, openapi: bool = False) -> None:
        self._view = openapi_view if openapi else gemini_view

    def translate(self, definitions: Sequence[ToolDefinition]) -> Translation:
        """Build ``{"tools": [{functionDeclarations: [{name, description, parameters}]}]}``; see ``Codec``."""
        made = translated(definitions, self._view, _tool, GEMINI_NAME)
        declared = made.request["tools"]
        return replace(made, request={"tools": [{"functionDeclarations": declared}] if declared else []})

    def results(self, results: Sequence[ToolResult], translation: Translation | None = None) -> list[dict[str, Any]]:
        """Build one ``user`` turn with a ``functionResponse`` part for each result; see ``Codec``.

        A part has the call's id if the provider gave one. ``response`` is ``{"output": ...}`` or ``{"error": ...}``.
        Images and PDF are ``parts`` of it, which models from Gemini 3 on read.
        """
        parts = [{"functionResponse": _response(result, translation)} for result in results]
        return [{"role": "user", "parts": parts}] if parts else []

    def is_answer(self, body: Mapping[str, object]) -> bool:
        """It has a candidate, or says why the prompt was blocked."""
        return bool(_candidate(body) or _blocked(body))

    def reason_in(self, body: Mapping[str, object]) -> object:
        """``promptFeedback.blockReason``, else ``candidates[0].finishReason``; an unspecified reason counts as missing."""
        stop = _stop(body)
        if stop == "OTHER" and _blocked(body) == stop:
            return "BLOCKED_OTHER"
        return None if stop == UNSPECIFIED else stop

    def unfinished_in(self, body: Mapping[str, object]) -> str | None:
        if not self.reason_in(body):
            return NO_REASON
        return "a call is not complete" if any(_open(part) for part in _parts(body)) else None

    def content_in(self, body: Mapping[str, object]) -> Content:
        """Images and other data."""
        return {"media": any(mapping(part).get(name) for part in _parts(body) for name in MEDIA)}

    def calls_in(self, body: Mapping[str, object], cut: bool) -> Iterator[RawCall]:
        """``functionCall`` in ``candidates[0].content.parts``; all count as truncated if the response was cut short."""
        for part in _parts(body):
            call = call_of(part)
            if call:
                yield RawCall(call.get("name"), call.get("args"), call.get("id"), part, cut or _open(part))

    def fields_in(self, body: Mapping[str, object]) -> ReplyFields:
        """The fields of the first candidate; ``stop`` is the finish reason, or the reason why the prompt was blocked."""
        parts = [mapping(part) for part in _parts(body)]
        return ReplyFields(
            text="".join(text_or_empty(part.get("text")) for part in parts if not part.get("thought")),
            reasoning="".join(text_or_empty(part.get("text")) for part in parts if part.get("thought")),
            stop=_stop(body),
            usage=_usage(mapping(body.get("usageMetadata"))),
            model=text_or_none(body.get("modelVersion")),
            id=text_or_none(body.get("responseId")),
            provider_ran=tuple(part for part in parts if any(part.get(name) for name in PROVIDER_RAN)),
        )

    def history_of(
        self, body: Mapping[str, object], found: Sequence[tuple[RawCall, ToolCall]]
    ) -> list[dict[str, object]]:
        """The turn, with the parts' signatures; empty parts are left out because the API refuses them."""
        sent: list[dict[str, object]] = []
        for part, call in with_calls(_parts(body), found):
            function_call = call_of(part)
            if call is not None and function_call is not None:
                sent.append(_call_back(part, function_call, "id" if call.synthetic_id else ""))
            elif function_call is None and (back := without_nulls(part)) and back != {"text": ""}:
                sent.append(back)
        return [{"role": "model", "parts": sent}] if sent else []

    def new_fold(self, tool_of: Callable[[str], str]) -> GeminiFold:
        return GeminiFold(tool_of)

    def request_for(self, messages: list[dict[str, object]], model: str, stream: bool) -> Request:
        """Ask ``models/{model}:generateContent``; simple messages become ``contents`` and ``systemInstruction``.

        A model name with a slash (``tunedModels/...``, ``publishers/google/models/...``) is used as the path.

        Raises:
            ValueError: the name of the model is no path below the address of the API.
        """
        system, rest = without_system(messages)
        instruction = {"parts": [{"text": system}]} if system else None
        verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
        body = {"contents": [_content(message) for message in rest], "systemInstruction": instruction}
        return Request(f"{_path(model)}:{verb}", body)


def _tool(definition: ToolDefinition, wire_name: str, view: View) -> dict[str, object]:
    return {"name": wire_name, **described(definition), (view.key or JSON_SCHEMA): view.schema}


def _path(model: str) -> str:
    """The path of a model. Its name, which a caller may choose, leads to no other method, version or query of the API."""
    *folders, name = (model if "/" in model else f"models/{model}").split("/")
    if not all(one.strip(".") for one in (*folders, name)):
        raise ValueError(f'the model {model!r} is no path of a model; write its name, such as "gemini-3-flash"')
    return "/".join([*(quote(one, safe=":@") for one in folders), quote(name, safe="@")])


def _content(message: dict[str, object]) -> dict[str, object]:
    """Convert a simple message to a turn; others are returned unchanged, and the API refuses those of another wire."""
    content, role = message.get("content"), _SIMPLE.get(text_or_empty(message.get("role")))
    if role is None or not isinstance(content, str) or message.keys() != {"role", "content"}:
        return message
    return {"role": role, "parts": [{"text": content}]}


def _candidate(body: Mapping[str, object]) -> Mapping[str, object]:
    candidates = items(body.get("candidates"))
    return mapping(candidates[0]) if candidates else {}


def _parts(body: Mapping[str, object]) -> Sequence[object]:
    return items(mapping(_candidate(body).get("content")).get("parts"))


def _open(part: object) -> bool:
    """True if the part is a call whose arguments go on."""
    return bool((call_of(part) or {}).get("willContinue"))


def _stop(body: Mapping[str, object]) -> str | None:
    blocked, reason = _blocked(body), _named(_candidate(body).get("finishReason"), _NUMBERED)
    return reason if reason and blocked in {None, UNSPECIFIED_BLOCK} else blocked


def _blocked(body: Mapping[str, object]) -> str | None:
    return _named(mapping(body.get("promptFeedback")).get("blockReason"), _BLOCKS)


def _named(reason: object, numbered: Sequence[str]) -> str | None:
    if isinstance(reason, int) and not isinstance(reason, bool):
        return numbered[reason] if 0 <= reason < len(numbered) else str(reason)
    return text_or_none(reason)


def _call_back(part: Mapping[str, object], function_call: Mapping[str, object], unused: str) -> dict[str, object]:
    """The part of a call, without the *unused* field: an id that another call has, and that its result has not."""
    call = without_nulls(function_call, "partialArgs", "willContinue", unused)
    call |= {
        "name": text_or_empty(function_call.get("name")) or "unnamed",
        "args": arguments_object(function_call.get("args")),
    }
    return {**without_nulls(part, "function_call"), "functionCall": call}


def _response(result: ToolResult, translation: Translation | None) -> dict[str, object]:
    name = translation.names.wire(result.tool) if translation else result.tool
    call_id = provider_call_id(result)
    text, media = taken(result, _TAKEN)
    response: dict[str, object]
    if media is not None:
        response = {"output": text}
    else:
        response = {"output": thaw(result.output)} if result.ok else parse_strict(text)
        if result.ok and result.ran_with is not None:
            response["ran_with"] = told_arguments(result)
    answer: dict[str, object] = {
        **({"id": call_id} if call_id else {}),
        "name": name or "unnamed",
        "response": response,
    }
    parts = [{"inlineData": {"mimeType": block["mimeType"], "data": block["data"]}} for block in media or ()]
    return {**answer, "parts": parts} if parts else answer


def _usage(usage: Mapping[str, object]) -> Usage:
    return Usage(
        input=count(usage, "promptTokenCount", "toolUsePromptTokenCount"),
        output=count(usage, "candidatesTokenCount", "thoughtsTokenCount"),
        total=count(usage, "totalTokenCount"),
        cached=count(usage, "cachedContentTokenCount"),
        reasoning=count(usage, "thoughtsTokenCount"),
    )


CODEC: Codec = GeminiCodec()


class Gemini(Client):
    """A client of Gemini's generateContent; the default key is ``GEMINI_API_KEY`` or ``GOOGLE_API_KEY``. See ``Client``."""

    codec = CODEC
    default_url = "https://generativelanguage.googleapis.com/v1beta"
    key_variables = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    key_header = "x-goog-api-key"
    key_prefix = ""
