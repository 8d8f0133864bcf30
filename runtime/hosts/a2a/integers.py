"""Conversion of integers that protobuf delivers as floats, by schema.

Only exact values are converted. From 2^53 on a float may differ from the number that was sent: such an integer has to come
as decimal text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from callgate.runtime.models.wire import schema_walk as walk
from callgate.runtime.models.wire.shapes import is_list, is_mapping, items, mapping

EXACT = 2**53
"""The limit from which a float cannot hold every integer."""

_DECIMAL = re.compile(r"-?[1-9][0-9]{15,399}")
_BRANCHES = ("allOf", "anyOf", "oneOf")
_CONDITIONS = ("if", "then", "else")
_MAX_NODES = 64  # maximum number of subschemas for one value


class InexactInteger(ValueError):
    """An integer that came as a float and is too large to be exact."""


def restore_integers(value: object, schema: Mapping[str, object] | None) -> Any:
    """Convert numbers to integers where the schema says ``integer``.

    ``1.0`` becomes ``1``, and ``"9007199254740993"`` becomes a number. Members get the order of the schema. The value is
    not validated. Without a schema, every exact whole number becomes an integer.

    Raises:
        InexactInteger: an integer of 2^53 or more came as a number.
    """
    if schema is None:
        return _without_floats(value)
    return _Walk(schema).value(value, [schema])


def encode_integers(value: object) -> object:
    """Prepare a value for protobuf: integers that a float cannot hold become decimal text."""
    if is_mapping(value):
        return {name: encode_integers(item) for name, item in value.items()}
    if is_list(value):
        return [encode_integers(item) for item in value]
    return str(value) if isinstance(value, int) and abs(value) >= EXACT else value


def _without_floats(value: object) -> object:
    if is_mapping(value):
        return {name: _without_floats(item) for name, item in value.items()}
    if is_list(value):
        return [_without_floats(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < EXACT else value


class _Walk:
    """Walks a value together with the subschemas that apply to it."""

    def __init__(self, root: Mapping[str, object]) -> None:
        self.root = root

    def value(self, value: object, nodes: Sequence[object]) -> object:
        found = self._applicable(nodes)
        if is_mapping(value):
            return {name: self.value(value[name], _of_property(found, name)) for name in _ordered(found, value)}
        if is_list(value):
            return [self.value(item, _of_item(found, index)) for index, item in enumerate(value)]
        return _integer(
            value, {name for node in found for name in walk.declared_types(node) or walk.types_of_values(node)}
        )

    def _applicable(self, nodes: Sequence[object]) -> list[Mapping[str, object]]:
        """Collect the subschemas that may apply to one value: through references, compositions and conditions."""
        found: list[Mapping[str, object]] = []
        left = list(nodes)
        while left and len(found) < _MAX_NODES:
            here = mapping(left.pop())
            if any(here is one for one in found):
                continue
            found.append(here)
            if "$ref" in here and (target := walk.resolve(self.root, here["$ref"])):
                left.append(target[0])
            for word in _BRANCHES:
                left += items(here.get(word))
            left += [here[word] for word in _CONDITIONS if word in here]
        return found


def _ordered(nodes: Sequence[Mapping[str, object]], value: Mapping[str, object]) -> list[str]:
    """Sort the names of an object: first in schema order, then by name. Protobuf does not keep the order."""
    declared = dict.fromkeys(name for node in nodes for name in walk.properties(node) if name in value)
    return [*declared, *sorted(value.keys() - declared.keys())]


def _of_property(nodes: Sequence[Mapping[str, object]], name: str) -> list[object]:
    found: list[object] = []
    for node in nodes:
        declared = walk.properties(node)
        found.append(declared[name] if name in declared else node.get("additionalProperties"))
    return found


def _of_item(nodes: Sequence[Mapping[str, object]], index: int) -> list[object]:
    found: list[object] = []
    for node in nodes:
        first = items(node.get("prefixItems")) or items(node.get("items"))
        rest = node.get("additionalItems") if is_list(node.get("items")) else node.get("items")
        found.append(first[index] if index < len(first) else rest)
    return found


def _integer(value: object, types: set[str]) -> object:
    if "integer" not in types:
        return value
    if isinstance(value, float) and value.is_integer() and "number" not in types:
        if abs(value) >= EXACT:
            raise InexactInteger("send an integer of 2^53 or more as decimal text")
        return int(value)
    if isinstance(value, str) and "string" not in types and _DECIMAL.fullmatch(value) and abs(int(value)) >= EXACT:
        return int(value)
    return value
