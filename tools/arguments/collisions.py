"""Numbers whose hashes collide: a set of them, or a dict with such keys, takes quadratic time in Python."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any

from callgate.tools.limits import MOST_ALIKE

_LONGEST = 1_000
_NUMBER = re.compile(r"[\s\d._eE+-]+")
_HEX = re.compile(r"[{]?[0-9a-fA-F-]{32,36}[}]?")


def collide(value: Any) -> bool:
    """Return True if a list or an object in *value* has more than ``MOST_ALIKE`` numbers of one hash side by side.

    A number is an integer, or a text or key that a type of a parameter may read as an integer, a decimal or a UUID.
    Python's hash of a number is its rest modulo 2**61 - 1, which is no secret; that of a text has a secret.
    """
    stack = [value]
    while stack:
        part = stack.pop()
        items: Iterable[Any] = part.values() if part.__class__ is dict else part
        stack.extend(item for item in items if item.__class__ is dict or item.__class__ is list)
        if len(part) > MOST_ALIKE and _crowded(part):
            return True
    return False


def _crowded(part: Iterable[Any]) -> bool:
    """Return True if too many of the items or keys differ and have one hash."""
    hashes = [_hash(item) for item in part]
    top = [found for found, count in Counter(hashes).most_common() if count > MOST_ALIKE]
    if not top:
        return False
    apart: dict[int, set[str]] = {found: set() for found in top}
    for item, found in zip(part, hashes, strict=True):
        if found in apart:
            apart[found].add(repr(item))
    return any(len(different) > MOST_ALIKE for different in apart.values())


def _hash(item: Any) -> int:
    """Return the hash of what Python may make of an item; a list may become a tuple."""
    if item.__class__ is str:
        return _hash_of_text(item)
    if item.__class__ is list:
        return hash(tuple(map(_hash, item)))
    return hash(tuple(map(_hash, item.values()))) if item.__class__ is dict else hash(item)


def _hash_of_text(text: str) -> int:
    if len(text) <= _LONGEST:
        if _HEX.fullmatch(text) and len(digits := text.strip("{}").replace("-", "")) == 32:
            return hash(int(digits, 16))
        if _NUMBER.fullmatch(text):
            try:
                return hash(Decimal(text))
            except InvalidOperation:
                pass
    return hash(text)
