"""The calls of a client's tools: how they are spelled, and what is wrong with their arguments, to the letter (contract 34, 35)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NotRequired, TypedDict

from callgate.tools.calls import Issue, ToolCall
from callgate.tools.schemas.engines.base import MAX_TEXT, Validator, explain
from callgate.tools.schemas.engines.texts import is_of_type, missing, types_of, unknown, wrong_type
from callgate.tools.values import dump

__all__ = ["ArgumentCheck", "argument_errors", "as_tool_call", "function_call"]

MOST_ERRORS = 100
MORE = "There may be more errors."
_ORDER = ("Missing required parameter: ", "Unknown parameter: ", "Parameter ")  # contract 35; all else comes after
_LONGEST_ISSUE = 440


class ArgumentCheck(TypedDict):
    """Whether the arguments of a call are valid; ``errors`` only where they are not (contract 35)."""

    valid: bool
    errors: NotRequired[list[str]]


def as_tool_call(call: Any) -> ToolCall:
    """A call as OpenAI spells it, ``{id, type, function: {name, arguments}}``, as a ``ToolCall``.

    Whatever it is, it becomes one: a name or an id that is no text is empty, and no tool has an empty name.
    """
    if isinstance(call, ToolCall):
        return call
    body = call if isinstance(call, Mapping) else {}
    function = body.get("function")
    function = function if isinstance(function, Mapping) else {}
    return ToolCall(_text(body.get("id")), _text(function.get("name")), function.get("arguments"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def function_call(call: ToolCall) -> dict[str, Any]:
    """A call as JSON for the wire, ``{id, type, function: {name, arguments}}``; ``arguments`` is JSON text."""
    arguments = call.arguments if isinstance(call.arguments, str) else dump(call.arguments or {}).decode()
    return {"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": arguments}}


def argument_errors(schema: Mapping[str, Any], validator: Validator, arguments: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with parsed arguments; an empty list where they are valid (contract 34, 35, C7).

    First the parameters that are missing, then the unknown ones, then those of a wrong type, in the documents' words.
    After these, with its place, whatever else the schema declares: about 2 kB of it. No value is in any of them, but a
    number where a whole one is needed (design 10.10). At most 100; where some may be left out, the last one says so.
    """
    try:
        validator.check(arguments)
    except Exception:  # noqa: BLE001  (whatever a validator raises is not a yes)
        return _errors(schema, validator, arguments)
    return []


def _errors(schema: Mapping[str, Any], validator: Validator, arguments: Mapping[str, Any]) -> list[str]:
    plain = list(islice(_look(schema, arguments), MOST_ERRORS + 1))
    deeper = explain(validator, arguments, MOST_ERRORS)
    said = [_exact(issue, arguments) for issue in (*plain, *deeper)]
    told = list(dict.fromkeys(text for _, text in sorted(said, key=lambda pair: pair[0])))
    size = sum(len(issue.pointer) + len(issue.keyword) + len(issue.expected) for issue in deeper)
    if len(told) > MOST_ERRORS or size > MAX_TEXT - _LONGEST_ISSUE:
        return [*told[:MOST_ERRORS], MORE]
    return told


def _look(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Issue]:
    """What the top level tells by itself: an engine stops listing names sooner, and adds guesses at what was meant."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    yield from (missing((), name) for name in schema.get("required", ()) if name not in arguments)
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        yield from (unknown((), name) for name in arguments if name not in properties)
    for name, value in arguments.items():
        types = types_of(properties.get(name))
        if types and not is_of_type(value, types):
            yield wrong_type((name,), types, value)


def _exact(issue: Issue, arguments: Mapping[str, Any]) -> tuple[int, str]:
    """An issue in the documents' words, and its place in the order."""
    rank = next((rank for rank, words in enumerate(_ORDER) if issue.expected.startswith(words)), len(_ORDER))
    if rank == len(_ORDER):
        return rank, str(issue)
    name = issue.pointer[1:].replace("~1", "/").replace("~0", "~")
    if rank == 1:
        return rank, f"{_ORDER[1]}{name}"
    value = arguments.get(name)
    if isinstance(value, float) and issue.expected.endswith("must be an integer"):
        return rank, f"{issue.expected}, got: {dump(value).decode()}"
    return rank, issue.expected
