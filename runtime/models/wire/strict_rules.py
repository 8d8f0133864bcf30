"""The rules of OpenAI's strict mode: supported keywords and size limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from callgate.runtime.models.wire import schema_walk as walk
from callgate.runtime.models.wire.shapes import is_mapping, items, mapping
from callgate.runtime.models.wire.view_builder import LOOKAROUND

_OBJECT = frozenset({"properties", "required", "additionalProperties"})
NESTED = _OBJECT | {"items"}
_PLAIN = frozenset(
    {
        "type",
        "enum",
        "const",
        "multipleOf",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minItems",
        "maxItems",
    }
)
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})

PROPERTIES = 5000
LEVELS = 10
ENUM_VALUES = 1000
CHARACTERS = 120_000
LARGE_ENUM = 250
LARGE_ENUM_CHARACTERS = 15_000


def kept(word: str, value: object, types: Sequence[str]) -> bool:
    """True if strict mode supports a keyword on a node of these types."""
    if word == "format":
        return isinstance(value, str) and value in _FORMATS
    if word == "pattern":
        return not LOOKAROUND.search(str(value))
    if word == "items":
        return "array" in types
    return word in _OBJECT or (word in _PLAIN and (word == "const" or not isinstance(value, bool)))


def with_null(made: dict[str, object]) -> dict[str, object]:
    """Allow null besides the node's values; the description stays outside of a union."""
    types: object = made.get("type")
    names = cast("list[str]", [types] if isinstance(types, str) else types or [])
    if names and not {"object", "array"} & set(names) and "enum" not in made and "const" not in made:
        return made if "null" in names else {**made, "type": [*names, "null"]}
    if "anyOf" in made:
        return {**made, "anyOf": [*items(made["anyOf"]), {"type": "null"}]}
    bare = {word: value for word, value in made.items() if word != "description"}
    outer: dict[str, object] = {"anyOf": [bare, {"type": "null"}]}
    return {**outer, "description": made["description"]} if "description" in made else outer


def over_limits(view: Mapping[str, object]) -> str | None:
    """The first size limit that the view exceeds, or None. A level is an object within an object."""
    properties = values = characters = 0
    names = walk.properties({"properties": view.get("$defs")})
    characters += sum(map(len, names))
    todo: list[tuple[object, int]] = [(view, 0), *((node, 0) for node in names.values())]
    while todo:
        node, level = todo.pop()
        here = mapping(node)
        inner = walk.properties(here)
        level += "properties" in here
        if level > LEVELS:
            return f"more than {LEVELS} levels of objects"
        listed = [len(value) if isinstance(value, str) else 0 for value in items(here.get("enum"))]
        if len(listed) > LARGE_ENUM and sum(listed) > LARGE_ENUM_CHARACTERS:
            return f"an enum of more than {LARGE_ENUM} values and {LARGE_ENUM_CHARACTERS} characters"
        properties += len(inner)
        values += len(listed)
        characters += sum(listed) + sum(map(len, inner)) + len(str(here.get("const", "")))
        children = (*inner.values(), here.get("items"), *items(here.get("anyOf")))
        todo += [(child, level) for child in children if is_mapping(child)]
    found = (
        (properties, PROPERTIES, "properties"),
        (values, ENUM_VALUES, "enum values"),
        (characters, CHARACTERS, "characters in names and values"),
    )
    return next((f"more than {limit} {what}" for count, limit, what in found if count > limit), None)
