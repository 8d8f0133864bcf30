"""Navigation of a JSON Schema by keyword and pointer, shared by the views and their reverse. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote

from callgate.runtime.models.wire.shapes import is_list, is_mapping, items, mapping
from callgate.tools.schemas.engines.dialect import SUB_LIST, SUB_MAP, SUB_ONE
from callgate.tools.schemas.engines.texts import is_of_type
from callgate.tools.values import pointer

MAX_REFERENCES = 64  # in a chain of references

_OBJECT = (
    "properties required additionalProperties patternProperties propertyNames minProperties maxProperties "
    "dependencies dependentRequired dependentSchemas unevaluatedProperties"
)
_ARRAY = (
    "items prefixItems additionalItems minItems maxItems uniqueItems contains minContains maxContains unevaluatedItems"
)
_STRING = "minLength maxLength pattern format contentEncoding contentMediaType contentSchema"
_NUMBER = "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"
_ANY = "type enum const allOf anyOf oneOf not if then else $ref $dynamicRef $recursiveRef"

_TYPES: dict[str, frozenset[str]] = {
    **dict.fromkeys(_OBJECT.split(), frozenset({"object"})),
    **dict.fromkeys(_ARRAY.split(), frozenset({"array"})),
    **dict.fromkeys(_STRING.split(), frozenset({"string"})),
    **dict.fromkeys(_NUMBER.split(), frozenset({"number", "integer"})),
}
ASSERTIONS = frozenset(_TYPES) | frozenset(_ANY.split())


def applies(keyword: str, types: Iterable[str]) -> bool:
    """True if a keyword affects values of these types."""
    only = _TYPES.get(keyword)
    return only is None or not only.isdisjoint(types)


def asserted(node: Mapping[str, object]) -> set[str]:
    """The keywords of a node that constrain values; titles, defaults and unknown keywords do not."""
    return {keyword for keyword in node if keyword in ASSERTIONS}


def declared_types(node: Mapping[str, object]) -> list[str]:
    """The declared types; empty if the node declares none."""
    declared: object = node.get("type")
    if isinstance(declared, str):
        return [declared]
    return [str(item) for item in items(declared)]


def properties(node: Mapping[str, object]) -> Mapping[str, object]:
    """The declared properties."""
    return mapping(node.get("properties"))


def required(node: Mapping[str, object]) -> list[str]:
    """The names of the required properties."""
    return [str(item) for item in items(node.get("required"))]


def below(at: str, *path: str | int) -> str:
    """The JSON Pointer of a path below *at*."""
    return at + pointer(path)


def subschemas(node: Mapping[str, object]) -> Iterator[object]:
    """The direct subschemas of a node; data such as ``enum`` and ``default`` is left out."""
    yield from (node[word] for word in SUB_ONE if word in node)
    for word in SUB_LIST:
        yield from items(node.get(word))
    for word in SUB_MAP:
        yield from mapping(node.get(word)).values()


def union(node: Mapping[str, object]) -> tuple[str, Sequence[object]] | None:
    """``anyOf`` or ``oneOf`` and its branches, if the node asserts nothing else but a type."""
    keywords = asserted(node) - {"type"}
    if keywords not in ({"anyOf"}, {"oneOf"}):
        return None
    (keyword,) = keywords
    branches = items(node[keyword])
    return (keyword, branches) if branches else None


def only_of_all(node: Mapping[str, object]) -> Mapping[str, object] | None:
    """The single branch of a lone ``allOf``, which is equivalent to the node itself."""
    branches = items(node.get("allOf"))
    if asserted(node) != {"allOf"} or len(branches) != 1:
        return None
    return branches[0] if is_mapping(branches[0]) else None


def resolve(root: Mapping[str, object], reference: object) -> tuple[object, str] | None:
    """The target of a local reference and its JSON Pointer; None if it is not local or has no target."""
    if not isinstance(reference, str) or not re.fullmatch(r"#(/.*)?", reference, re.DOTALL):
        return None
    at = unquote(reference[1:])
    node: object = root
    for part in at.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if is_mapping(node) and key in node:
            node = node[key]
        elif is_list(node) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node, at


def resolve_chain(root: Mapping[str, object], node: object, at: str) -> tuple[Mapping[str, object], str]:
    """Follow references and lone ``allOf`` to the last node; an empty node if there is none."""
    for _ in range(MAX_REFERENCES):
        here = mapping(node)
        if "$ref" in here:
            node, at = resolve(root, here["$ref"]) or ({}, at)
        elif (branch := only_of_all(here)) is not None:
            node, at = branch, below(at, "allOf", 0)
        else:
            return here, at
    return {}, at


def choices(here: Mapping[str, object], types: Sequence[str]) -> list[object]:
    """The values of these types in ``const`` or ``enum``."""
    listed = [here["const"]] if "const" in here else items(here.get("enum"))
    return [value for value in listed if is_of_type(value, types)]


def types_of_values(here: Mapping[str, object]) -> list[str]:
    """The types of the values in ``const`` or ``enum``; empty if one of them is an object or an array."""
    values = [here["const"]] if "const" in here else items(here.get("enum"))
    names: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    found = {names.get(type(value)) for value in values}
    return [] if None in found else sorted(name for name in found if name)


def names_in(node: object) -> set[str] | None:
    """The property names that a composition mentions; None if it contains a reference."""
    if is_list(node):
        return _joined(names_in(item) for item in node)
    here = mapping(node)
    if any(word in here for word in ("$ref", "$dynamicRef", "$recursiveRef")):
        return None
    found: set[str] = set()
    for word in ("properties", "dependencies", "dependentRequired", "dependentSchemas"):
        found |= set(mapping(here.get(word)))
    for listed in (here.get("required"), *mapping(here.get("dependentRequired")).values()):
        found |= {str(name) for name in items(listed)}
    return _joined([found, *(names_in(value) for value in here.values())])


def _joined(found: Iterable[set[str] | None]) -> set[str] | None:
    sets = list(found)
    return None if any(item is None for item in sets) else set().union(*(item or () for item in sets))


def same(left: object, right: object) -> bool:
    """Compare JSON scalars; true does not equal 1."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)
