"""Arguments that arrive as objects: a private plain copy, measured while it is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from callgate.tools.arguments.parse_errors import ParseError, beyond, not_an_object
from callgate.tools.limits import DEFAULT_LIMITS, MOST_ALIKE, Limits
from callgate.tools.values import SCALARS

_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_value(value: Mapping[str, object], limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:
    """Copy an object that a provider or caller sent into plain JSON values.

    The copy shares nothing mutable with *value*. Tuples become lists; subclasses of JSON's types, such as
    ``StrEnum`` members, become the plain value.

    Raises:
        ParseError: a part of it is not JSON, or it exceeds the *limits*; a cycle is too deep.
    """
    if not isinstance(value, (dict, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise not_an_object(value)
    if isinstance(value, dict):
        flat: dict[str, Any] = dict.copy(value)  # a thread may change the original meanwhile
        if is_flat_object(flat, limits):
            return flat
        value = flat
    used = [1, 0]
    copy = _object(value, limits, 1, used)
    if used[0] > MOST_ALIKE:
        refuse_collisions(copy, limits)
    return copy


def refuse_collisions(value: dict[str, Any], limits: Limits) -> None:
    """Refuse arguments of which Python would make a slow set or dict.

    Raises:
        ParseError: many numbers have one hash.
    """
    from callgate.tools.arguments.collisions import collide  # with decimal; most arguments have few values

    if collide(value):
        raise beyond("numbers_collide", limits)


def is_flat_object(value: Mapping[str, object], limits: Limits) -> bool:
    """Return True for an object of plain scalars within the limits, as most arguments are; the encoder looks at each."""
    for item in value.values():  # a loop costs less than a set of the types for so few
        if type(item) not in SCALARS:  # not `__class__`, which a subclass can override
            return False
    try:
        data = orjson.dumps(value)  # refuses surrogates, integers of over 64 bits, and keys that are no strings
    except TypeError:
        return False
    if len(data) > limits.small_object or data.find(b"\\u0000") >= 0:  # `in` would try bytes as an index
        return False
    return data.find(b"null") < 0 or float not in map(type, value.values())  # null may stand for NaN or infinity


def _object(value: Mapping[Any, object], limits: Limits, depth: int, used: list[int]) -> dict[str, Any]:
    """Copy an object; *used* counts the values and characters of the whole."""
    copy: dict[str, object] = {}
    items = dict.items(value) if isinstance(value, dict) else value.items()  # not the methods of a subclass
    _enter(len(items), limits, depth, used)
    for key, item in items:
        if not isinstance(key, str):
            raise ParseError("not_json", "a key that is not a string")
        copy[_text(str.__str__(key), limits, used)] = _plain(item, limits, depth + 1, used)
    if len(copy) != len(items):
        raise ParseError("duplicate_key", "a key occurs twice in one object")
    return copy


def _plain(value: object, limits: Limits, depth: int, used: list[int]) -> object:
    """Copy a value. It is made plain before it is checked: a method of a subclass may return something else."""
    if isinstance(value, str):
        return _text(str.__str__(value), limits, used)
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        value = int.__int__(value)
        if value.bit_length() > limits.small_bits:
            _grow(value.bit_length() // 4, limits, used)
            if abs(value) >= 10**limits.max_digits:
                raise beyond("number_too_long", limits)
        return value
    if isinstance(value, float):
        value = float.__float__(value)
        if value - value != 0.0:
            raise ParseError("not_finite", "NaN and infinity are not JSON")
        return value
    if isinstance(value, (dict, Mapping)):
        return _object(value, limits, depth, used)
    if isinstance(value, (list, tuple)):
        items: list[Any] = list.copy(value) if isinstance(value, list) else list(tuple.__iter__(value))
        _enter(len(items), limits, depth, used)
        return [_plain(item, limits, depth + 1, used) for item in items]
    raise ParseError("not_json", "a value that JSON does not have")


def _enter(count: int, limits: Limits, depth: int, used: list[int]) -> None:
    used[0] += count
    if depth > limits.max_depth:
        raise beyond("too_deep", limits)
    if used[0] > limits.max_nodes:
        raise beyond("too_many_values", limits)


def _grow(characters: int, limits: Limits, used: list[int]) -> None:
    used[1] += characters
    if used[0] + used[1] > limits.max_bytes:
        raise beyond("too_large", limits)


def _text(text: str, limits: Limits, used: list[int]) -> str:
    _grow(len(text), limits, used)
    if "\0" in text:
        raise ParseError("nul", "a string holds a NUL character")
    if not text.isascii() and _SURROGATE.search(text):
        raise ParseError("lone_surrogate", "half of a surrogate pair")
    return text
