"""Tool definitions from a client: untrusted, checked in full, normalised to one form.

A client may give the name, texts, schemas and hints of its tool. The application decides about policy (effect, tags,
roles, …): a definition with such a member is refused, never silently stripped.
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

MAX_TOOLS = 512
MAX_KEYS = 64
MAX_ERRORS = 50
_WHOLE = replace(OUTPUT_LIMITS, max_bytes=262_144, max_depth=OUTPUT_LIMITS.max_depth + 8)
"""Limits of one definition: both schemas and all other members together."""

_POLICY = frozenset(
    {"effect", "key", "tags", "safe", "safety", "allowed_roles", "capabilities", "tolerant", "provider_schema"}
    | {"allow_no_schema", "no_schema_mode"}
)
_JOINERS = frozenset("\u200c\u200d\u200e\u200f")  # needed to write Persian, Arabic and emoji


class Accepted(TypedDict):
    """The definitions, flat and frozen, in the order of the client."""

    success: Literal[True]
    data: list[ToolDefinition]


class Refused(TypedDict):
    """All errors, at most 50 lines; each names its tool."""

    success: Literal[False]
    errors: list[str]


def validate_tool_definitions(tools: object) -> list[ToolDefinition]:
    """Check a client's definitions, flat or wrapped, and normalise them to the flat form.

    The rules are stricter than for an application's own tools. A description is required, ``parameters`` is an object
    schema with ``properties``, and the schemas keep the limits for schemas from outside. They are kept verbatim. A
    keyword that no engine would enforce is refused, unless it begins with ``x-``. A format that JSON Schema does not know
    is an annotation. The list may contain a ``ToolDefinition`` of the application, which may also have policy members
    such as its effect.

    Raises:
        DefinitionError: ``Invalid client tool definitions: …``, with all errors.
    """
    found, errors = _check(tools)
    if errors:
        raise DefinitionError(f"Invalid client tool definitions: {'; '.join(errors)}")
    return found


def safe_validate_tool_definitions(tools: object) -> Accepted | Refused:
    """Like ``validate_tool_definitions``, but returns ``{success: True, data}`` or ``{success: False, errors}``."""
    found, errors = _check(tools)
    if errors:
        return {"success": False, "errors": errors}
    return {"success": True, "data": found}


def with_output_schema(definition: ToolDefinition, schema: Any) -> ToolDefinition:
    """Replace the output schema of a definition; the schema keeps the limits for schemas from outside.

    Raises:
        DefinitionError: the schema is invalid.
    """
    _check_schema(schema, "output", OUTPUT_LIMITS)
    return replace(definition, output_schema=schema)


def _check(tools: object) -> tuple[list[ToolDefinition], list[str]]:
    if not isinstance(tools, list | tuple):
        return [], [f"a list of tool definitions is needed, not {rules.kind_of(tools)}"]
    if len(tools) > MAX_TOOLS:
        return [], [f"there are {len(tools)} tools; the maximum is {MAX_TOOLS}"]
    found: list[ToolDefinition] = []
    errors: list[str] = []
    names: list[str] = []
    for number, item in enumerate(tools, 1):
        definition = _read(item, number, names, errors)
        if definition is not None:
            found.append(definition)
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        errors.append(f"Duplicate tool names: {', '.join(twice)}")
    if len(errors) > MAX_ERRORS:
        errors = [*errors[: MAX_ERRORS - 1], f"and {len(errors) - MAX_ERRORS + 1} more"]
    return found, errors


def _read(item: Any, number: int, names: list[str], errors: list[str]) -> ToolDefinition | None:
    """Check one definition; its errors go to *errors*, its name to *names*."""
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
                errors.append(_line_of(error, where))
    if len(errors) > known:
        return None
    try:
        return item if ours else ToolDefinition.from_dict(data)
    except DefinitionError as error:
        errors.append(_line_of(error, where))
        return None


def _line_of(error: DefinitionError, where: str) -> str:
    text = str(error)
    return text if text.startswith("tool ") else f"{where}: {text}"


def _flat(item: object) -> Mapping[str, object]:
    """Read the flat form; its size is limited."""
    if not isinstance(item, Mapping):
        raise DefinitionError(f"a tool definition is an object, not {rules.kind_of(item)}")
    source = item if isinstance(item, dict) else dict(item)
    require_json(source, _WHOLE)
    data = rules.flatten(source)
    if data.get("function") is not None:  # a later reader would unwrap another definition than the checked one
        raise DefinitionError("`function` in a wrapped definition is a flat one")
    if len(data) > MAX_KEYS:
        raise DefinitionError(f"it has {len(data)} members; the maximum is {MAX_KEYS}")
    return data


# ------------------------------------------------------------------------------------------ checks


def _given(data: Mapping[str, object], attribute: str) -> Iterator[tuple[str, Any]]:
    """Every member for an attribute of a definition, in any spelling; null counts as absent."""
    return ((key, value) for key, value in data.items() if _ATTRIBUTES.get(key) == attribute and value is not None)


def _check_name(data: Mapping[str, object]) -> None:
    if data.get("name") is None:
        raise DefinitionError("there is no name")
    rules.check_name(data["name"])


def _check_description(data: Mapping[str, object]) -> None:
    text = data.get("description")
    if isinstance(text, str) and len(text) <= rules.TEXT_LIMIT and not rules.is_blank(text):
        return
    found = "it is missing" if text is None else f"it is {rules.kind_of(text)}"
    if isinstance(text, str):
        found = "it is blank" if rules.is_blank(text) else f"it has {len(text)}"
    raise DefinitionError(f"a description of 1 to {rules.TEXT_LIMIT} characters is required; {found}")


def _check_parameters(data: Mapping[str, object]) -> None:
    given = list(_given(data, "parameters"))
    if not given:
        raise DefinitionError('there is no schema: give parameters={"type": "object", "properties": {…}}')
    for _, schema in given:
        _check_schema(schema, "parameters", INPUT_LIMITS)
        if schema.get("type") != "object" or "properties" not in schema:
            raise DefinitionError('parameters must have "type": "object" and "properties", {} where there are none')


def _check_output(data: Mapping[str, object]) -> None:
    for _, schema in _given(data, "output_schema"):
        _check_schema(schema, "output", OUTPUT_LIMITS)


def _check_schema(schema: object, role: Literal["parameters", "output"], limits: SchemaLimits) -> None:
    if not isinstance(schema, Mapping):
        raise DefinitionError(f"the {role} schema must be a JSON Schema object, not {rules.kind_of(schema)}")
    verify_schema(schema, role, trusted=False)
    for at, node in read(schema, limits).nodes.items():
        for key in node if isinstance(node, dict) else ():
            if key not in KEYWORDS and not key.startswith("x-"):
                near = get_close_matches(key[:40], sorted(KEYWORDS), 1)
                hint = f"did you mean {near[0]}?" if near else "leave it out, or begin its name with x-"
                where_in = clip(at, 200) or "/"
                raise DefinitionError(
                    f"the {role} schema has {clip(key)!r} at {where_in}, which is not a keyword, "
                    f"so no engine would enforce it; {hint}"
                )


def _check_policy(data: Mapping[str, object]) -> None:
    for name in _POLICY:
        for key, _ in _given(data, name):
            raise DefinitionError(f"{key} is set by the application, not by a client; leave it out")


def _check_members(data: Mapping[str, object]) -> None:
    for name in ("metadata", "annotations"):
        for key, value in _given(data, name):
            if not isinstance(value, Mapping):
                raise DefinitionError(f"{key} must be an object, not {rules.kind_of(value)}")


def _check_texts(data: Mapping[str, object]) -> None:
    """Refuse text that a model reads and a person does not see (tool poisoning), at any depth."""
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
