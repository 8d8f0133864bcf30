"""Arguments, read strictly: text or objects from outside become plain JSON objects, under limits (contract 44-47).

``parse_strict`` reads JSON text and nothing else; ``parse_value`` copies what is an object already; ``parse_arguments``
takes either and may, once, read almost-JSON by the named rules of ``callgate.tools.tolerance``. All of them return a
plain ``dict`` of plain JSON values that nobody else holds, or raise ``ParseError``: a code and a place, never a value.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple, cast

from jiter import from_json

from callgate.tools.tolerance import count_values, deeper, has_longer_number, tolerate

__all__ = ["DEFAULT_LIMITS", "Limits", "ParseError", "Parsed", "parse_arguments", "parse_strict", "parse_value"]

_INFINITIES = frozenset({float("inf"), float("-inf")})
_CAN_HIDE_INFINITY = frozenset({float, dict, list})
_PARSER_BOUNDS = {"max_depth": 200, "max_digits": 4300}  # jiter and Python go no further
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPAIRABLE = frozenset({"invalid_json", "empty", "not_an_object"})


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one tool call may bring or return (design §10.9). Each limit is the greatest size still allowed.

    ``max_bytes``: raw argument text, in UTF-8 bytes. An object that never was text is measured by a lower bound of
    the JSON it would make: characters of its keys and strings, and one for each value.
    ``max_depth``: nested objects and arrays, the arguments themselves included; at most 200.
    ``max_nodes``: values, that is objects, arrays, strings, numbers and literals; keys are not counted.
    ``max_digits``: digits of one number, as written; at most 4300.
    ``max_output_bytes``: JSON of a tool's output, in bytes; parsing does not use it.

    Raises:
        ValueError: a limit is not a positive integer, or beyond what the parser can hold to.
    """

    max_bytes: int = 262_144
    max_depth: int = 64
    max_nodes: int = 50_000
    max_digits: int = 400
    max_output_bytes: int = 1_048_576
    _small: int = field(init=False, repr=False, compare=False)  # characters that cannot break any of these
    _bits: int = field(init=False, repr=False, compare=False)  # an integer of so few bits has no more digits

    def __post_init__(self) -> None:
        for name in (entry.name for entry in fields(self) if entry.init):
            value, bound = getattr(self, name), _PARSER_BOUNDS.get(name)
            if type(value) is not int or value < 1 or (bound is not None and value > bound):
                raise ValueError(f"{name} must be a positive integer" + (f", {bound} at most" if bound else ""))
        small = min(self.max_bytes // 4, 2 * self.max_depth + 1, self.max_nodes, self.max_digits)
        object.__setattr__(self, "_small", small)
        object.__setattr__(self, "_bits", 3 * self.max_digits)


DEFAULT_LIMITS = Limits()


class ParseError(ValueError):
    """Arguments that are refused before any schema is asked (contract 34, 47). Nothing in it comes from the input.

    ``code`` is stable: ``too_large``, ``too_deep``, ``too_many_values``, ``number_too_long``, ``number_overflow``,
    ``not_finite``, ``duplicate_key``, ``lone_surrogate``, ``nul``, ``not_text``, ``not_json``, ``not_an_object``,
    ``null``, ``empty``, ``truncated``, ``invalid_json``.
    ``position`` is the index of the character at which reading stopped, from 0, where it is known.
    ``public`` is text that a model may read.
    """

    def __init__(self, code: str, detail: str, position: int | None = None) -> None:
        super().__init__(code, detail, position)
        self.code = code
        self.detail = detail
        self.position = position

    @property
    def public(self) -> str:
        """What is wrong and where, without values."""
        place = "" if self.position is None else f" at character {self.position}"
        return f"Invalid tool arguments JSON: {self.detail}{place}"

    def __str__(self) -> str:
        return self.public


class Parsed(NamedTuple):
    """Arguments, and how they were read (contract 46).

    ``rules`` names the tolerance applied; it is empty when the input was strict. Only otherwise are ``original`` (the
    text received, None where there was none) and ``effective`` (the text parsed) kept, and hashed when asked for.
    """

    value: dict[str, Any]
    rules: tuple[str, ...] = ()
    original: str | None = None
    effective: str | None = None

    @property
    def raw_sha256(self) -> str | None:
        """SHA-256 of the text received, as hex; None when the input was strict or no text."""
        return None if self.original is None else hashlib.sha256(self.original.encode()).hexdigest()

    @property
    def effective_sha256(self) -> str | None:
        """SHA-256 of the text that was parsed in its stead, as hex; None when the input was strict."""
        return None if self.effective is None else hashlib.sha256(self.effective.encode()).hexdigest()


_strictly = partial(tuple.__new__, Parsed)  # what the class does, less a Python frame


def parse_arguments(
    raw: Any, *, limits: Limits = DEFAULT_LIMITS, tolerant: bool = True, truncated: bool = False
) -> Parsed:
    """Arguments as a provider sent them: JSON text, an object, or None (contract 44-47, C10d).

    *truncated* says that the provider stopped for length: refused whatever the text, for a cut text can be valid JSON.
    *tolerant* allows one reading by the rules of ``callgate.tools.tolerance``; turn it off for irreversible tools.
    None means that the provider sent no arguments, as Ollama and Gemini do for a tool without parameters: like empty
    text it is ``{}`` by the rule ``empty``, for the schema to judge, and refused where *tolerant* is off. The JSON
    text ``null`` is something that the model wrote, and no object: always refused.

    Raises:
        ParseError: in every other case.
    """
    if truncated:
        raise ParseError("truncated", "the model's output was cut off")
    if raw is None:
        if not tolerant:
            raise ParseError("null", "no arguments were sent")
        return Parsed({}, ("empty",), None, "{}")
    if raw.__class__ is not str and not isinstance(raw, (str, bytes, bytearray)):
        return _strictly((parse_value(raw, limits), (), None, None))
    try:
        return _strictly((parse_strict(raw, limits), (), None, None))
    except ParseError as error:
        problem = error
    if not tolerant or problem.code not in _REPAIRABLE:
        raise problem
    return _parse_tolerated(_as_text(raw, limits), limits, problem)


def _parse_tolerated(text: str, limits: Limits, problem: ParseError) -> Parsed:
    """One re-spelling, read as strictly as the first; *problem*, with its place, stands where that does not help."""
    tolerated = tolerate(text)
    if tolerated is None:
        raise problem
    try:
        return Parsed(parse_strict(tolerated.text, limits), tolerated.rules, text, tolerated.text)
    except ParseError as error:
        again = error
    if again.code in _REPAIRABLE:
        raise problem
    raise ParseError(again.code, again.detail)  # its place is one in the other text


def parse_strict(text: str | bytes | bytearray, limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:
    """The JSON object that *text* is, exactly (contract 44, B1).

    Duplicate keys, NaN, infinities and numbers that overflow to one, lone surrogates and NUL characters are refused.
    This is on the path of every call: what a small text cannot break is not looked at.

    Raises:
        ParseError: it is anything else, or beyond the *limits*.
    """
    if not isinstance(text, str):
        text = _as_text(text, limits)
    small = len(text) <= limits._small
    try:
        data = text.encode() if small else _admitted(text, limits)
        value = from_json(data, catch_duplicate_keys=True, allow_inf_nan=False, cache_mode="none")
    except ParseError:
        raise
    except ValueError as error:
        problem = _explained(error, text)
    else:
        if type(value) is dict:
            # jiter reads 1e999 as infinity, which takes an exponent or more than 308 digits.
            if small or "e" in text or "E" in text or len(text) > 308:
                for item in value.values():
                    if type(item) in _CAN_HIDE_INFINITY and _holds_infinity(item):
                        raise ParseError("number_overflow", "a number is too large for a float")
            if "\\u0000" in text and "\\u0000" in text.replace("\\\\", ""):
                raise ParseError("nul", "a string holds a NUL character")
            return value
        problem = _not_an_object(value)
    raise problem  # outside of `except`: the parser's own error may quote a key, and would hang on as its context


def _not_an_object(value: Any) -> ParseError:
    return ParseError("null" if value is None else "not_an_object", "the arguments must be a JSON object")


def _as_text(raw: Any, limits: Limits) -> str:
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, (bytes, bytearray)):
        raise ParseError("not_text", "the arguments are neither text nor an object")
    if len(raw) > limits.max_bytes:
        raise _beyond("too_large", limits)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        pass
    raise ParseError("not_text", "the text is not UTF-8")


def _holds_infinity(value: Any) -> bool:
    if type(value) is float:
        return value in _INFINITIES
    for item in value.values() if type(value) is dict else value:
        if type(item) in _CAN_HIDE_INFINITY and _holds_infinity(item):
            return True
    return False


_BEYOND = {
    "too_large": "longer than {0.max_bytes} bytes",
    "too_deep": "nested deeper than {0.max_depth} levels",
    "too_many_values": "more than {0.max_nodes} values",
    "number_too_long": "a number has more than {0.max_digits} digits",
}


def _beyond(code: str, limits: Limits) -> ParseError:
    return ParseError(code, _BEYOND[code].format(limits))


def _admitted(text: str, limits: Limits) -> bytes:
    """The bytes of a text within the limits."""
    if len(text) > limits.max_bytes or len(data := text.encode()) > limits.max_bytes:
        raise _beyond("too_large", limits)
    # Taking out no more than would be too many is faster than counting them all.
    few = limits.max_depth + 1
    brackets = 2 * len(data) - len(data.replace(b"{", b"", few)) - len(data.replace(b"[", b"", few))
    if brackets > limits.max_depth and deeper(data, limits.max_depth):
        raise _beyond("too_deep", limits)
    if len(data) > limits.max_nodes and count_values(data) > limits.max_nodes:
        raise _beyond("too_many_values", limits)
    if len(data) > limits.max_digits and has_longer_number(data, limits.max_digits):
        raise _beyond("number_too_long", limits)
    return data


# ------------------------------------------------------------------------------------------ what jiter says, in our words

_PLACE = re.compile(r" at line ([0-9]{1,9}) column ([0-9]{1,9})\Z")
_REFUSED = {  # a phrase of jiter's: never repaired
    "duplicate key": ("duplicate_key", "a key occurs twice in one object"),
    "recursion limit": ("too_deep", "nested too deep"),
    "number out of range": ("number_too_long", "a number has too many digits"),
    "surrogate": ("lone_surrogate", "half of a surrogate pair"),
    "end of hex escape": ("lone_surrogate", "half of a surrogate pair"),
}
# Phrases of jiter's that say it well. Any other may quote the input one day, and is not shown.
_SHOWN = re.compile(
    "trailing comma|trailing characters|key must be a string|control character|invalid escape|invalid number"
    r"|expected value|expected `[:,\]}]`(?: or `[\]}]`)?"
)


def _explained(error: ValueError, text: str) -> ParseError:
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
    """In characters from 0; jiter counts lines and bytes from 1."""
    place = _PLACE.search(message)
    if place is None:
        return None
    data, start = text.encode(), 0
    for _ in range(int(place[1]) - 1):
        start = data.find(b"\n", start) + 1
    stop = start + int(place[2]) - 1
    return len(data[: max(stop, 0)].decode(errors="ignore"))


# ------------------------------------------------------------------------------------------ what is an object already


def parse_value(value: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:  # noqa: C901 - one loop, unrolled
    """A plain copy of an object that providers or callers send as such (contract 45).

    The copy shares nothing that can change with *value*. Tuples become lists; subclasses of JSON's types, such as
    ``StrEnum`` members, become the plain value.

    Raises:
        ParseError: something in it is not JSON, or it is beyond the *limits*; a cycle is too deep.
    """
    if not isinstance(value, (dict, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _not_an_object(value)
    if not isinstance(value, dict):
        return _object(value, limits, 1, [1, 0])
    copy: dict[str, Any] = dict(value)
    size, bits = 0, limits._bits
    for key, item in copy.items():  # flat and plain, as most are; whatever is not gets the full walk
        kind = type(item)
        if kind is str:
            if not item.isascii() or "\0" in item:
                break
            size += len(item)
        elif kind is int:
            if item.bit_length() > bits:
                break
        elif kind is float:
            if item - item != 0.0:
                break
        elif kind is not bool and item is not None:
            break
        if type(key) is not str or not key.isascii() or "\0" in key:
            break
        size += len(key)
    else:
        if len(copy) < limits.max_nodes and size + len(copy) < limits.max_bytes:
            return copy
    return _object(copy, limits, 1, [1, 0])


def _object(value: Mapping[Any, Any], limits: Limits, depth: int, used: list[int]) -> dict[str, Any]:
    """*used* counts values and characters of the whole."""
    copy: dict[str, Any] = {}
    _enter(len(value), limits, depth, used)
    for key, item in value.items():
        if not isinstance(key, str):
            raise ParseError("not_json", "a key that is not a string")
        copy[_text(key, limits, used)] = _plain(item, limits, depth + 1, used)
    if len(copy) != len(value):
        raise ParseError("duplicate_key", "a key occurs twice in one object")
    return copy


def _plain(value: Any, limits: Limits, depth: int, used: list[int]) -> Any:
    if isinstance(value, str):
        return _text(value, limits, used)
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        if value.bit_length() > limits._bits:
            _grow(value.bit_length() // 4, limits, used)
            if abs(value) >= 10**limits.max_digits:
                raise _beyond("number_too_long", limits)
        return int.__int__(value)
    if isinstance(value, float):
        if value - value != 0.0:
            raise ParseError("not_finite", "NaN and infinity are not JSON")
        return float.__float__(value)
    if isinstance(value, (dict, Mapping)):
        return _object(value, limits, depth, used)
    if isinstance(value, (list, tuple)):
        items = cast("list[Any]", value)
        _enter(len(items), limits, depth, used)
        return [_plain(item, limits, depth + 1, used) for item in items]
    raise ParseError("not_json", "a value that JSON does not have")


def _enter(count: int, limits: Limits, depth: int, used: list[int]) -> None:
    used[0] += count
    if depth > limits.max_depth:
        raise _beyond("too_deep", limits)
    if used[0] > limits.max_nodes:
        raise _beyond("too_many_values", limits)


def _grow(characters: int, limits: Limits, used: list[int]) -> None:
    used[1] += characters
    if used[0] + used[1] > limits.max_bytes:
        raise _beyond("too_large", limits)


def _text(text: str, limits: Limits, used: list[int]) -> str:
    _grow(len(text), limits, used)
    if "\0" in text:
        raise ParseError("nul", "a string holds a NUL character")
    if not text.isascii() and _SURROGATE.search(text):
        raise ParseError("lone_surrogate", "half of a surrogate pair")
    return str.__str__(text)
