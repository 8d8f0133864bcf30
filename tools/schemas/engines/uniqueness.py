"""The cost of ``uniqueItems``: jsonschema-rs compares a few items pairwise, and more of them by their hashes.

It hashes a number as a float. So integers beyond 2**53 may have one hash, and are compared pairwise.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from callgate.tools.schemas.engines.graph import FLOAT_COMPARISON, NODES_PER_ERROR, measure

FEW = 15
LARGE = 2**53
SHORT_COMPARISON = 2  # measured, in units of 0.2 µs: integers of at most 64 bits
LONG_COMPARISON = 40


class Comparing:
    """Counts the checks of ``uniqueItems`` in one value."""

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
