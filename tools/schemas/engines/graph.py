"""A schema as a graph: which subschemas apply to the same value, and which to its parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from callgate.tools.schemas.engines.document import Document
from callgate.tools.schemas.engines.patterns import pattern_weight
from callgate.tools.values import SCALARS, pointer

IN_PLACE_ONE = ("not", "if", "then", "else")
IN_PLACE_LIST = ("allOf", "anyOf", "oneOf")
IN_PLACE_MAP = ("dependentSchemas", "dependencies")
UNEVALUATED = 3  # measured on jsonschema-rs 0.60: each nested unevaluated* checks what is below it up to 3 times
NODES_PER_ERROR = 5
CHARACTERS_PER_NODE = 512  # an error of jsonschema-rs copies a text as fast


@dataclass(slots=True)
class Node:
    """One subschema of the graph; other subschemas are indices."""

    at: str
    in_place: list[int] = field(default_factory=list[int])
    factor: int = 1
    properties: dict[str, int] = field(default_factory=dict[str, int])
    patterns: list[int] = field(default_factory=list[int])
    names: list[int] = field(default_factory=list[int])
    others: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    prefix: list[int] = field(default_factory=list[int])
    items: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    own: int = 1
    mistakes: int = 1
    weight: int = 0
    key_weight: int = 0
    by_key: bool = False
    numeric: bool = False
    branches: bool = False
    unique: bool = False

    def once(self) -> list[int]:
        """Subschemas that apply to one part of the value each."""
        return [*self.properties.values(), *self.prefix]

    def repeated(self) -> list[tuple[int, int]]:
        """Subschemas that may apply to each part of the value, each with the number of times."""
        return [*((child, 1) for child in (*self.patterns, *self.names)), *self.others, *self.items]

    def below(self) -> list[tuple[int, int]]:
        """Subschemas for parts of the value, each with the number of times that the engine may check it."""
        return [*((child, 1) for child in self.once()), *self.repeated()]


def postorder(edges: list[list[int]]) -> tuple[list[int], int | None]:
    """Order children before parents, without recursion; also returns a node that closes a cycle, or None."""
    state = [0] * len(edges)
    order: list[int] = []
    for start in range(len(edges)):
        stack = [(start, 0)] if not state[start] else []
        while stack:
            index, step = stack.pop()
            state[index] = 1
            if step == len(edges[index]):
                state[index] = 2
                order.append(index)
                continue
            stack.append((index, step + 1))
            child = edges[index][step]
            if state[child] == 1:
                return order, child
            if not state[child]:
                stack.append((child, 0))
    return order, None


def nodes_of(document: Document) -> list[Node]:
    """The graph of a document; the root comes first."""
    index_of = {at: index for index, at in enumerate(document.nodes)}
    nodes: list[Node] = []
    for at, schema in document.nodes.items():
        node = Node(at)
        nodes.append(node)
        if isinstance(schema, bool):
            continue
        node.in_place = [index_of[target] for target in document.targets.get(at, ())]
        node.in_place += [index_of[at_child] for at_child in _in_place(schema, at) if at_child in index_of]
        node.factor = UNEVALUATED if not schema.keys().isdisjoint(_UNEVALUATED) else 1
        node.weight = _weight(schema)
        node.own = _own_checks(schema)
        node.mistakes = 1 + len(required if isinstance(required := schema.get("required"), list) else ())
        node.mistakes += sum(measure(schema[key], {}) // NODES_PER_ERROR for key in _COPIED if key in schema)
        node.numeric = not schema.keys().isdisjoint(_NUMERIC)
        node.branches = "anyOf" in schema or "oneOf" in schema
        node.unique = schema.get("uniqueItems") is True
        _descend(node, schema, index_of)
        node.by_key = bool(node.patterns or node.names)
    return nodes


FLOAT_COMPARISON = 8  # measured on jsonschema-rs 0.60, in units of 0.2 µs, as those below
FLOAT_DIVISION = 120
TINY_DIVISION = 250
INTEGER_DIVISION = 6
_NUMERIC = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const"))
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


_COPIED = ("enum", "const", "not")
"""Keywords whose value jsonschema-rs copies into each error."""


def _weight(schema: dict[str, Any]) -> int:
    """Estimate the automaton states that read each character of a text; a format or a parser counts as some of them."""
    weight = pattern_weight(str(schema["pattern"])) if "pattern" in schema else 0
    weight += _FORMATS.get(schema["format"], 1) if isinstance(schema.get("format"), str) else 0
    return weight + sum(states for key, states in _PARSERS.items() if key in schema)


_FORMATS = {"regex": 4, "idn-hostname": 4, "idn-email": 4}  # measured, as those below; other formats take less than one
_PARSERS = {"contentMediaType": 6, "contentEncoding": 1}  # before 2019-09 jsonschema-rs enforces them


def _own_checks(schema: dict[str, Any]) -> int:
    """Count the checks of one subschema in units of 0.2 µs.

    An enum of texts is one lookup. Numbers and objects are compared one by one, as soon as one of them is in the enum.
    """
    listed = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    plain = all(item.__class__ in _LOOKED_UP for item in listed)
    compared = 0 if plain else sum(_comparison(item) for item in listed)
    compared += sum(FLOAT_COMPARISON for key in _BOUNDS if _is_rough(schema.get(key)))
    compared += _division(schema.get("multipleOf"))
    return 1 + compared + len(schema.get("dependentRequired", ())) // 8 + len(schema.get("dependencies", ())) // 8


_LOOKED_UP = frozenset({str, bool, type(None)})


def _comparison(item: object) -> int:
    if item.__class__ is float:
        return FLOAT_COMPARISON
    return measure(item, {}) if item.__class__ in SCALARS else FLOAT_COMPARISON * measure(item, {})


def _is_rough(bound: object) -> bool:
    return isinstance(bound, float) or (isinstance(bound, int) and bound.bit_length() > 53)


def _division(divisor: object) -> int:
    if not isinstance(divisor, int | float):
        return 0
    if divisor == int(divisor):
        return INTEGER_DIVISION
    return FLOAT_DIVISION if abs(divisor) > 1e-30 else TINY_DIVISION


_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")


def _in_place(schema: dict[str, Any], at: str) -> Iterable[str]:
    for key in IN_PLACE_ONE:
        if key in schema:
            yield f"{at}/{key}"
    for key in IN_PLACE_LIST:
        for number in range(len(schema.get(key, ()))):
            yield f"{at}/{key}/{number}"
    for key in IN_PLACE_MAP:
        for name in schema.get(key, ()):
            yield f"{at}/{key}{pointer([name])}"


def _descend(node: Node, schema: dict[str, Any], index_of: dict[str, int]) -> None:
    at = node.at
    for name in schema.get("properties", ()):
        node.properties[name] = index_of[f"{at}/properties{pointer([name])}"]
    for name in schema.get("patternProperties", ()):
        node.patterns.append(index_of[f"{at}/patternProperties{pointer([name])}"])
        node.key_weight += pattern_weight(name)
    prefix = "items" if isinstance(schema.get("items"), list) else "prefixItems"
    node.prefix = [index_of[f"{at}/{prefix}/{number}"] for number in range(len(schema.get(prefix, ())))]
    for key in ("items", "contains", "additionalItems", "unevaluatedItems"):
        if f"{at}/{key}" in index_of:
            node.items.append((index_of[f"{at}/{key}"], UNEVALUATED if key in _UNEVALUATED else 1))
    for key in ("additionalProperties", "unevaluatedProperties"):
        if f"{at}/{key}" in index_of:
            node.others.append((index_of[f"{at}/{key}"], UNEVALUATED if key in _UNEVALUATED else 1))
    if f"{at}/propertyNames" in index_of:
        node.names.append(index_of[f"{at}/propertyNames"])


def measure(value: Any, sizes: dict[int, int]) -> int:
    """Store the size of every container in *value* in *sizes*, in units of one error's own cost; return its nodes."""
    if value.__class__ is str:
        return 1 + len(value) // CHARACTERS_PER_NODE
    if value.__class__ in SCALARS:
        return 1
    if isinstance(value, dict):
        nodes = 1 + sum(map(len, value)) // CHARACTERS_PER_NODE
        nodes += sum(measure(part, sizes) for part in value.values())
    else:
        nodes = 1 + sum(measure(part, sizes) for part in value)
    sizes[id(value)] = 1 + nodes // NODES_PER_ERROR
    return nodes
