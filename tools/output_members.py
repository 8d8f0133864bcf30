"""The members of an output: those that its return annotation names, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

_OBJECT = frozenset({"properties", "additionalProperties"})
_ARRAY = frozenset({"items", "prefixItems"})
"""Keywords of which a schema of pydantic has one, unless the type admits any object or array."""


def only_known(value: object, schema: Schema) -> object:
    """Return JSON without the members that its schema does not name, however deep.

    The schema was made by pydantic: if it names properties, it says whether there may be others. A part of another
    JSON type stays as it is, for the check of the output.
    """
    return _known(value, [schema], schema.get("$defs", {}))


def _known(value: object, schemas: Iterable[object], definitions: Schema) -> object:
    if not isinstance(value, dict | list):
        return value
    kind, says = ("object", _OBJECT) if isinstance(value, dict) else ("array", _ARRAY)
    found = [one for each in schemas for one in _choices(each, definitions) if one.get("type", kind) == kind]
    if (
        not found
        or not all(says & one.keys() for one in found)
        or any(one.get("additionalProperties") is True for one in found)
    ):
        return value  # one of the types admits anything, or none is of this kind
    if isinstance(value, list):
        firsts = [one.get("prefixItems", ()) for one in found]
        rest = [one.get("items") for one in found]
        return [
            _known(item, [*(part[at] for part in firsts if at < len(part)), *rest], definitions)
            for at, item in enumerate(value)
        ]
    kept: dict[str, object] = {}
    for name, item in value.items():
        parts = [one["properties"][name] for one in found if name in one.get("properties", ())]
        parts = parts or [one["additionalProperties"] for one in found if one.get("additionalProperties")]
        if parts:
            kept[name] = _known(item, parts, definitions)
    return kept


def _choices(schema: object, definitions: Schema) -> Iterator[Schema]:
    """Yield the schemas of which a value fits one, without references."""
    if not isinstance(schema, Mapping):
        return
    if "$ref" in schema:
        yield from _choices(definitions.get(schema["$ref"].removeprefix("#/$defs/")), definitions)
        return
    branches = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if branches is None:
        yield schema
    for branch in branches or ():
        yield from _choices(branch, definitions)
