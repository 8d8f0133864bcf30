"""Measures of a text before it is parsed: depth, values, digits.

They are exact for valid JSON, and upper bounds of what a parser builds for other text. Their time is linear in the
length of the text, because an attacker may choose it.
"""

from __future__ import annotations

import re

from callgate.tools.arguments.parse_errors import beyond
from callgate.tools.limits import Limits

_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_NUMBER = re.compile(rb"[0-9][0-9.eE+-]*+")


def admitted(text: str, limits: Limits) -> bytes:
    """Encode a text and check its limits."""
    if len(text) > limits.max_bytes or len(data := text.encode()) > limits.max_bytes:
        raise beyond("too_large", limits)
    # Removing a bounded number of brackets is faster than counting all of them.
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
    """Remove escaped backslashes and quotes, so that the remaining quotes delimit strings."""
    return data.replace(b"\\\\", b"").replace(b'\\"', b"")


def _skeleton(data: bytes) -> bytes:
    """The text outside of strings; each string leaves one quote."""
    return b'"'.join(_unescaped(data).split(b'"')[::2])


def deeper(data: bytes, limit: int) -> bool:
    """Check for objects and arrays that nest deeper than *limit*."""
    marks = _unescaped(data).translate(_SQUARE, _NOT_STRUCTURE).replace(b'""', b"")
    if b'"' in marks:  # strings with brackets in them
        marks = b"".join(marks.split(b'"')[::2])
    depth = 0
    while depth < limit and len(peeled := marks.replace(b"[]", b"")) < len(marks):  # the innermost level, all at once
        marks = peeled
        depth += 1
    return depth + marks.count(b"[") > limit


def count_values(data: bytes) -> int:
    """Count objects, arrays, strings, numbers and literals; keys are not counted."""
    bare = _skeleton(data).translate(None, b" \t\r\n")
    opened = bare.count(b"{") + bare.count(b"[") - bare.count(b"{}") - bare.count(b"[]")
    return 1 + bare.count(b",") + opened


def has_longer_number(data: bytes, limit: int) -> bool:
    """Check for a number with more than *limit* digits."""
    run = limit // 3 or 1  # one of whole part, fraction and exponent has at least this many digits in a row
    step = run // 4 or 1  # a run of this length cannot lie between the samples
    if data[::step].translate(_ZEROS).find(b"0" * (run // step)) < 0 or data.translate(_ZEROS).find(b"0" * run) < 0:
        return False
    numbers = _NUMBER.finditer(_skeleton(data))
    return any(len(number.group().translate(None, b".eE+-")) > limit for number in numbers)
