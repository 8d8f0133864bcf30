"""Texts for a model about a value that breaks its schema: short and without values."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from callgate.tools.calls import Issue
from callgate.tools.values import clip, pointer

Path = Sequence[str | int]

_MAX_KNOWN = 100


def type_name(value: object) -> str:
    """The JSON type of a Python value: int and float are ``number``, dict is ``object``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array" if isinstance(value, list | tuple) else "value"


def show(schema_value: object) -> str:
    """Show a value of the schema (never of the arguments) as JSON, at most 80 characters."""
    try:
        text = json.dumps(schema_value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(schema_value)
    return clip(text)


def pointer_of(path: Path) -> str:
    """The JSON Pointer of a path; names may come from a model, so they are escaped and cut."""
    return pointer(clip(part) if isinstance(part, str) else part for part in path)


def missing(path: Path, name: str) -> Issue:
    """The issue for a missing required member; the pointer is its place."""
    kind = "property" if path else "parameter"
    return Issue(pointer_of([*path, name]), "required", f"Missing required {kind}: {clip(name)}")


def unknown(path: Path, name: str, known: Iterable[str] = (), keyword: str = "additionalProperties") -> Issue:
    """The issue for a member that the schema does not allow, with the nearest allowed name when it is close."""
    shown = clip(name)
    near = difflib.get_close_matches(shown, list(known)[:_MAX_KNOWN], 1) if len(shown) < 80 else []
    hint = f" (did you mean {clip(near[0])}?)" if near else ""
    kind = "property" if path else "parameter"
    return Issue(pointer_of([*path, name]), keyword, f"Unknown {kind}: {shown}{hint}")


def wrong_type(path: Path, types: Sequence[str], value: object) -> Issue:
    """The issue for a value of another JSON type than *types*."""
    got, expected = type_name(value), " or ".join(sorted(types, key=lambda name: name == "null"))
    whole = "integer" in types and got == "number"
    text = "must be an integer" if whole and len(types) == 1 else f"expected {expected}, got {got}"
    if len(path) == 1 and isinstance(path[0], str):
        text = f"Parameter {clip(path[0])} " + (text if text.startswith("must") else f"has wrong type: {text}")
    return Issue(pointer_of(path), "type", text)


def _count(count: object, noun: str) -> str:
    one, many = ("property", "properties") if noun == "propert" else (noun, f"{noun}s")
    return f"{count} {one if count == 1 else many}"


_Text = Callable[[Any], str]
_DESCRIPTIONS: dict[str, _Text] = {
    "enum": lambda options: "must be one of: " + clip(", ".join(map(show, options[:20])), 120),
    "const": lambda wanted: f"must be {show(wanted)}",
    "minimum": lambda bound: f"must be >= {show(bound)}",
    "maximum": lambda bound: f"must be <= {show(bound)}",
    "exclusiveMinimum": lambda bound: f"must be > {show(bound)}",
    "exclusiveMaximum": lambda bound: f"must be < {show(bound)}",
    "multipleOf": lambda step: f"must be a multiple of {show(step)}",
    "minLength": lambda count: f"must have at least {_count(count, 'character')}",
    "maxLength": lambda count: f"must have at most {_count(count, 'character')}",
    "minItems": lambda count: f"must have at least {_count(count, 'item')}",
    "maxItems": lambda count: f"must have at most {_count(count, 'item')}",
    "minProperties": lambda count: f"must have at least {_count(count, 'propert')}",
    "maxProperties": lambda count: f"must have at most {_count(count, 'propert')}",
    "additionalItems": lambda count: f"must have at most {_count(count, 'item')}",
    "unevaluatedItems": lambda _: "has items that are not allowed",
    "uniqueItems": lambda _: "must not repeat an item",
    "pattern": lambda pattern: f"must match the pattern {clip(str(pattern))}",
    "format": lambda name: f"must be a valid {clip(str(name), 40)}",
    "contains": lambda _: "must contain an item of the required form",
    "minContains": lambda _: "must contain more items of the required form",
    "maxContains": lambda _: "must contain fewer items of the required form",
    "anyOf": lambda _: "matches none of the allowed forms",
    "oneOf": lambda _: "must match exactly one of the allowed forms",
    "not": lambda _: "is of a form that is not allowed",
    "false": lambda _: "is not allowed here",
    "propertyNames": lambda _: "has a property name that is not allowed",
    "dependentRequired": lambda name: f"also needs the property {show(name)}",
    "dependencies": lambda name: f"also needs the property {show(name)}" if isinstance(name, str) else "needs more",
    "contentEncoding": lambda name: f"must be encoded as {clip(str(name), 40)}",
    "contentMediaType": lambda name: f"must hold {clip(str(name), 40)}",
}


def describe(path: Path, keyword: str, argument: object) -> Issue:
    """The issue for a broken *keyword*; *argument* is what the schema says there."""
    text = _DESCRIPTIONS.get(keyword)
    return Issue(pointer_of(path), keyword, text(argument) if text else f"does not satisfy {clip(keyword, 40)}")


def is_of_type(value: object, types: Sequence[str]) -> bool:
    """Check the JSON type of a value: ``True`` is not a number, ``2.0`` is an integer."""
    got = type_name(value)
    if got != "number":
        return got in types
    return "number" in types or (
        "integer" in types and float(value).is_integer() if isinstance(value, float) else "integer" in types
    )


def types_of(schema: object) -> list[str]:
    """The ``type`` of a subschema as a list; empty when it has none."""
    declared: Any = schema.get("type", []) if isinstance(schema, dict) else []
    return [declared] if isinstance(declared, str) else list(declared)


def basic_issues(schema: Mapping[str, Any], value: Any) -> list[Issue]:
    """List the issues of the top level alone: missing, unknown, wrong types.

    It serves where an engine reports no more. Every issue is real, but the list may be empty.
    """
    types = types_of(schema)
    if types and not is_of_type(value, types):
        return [wrong_type((), types, value)]
    if not isinstance(value, dict) or "$ref" in schema:
        return []
    properties: dict[str, Any] = schema.get("properties", {})
    found = [missing((), name) for name in schema.get("required", ()) if name not in value]
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        strangers = [name for name in value if name not in properties][:16]
        found += [unknown((), name, properties) for name in strangers]
    for name, item in value.items():
        wanted = types_of(properties.get(name))
        if wanted and "$ref" not in properties[name] and not is_of_type(item, wanted):
            found.append(wrong_type((name,), wanted, item))
    return found
