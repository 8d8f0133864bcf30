"""How much a text is, before it is parsed.

Exact for valid JSON; for any other text no less than what a parser builds of it before it stops. All of it is linear in
the text: that is an attacker's to choose.
"""

from __future__ import annotations

import re

from callgate.tools.arguments.parse_errors import beyond
from callgate.tools.limits import Limits

__all__ = ["admitted", "count_values", "deeper", "has_longer_number"]

_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_NUMBER = re.compile(rb"[0-9][0-9.eE+-]*+")


def admitted(text: str, limits: Limits) -> bytes:
    """The bytes of a text within the limits."""
    if len(text) > limits.max_bytes or len(data := text.encode()) > limits.max_bytes:
        raise beyond("too_large", limits)
    # Taking out no more than would be too many is faster than counting them all.
    few = limits.max_depth + 1
    brackets = 2 * len(data) - len(data.replace(b"{", b"", few)) - len(data.replace(b"[", b"", few))
    if brackets > limits.max_depth and deeper(data, limits.max_depth):
        raise beyond("too_deep", limits)
    if len(data) > limits.max_nodes and count_values(data) > limits.max_nodes:
        raise beyond("too_many_values", limits)
    if len(data) > limits.max_digits and has_longer_number(data, limits.max_digits):
        raise beyond("number_too_long", limits)
    return data


def _unescaped(data: bytes) -> bytes:
    """Without backslashes and quotes that strings escape: what quotes are left open and close strings."""
    return data.replace(b"\\\\", b"").replace(b'\\"', b"")


def _skeleton(data: bytes) -> bytes:
    """What lies outside of strings, each of which leaves a quote behind."""
    return b'"'.join(_unescaped(data).split(b'"')[::2])


def deeper(data: bytes, limit: int) -> bool:
    """Whether objects and arrays nest deeper than *limit*."""
    marks = _unescaped(data).translate(_SQUARE, _NOT_STRUCTURE).replace(b'""', b"")
    if b'"' in marks:  # strings with brackets in them
        marks = b"".join(marks.split(b'"')[::2])
    depth = 0
    while depth < limit and len(peeled := marks.replace(b"[]", b"")) < len(marks):  # the innermost level, all at once
        marks = peeled
        depth += 1
    return depth + marks.count(b"[") > limit


def count_values(data: bytes) -> int:
    """How many objects, arrays, strings, numbers and literals there are, keys not counted."""
    bare = _skeleton(data).translate(None, b" \t\r\n")
    opened = bare.count(b"{") + bare.count(b"[") - bare.count(b"{}") - bare.count(b"[]")
    return 1 + bare.count(b",") + opened


def has_longer_number(data: bytes, limit: int) -> bool:
    """Whether a number is written with more than *limit* digits."""
    run = limit // 3 or 1  # whole part, fraction, exponent: one of the three has at least so many digits in a row
    step = run // 4 or 1  # and no run so long hides from samples
    if data[::step].translate(_ZEROS).find(b"0" * (run // step)) < 0 or data.translate(_ZEROS).find(b"0" * run) < 0:
        return False
    numbers = _NUMBER.finditer(_skeleton(data))
    return any(len(number.group().translate(None, b".eE+-")) > limit for number in numbers)
