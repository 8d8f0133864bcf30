"""Integers that came through protobuf, whose numbers are all floats, made integers again by schema. Pure.

Only what is exact is touched: beyond 2^53 a float may be another number than the one that was sent, so there an integer
has to come as decimal text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from callgate.runtime.models.wire import schema_walk as walk
from callgate.runtime.models.wire.shapes import is_list, is_mapping, items, mapping

EXACT = 2**53
"""From here on not every integer is a float."""

_DECIMAL = re.compile(r"-?[1-9][0-9]{15,399}")
_BRANCHES = ("allOf", "anyOf", "oneOf")
_ASIDE = ("if", "then", "else")
_MOST = 64  # subschemas that say something about one value


class NotExact(ValueError):
    """A number where an integer belongs, and too large for a float to hold it."""


def whole(value: Any, schema: Mapping[str, Any] | None) -> Any:
    """The value with integers where its schema says so: ``1.0`` becomes ``1``, and ``"9007199254740993"`` a number.

    Members come in the order that the schema has them in, for whoever reads them. Nothing else is changed, and nothing
    decided: whether it fits is for the schema to say. Without a schema every
    exact whole number becomes an integer, which in JSON is the same number.

    Raises:
        NotExact: an integer of 2^53 or more came as a number.
    """
    if schema is None:
        return _narrowed(value)
    return _Walk(schema).value(value, [schema])


def as_sent(value: Any) -> Any:
    """A value as protobuf can carry it: integers that a float cannot hold become decimal text."""
    if is_mapping(value):
        return {name: as_sent(item) for name, item in value.items()}
    if is_list(value):
        return [as_sent(item) for item in value]
    return str(value) if isinstance(value, int) and abs(value) >= EXACT else value


def _narrowed(value: Any) -> Any:
    if is_mapping(value):
        return {name: _narrowed(item) for name, item in value.items()}
    if is_list(value):
        return [_narrowed(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < EXACT else value


class _Walk:
    """Walks a value along all that a schema says about it."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root

    def value(self, value: Any, nodes: Sequence[Any]) -> Any:
        found = self._said(nodes)
        if is_mapping(value):
            return {name: self.value(value[name], _of_property(found, name)) for name in _ordered(found, value)}
        if is_list(value):
            return [self.value(item, _of_item(found, index)) for index, item in enumerate(value)]
        return _integer(value, {name for node in found for name in walk.types_of(node) or walk.types_of_values(node)})

    def _said(self, nodes: Sequence[Any]) -> list[Mapping[str, Any]]:
        """Every subschema that may apply at one place: through references, compositions and conditions."""
        found: list[Mapping[str, Any]] = []
        left = list(nodes)
        while left and len(found) < _MOST:
            here = mapping(left.pop())
            if any(here is one for one in found):
                continue
            found.append(here)
            if "$ref" in here and (target := walk.resolve(self.root, here["$ref"])):
                left.append(target[0])
            for word in _BRANCHES:
                left += items(here.get(word))
            left += [here[word] for word in _ASIDE if word in here]
        return found


def _ordered(nodes: Sequence[Mapping[str, Any]], value: Mapping[str, Any]) -> list[str]:
    """The names of an object as its schema has them, then the others: protobuf has lost their order."""
    declared = dict.fromkeys(name for node in nodes for name in walk.properties(node) if name in value)
    return [*declared, *sorted(value.keys() - declared.keys())]


def _of_property(nodes: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    found: list[Any] = []
    for node in nodes:
        declared = walk.properties(node)
        found.append(declared[name] if name in declared else node.get("additionalProperties"))
    return found


def _of_item(nodes: Sequence[Mapping[str, Any]], index: int) -> list[Any]:
    found: list[Any] = []
    for node in nodes:
        first = items(node.get("prefixItems")) or items(node.get("items"))
        rest = node.get("additionalItems") if is_list(node.get("items")) else node.get("items")
        found.append(first[index] if index < len(first) else rest)
    return found


def _integer(value: Any, types: set[str]) -> Any:
    if "integer" not in types:
        return value
    if isinstance(value, float) and value.is_integer() and "number" not in types:
        if abs(value) >= EXACT:
            raise NotExact("an integer of 2^53 or more is sent as decimal text")
        return int(value)
    if isinstance(value, str) and "string" not in types and _DECIMAL.fullmatch(value) and abs(int(value)) >= EXACT:
        return int(value)
    return value
