"""JSON of which a parser loses a part: the fraction of ``0.99999999999999999999``, which is 1, and keys that occur twice.

The parser of arguments refuses both in a text. Hosts and wires that parse a whole message look for them here, before they
are gone: a host refuses the message, and a wire hands the arguments on as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from jiter import from_json

_DIGITS = bytes.maketrans(b".123456789E", b"0000000000e")
_ARGUMENTS = (b'"args"', b'"arguments"', b'"input"', b'"parameters"')
"""The members of a provider's message that hold arguments."""
_MAX_VALUES = 100_000
"""Maximum number of values that are looked at: no tool takes more."""
_LONG, _SMALL = b"0" * 17, b"e-000"
"""With zeros for digits and point: what each number with a lost fraction has, its digits or its exponent."""


class LostFraction(float):
    """The whole float of a number that is not whole; ``text`` is the number as it was written."""

    __slots__ = ("text",)

    text: str


class RepeatedKeys(dict[str, object]):
    """An object in which a key occurs twice; ``pairs`` has all members."""

    __slots__ = ("pairs",)

    pairs: list[tuple[str, object]]


def exact_json(data: bytes) -> object:
    """Parse JSON; a float that has lost a fraction is a ``LostFraction``, and an object may have ``RepeatedKeys``.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        value = from_json(data, catch_duplicate_keys=True)
    except ValueError:
        from_json(data)  # raises, unless a key occurs twice
    else:
        if not _may_lose(data):
            return value
    return exact_loads(data)


def exact_event(data: bytes) -> object:
    """Parse an event of a provider's stream, as ``exact_json`` if it has arguments: most events have none."""
    for name in _ARGUMENTS:
        if data.find(name) >= 0:
            return exact_json(data)
    return from_json(data)


def exact_loads(text: str | bytes, *, strict: bool = True) -> object:
    """Parse JSON as ``json.loads`` does; see ``exact_json``."""
    return json.loads(text, parse_float=_float, object_pairs_hook=_object, strict=strict)


def exact_text(value: object) -> str | None:
    """Return the JSON text of a value as it was written, with what a parser loses; None if nothing is lost."""
    try:
        return _written(value) if _holds(value) else None
    except RecursionError:  # too deep for any tool
        return None


def loses_fraction(data: bytes) -> bool:
    """Return True if a JSON text has a number whose fraction a float loses; False for what is no JSON."""
    if not _may_lose(data):
        return False
    found: list[str] = []

    def read(text: str) -> float:
        value = float(text)
        if value.is_integer() and _has_fraction(text):
            found.append(text)
        return value

    try:
        json.loads(data, parse_float=read, parse_int=len)
    except (ValueError, RecursionError):
        return False
    return bool(found)


def what_is_lost(data: bytes) -> str | None:
    """Return what a parser would lose of a JSON text, as a sentence for its sender; None for nothing, and for no JSON."""
    try:
        from_json(data, catch_duplicate_keys=True)
    except ValueError:
        try:
            from_json(data)
        except ValueError:
            return None
        return "A key occurs twice in one object."
    return "A number has a fraction that a float loses: write fewer digits." if loses_fraction(data) else None


def _may_lose(data: bytes) -> bool:
    shape = data.translate(_DIGITS)
    return shape.find(_LONG) >= 0 or shape.find(_SMALL) >= 0  # `in` would try bytes as an index


def _has_fraction(text: str) -> bool:
    from decimal import Decimal  # few texts have a whole float

    try:
        sent = Decimal(text)
        return sent != sent.to_integral_value()
    except ArithmeticError:  # an exponent beyond those of ``Decimal`` belongs to a fraction, too
        return True


def _float(text: str) -> float:
    found = float(text)
    if not found.is_integer() or not _has_fraction(text):
        return found
    lost = LostFraction(found)
    lost.text = text
    return lost


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated = RepeatedKeys(found)
    repeated.pairs = pairs
    return repeated


def _holds(value: object) -> bool:
    waiting, left = [value], _MAX_VALUES
    while waiting and (left := left - 1):
        one = waiting.pop()
        if one.__class__ is RepeatedKeys or one.__class__ is LostFraction:
            return True
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return False


def _written(value: object) -> str:
    if isinstance(value, Mapping):
        pairs = value.pairs if isinstance(value, RepeatedKeys) else value.items()
        return "{" + ", ".join(f"{json.dumps(name)}: {_written(item)}" for name, item in pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return value.text if isinstance(value, LostFraction) else json.dumps(value)
