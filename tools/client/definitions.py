"""Tool definitions from a client: untrusted, checked in full, normalised to one form.

A client may give the name, texts, schemas and hints of its tool. The application decides about policy (effect, tags,
roles, …): a definition with such a member is refused, never silently stripped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Literal, TypeAlias, TypedDict, cast
from unicodedata import normalize

from callgate.errors import DefinitionError, SchemaRefused
from callgate.tools import definition_rules as rules
from callgate.tools.client.schema import Members
from callgate.tools.definition import _ATTRIBUTES, ToolDefinition
from callgate.tools.schemas.allowance import SchemaAllowance, Spending
from callgate.tools.schemas.engines.base import Validator
from callgate.tools.schemas.engines.dialect import KEYWORDS, Role
from callgate.tools.schemas.engines.raw import OUTPUT_LIMITS, require_json
from callgate.tools.schemas.outside import AdmittedSchema, admit_schema
from callgate.tools.values import clip
from callgate.tools.visible import EXACT, folded, hides_text

MAX_KEYS = 64
MAX_ERRORS = 50
ALLOWANCE = SchemaAllowance()
MAX_TOOLS = ALLOWANCE.max_tools
_WHOLE = replace(OUTPUT_LIMITS, max_bytes=262_144, max_depth=OUTPUT_LIMITS.max_depth + 8)
"""Limits of one definition: both schemas and all other members together."""

_POLICY = frozenset(
    {"effect", "key", "tags", "safe", "safety", "allowed_roles", "capabilities", "tolerant", "provider_schema"}
    | {"allow_no_schema", "no_schema_mode"}
)


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
    return [tool.definition for tool in check_client_tools(tools)]


def check_client_tools(tools: object, allowance: SchemaAllowance = ALLOWANCE) -> list[CheckedTool]:
    """Check definitions as ``validate_tool_definitions`` does, and return them with their validators.

    All tools are admitted before the first schema is compiled.

    Raises:
        DefinitionError: ``Invalid client tool definitions: …``, with all errors.
    """
    found, errors = _check(tools, allowance)
    if errors:
        raise DefinitionError(f"Invalid client tool definitions: {'; '.join(errors)}")
    return found


def safe_validate_tool_definitions(tools: object) -> Accepted | Refused:
    """Like ``validate_tool_definitions``, but returns ``{success: True, data}`` or ``{success: False, errors}``."""
    found, errors = _check(tools, ALLOWANCE)
    if errors:
        return cast("Refused", Members({"success": False, "errors": errors}))
    return cast("Accepted", Members({"success": True, "data": [tool.definition for tool in found]}))


def with_output_schema(tool: CheckedTool, schema: Mapping[str, object]) -> CheckedTool:
    """Replace the output schema of a tool; the schema keeps the limits for schemas from outside.

    Raises:
        DefinitionError: the schema is invalid.
    """
    validator = _check_schema(schema, "output").compile("assert")
    return CheckedTool(replace(tool.definition, output_schema=schema), {**tool.validators, "output": validator})


@dataclass(frozen=True, slots=True)
class CheckedTool:
    """A definition from a client, and the validators of its schemas."""

    definition: ToolDefinition
    validators: Mapping[Role, Validator]


Admitted: TypeAlias = tuple[ToolDefinition, list[AdmittedSchema]]


def _check(tools: object, allowance: SchemaAllowance) -> tuple[list[CheckedTool], list[str]]:
    if not isinstance(tools, list | tuple):
        return [], [f"a list of tool definitions is needed, not {rules.kind_of(tools)}"]
    if len(tools) > allowance.max_tools:
        return [], [f"there are {len(tools)} tools; the maximum is {allowance.max_tools}"]
    made: list[CheckedTool] = []
    errors: list[str] = []
    names: list[str] = []
    spending = Spending(allowance, _WHOLE)
    try:
        found = _admitted(tools, spending, names, errors)
        if not errors:
            made = _compiled(found, spending, errors)
    except SchemaRefused as refused:
        errors.append(str(refused))
    counted = Counter(map(folded, names))  # a reader takes names that differ in case for one
    if twice := [name for name in dict.fromkeys(names) if counted[folded(name)] > 1]:
        errors.append(f"Duplicate tool names: {', '.join(twice)}")
    if len(errors) > MAX_ERRORS:
        errors = [*errors[: MAX_ERRORS - 1], f"and {len(errors) - MAX_ERRORS + 1} more"]
    return made, errors


def _admitted(tools: Sequence[object], spending: Spending, names: list[str], errors: list[str]) -> list[Admitted]:
    """Count all definitions, then read and admit each of them."""
    for item in tools:
        if isinstance(item, Mapping | ToolDefinition):
            spending.count(item.to_dict() if isinstance(item, ToolDefinition) else item)
    found: list[Admitted] = []
    for number, item in enumerate(tools, 1):
        spending.check_time()
        admitted = _read(item, number, names, errors)
        if admitted is not None:
            found.append(admitted)
    return found


def _compiled(found: list[Admitted], spending: Spending, errors: list[str]) -> list[CheckedTool]:
    """Compile what was admitted. ``formats`` is "assert": the form of client tools counts it among what restricts."""
    made: list[CheckedTool] = []
    while found:
        definition, schemas = found.pop(0)
        spending.check_time()
        try:
            made.append(CheckedTool(definition, {one.role: one.compile("assert") for one in schemas}))
        except DefinitionError as error:
            errors.append(_line_of(error, f"tool {clip(definition.name, 64)!r}"))
    return made


def _read(item: object, number: int, names: list[str], errors: list[str]) -> Admitted | None:
    """Check one definition; its errors go to *errors*, its name to *names*."""
    where, known = f"tool number {number}", len(errors)
    own = item if isinstance(item, ToolDefinition) else None
    try:
        data = _flat(item if own is None else own.to_dict())
    except DefinitionError as error:
        errors.append(f"{where}: {error}")
        return None
    name = data.get("name")
    if isinstance(name, str) and name:
        where = f"tool {clip(name, 64)!r}"
        names.append(clip(name, 64))
    schemas: list[AdmittedSchema] = []
    for check in _CHECKS:
        if own is None or check is not _check_policy:
            try:
                schemas += check(data) or ()
            except DefinitionError as error:
                errors.append(_line_of(error, where))
    if len(errors) > known:
        return None
    try:
        return own or ToolDefinition.from_dict(data), schemas
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


def _given(data: Mapping[str, object], attribute: str) -> Iterator[tuple[str, object]]:
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


def _check_parameters(data: Mapping[str, object]) -> list[AdmittedSchema]:
    given = list(_given(data, "parameters"))
    if not given:
        raise DefinitionError('there is no schema: give parameters={"type": "object", "properties": {…}}')
    admitted = [_check_schema(schema, "parameters") for _, schema in given]
    for _, schema in given:
        if not isinstance(schema, Mapping) or schema.get("type") != "object" or "properties" not in schema:
            raise DefinitionError('parameters must have "type": "object" and "properties", {} where there are none')
    return admitted


def _check_output(data: Mapping[str, object]) -> list[AdmittedSchema]:
    return [_check_schema(schema, "output") for _, schema in _given(data, "output_schema")]


def _check_schema(schema: object, role: Role) -> AdmittedSchema:
    if not isinstance(schema, Mapping):
        raise DefinitionError(f"the {role} schema must be a JSON Schema object, not {rules.kind_of(schema)}")
    admitted = admit_schema(schema, role)
    for at, node in admitted.document.nodes.items():
        _check_alike(node, role, at)
        for key in node if isinstance(node, dict) else ():
            if key not in KEYWORDS and not key.startswith("x-"):
                near = get_close_matches(key[:40], sorted(KEYWORDS), 1)
                hint = f"did you mean {near[0]}?" if near else "leave it out, or begin its name with x-"
                where_in = clip(at, 200) or "/"
                raise DefinitionError(
                    f"the {role} schema has {clip(key)!r} at {where_in}, which is not a keyword, "
                    f"so no engine would enforce it; {hint}"
                )
    return admitted


def _check_alike(node: object, role: Role, at: str) -> None:
    """Refuse properties that differ in case only, and values of an enum that look the same: a reader takes them for one.

    Values may differ in case: "m" and "M" are minutes and months.
    """
    given: Mapping[str, object] = node if isinstance(node, dict) else {}
    for word, alike in (("properties", folded), ("enum", partial(normalize, "NFKC"))):
        seen: dict[str, str] = {}
        names = given.get(word)
        for one in names if isinstance(names, dict | list) else ():
            if isinstance(one, str) and (other := seen.setdefault(alike(one), one)) != one:
                raise DefinitionError(
                    f"the {role} schema has {clip(other)!r} and {clip(one)!r} in {word} at {clip(at, 200) or '/'}; a reader "
                    "takes them for one, so leave one of them out"
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
    stack: list[tuple[str, object, bool]] = [("", data, True)]
    for name in ("parameters", "output_schema", "metadata", "annotations"):
        stack += ((key, given, True) for key, given in _given(data, name))
    while stack:
        where, item, prose = stack.pop()
        if isinstance(item, str) and where and hides_text(item, prose=prose):
            raise DefinitionError(f"a {where} holds control characters or invisible ones: {clip(item)}")
        if isinstance(item, Mapping):
            for key, value in item.items():
                kept = where or (item is data and key not in _ATTRIBUTES)  # an unknown member becomes metadata
                if kept and hides_text(str(key), prose=False):
                    raise DefinitionError(f"a name holds control characters or invisible ones: {clip(str(key))}")
                shown = kept or key in {"title", "description"}  # of other members, a model reads these
                stack.append((clip(str(key), 64) if shown else "", value, prose and key not in EXACT))
        elif isinstance(item, list | tuple):
            stack.extend((where, one, prose) for one in item)


_CHECKS: tuple[Callable[[Mapping[str, object]], list[AdmittedSchema] | None], ...] = (
    _check_name,
    _check_description,
    _check_parameters,
    _check_output,
    _check_policy,
    _check_members,
    _check_texts,
)
