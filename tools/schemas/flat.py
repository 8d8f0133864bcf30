"""Questions about flat schemas, whose admitted values are objects of scalars."""

from __future__ import annotations

from collections.abc import Mapping


def admits(schema: object, kinds: set[str]) -> bool:
    """Return True if a property of a flat schema admits one of the JSON types, or has no type."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return any(not _kinds(part) or _kinds(part) & kinds for part in (properties or {}).values())


def _kinds(schema: object) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    kinds = schema.get("type")
    if kinds is not None:
        return {kinds} if isinstance(kinds, str) else set(kinds)
    return {kind for branch in schema.get("anyOf") or () for kind in _kinds(branch)}


def is_flat(schema: object) -> bool:
    """Return True if every admitted argument is a scalar; a shallow copy of the arguments is then enough."""
    if not isinstance(schema, dict) or schema.get("additionalProperties") is not False:
        return False
    return all(_scalar(part) for part in (schema.get("properties") or {}).values())


def _scalar(schema: object) -> bool:
    if not isinstance(schema, dict) or "$ref" in schema:
        return False
    kinds = schema.get("type")
    if kinds is not None:
        return {"object", "array"}.isdisjoint([kinds] if isinstance(kinds, str) else kinds)
    branches = schema.get("anyOf") or schema.get("oneOf")
    return bool(branches) and all(_scalar(branch) for branch in branches or ())
