"""The scripted model's side of Gemini's generateContent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from callgate.runtime.models.wire.reading import text_or_none
from callgate.runtime.models.wire.reply import Usage
from callgate.runtime.models.wire.shapes import items, mapping
from callgate.runtime.testing.model.checks import check_tools, field, pair_results, require
from callgate.runtime.testing.model.requests import (
    GivenResult,
    Message,
    ModelRequest,
    OfferedTool,
    ParsedRequest,
    SeenCall,
    SeenThought,
)
from callgate.runtime.testing.model.script import Call, Say, Turn
from callgate.runtime.testing.model.wire_format import (
    WireFormat,
    content_text,
    pieces,
    read_each,
    sse,
    without_none,
)

_STOP_REASONS = {"stop": "STOP", "calls": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_BODY = {
    *"contents tools toolConfig safetySettings systemInstruction generationConfig cachedContent serviceTier".split(),
    *("model", "labels"),
}
_SCHEMA = {
    *"type format title description nullable enum default example items minItems maxItems properties required".split(),
    *"propertyOrdering minProperties maxProperties minLength maxLength pattern minimum maximum anyOf".split(),
    *("ref", "defs", "$ref", "$defs", "additionalProperties"),
}
"""The fields of the OpenAPI form; ``parametersJsonSchema`` accepts all."""


class GeminiFormat(WireFormat):
    """``/v1beta/models/{model}:generateContent`` and ``:streamGenerateContent``.

    A call has an id only if the script sets one, as with older models. A thought's signature is sent with the part after
    it. Malformed arguments never reach a client of Gemini: the response ends with ``MALFORMED_FUNCTION_CALL`` instead.
    """

    name = "gemini"
    call_prefix = None

    def parse(self, path: str, body: Mapping[str, object]) -> ParsedRequest:
        body = {_camel(name): value for name, value in body.items()}
        unknown = {*body} - _BODY
        require(not unknown, f"Invalid JSON payload received. Unknown name: {', '.join(sorted(unknown))}")
        named = re.search(r"/models/([^/:]+):", path)
        system = content_text(mapping(body.get("systemInstruction")).get("parts"))
        contents = read_each(field(body, "contents", list), _message)
        conversation = pair_results(contents, together=True)
        return ParsedRequest(
            named[1] if named else "",
            ":streamGenerateContent" in path,
            check_tools([*_tools(body.get("tools"))], r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}"),
            (Message("system", system), *conversation) if system else conversation,
        )

    def keeps_signatures(self, request: ModelRequest) -> bool:
        return True

    def answer(self, turn: Turn, request: ModelRequest) -> dict[str, Any]:
        ended = {"finishReason": turn.stop_reason(_STOP_REASONS)}
        bad = next((call for call in turn.calls if not isinstance(call.value, dict)), None)
        if bad is not None:
            reason = f"Malformed function call: {bad.tool}({bad.written})"
            ended = {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": reason}
        return _answer(request, [part for part, _ in _parts(turn)], turn.usage, **ended)

    def events(self, turn: Turn, request: ModelRequest) -> list[bytes]:
        """See ``WireFormat``. Without ``alt=sse`` a stream is one JSON array."""
        whole = self.answer(turn, request)
        events: list[dict[str, object]] = []
        for part, splits in _parts(turn):
            if splits:
                events += [
                    _answer(request, [{**part, "text": piece}], Usage(turn.usage.input))
                    for piece in pieces(part["text"])
                ]
            else:
                events.append(_answer(request, [part], Usage(turn.usage.input)))
        (candidate,) = whole["candidates"]
        last = {"role": "model", "parts": [{"text": ""}]}
        events.append({**whole, "candidates": [{**candidate, "content": last}]})
        if "alt=sse" in request.path:
            return [sse(chunk) for chunk in events]
        return [f"{',' if index else '['}{json.dumps(chunk)}\n".encode() for index, chunk in enumerate(events)] + [b"]"]

    def error(self, status: int, message: str) -> dict[str, object]:
        return {"error": {"code": status, "message": message, "status": _STATUSES.get(status, "UNKNOWN")}}

    def error_event(self, message: str, number: int) -> bytes:
        return sse(self.error(503, message))


def _message(content: Mapping[str, Any], index: int) -> Message:
    place = f"contents[{index}]"
    role = content.get("role", "user")
    require(role in {"user", "model", "function"}, f"{place}.role: please use a valid role: user, model")
    parts = [
        {_camel(name): value for name, value in mapping(part).items()} for part in field(content, "parts", list, place)
    ]
    require(bool(parts), f"{place}.parts: must not be empty")
    calls = tuple(_seen(part, place) for part in parts if "functionCall" in part)
    results = tuple(_result(part["functionResponse"], place) for part in parts if "functionResponse" in part)
    require(not calls or role == "model", f"{place}: only the model calls functions")
    require(not results or role != "model", f"{place}: only the user gives function responses")
    signed = [part for part in parts if part.get("thoughtSignature") or part.get("thought")]
    thoughts = tuple(
        SeenThought(None, text_or_none(part.get("thoughtSignature"))) for part in signed if "functionCall" not in part
    )
    text = content_text([part for part in parts if not part.get("thought")])
    named = {"model": "assistant", "function": "tool"}.get(role, role)
    return Message("tool" if results and not text else named, text, calls, results, thoughts)


def _seen(part: Mapping[str, Any], place: str) -> SeenCall:
    call = mapping(part["functionCall"])
    name = field(call, "name", str, f"{place}.function_call")
    return SeenCall(name, mapping(call.get("args")), text_or_none(call.get("id")), part.get("thoughtSignature"))


def _result(response: object, place: str) -> GivenResult:
    given = mapping(response)
    name = field(given, "name", str, f"{place}.function_response")
    return GivenResult(
        field(given, "response", dict, f"{place}.function_response"), text_or_none(given.get("id")), name
    )


def _tools(tools: object) -> Iterator[OfferedTool]:
    for index, tool in enumerate(items(tools)):
        for kind, functions in mapping(tool).items():
            require(_camel(kind) == "functionDeclarations", f"tools[{index}]: {kind} is not a tool of this model")
            for position, function in enumerate(items(functions)):
                yield _tool(mapping(function), f"tools[{index}].function_declarations[{position}]")


def _tool(function: Mapping[str, Any], place: str) -> OfferedTool:
    given = {_camel(name): value for name, value in function.items()}
    both = "parameters" in given and "parametersJsonSchema" in given
    require(not both, f"{place}: parameters and parametersJsonSchema are mutually exclusive")
    _openapi(given.get("parameters"), f"{place}.parameters")
    schema = given.get("parametersJsonSchema") or given.get("parameters")
    return OfferedTool(field(given, "name", str, place), given.get("description"), mapping(schema))


def _openapi(schema: object, place: str) -> None:
    if not isinstance(schema, dict):
        return
    unknown = {*schema} - _SCHEMA
    require(not unknown, f"{place}: Invalid JSON payload received. Unknown name: {', '.join(sorted(unknown))}")
    for name, inner in mapping(schema.get("properties")).items():
        _openapi(inner, f"{place}.properties[{name}]")
    _openapi(schema.get("items"), f"{place}.items")
    for index, inner in enumerate(items(schema.get("anyOf"))):
        _openapi(inner, f"{place}.any_of[{index}]")
    require(all(isinstance(value, str) for value in items(schema.get("enum"))), f"{place}.enum: must be strings")


def _parts(turn: Turn) -> Iterator[tuple[dict[str, Any], bool]]:
    """The parts of the response, with True for those that are sent in pieces."""
    signature: str | None = None
    for part in turn.parts:
        signed = without_none(thoughtSignature=signature)
        if isinstance(part, Say):
            yield {"text": part.text, **signed}, not signed
            signature = None
        elif isinstance(part, Call):
            if isinstance(part.value, dict):
                yield {"functionCall": without_none(id=part.id, name=part.tool, args=part.value), **signed}, False
                signature = None
        else:
            if part.text:
                yield {"text": part.text, "thought": True}, True
            signature = part.signature
    if signature is not None:
        yield {"text": "", "thoughtSignature": signature}, False


def _answer(
    request: ModelRequest, parts: Sequence[Mapping[str, object]], usage: Usage, **ended: str
) -> dict[str, object]:
    read, written, thought = usage.input or 0, usage.output or 0, usage.reasoning
    counted = without_none(
        promptTokenCount=read,
        candidatesTokenCount=None if usage.output is None else written - (thought or 0),
        thoughtsTokenCount=thought,
        cachedContentTokenCount=usage.cached,
        totalTokenCount=usage.total or read + written,
    )
    return {
        "candidates": [{"content": {"role": "model", "parts": parts}, **ended, "index": 0}],
        "usageMetadata": counted,
        "modelVersion": request.model,
        "responseId": f"response-{request.number}",
    }


def _camel(name: str) -> str:
    """Convert a field name to camel case: the API reads both spellings."""
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)


FORMAT = GeminiFormat()
