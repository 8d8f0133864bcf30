"""Regular expressions in schemas: their size, and their agreement between Python's ``re`` and ECMA-262."""

from __future__ import annotations

import re

MAX_WEIGHT = 65_536
_ATOM = r"(?:[A-Za-z0-9_ \-/:@]|\\[.\-/+*?()\[\]]|\[[A-Za-z0-9_\-. ]+\])"
_REPEAT = r"(?:\{\d{1,3}(?:,\d{0,3})?\}|[+*?])"
_PATTERN = re.compile(rf"\^?(?:{_ATOM}{_REPEAT}?)+\$?")
_REPEATS = re.compile(rf"(?:\\.|\[[^\]]*\])|({_REPEAT})")
_UNICODE_CLASS = re.compile(r"\\[pP]|\(\?[a-z]*i")
_CLASS_ESCAPE = re.compile(r"\\[dDsSwW]")
MAX_COST = 1_500
"""Microseconds; measured where the engine gives up, because the compiled expression has 256 KB."""
MAX_PATTERN = 128
MAX_CHOICES = 16
MAX_STATES = 64
_PLAIN_PARTS = re.compile(r"\\[^1-9k]|\[\^?\]?(?:\\.|[^\]\\])*\]")
"""Escaped characters and classes, in which ``(?=`` is plain text."""
_BACKTRACKING = {
    "lookahead": re.compile(r"\(\?[=!]"),
    "lookbehind": re.compile(r"\(\?<[=!]"),
    "a reference to a group": re.compile(r"\\[1-9k]|\(\?P="),
}


def backtracks(pattern: str) -> str | None:
    """Name what a regular expression uses that an engine of linear time cannot have, or None."""
    rest = _PLAIN_PARTS.sub("x", pattern)
    return next((feature for feature, marks in _BACKTRACKING.items() if marks.search(rest)), None)


def simple_pattern(pattern: str) -> bool:
    """Check that Python's ``re`` agrees with ECMA-262 about *pattern* and does not backtrack far.

    It has no escapes for classes (Unicode in ``re``), groups, alternatives or lookaround, and ``$`` only at the end. At
    most one repeat is unbounded, in a pattern that is anchored at the start. Bounded repeats multiply to at most 16 ways
    to match. A pattern that is tried at every position is small.
    """
    if len(pattern) > MAX_PATTERN or _PATTERN.fullmatch(pattern) is None:
        return False
    unbounded, choices = 0, 1
    for repeat in filter(None, _REPEATS.findall(pattern)):
        if repeat in "+*" or repeat.endswith(",}"):
            unbounded += 1
        elif repeat == "?":
            choices *= 2
        elif "," in repeat:
            low, high = (int(part) for part in repeat[1:-1].split(","))
            choices *= max(1, high - low + 1)
    anchored = pattern.startswith("^")
    if choices > MAX_CHOICES or unbounded > anchored:
        return False
    return (anchored and not unbounded) or pattern_weight(pattern) <= MAX_STATES


def pattern_weight(pattern: str) -> int:
    """Estimate the automaton states of a regular expression: its parts, times its counted repeats."""
    groups, last, at = [0], 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "(":
            groups.append(0)
        elif char == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif char == "{" and (end := pattern.find("}", at)) > 0:
            bounds = [int(part) for part in pattern[at + 1 : end].split(",") if part.isdecimal() and len(part) < 6]
            groups[-1] = min(MAX_WEIGHT, groups[-1] + last * max(0, max(bounds, default=1) - 1))
            at = end
        else:
            at, last = _atom(pattern, at)
            groups[-1] += last
        at += 1
    return min(MAX_WEIGHT, max(1, sum(groups)))


def pattern_cost(pattern: str) -> int:
    """Estimate the microseconds that jsonschema-rs needs to compile a regular expression.

    Its parts cost at most ``MAX_COST``. Before, it translates the escapes for classes one by one, each time in the whole
    text: 100 of them take 20 milliseconds, in which no other thread runs.
    """
    translating = 2 * len(_CLASS_ESCAPE.findall(pattern)) ** 2
    if _UNICODE_CLASS.search(pattern):
        return MAX_COST + translating
    return min(MAX_COST, 50 + 5 * pattern_weight(pattern) // 2) + translating


def _atom(pattern: str, at: int) -> tuple[int, int]:
    """The end of the atom at *at*, and its weight: a wide Unicode class costs more than one character."""
    char = pattern[at]
    if char == "\\":
        return at + 1, 2 if pattern[at + 1 : at + 2] in "pPDWS" else 1
    if char == "[":
        end = pattern.find("]", at + 2)
        wide = pattern[at + 1 : at + 2] == "^" or "\\" in pattern[at : end if end > 0 else None]
        return (end if end > 0 else len(pattern)), 2 if wide else 1
    return at, 2 if char == "." else 1
