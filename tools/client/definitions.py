"""Tool definitions that a client sends: untrusted, checked in full, normalised to one form (contract 24-32, C4-C7).

What a client may say of its tool is its name, texts, schemas and hints. What decides about policy (its effect, tags,
roles, …) is the application's to say: a definition that brings it is refused, never stripped in silence.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Literal, TypedDict

from callgate.errors import DefinitionError
from callgate.tools import definition_rules as rules
from callgate.tools.definition import _ATTRIBUTES, ToolDefinition
from callgate.tools.schemas.engines.dialect import KEYWORDS
from callgate.tools.schemas.engines.document import read
from callgate.tools.schemas.engines.raw import INPUT_LIMITS, OUTPUT_LIMITS, SchemaLimits, require_json
from callgate.tools.schemas.validation import verify_schema
from callgate.tools.values import clip

__all__ = ["Accepted", "Refused", "safe_validate_tool_definitions", "validate_tool_definitions"]

MOST_TOOLS = 512
MOST_KEYS = 64
MOST_ERRORS = 50
_WHOLE = replace(OUTPUT_LIMITS, max_bytes=262_144, max_depth=OUTPUT_LIMITS.max_depth + 8)
"""How large one definition may be, both schemas and whatever else is in it together."""

_POLICY = frozenset(
    {"effect", "key", "tags", "safe", "safety", "allowed_roles", "capabilities", "tolerant", "provider_schema"}
    | {"allow_no_schema", "no_schema_mode"}
)
_JOINERS = frozenset("\u200c\u200d\u200e\u200f")  # what Persian, Arabic and emoji are written with


class Accepted(TypedDict):
    """The definitions, flat and frozen, in the order they came in."""

    success: Literal[True]
    data: list[ToolDefinition]


class Refused(TypedDict):
    """Everything that is wrong, at most 50 lines; each names its tool."""

    success: Literal[False]
    errors: list[str]


def validate_tool_definitions(tools: Any) -> list[ToolDefinition]:
    """A client's definitions, flat or wrapped, checked and normalised to the flat form (contract 24-31, C4).

    Stricter than for an application's own tools: a description is required (C5), ``parameters`` is an object schema
    with ``properties``, and the schemas keep the limits for schemas from outside (invariants B2). They are kept word for
    word; a keyword that nothing would enforce is refused, unless it begins with ``x-``. A format that JSON Schema does
    not know is a remark, as JSON Schema has it. A ``ToolDefinition`` may be among them: it is the application's own, so
    that it may say what a client may not, such as its effect.

    Raises:
        DefinitionError: ``Invalid client tool definitions: …``, with everything that is wrong (C6).
    """
    found, errors = _check(tools)
    if errors:
        raise DefinitionError(f"Invalid client tool definitions: {'; '.join(errors)}")
    return found


def safe_validate_tool_definitions(tools: Any) -> Accepted | Refused:
    """``validate_tool_definitions``, as a verdict: ``{success: True, data}`` or ``{success: False, errors}``."""
    found, errors = _check(tools)
    if errors:
        return {"success": False, "errors": errors}
    return {"success": True, "data": found}


def with_output_schema(definition: ToolDefinition, schema: Any) -> ToolDefinition:
    """The definition with an output schema in the place of any other, held to the limits for schemas from outside.

    Raises:
        DefinitionError: the schema is no good.
    """
    _check_schema(schema, "output", OUTPUT_LIMITS)
    return replace(definition, output_schema=schema)


def _check(tools: Any) -> tuple[list[ToolDefinition], list[str]]:
    if not isinstance(tools, list | tuple):
        return [], [f"a list of tool definitions is needed, not {rules.kind_of(tools)}"]
    if len(tools) > MOST_TOOLS:
        return [], [f"there are {len(tools)} tools; {MOST_TOOLS} is the most"]
    found: list[ToolDefinition] = []
    errors: list[str] = []
    names: list[str] = []
    for number, item in enumerate(tools, 1):
        definition = _read(item, number, names, errors)
        if definition is not None:
            found.append(definition)
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        errors.append(f"Duplicate tool names: {', '.join(twice)}")
    if len(errors) > MOST_ERRORS:
        errors = [*errors[: MOST_ERRORS - 1], f"and {len(errors) - MOST_ERRORS + 1} more"]
    return found, errors


def _read(item: Any, number: int, names: list[str], errors: list[str]) -> ToolDefinition | None:
    """One definition; what is wrong with it goes to *errors*, its name to *names*."""
    where, known = f"tool number {number}", len(errors)
    ours = isinstance(item, ToolDefinition)
    try:
        data = _flat(item.to_dict() if ours else item)
    except DefinitionError as error:
        errors.append(f"{where}: {error}")
        return None
    name = data.get("name")
    if isinstance(name, str) and name:
        where = f"tool {clip(name, 64)!r}"
        names.append(clip(name, 64))
    for check in _CHECKS:
        if not (ours and check is _check_policy):
            try:
                check(data)
            except DefinitionError as error:
                errors.append(_told(error, where))
    if len(errors) > known:
        return None
    try:
        return item if ours else ToolDefinition.from_dict(data)
    except DefinitionError as error:
        errors.append(_told(error, where))
        return None


def _told(error: DefinitionError, where: str) -> str:
    text = str(error)
    return text if text.startswith("tool ") else f"{where}: {text}"


def _flat(item: Any) -> Mapping[str, Any]:
    """The flat form, which is JSON of a size worth looking at."""
    if not isinstance(item, Mapping):
        raise DefinitionError(f"a tool definition is an object, not {rules.kind_of(item)}")
    source = item if isinstance(item, dict) else dict(item)
    require_json(source, _WHOLE)
    data = rules.flatten(source)
    if data.get("function") is not None:  # whoever reads it again would unwrap another definition than was checked
        raise DefinitionError("`function` in a wrapped definition is a flat one")
    if len(data) > MOST_KEYS:
        raise DefinitionError(f"it has {len(data)} members; {MOST_KEYS} is the most")
    return data


# ------------------------------------------------------------------------------------------ what is checked


def _given(data: Mapping[str, Any], attribute: str) -> Iterator[tuple[str, Any]]:
    """Every member that stands for an attribute of a definition, however it is spelled; null counts as absent."""
    return ((key, value) for key, value in data.items() if _ATTRIBUTES.get(key) == attribute and value is not None)


def _check_name(data: Mapping[str, Any]) -> None:
    if data.get("name") is None:
        raise DefinitionError("there is no name")
    rules.check_name(data["name"])


def _check_description(data: Mapping[str, Any]) -> None:
    text = data.get("description")
    if isinstance(text, str) and len(text) <= rules.TEXT_LIMIT and not rules.is_blank(text):
        return
    found = "it is missing" if text is None else f"it is {rules.kind_of(text)}"
    if isinstance(text, str):
        found = "it is blank" if rules.is_blank(text) else f"it has {len(text)}"
    raise DefinitionError(f"a description of 1 to {rules.TEXT_LIMIT} characters is required; {found}")


def _check_parameters(data: Mapping[str, Any]) -> None:
    given = list(_given(data, "parameters"))
    if not given:
        raise DefinitionError('there is no schema: give parameters={"type": "object", "properties": {…}}')
    for _, schema in given:
        _check_schema(schema, "parameters", INPUT_LIMITS)
        if schema.get("type") != "object" or "properties" not in schema:
            raise DefinitionError('parameters must have "type": "object" and "properties", {} where there are none')


def _check_output(data: Mapping[str, Any]) -> None:
    for _, schema in _given(data, "output_schema"):
        _check_schema(schema, "output", OUTPUT_LIMITS)


def _check_schema(schema: Any, role: Literal["parameters", "output"], limits: SchemaLimits) -> None:
    if not isinstance(schema, Mapping):
        raise DefinitionError(f"the {role} schema must be a JSON Schema object, not {rules.kind_of(schema)}")
    verify_schema(schema, role, trusted=False)
    for at, node in read(schema, limits).nodes.items():
        for key in node if isinstance(node, dict) else ():
            if key not in KEYWORDS and not key.startswith("x-"):
                near = get_close_matches(key[:40], sorted(KEYWORDS), 1)
                hint = f"did you mean {near[0]}?" if near else "leave it out, or begin its name with x-"
                place = clip(at, 200) or "/"
                raise DefinitionError(
                    f"the {role} schema has {clip(key)!r} at {place}, no keyword: nothing would enforce it; {hint}"
                )


def _check_policy(data: Mapping[str, Any]) -> None:
    for name in _POLICY:
        for key, _ in _given(data, name):
            raise DefinitionError(f"{key} is for the application to say, not for a client")


def _check_members(data: Mapping[str, Any]) -> None:
    for name in ("metadata", "annotations"):
        for key, value in _given(data, name):
            if not isinstance(value, Mapping):
                raise DefinitionError(f"{key} must be an object, not {rules.kind_of(value)}")


def _check_texts(data: Mapping[str, Any]) -> None:
    """No text that a model reads and a person does not see (invariants B2, poisoning), at any depth."""
    stack: list[Any] = [data]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            for key in ("title", "description"):
                if isinstance(item.get(key), str) and not _is_visible(item[key]):
                    raise DefinitionError(f"a {key} holds control characters or invisible ones: {clip(item[key])}")
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)


def _is_visible(text: str) -> bool:
    return (text.isascii() and text.isprintable()) or all(map(_is_plain, text))


def _is_plain(character: str) -> bool:
    return character in "\t\n\r" or character in _JOINERS or unicodedata.category(character) not in {"Cc", "Cf", "Co"}


_CHECKS: tuple[Callable[[Mapping[str, Any]], None], ...] = (
    _check_name,
    _check_description,
    _check_parameters,
    _check_output,
    _check_policy,
    _check_members,
    _check_texts,
)
