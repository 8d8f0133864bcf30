"""JSON values: frozen containers, copies, canonical bytes, pointers. Pure; imports nothing of Callgate."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NoReturn

import orjson

SCALARS = frozenset({str, int, float, bool, type(None)})


_Dict: Any = dict[str, Any]  # the mutators are replaced by a refusal, which has another type
_List: Any = list[Any]


class FrozenDict(_Dict):  # type: ignore[misc]
    """A ``dict`` that cannot change; still a dict to JSON encoders, validators and ``==``.

    ``refusal`` is the exception of a change, as its type and text; subclasses have their own.
    """

    __slots__ = ()
    refusal: ClassVar[tuple[type[Exception], str]] = (TypeError, "this value is frozen; copy it with copy.deepcopy()")

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        kind, text = self.refusal
        raise kind(text)

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __copy__(self) -> dict[str, object]:
        return dict(self)

    def __deepcopy__(self, _memo: Mapping[int, object]) -> dict[str, object]:
        return {key: thaw(value) for key, value in self.items()}

    def __reduce__(self) -> tuple[object, ...]:
        return freeze, (thaw(self),)

    def __hash__(self) -> int:
        return hash(canonical(self))


class FrozenList(_List):  # type: ignore[misc]
    """A ``list`` that cannot change; see ``FrozenDict``."""

    __slots__ = ()
    refusal: ClassVar[tuple[type[Exception], str]] = FrozenDict.refusal

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        kind, text = self.refusal
        raise kind(text)

    __setitem__ = __delitem__ = append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __iadd__ = __imul__ = _refuse

    def __copy__(self) -> list[object]:
        return list(self)

    def __deepcopy__(self, _memo: Mapping[int, object]) -> list[object]:
        return [thaw(value) for value in self]

    def __reduce__(self) -> tuple[object, ...]:
        return freeze, (thaw(self),)

    def __hash__(self) -> int:
        return hash(canonical(self))


def freeze(value: Any, mapping: type[FrozenDict] = FrozenDict, sequence: type[FrozenList] = FrozenList) -> Any:
    """Freeze a JSON value deeply, in a copy; objects become a *mapping*, arrays a *sequence*."""
    if value.__class__ is dict or isinstance(value, Mapping):
        return mapping({key: freeze(item, mapping, sequence) for key, item in value.items()})
    if value.__class__ in SCALARS:
        return value
    if isinstance(value, list | tuple):
        return sequence([freeze(item, mapping, sequence) for item in value])
    return frozenset(value) if isinstance(value, set) else value


def thaw(value: object) -> Any:
    """Copy a JSON value deeply into plain, mutable containers."""
    if isinstance(value, dict):
        return {key: item if item.__class__ in SCALARS else thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item if item.__class__ in SCALARS else thaw(item) for item in value]
    return value


def canonical(value: object) -> bytes:
    """Encode as canonical JSON: sorted keys, no white space, UTF-8; the same bytes for ``2`` and ``2.0``.

    Raises:
        TypeError: the value is not JSON.
        ValueError: a number is not finite.
    """
    return json.dumps(
        _canonical_numbers(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8", "surrogatepass")


def _canonical_numbers(value: object) -> object:
    if isinstance(value, dict):
        return {key: _canonical_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical_numbers(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def digest(value: object) -> str:
    """SHA-256 of the canonical JSON, as hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


PLAIN = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_FLOAT = re.compile(rb"[0-9][.eE]")
_SHORT = 4096
"""Bytes up to which a search through the whole JSON, texts included, costs less than splitting it."""


def has_float(data: bytes) -> bool:
    """Return True if JSON of the encoder has a float."""
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    # Splitting at quotes takes 0.4 ms for a text of 1 MB. A search that goes through the text takes up to 20 ms.
    return _FLOAT.search(b"".join(bare.split(b'"')[::2])) is not None


def canonical_fast(value: object) -> bytes:
    """Encode like ``canonical``, with the fast encoder where no part is a float."""
    try:
        data = orjson.dumps(value, option=PLAIN)
    except TypeError:
        return canonical(value)
    if (len(data) > _SHORT or _FLOAT.search(data) is not None) and has_float(data):
        return canonical(value)
    return data


def hash_of(value: object) -> str:
    """SHA-256 of the canonical JSON, as hex; the same as ``digest``, faster."""
    return hashlib.sha256(canonical_fast(value)).hexdigest()


def deeper_than(value: object, limit: int) -> bool:
    """Return True if objects and arrays in *value* nest deeper than *limit*. It works without recursion, also on a cycle."""
    level: list[object] = [value]
    for _ in range(limit):
        below: dict[int, object] = {}  # by identity: a value that occurs twice is looked at once
        for item in level:
            if isinstance(item, dict):
                below.update((id(part), part) for part in item.values() if part.__class__ not in SCALARS)
            elif isinstance(item, list | tuple):
                below.update((id(part), part) for part in item if part.__class__ not in SCALARS)
        level = [item for item in below.values() if isinstance(item, dict | list | tuple)]
        if not level:
            return False
    return True


def plain_json(value: object, depth: int) -> object:
    """Copy a value into plain JSON values.

    Raises:
        TypeError: the value is not JSON.
        ValueError: a number is not finite, a text has half of a surrogate pair, or the value nests deeper than *depth*.
    """
    if deeper_than(value, depth):
        raise ValueError(f"it nests deeper than {depth} levels")
    return json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())


json_bytes = orjson.dumps
"""Encode as JSON, fast; raises ``TypeError`` for other values and for integers beyond 64 bits (see ``dump``)."""


def dump(value: object) -> bytes:
    """Encode as JSON, integers beyond 64 bits included; raises ``TypeError`` for other values."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def compact(data: bytes) -> bytes:
    """Copy bytes for storage: the result of the fast encoder occupies 4 kB of memory, however short it is."""
    return b"%b" % data


def pointer(path: Iterable[str | int]) -> str:
    """Make a JSON Pointer (RFC 6901) from path segments; the root is the empty string."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def clip(text: str, limit: int = 80) -> str:
    """Make foreign text safe to show: control characters escaped, cut at *limit* characters."""
    shown = text.encode("unicode_escape", "backslashreplace").decode() if not text.isprintable() else text
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
