"""The gate of fastjsonschema: it admits a schema only when the library enforces every keyword of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from callgate.tools.schemas.engines.dialect import ANNOTATIONS, CONTAINERS, TYPES
from callgate.tools.schemas.engines.document import Document
from callgate.tools.schemas.engines.patterns import simple_pattern
from callgate.tools.values import clip

VERSION = 1
MAX_NESTING = 12
MAX_PARTS = 500
MAX_MEMBERS = 256

_SUBSCHEMAS = frozenset(
    {"properties", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else", "items"}
    | {"allOf", "anyOf", "oneOf"}
)
_DRAFTS = frozenset({7, 2019, 2020})
_IGNORED = ANNOTATIONS - {"contentEncoding", "contentMediaType"}
_REF = re.compile(r"#/(?:\$defs|definitions)/[A-Za-z0-9_.-]+")


def refusal(document: Document) -> tuple[str, str] | None:
    """Return None when fastjsonschema enforces every keyword, else (keyword or cause, pointer)."""
    if document.dialect.draft not in _DRAFTS:
        return "$schema", "/$schema"
    if document.depth > MAX_NESTING:
        return "nesting", ""
    if len(document.nodes) > MAX_PARTS:
        return "size", ""
    members = 0
    for at, schema in document.nodes.items():
        if isinstance(schema, bool):
            continue
        for key, item in schema.items():
            if not _enforced(key, item, schema, at):
                return key, f"{at}/{clip(key)}"
            members += _members(item) if key in {"enum", "const"} else 0
        if members > MAX_MEMBERS:
            return "enum", f"{at}/enum"
    return _colliding(document)


def _enforced(key: str, item: Any, schema: dict[str, object], at: str) -> bool:
    if key in _IGNORED or key in CONTAINERS or key.startswith("x-"):
        return True
    if key == "$ref":
        others = schema.keys() - _IGNORED - CONTAINERS - {"$ref"}
        return at != "" and not others and _REF.fullmatch(item) is not None
    if key == "uniqueItems":
        return item is False or (item is True and _exact_items(schema.get("items")))
    if key in _CHECKS:
        return _CHECKS[key](item)
    # These hold subschemas, as reading the document has checked. An array of items is a tuple, which is refused.
    return key in _SUBSCHEMAS and item != [] and not (key == "items" and isinstance(item, list))


def _is_type(item: Any) -> bool:
    return item in TYPES if isinstance(item, str) else len(item) > 0 and _distinct_text(item) and TYPES.issuperset(item)


def _distinct_text(item: object) -> bool:
    return isinstance(item, list) and all(isinstance(name, str) for name in item) and len(set(item)) == len(item)


def _comparable(item: object, depth: int = 0) -> bool:
    """Check data in a schema: fastjsonschema rewrites ``$ref`` and ``$id`` in it, and compiles deep data to deep code."""
    if depth > 6:
        return False
    if isinstance(item, dict):
        return item.keys().isdisjoint({"$ref", "$id", "id"}) and all(_comparable(x, depth + 1) for x in item.values())
    if isinstance(item, list):
        return all(_comparable(x, depth + 1) for x in item)
    return item.__class__ not in {int, float} or _is_number(item)


def _is_number(item: Any) -> bool:
    """A number that Python and JSON compare equally: beyond 2**53 the float read from ``1e25`` is not 10**25."""
    return item.__class__ in {int, float} and -(2**53) <= item <= 2**53


def _exact_items(items: object) -> bool:
    """Items of these types can be compared without comparing numbers."""
    types = items.get("type") if isinstance(items, dict) else None
    return types is not None and {"string", "boolean", "null"}.issuperset([types] if isinstance(types, str) else types)


def _is_count(item: Any) -> bool:
    return item.__class__ is int and item >= 0


_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    "type": _is_type,
    "required": _distinct_text,
    "enum": lambda item: isinstance(item, list) and len(item) > 0 and _comparable(item),
    "const": _comparable,
    "pattern": simple_pattern,
}


def _members(item: object) -> int:
    stack, count = [item], 0
    while stack:
        part = stack.pop()
        count += 1
        if isinstance(part, dict):
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)
    return count


def _colliding(document: Document) -> tuple[str, str] | None:
    """Find references whose function names in the generated code are equal: they would share one function."""
    seen: dict[str, str] = {}
    for at, targets in document.targets.items():
        for target in targets:
            name = re.sub(r"[^a-zA-Z0-9]", "_", target).lower().rstrip("_")
            if seen.setdefault(name, target) != target:
                return "$ref", f"{at}/$ref"
    return None
