"""Strict parsing of arguments: text or objects from outside become plain JSON objects within limits.

``parse_strict`` reads JSON text only. ``parse_arguments`` also copies objects, and may read almost-JSON once by the
named rules of ``callgate.tools.arguments.tolerance``. Both return a private ``dict`` of plain JSON values, or raise
``ParseError`` with a code and a position, never a value.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any, NamedTuple

from jiter import from_json

from callgate.tools.arguments.exact_json import loses_fraction
from callgate.tools.arguments.measures import admitted
from callgate.tools.arguments.objects import parse_value, refuse_collisions
from callgate.tools.arguments.parse_errors import ParseError, beyond, explained, not_an_object
from callgate.tools.arguments.tolerance import tolerate
from callgate.tools.limits import DEFAULT_LIMITS, MOST_ALIKE, Limits

_INFINITIES = frozenset({float("inf"), float("-inf")})
_CAN_HIDE_INFINITY = frozenset({float, dict, list})
_REPAIRABLE = frozenset({"invalid_json", "empty", "not_an_object"})


class Parsed(NamedTuple):
    """Parsed arguments and the way they were read.

    ``rules`` names the applied tolerance rules; it is empty when the input was strict. Only for tolerated input are
    ``original`` (the received text, None where there was none) and ``effective`` (the parsed text) kept.
    """

    value: dict[str, object]
    rules: tuple[str, ...] = ()
    original: str | None = None
    effective: str | None = None

    @property
    def raw_sha256(self) -> str | None:
        """SHA-256 of the received text, as hex; None when the input was strict or not text."""
        return None if self.original is None else hashlib.sha256(self.original.encode()).hexdigest()

    @property
    def effective_sha256(self) -> str | None:
        """SHA-256 of the text that was parsed instead, as hex; None when the input was strict."""
        return None if self.effective is None else hashlib.sha256(self.effective.encode()).hexdigest()


_strictly = partial(tuple.__new__, Parsed)  # as the class does, without a Python frame


def parse_arguments(
    raw: Any,
    *,
    limits: Limits = DEFAULT_LIMITS,
    tolerant: bool = True,
    truncated: bool = False,
    takes_nothing: bool = False,
    exact: bool = False,
) -> Parsed:
    """Parse arguments as a provider sent them: JSON text, an object, or None.

    *truncated* says that the provider stopped for length; the arguments are refused, because a cut text can be valid JSON.
    *tolerant* allows one reading by the rules of ``callgate.tools.arguments.tolerance``; turn it off for irreversible
    tools. None means that the provider sent no arguments, as Ollama and Gemini do for a tool without parameters. Like
    empty text it is read as ``{}`` by the rule ``empty``. Where *tolerant* is off it is refused, unless *takes_nothing*
    says that the tool accepts nothing but ``{}``. The JSON text ``null`` is always refused: the model wrote it, and it is
    not an object. *exact* refuses a number in the text whose fraction a float loses: ``0.99999999999999999999`` would be 1.

    Raises:
        ParseError: the arguments cannot be read, or exceed the *limits*.
    """
    if truncated:
        raise ParseError("truncated", "the model's output was cut off")
    if raw is None:
        if not tolerant and not takes_nothing:
            raise ParseError("null", "no arguments were sent; send a JSON object")
        return Parsed({}, ("empty",), None, "{}")
    if type(raw) is not str and not isinstance(raw, (str, bytes, bytearray)):
        return _strictly((parse_value(raw, limits), (), None, None))
    if type(raw) is not str:
        raw = _as_text(raw, limits)
    try:
        value = parse_strict(raw, limits)
        if not exact or not loses_fraction(raw.encode()):
            return _strictly((value, (), None, None))
        problem = ParseError("number_rounded", "a number has a fraction that is lost in a float; write fewer digits")
    except ParseError as error:
        problem = error
    if problem.code not in _REPAIRABLE or not (tolerant or (takes_nothing and problem.code == "empty")):
        raise problem
    return _parse_tolerated(raw, limits, problem)


def _parse_tolerated(text: str, limits: Limits, problem: ParseError) -> Parsed:
    """Parse the tolerated text as strictly as the first; raise *problem* where that does not help."""
    tolerated = tolerate(text)
    if tolerated is None:
        raise problem
    try:
        return Parsed(parse_strict(tolerated.text, limits), tolerated.rules, text, tolerated.text)
    except ParseError as error:
        second = error
    if second.code in _REPAIRABLE:
        raise problem
    raise ParseError(second.code, second.detail)  # the position belongs to the other text


def parse_strict(text: str | bytes | bytearray, limits: Limits = DEFAULT_LIMITS) -> dict[str, object]:
    """Parse a text that is exactly one JSON object.

    Duplicate keys, NaN, infinities, numbers that overflow, lone surrogates and NUL characters are refused. This runs
    in every call, so checks that a small text cannot fail are skipped.

    Raises:
        ParseError: the text is anything else, or exceeds the *limits*.
    """
    if type(text) is not str:  # not `__class__`, which a subclass can override
        text = _as_text(text, limits)
    small = len(text) <= limits.small_text
    try:
        data = text.encode() if small else admitted(text, limits)
        value = from_json(data, catch_duplicate_keys=True, allow_inf_nan=False, cache_mode="none")
    except ParseError:
        raise
    except ValueError as error:
        problem = explained(error, text)
    else:
        if type(value) is dict:
            _check_values(value, text, limits, small)
            return value
        problem = not_an_object(value)
    raise problem  # outside of `except`: the parser's own error may quote a key, and would stay as its context


def _check_values(value: dict[str, object], text: str, limits: Limits, small: bool) -> None:
    # jiter reads 1e999 as infinity, which takes an exponent or more than 308 digits.
    if small or "e" in text or "E" in text or len(text) > 308:
        for item in value.values():
            if type(item) in _CAN_HIDE_INFINITY and _holds_infinity(item):
                raise ParseError("number_overflow", "a number is too large for a float")
    if "\\u0000" in text and "\\u0000" in text.replace("\\\\", ""):
        raise ParseError("nul", "a string holds a NUL character")
    if not small and text.count(",") >= MOST_ALIKE:
        refuse_collisions(value, limits)


def _as_text(raw: object, limits: Limits) -> str:
    if isinstance(raw, str):
        return str.__str__(raw)
    if not isinstance(raw, (bytes, bytearray)):
        raise ParseError("not_text", "the arguments are neither text nor an object")
    data = memoryview(raw)
    if data.nbytes > limits.max_bytes:
        raise beyond("too_large", limits)
    try:
        return str(data, "utf-8")
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
