"""Bounds on the cost of checking a value against a schema, known before an engine starts.

An engine holds the interpreter lock and cannot be stopped, so its work is limited beforehand. A static count covers one
value checked in place. For schemas whose references multiply, a count over the actual value follows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from callgate.errors import SchemaRefused
from callgate.tools.schemas.engines.base import Rejected
from callgate.tools.schemas.engines.document import Document
from callgate.tools.schemas.engines.graph import (
    CHARACTERS_PER_NODE,
    FLOAT_COMPARISON,
    NODES_PER_ERROR,
    Node,
    measure,
    nodes_of,
    postorder,
)
from callgate.tools.schemas.engines.raw import SchemaLimits
from callgate.tools.values import SCALARS, clip

HEAVY = 10_000
CHARACTERS_PER_CHECK = 3  # as a shift: eight characters against one automaton state cost at most about 0.2 µs
UNBOUNDED = 10**12
LARGEST_VALUE = 50_000  # values in one call, as ``Limits.max_nodes`` has it by default
WORST = 2_500_000  # tenths of a check of 0.2 µs: 50 ms
FEW = 15  # items that are compared pairwise
LARGE = 2**53
SHORT_COMPARISON = 2  # measured, in units of 0.2 µs: integers of at most 64 bits
LONG_COMPARISON = 40
LARGE_NUMBERS = 40  # an engine compares integers beyond 64 bits that many times slower
LONG_PATTERNS = 256
LONG_ENUM = 256


class Budget:
    """Counts the checks that a value can need under one schema.

    ``guarded`` says that the largest value could cost more than 50 ms: a ``Guard`` then counts before the engine starts.
    ``compares`` says that there is a ``uniqueItems``, whose cost depends on the values of the items.
    ``heavy`` names the keyword through which even a small value could cost much: references that recur or multiply,
    large regular expressions, many objects in an enum. ``branches`` says that there is an ``anyOf`` or ``oneOf``.

    Raises:
        SchemaRefused: a reference cycle that never descends into the value, or too many checks in place.
    """

    def __init__(self, document: Document, limits: SchemaLimits) -> None:
        self._limits = limits
        self._nodes = nodes_of(document)
        self._order = self._in_place_order()
        self._refuse_expansion()
        self._widen_unevaluated()
        self.has_refs = bool(document.targets)
        self.compares = any(node.unique for node in self._nodes)
        self.numeric = any(node.numeric for node in self._nodes)
        self.total, self.worst = self._totals()
        self.weight = sum(node.weight + node.key_weight for node in self._nodes)
        self.heavy = self._heavy(document)
        self.guarded = bool(self.heavy) or self.worst > WORST or self.compares
        self.branches = any(node.branches for node in self._nodes)
        self._flat: _Flat | None = None

    def _in_place_order(self) -> list[int]:
        order, back = postorder([node.in_place for node in self._nodes])
        if back is not None:
            at = clip(self._nodes[back].at, 200)
            raise SchemaRefused("ref_cycle", "a $ref cycle that never descends into the value checks nothing", at)
        return order

    def _refuse_expansion(self) -> None:
        expansion = [1] * len(self._nodes)
        for index in self._order:
            node = self._nodes[index]
            expansion[index] += node.factor * sum(expansion[child] for child in node.in_place)
            if expansion[index] > self._limits.max_expansion:
                message = f"one value could be checked over {self._limits.max_expansion} times in one place"
                raise SchemaRefused("expansion", message, clip(node.at, 200))
        if sum(expansion) > 50 * self._limits.max_expansion:
            raise SchemaRefused("expansion", "its parts refer to each other too often")

    def _heavy(self, document: Document) -> str:
        if self.has_refs and self.total > HEAVY:
            return "$ref"
        if document.patterns and self.weight > LONG_PATTERNS:
            return "pattern"
        return "enum" if max(node.own for node in self._nodes) > LONG_ENUM else ""

    def _widen_unevaluated(self) -> None:
        """An engine asks each subschema of the same place whether it has evaluated a part: count those questions."""
        spread = [1] * len(self._nodes)
        for index in self._order:
            node = self._nodes[index]
            spread[index] += sum(spread[child] for child in node.in_place)
            if node.factor > 1:
                node.others = [(child, max(times, spread[index])) for child, times in node.others]
                node.items = [(child, max(times, spread[index])) for child, times in node.items]

    def _totals(self) -> tuple[int, int]:
        """Return the most checks of one part of a value, and the most tenths of a check of the largest value.

        A subschema without costly keywords takes a tenth of a check. Below a recursive reference, both have no bound.
        """
        order, back = postorder([[*node.in_place, *(child for child, _ in node.below())] for node in self._nodes])
        if back is not None:
            return UNBOUNDED, UNBOUNDED
        nodes = self._nodes
        total, tenths, worst = [0] * len(nodes), [0] * len(nodes), [0] * len(nodes)
        for index in order:
            node = nodes[index]
            light = 1 + 10 * (node.own - 1)
            here, below = node.in_place, node.below()
            total[index] = _bounded(node.own, node.factor, total, here, below)
            tenths[index] = _bounded(light, node.factor, tenths, here, below)
            single = _bounded(light, node.factor, worst, here, [(child, 1) for child in node.once()])
            many = LARGEST_VALUE * sum(tenths[child] * times for child, times in node.repeated())
            worst[index] = min(single + many, UNBOUNDED)
        return total[0], worst[0]

    def quick(self, nodes: int, characters: int) -> int:
        """An upper bound on the cost of a value of that size, for schemas without references and ``uniqueItems``."""
        return nodes * self.total + (characters * self.weight >> CHARACTERS_PER_CHECK)

    def cost(self, value: object) -> int:
        """Count the checks that *value* can need; *value* must be JSON of limited depth.

        Raises:
            Rejected: the count exceeds the schema's budget.
        """
        flat, limit = self._flattened(), self._limits.budget
        if self.numeric and holds_large(value):
            limit //= LARGE_NUMBERS
        comparing = Comparing(value) if self.compares else None
        return _Count(self._nodes, flat, flat.checks, limit, {}, comparing).total(value)

    def explaining(self, value: object, limit: int) -> tuple[int, int]:
        """Estimate the microseconds for building all errors, and those of its largest anyOf or oneOf.

        jsonschema-rs copies the broken part of the value into every error, and into those of every branch.

        Raises:
            Rejected: the estimate exceeds *limit*.
        """
        flat = self._flattened()
        sizes: dict[int, int] = {}
        measure(value, sizes)
        count = _Count(self._nodes, flat, flat.mistakes, limit, sizes)
        return count.total(value), count.branched

    def _flattened(self) -> _Flat:
        if self._flat is None:
            self._flat = self._flatten()
        return self._flat

    def _flatten(self) -> _Flat:
        nodes = self._nodes
        checks, mistakes = [node.own for node in nodes], [node.mistakes for node in nodes]
        weights, branching = [node.weight for node in nodes], [node.branches for node in nodes]
        descending: list[tuple[tuple[int, int], ...]] = [()] * len(nodes)
        for index in self._order:
            node = nodes[index]
            counts = {index: 1} if node.below() or node.key_weight or node.unique else {}
            for child in node.in_place:
                checks[index] += node.factor * checks[child]
                mistakes[index] += node.factor * mistakes[child]
                weights[index] += node.factor * weights[child]
                branching[index] = branching[index] or branching[child]
                for other, times in descending[child]:
                    counts[other] = counts.get(other, 0) + node.factor * times
            descending[index] = tuple(counts.items())
        return _Flat(checks, mistakes, weights, branching, descending)


_NO_TEXT = SCALARS - {str}


@dataclass(frozen=True, slots=True)
class _Flat:
    """Sums per subschema over all that applies in place: checks, possible errors, regex weight, children."""

    checks: list[int]
    mistakes: list[int]
    weights: list[int]
    branching: list[bool]
    descending: list[tuple[tuple[int, int], ...]]


class _Count:
    """One count over one value; each pair of subschema and container is counted once.

    *prices* are per subschema. With *sizes*, the price of a container or a text is multiplied by its size.
    *comparing* counts the comparisons of ``uniqueItems``.
    ``branched`` is the cost of the most expensive part of the value that an ``anyOf`` or ``oneOf`` applies to.
    """

    __slots__ = (
        "_comparing",
        "_flat",
        "_limit",
        "_memo",
        "_nodes",
        "_plain",
        "_prices",
        "_sizes",
        "_weights",
        "branched",
    )

    def __init__(
        self,
        nodes: list[Node],
        flat: _Flat,
        prices: list[int],
        limit: int,
        sizes: dict[int, int],
        comparing: Comparing | None = None,
    ) -> None:
        self._nodes, self._flat, self._prices, self._limit, self._sizes = nodes, flat, prices, limit, sizes
        self._weights, self._comparing = flat.weights, comparing
        self._plain = _NO_TEXT if sizes else SCALARS  # whose price does not depend on the value
        self._memo: dict[tuple[int, int], int] = {}
        self.branched = 0

    def total(self, value: object) -> int:
        total = self.visit(0, value)
        if total > self._limit:
            raise too_costly()
        return total

    def visit(self, index: int, value: Any) -> int:
        total = self._prices[index]
        if not value or value.__class__ in SCALARS:
            if value.__class__ is str:
                total += len(value) * self._weights[index] >> CHARACTERS_PER_CHECK
                if self._sizes:
                    total *= 1 + len(value) // (CHARACTERS_PER_NODE * NODES_PER_ERROR)
                    if self._flat.branching[index]:
                        self.branched = max(self.branched, total)
            return total
        key = (index, id(value))
        known = self._memo.get(key)
        if known is not None:
            return known
        if self._sizes:
            total *= self._sizes[id(value)]
        count = self._object if isinstance(value, dict) else self._array
        for child, times in self._flat.descending[index]:
            total += times * count(self._nodes[child], value)
            if total > self._limit:
                raise too_costly()
        self._memo[key] = total
        if self._flat.branching[index]:
            self.branched = max(self.branched, total)
        return total

    def _object(self, node: Node, value: dict[str, object]) -> int:
        total, prices, weights, visit = 0, self._prices, self._weights, self.visit
        properties, others, plain = node.properties, node.others, self._plain
        for key, item in value.items():
            child = properties.get(key)
            if child is None:
                for other, times in others:
                    total += times * visit(other, item)
            elif not weights[child] and (not item or item.__class__ in plain):
                total += prices[child]
            else:
                total += visit(child, item)
            if node.by_key:
                total += self._keyed(node, key, item)
            if total > self._limit:
                raise too_costly()
        return total

    def _keyed(self, node: Node, key: str, item: object) -> int:
        total = len(key) * node.key_weight >> CHARACTERS_PER_CHECK
        total += sum(self.visit(other, item) for other in node.patterns)
        return total + sum(self.visit(other, key) for other in node.names)

    def _array(self, node: Node, value: Any) -> int:
        total, prices, weights, plain = 0, self._prices, self._weights, self._plain
        if node.unique and self._comparing is not None:
            total = self._comparing.cost(value, self._limit)
        for child, item in zip(node.prefix, value, strict=False):
            total += self.visit(child, item)
        for child, times in node.items:
            for item in value:
                if item.__class__ in plain and not weights[child]:
                    total += times * prices[child]
                else:
                    total += times * self.visit(child, item)
                if total > self._limit:
                    raise too_costly()
        return total


def _bounded(own: int, factor: int, sums: list[int], here: list[int], below: list[tuple[int, int]]) -> int:
    total = own + factor * sum(sums[child] for child in here) + sum(sums[child] * times for child, times in below)
    return min(total, UNBOUNDED)


def holds_large(value: Any) -> bool:
    """Return True if *value* holds an integer beyond 64 bits."""
    if value.__class__ is int:
        return bool(value.bit_length() > 64)
    if isinstance(value, dict):
        return any(map(holds_large, value.values()))
    return isinstance(value, list | tuple) and any(map(holds_large, value))


def too_costly() -> Rejected:
    """The error for a value that exceeds the budget."""
    return Rejected("is too costly to check against the schema; send less")


# ---------------------------------------------------------------------- uniqueItems


class Comparing:
    """Counts the checks of ``uniqueItems`` in one value.

    jsonschema-rs compares a few items pairwise, and more of them by their hashes. It hashes a number as a float. So
    integers beyond 2**53 may have one hash, and are compared pairwise.
    """

    def __init__(self, value: object) -> None:
        self._sizes: dict[int, int] = {}
        measure(value, self._sizes)
        self._bits, self._rough = _numbers(value)

    def cost(self, items: list[object], limit: int) -> int:
        """Return the number of checks that the items of an array cost; above *limit* it is not exact."""
        nodes = total = NODES_PER_ERROR * self._sizes.get(id(items), 0)
        if total > limit:
            return total
        if len(items) <= FEW:
            return total + (len(items) * nodes * FLOAT_COMPARISON // 2 if self._rough else len(items) * nodes >> 4)
        if self._bits <= 53:
            return total
        pairs = sum(count * (count - 1) // 2 for count in Counter(map(_hash, items)).values())
        price = SHORT_COMPARISON if self._bits <= 64 else LONG_COMPARISON
        return total + pairs * price * (nodes // len(items) or 1)


def _numbers(value: Any) -> tuple[int, bool]:
    """Return the bits of the longest integer in a value, and whether it holds a float or an integer beyond 2**53."""
    bits, rough, stack = 0, False, [value]
    while stack:
        part = stack.pop()
        if part.__class__ is int:
            bits = max(bits, part.bit_length())
        elif isinstance(part, dict):
            stack.extend(part.values())
        elif isinstance(part, list | tuple):
            stack.extend(part)
        else:
            rough = rough or part.__class__ is float
    return bits, rough or bits > 53


def _hash(item: Any) -> int:
    """Return a hash that is equal where that of jsonschema-rs is."""
    if item.__class__ is int and not -LARGE <= item <= LARGE:
        try:
            return hash(float(item))
        except OverflowError:
            return 0
    if isinstance(item, dict):
        return hash(tuple((key, _hash(item[key])) for key in sorted(item)))
    return hash(tuple(map(_hash, item))) if isinstance(item, list | tuple) else hash(item)
