"""Errors for arguments that cannot be parsed: a code and a position, never a value."""

from __future__ import annotations

import re
from typing import Literal

from callgate.tools.limits import Limits

REFUSAL_CODES = {"parse": "invalid_json", "validate": "invalid_arguments"}
"""The codes of refused calls by the stage of hydration."""


class ParseError(ValueError):
    """Arguments were refused before validation. The error holds nothing of the input.

    ``code`` is stable: ``too_large``, ``too_deep``, ``too_many_values``, ``number_too_long``, ``number_overflow``,
    ``number_rounded``, ``numbers_collide``, ``not_finite``, ``duplicate_key``, ``lone_surrogate``, ``nul``, ``not_text``,
    ``not_json``, ``not_an_object``, ``null``, ``empty``, ``truncated``, ``invalid_json``.
    ``position`` is the index, from 0, of the character at which the parser stopped; None where it is unknown.
    ``public`` is text that a model may read. ``stage`` is that of hydration: ``validate`` for JSON that is not an object.
    """

    stage: Literal["parse", "validate"] = "parse"

    def __init__(self, code: str, detail: str, position: int | None = None) -> None:
        super().__init__(code, detail, position)
        self.code = code
        self.detail = detail
        self.position = position

    @property
    def public(self) -> str:
        """The cause and the position, without values."""
        where = "" if self.position is None else f" at character {self.position}"
        return f"Invalid tool arguments JSON: {self.detail}{where}"

    def __str__(self) -> str:
        return self.public


_BEYOND = {
    "too_large": "longer than {0.max_bytes} bytes",
    "too_deep": "nested deeper than {0.max_depth} levels",
    "too_many_values": "more than {0.max_nodes} values",
    "number_too_long": "a number has more than {0.max_digits} digits",
    "numbers_collide": "many numbers have one hash",
}


def beyond(code: str, limits: Limits) -> ParseError:
    """The error for an exceeded limit."""
    return ParseError(code, _BEYOND[code].format(limits))


def not_an_object(value: object) -> ParseError:
    """The error for JSON that is not an object; null has a code of its own."""
    error = ParseError("null" if value is None else "not_an_object", "the arguments must be a JSON object")
    error.stage = "validate"
    return error


# ------------------------------------------------------------------------------------------ errors of jiter

_LINE_AND_COLUMN = re.compile(r" at line ([0-9]{1,9}) column ([0-9]{1,9})\Z")
_REFUSED = {  # a phrase of jiter's; never repaired
    "duplicate key": ("duplicate_key", "a key occurs twice in one object"),
    "recursion limit": ("too_deep", "nested too deep"),
    "number out of range": ("number_too_long", "a number has too many digits"),
    "surrogate": ("lone_surrogate", "half of a surrogate pair"),
    "end of hex escape": ("lone_surrogate", "half of a surrogate pair"),
}
# Phrases of jiter's that are shown as they are. Any other could quote the input, and is not shown.
_SHOWN = re.compile(
    "trailing comma|trailing characters|key must be a string|control character|invalid escape|invalid number"
    r"|expected value|expected `[:,\]}]`(?: or `[\]}]`)?"
)


def explained(error: ValueError, text: str) -> ParseError:
    """Translate the parser's error about *text*: its own message may quote a key."""
    if isinstance(error, UnicodeEncodeError):
        return ParseError("lone_surrogate", "half of a surrogate pair", error.start)
    message = str(error)
    phrase = message.partition('"')[0].lower()  # what follows a quote is a key of the input
    position = _position(message, text)
    if phrase.startswith("eof"):
        if not text.strip(" \t\r\n"):
            return ParseError("empty", "there is no text")
        return ParseError("truncated", "the text ends early", len(text))
    there = "" if position is None else text[position : position + 8]
    if there.startswith(("NaN", "Infinity")):
        return ParseError("not_finite", "NaN and infinity are not JSON", position)
    if there.startswith("\0"):
        return ParseError("nul", "a NUL character", position)
    for known, (code, detail) in _REFUSED.items():
        if known in phrase:
            return ParseError(code, detail, position)
    shown = _SHOWN.search(phrase)
    return ParseError("invalid_json", shown[0] if shown else "not JSON", position)


def _position(message: str, text: str) -> int | None:
    """The position in characters from 0; jiter counts lines and bytes from 1."""
    where = _LINE_AND_COLUMN.search(message)
    if where is None:
        return None
    data, start = text.encode(), 0
    for _ in range(int(where[1]) - 1):
        start = data.find(b"\n", start) + 1
    stop = start + int(where[2]) - 1
    return len(data[: max(stop, 0)].decode(errors="ignore"))
