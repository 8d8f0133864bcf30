"""JSON values: frozen containers, copies, canonical bytes, pointers. Pure; imports nothing of Callgate."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import orjson

SCALARS = frozenset({str, int, float, bool, type(None)})


_Dict: Any = dict[str, Any]  # the mutators are replaced by a refusal, which has another type
_List: Any = list[Any]


class FrozenDict(_Dict):  # type: ignore[misc]
    """A ``dict`` that cannot change; still a dict to JSON encoders, validators and ``==``."""

    __slots__ = ()

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError("this value is frozen; copy it with dict() or copy.deepcopy() to change it")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, _memo: dict[int, Any]) -> dict[str, Any]:
        return {key: thaw(value) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return freeze, (thaw(self),)

    def __hash__(self) -> int:
        return hash(canonical(self))


class FrozenList(_List):  # type: ignore[misc]
    """A ``list`` that cannot change."""

    __slots__ = ()

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError("this value is frozen; copy it with list() or copy.deepcopy() to change it")

    __setitem__ = __delitem__ = append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __iadd__ = __imul__ = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, _memo: dict[int, Any]) -> list[Any]:
        return [thaw(value) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return freeze, (thaw(self),)

    def __hash__(self) -> int:
        return hash(canonical(self))


def freeze(value: Any) -> Any:
    """Freeze a JSON value deeply, in a copy."""
    if value.__class__ is dict or isinstance(value, Mapping):
        return FrozenDict({key: item if item.__class__ in SCALARS else freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return FrozenList([item if item.__class__ in SCALARS else freeze(item) for item in value])
    return value


def thaw(value: Any) -> Any:
    """Copy a JSON value deeply into plain, mutable containers."""
    if isinstance(value, dict):
        return {key: item if item.__class__ in SCALARS else thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item if item.__class__ in SCALARS else thaw(item) for item in value]
    return value


def canonical(value: Any) -> bytes:
    """Encode as canonical JSON: sorted keys, no white space, UTF-8; the same bytes for ``2`` and ``2.0``.

    Raises:
        TypeError: the value is not JSON.
        ValueError: a number is not finite.
    """
    return json.dumps(
        _canonical_numbers(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8", "surrogatepass")


def _canonical_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical_numbers(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, as hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


PLAIN = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
FLOAT = re.compile(rb"(?:^|[:,\[])-?[0-9]+[.eE]")
"""A float as a token of JSON; it may also match inside of a string."""


def canonical_fast(value: Any) -> bytes:
    """Encode like ``canonical``, with the fast encoder where no part looks like a float."""
    try:
        data = orjson.dumps(value, option=PLAIN)
    except TypeError:
        return canonical(value)
    return canonical(value) if FLOAT.search(data) else data


def hash_of(value: Any) -> str:
    """SHA-256 of the canonical JSON, as hex; the same as ``digest``, faster."""
    return hashlib.sha256(canonical_fast(value)).hexdigest()


json_bytes = orjson.dumps
"""Encode as JSON, fast; raises ``TypeError`` for other values and for integers beyond 64 bits (see ``dump``)."""


def dump(value: Any) -> bytes:
    """Encode as JSON, integers beyond 64 bits included; raises ``TypeError`` for other values."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def compact(data: bytes) -> bytes:
    """Copy bytes for storage: the result of the fast encoder occupies 4 kB of memory, however short it is."""
    return b"%b" % data


def snapshot(value: Any) -> bytes | None:
    """Encode a value for a history; None when it is not JSON."""
    try:
        return compact(json_bytes(value))
    except TypeError:
        return None


def pointer(path: Iterable[str | int]) -> str:
    """Make a JSON Pointer (RFC 6901) from path segments; the root is the empty string."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def clip(text: str, limit: int = 80) -> str:
    """Make foreign text safe to show: control characters escaped, cut at *limit* characters."""
    shown = text.encode("unicode_escape", "backslashreplace").decode() if not text.isprintable() else text
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
