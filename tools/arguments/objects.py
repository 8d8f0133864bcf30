"""Arguments that arrive as objects: a private plain copy, measured while it is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from callgate.tools.arguments.parse_errors import ParseError, beyond, not_an_object
from callgate.tools.limits import DEFAULT_LIMITS, Limits

_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_value(value: Mapping[str, object], limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:  # noqa: C901 - one loop, unrolled
    """Copy an object that a provider or caller sent into plain JSON values.

    The copy shares nothing mutable with *value*. Tuples become lists; subclasses of JSON's types, such as
    ``StrEnum`` members, become the plain value.

    Raises:
        ParseError: a part of it is not JSON, or it exceeds the *limits*; a cycle is too deep.
    """
    if not isinstance(value, (dict, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise not_an_object(value)
    if not isinstance(value, dict):
        return _object(value, limits, 1, [1, 0])
    copy: dict[str, Any] = dict(value)
    size, bits = 0, limits.small_bits
    for key, item in copy.items():  # most arguments are flat and plain; all others take the full walk
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


def _object(value: Mapping[Any, object], limits: Limits, depth: int, used: list[int]) -> dict[str, Any]:
    """Copy an object; *used* counts the values and characters of the whole."""
    copy: dict[str, Any] = {}
    _enter(len(value), limits, depth, used)
    for key, item in value.items():
        if not isinstance(key, str):
            raise ParseError("not_json", "a key that is not a string")
        copy[_text(key, limits, used)] = _plain(item, limits, depth + 1, used)
    if len(copy) != len(value):
        raise ParseError("duplicate_key", "a key occurs twice in one object")
    return copy


def _plain(value: object, limits: Limits, depth: int, used: list[int]) -> object:
    if isinstance(value, str):
        return _text(value, limits, used)
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        if value.bit_length() > limits.small_bits:
            _grow(value.bit_length() // 4, limits, used)
            if abs(value) >= 10**limits.max_digits:
                raise beyond("number_too_long", limits)
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
    return str.__str__(text)
