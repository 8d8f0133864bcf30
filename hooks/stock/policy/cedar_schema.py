"""Cedar schemas from tool definitions, and arguments as Cedar values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

from callgate.tools.definition import ToolDefinition

Type: TypeAlias = dict[str, Any]
CALL = "call"
"""The group of all tool actions: ``action in Action::"call"``."""
_STRING, _LONG, _BOOLEAN = {"type": "String"}, {"type": "Long"}, {"type": "Boolean"}
_DECIMAL = {"type": "Extension", "name": "decimal"}
_NULL = {"type": "Null"}
_PLAIN = {"string": _STRING, "integer": _LONG, "boolean": _BOOLEAN, "number": _DECIMAL, "null": _NULL}
_STRINGS = {"type": "Set", "element": _STRING}
_LONG_RANGE = range(-(2**63), 2**63)
_FOUR = Decimal("0.0001")
_LARGEST = Decimal("922337203685477.5807")
_DEPTH = 16


def schema_of(tools: Iterable[ToolDefinition]) -> dict[str, object]:
    """Make a Cedar schema in JSON: ``User`` in ``Role`` and ``Tenant``, ``Tool`` in ``Tag``, an action for each tool."""
    text = {"type": "String", "required": True}
    user = {"id": text, "tenant": {"type": "String", "required": False}, "roles": _STRINGS, "scopes": _STRINGS}
    tool = {"name": text, "version": text, "effect": {"type": "String", "required": False}, "tags": _STRINGS}
    entities: dict[str, object] = {
        "User": {"memberOfTypes": ["Role", "Tenant"], "shape": _record(user)},
        "Tool": {"memberOfTypes": ["Tag"], "shape": _record(tool)},
        **{name: {} for name in ("Role", "Tenant", "Tag")},
    }
    actions: dict[str, object] = {CALL: {}}
    for one in tools:
        context = _record({"args": {**arguments_type(one), "required": True}})
        applies = {"principalTypes": ["User"], "resourceTypes": ["Tool"], "context": context}
        actions[one.name] = {"memberOf": [{"id": CALL}], "appliesTo": applies}
    return {"": {"entityTypes": entities, "actions": actions}}


def arguments_type(tool: ToolDefinition) -> Type:
    """Return the record type of a tool's arguments, without those that Cedar has no type for."""
    root = tool.parameters or {}
    found, _ = _type_of({"type": "object", **root}, root, 0)
    return found or _record({})


def _record(attributes: Mapping[str, object]) -> Type:
    return {"type": "Record", "attributes": dict(attributes)}


def _type_of(schema: object, root: object, depth: int) -> tuple[Type | None, bool]:
    """Return the Cedar type of a JSON Schema (None: there is none), and True when the schema allows null."""
    found = _alternatives(schema, root, depth)
    types = [one for one in found if one != _NULL]
    agreed = types[0] if types and all(one == types[0] for one in types) else None
    return agreed, len(types) < len(found)


def _alternatives(schema: object, root: object, depth: int) -> list[Type | None]:
    if depth > _DEPTH or not isinstance(schema, Mapping):
        return [None]
    if "$ref" in schema:
        return _alternatives(_resolved(schema["$ref"], root), root, depth + 1)
    if "type" not in schema:
        branches = schema.get("anyOf") or schema.get("oneOf")
        if branches:
            return [one for branch in branches for one in _alternatives(branch, root, depth + 1)]
        values = schema.get("enum") or [schema.get("const")]
        return [_STRING if all(isinstance(value, str) for value in values) else None]
    kinds = schema["type"]
    return [_kind(kind, schema, root, depth) for kind in ([kinds] if isinstance(kinds, str) else kinds)]


def _kind(kind: str, schema: Mapping[str, object], root: object, depth: int) -> Type | None:
    if kind == "object":
        return _object(schema, root, depth)
    if kind == "array":
        element, nullable = _type_of(schema.get("items"), root, depth + 1)
        return None if element is None or nullable else {"type": "Set", "element": element}
    return _PLAIN.get(kind)


def _object(schema: Mapping[str, Any], root: Any, depth: int) -> Type:
    required = set(schema.get("required") or ())
    attributes: dict[str, Any] = {}
    for name, part in (schema.get("properties") or {}).items():
        type_, nullable = _type_of(part, root, depth + 1)
        if type_ is None or name.startswith("__"):  # Cedar's JSON reserves such keys
            continue
        filled = depth == 0 and isinstance(part, Mapping) and part.get("default") is not None
        attributes[name] = {**type_, "required": (name in required or filled) and not nullable}
    return _record(attributes)


def _resolved(reference: object, root: object) -> object:
    if not (isinstance(reference, str) and reference.startswith("#/")):
        return None
    found: object = root
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


# ---------------------------------------------------------------------- values


def value_of(type_: Type, value: object) -> Any:
    """Convert a JSON value to Cedar's JSON by its type; a null inside a record is left out.

    Raises:
        ValueError: Cedar cannot represent the value exactly.
        TypeError: the value does not have the type.
    """
    kind = type_["type"]
    if kind == "Record" and isinstance(value, Mapping):
        attributes = type_["attributes"]
        return {
            name: value_of(attributes[name], item)
            for name, item in value.items()
            if name in attributes and item is not None
        }
    if kind == "Set" and isinstance(value, list | tuple):
        return [value_of(type_["element"], item) for item in value]
    if (kind == "String" and isinstance(value, str)) or (kind == "Boolean" and isinstance(value, bool)):
        return value
    if kind in ("Long", "Extension") and isinstance(value, int | float) and not isinstance(value, bool):
        return _long(value) if kind == "Long" else _decimal(value)
    raise TypeError(f"an argument is not of Cedar's type {kind}")


def _long(value: float) -> int:
    whole = int(value)
    if whole != value or whole not in _LONG_RANGE:
        raise ValueError("an integer does not fit into Cedar's Long")
    return whole


def _decimal(value: float) -> dict[str, object]:
    """Convert a number to a Cedar decimal, exactly: a rounded number could change the decision."""
    exact = Decimal(repr(value))
    try:
        rounded = exact.quantize(_FOUR)
    except InvalidOperation:
        raise ValueError("a number does not fit into Cedar's decimal") from None
    if rounded != exact or abs(exact) > _LARGEST:
        raise ValueError("a number does not fit into Cedar's decimal (four digits after the point)")
    return {"__extn": {"fn": "decimal", "arg": f"{rounded:f}"}}
