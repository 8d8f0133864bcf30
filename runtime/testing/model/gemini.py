"""A scripted model that speaks Gemini's generateContent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from callgate.runtime.models.wire.reply import Usage
from callgate.runtime.testing.model.checks import demand, field, offered, paired
from callgate.runtime.testing.model.requests import (
    Asked,
    GivenResult,
    Heard,
    Message,
    OfferedTool,
    SeenCall,
    SeenThought,
)
from callgate.runtime.testing.model.script import Call, Say, Turn
from callgate.runtime.testing.model.wire_format import Wire, listed, mapped, pieces, sse, text_of, without_none

ENDED = {"stop": "STOP", "calls": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
BODY = {
    *"contents tools toolConfig safetySettings systemInstruction generationConfig cachedContent serviceTier".split(),
    *("model", "labels"),
}
SCHEMA = {
    *"type format title description nullable enum default example items minItems maxItems properties required".split(),
    *"propertyOrdering minProperties maxProperties minLength maxLength pattern minimum maximum anyOf".split(),
    *("ref", "defs", "$ref", "$defs", "additionalProperties"),
}
"""The fields of the OpenAPI shape; ``parametersJsonSchema`` takes any."""


class Gemini:
    """``/v1beta/models/{model}:generateContent`` and ``:streamGenerateContent``.

    Calls have an id only where the script gives one, as with older models. A thought's signature comes with the part
    that follows it. Malformed arguments never reach a client of Gemini: the answer ends with
    ``MALFORMED_FUNCTION_CALL``, without the call.
    """

    name = "gemini"
    call_prefix = None

    def hear(self, path: str, body: Mapping[str, Any]) -> Heard:
        """See ``Wire``."""
        body = {_camel(name): value for name, value in body.items()}
        unknown = {*body} - BODY
        demand(not unknown, f"Invalid JSON payload received. Unknown name: {', '.join(sorted(unknown))}")
        named = re.search(r"/models/([^/:]+):", path)
        system = text_of(mapped(body.get("systemInstruction")).get("parts"))
        contents = [_message(mapped(item), index) for index, item in enumerate(field(body, "contents", list))]
        told = paired(contents, together=True)
        return Heard(
            named[1] if named else "",
            ":streamGenerateContent" in path,
            offered([*_tools(body.get("tools"))], r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}"),
            (Message("system", system), *told) if system else told,
        )

    def remembers(self, asked: Asked) -> bool:
        """See ``Wire``."""
        return True

    def answer(self, turn: Turn, asked: Asked) -> dict[str, Any]:
        """See ``Wire``."""
        ended = {"finishReason": turn.ended(ENDED)}
        bad = next((call for call in turn.calls if not isinstance(call.value, dict)), None)
        if bad is not None:
            told = f"Malformed function call: {bad.tool}({bad.written})"
            ended = {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": told}
        return _answer(asked, [part for part, _ in _parts(turn)], turn.usage, **ended)

    def events(self, turn: Turn, asked: Asked) -> list[bytes]:
        """See ``Wire``. Without ``alt=sse`` a stream is one JSON array."""
        whole = self.answer(turn, asked)
        told: list[dict[str, Any]] = []
        for part, splits in _parts(turn):
            if splits:
                told += [
                    _answer(asked, [{**part, "text": piece}], Usage(turn.usage.input)) for piece in pieces(part["text"])
                ]
            else:
                told.append(_answer(asked, [part], Usage(turn.usage.input)))
        (candidate,) = whole["candidates"]
        last = {"role": "model", "parts": [{"text": ""}]}
        told.append({**whole, "candidates": [{**candidate, "content": last}]})
        if "alt=sse" in asked.path:
            return [sse(chunk) for chunk in told]
        return [f"{',' if index else '['}{json.dumps(chunk)}\n".encode() for index, chunk in enumerate(told)] + [b"]"]

    def error(self, status: int, message: str) -> dict[str, Any]:
        """See ``Wire``."""
        return {"error": {"code": status, "message": message, "status": STATUSES.get(status, "UNKNOWN")}}

    def error_event(self, message: str, number: int) -> bytes:
        """See ``Wire``."""
        return sse(self.error(503, message))


def _message(content: Mapping[str, Any], index: int) -> Message:
    place = f"contents[{index}]"
    role = content.get("role", "user")
    demand(role in {"user", "model", "function"}, f"{place}.role: please use a valid role: user, model")
    parts = [
        {_camel(name): value for name, value in mapped(part).items()} for part in field(content, "parts", list, place)
    ]
    demand(bool(parts), f"{place}.parts: must not be empty")
    calls = tuple(_seen(part, place) for part in parts if "functionCall" in part)
    results = tuple(_result(part["functionResponse"], place) for part in parts if "functionResponse" in part)
    demand(not calls or role == "model", f"{place}: only the model calls functions")
    demand(not results or role != "model", f"{place}: only the user gives function responses")
    signed = [part for part in parts if part.get("thoughtSignature") or part.get("thought")]
    thoughts = tuple(SeenThought(None, part.get("thoughtSignature")) for part in signed if "functionCall" not in part)
    said = text_of([part for part in parts if not part.get("thought")])
    named = {"model": "assistant", "function": "tool"}.get(role, role)
    return Message("tool" if results and not said else named, said, calls, results, thoughts)


def _seen(part: Mapping[str, Any], place: str) -> SeenCall:
    call = mapped(part["functionCall"])
    name = field(call, "name", str, f"{place}.function_call")
    return SeenCall(name, mapped(call.get("args")), call.get("id"), part.get("thoughtSignature"))


def _result(response: Any, place: str) -> GivenResult:
    given = mapped(response)
    name = field(given, "name", str, f"{place}.function_response")
    return GivenResult(field(given, "response", dict, f"{place}.function_response"), given.get("id"), name)


def _tools(tools: Any) -> Iterator[OfferedTool]:
    for index, tool in enumerate(listed(tools)):
        for kind, functions in mapped(tool).items():
            demand(_camel(kind) == "functionDeclarations", f"tools[{index}]: {kind} is no tool of this model")
            for position, function in enumerate(listed(functions)):
                yield _tool(mapped(function), f"tools[{index}].function_declarations[{position}]")


def _tool(function: Mapping[str, Any], place: str) -> OfferedTool:
    given = {_camel(name): value for name, value in function.items()}
    both = "parameters" in given and "parametersJsonSchema" in given
    demand(not both, f"{place}: parameters and parametersJsonSchema are mutually exclusive")
    _openapi(given.get("parameters"), f"{place}.parameters")
    schema = given.get("parametersJsonSchema") or given.get("parameters")
    return OfferedTool(field(given, "name", str, place), given.get("description"), mapped(schema))


def _openapi(schema: Any, place: str) -> None:
    if not isinstance(schema, dict):
        return
    unknown = {*schema} - SCHEMA
    demand(not unknown, f"{place}: Invalid JSON payload received. Unknown name: {', '.join(sorted(unknown))}")
    for name, inner in mapped(schema.get("properties")).items():
        _openapi(inner, f"{place}.properties[{name}]")
    _openapi(schema.get("items"), f"{place}.items")
    for index, inner in enumerate(listed(schema.get("anyOf"))):
        _openapi(inner, f"{place}.any_of[{index}]")
    demand(all(isinstance(value, str) for value in listed(schema.get("enum"))), f"{place}.enum: must be strings")


def _parts(turn: Turn) -> Iterator[tuple[dict[str, Any], bool]]:
    """The parts of the answer, and which of them come in pieces."""
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


def _answer(asked: Asked, parts: list[dict[str, Any]], usage: Usage, **ended: str) -> dict[str, Any]:
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
        "modelVersion": asked.model,
        "responseId": f"response-{asked.number}",
    }


def _camel(name: str) -> str:
    """The API reads both spellings of a field."""
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)


WIRE: Wire = Gemini()
