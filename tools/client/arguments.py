"""Calls of client tools: their shape on the wire, and the errors of their arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NotRequired, TypedDict

from callgate.tools.calls import Issue, ToolCall
from callgate.tools.schemas.engines.base import MAX_TEXT, Validator, explain
from callgate.tools.schemas.engines.texts import is_of_type, missing, types_of, unknown, wrong_type
from callgate.tools.values import dump

MAX_ERRORS = 100
MORE = "There may be more errors."
_ORDER = ("Missing required parameter: ", "Unknown parameter: ", "Parameter ")  # all other issues come after these
_LONGEST_ISSUE = 440


class ArgumentCheck(TypedDict):
    """The verdict on the arguments of a call; ``errors`` is present for invalid arguments only."""

    valid: bool
    errors: NotRequired[list[str]]


def as_tool_call(call: object) -> ToolCall:
    """Read a call in OpenAI's shape, ``{id, type, function: {name, arguments}}``, as a ``ToolCall``.

    Any input becomes a call: a name or an id that is not text is empty, and no tool has an empty name.
    """
    if isinstance(call, ToolCall):
        return call
    body = call if isinstance(call, Mapping) else {}
    function = body.get("function")
    function = function if isinstance(function, Mapping) else {}
    return ToolCall(id=_text(body.get("id")), name=_text(function.get("name")), arguments=function.get("arguments"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def argument_errors(schema: Mapping[str, object], validator: Validator, arguments: Mapping[str, object]) -> list[str]:
    """List the errors of parsed arguments; an empty list for valid ones.

    Missing parameters come first, then unknown ones, then wrong types. Other broken keywords of the schema follow with
    their pointers, about 2 kB of them. The texts hold no values, except a number where an integer is required. The list
    has at most 100 entries; the last entry says when some may be left out.
    """
    try:
        validator.check(arguments)
    except Exception:  # noqa: BLE001  (any exception of a validator means invalid)
        return _errors(schema, validator, arguments)
    return []


def _errors(schema: Mapping[str, object], validator: Validator, arguments: Mapping[str, object]) -> list[str]:
    plain = list(islice(_look(schema, arguments), MAX_ERRORS + 1))
    deeper = explain(validator, arguments, MAX_ERRORS)
    ranked = [_exact(issue, arguments) for issue in (*plain, *deeper)]
    texts = list(dict.fromkeys(text for _, text in sorted(ranked, key=lambda pair: pair[0])))
    size = sum(len(issue.pointer) + len(issue.keyword) + len(issue.expected) for issue in deeper)
    if len(texts) > MAX_ERRORS or size > MAX_TEXT - _LONGEST_ISSUE:
        return [*texts[:MAX_ERRORS], MORE]
    return texts


def _look(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Issue]:
    """List the errors of the top level: an engine stops listing names sooner, and adds suggestions."""
    properties: Mapping[str, object] = schema.get("properties", {})
    yield from (missing((), name) for name in schema.get("required", ()) if name not in arguments)
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        yield from (unknown((), name) for name in arguments if name not in properties)
    for name, value in arguments.items():
        types = types_of(properties.get(name))
        if types and not is_of_type(value, types):
            yield wrong_type((name,), types, value)


def _exact(issue: Issue, arguments: Mapping[str, object]) -> tuple[int, str]:
    """The text of an issue, and its rank."""
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
