"""The first check of a schema: that it is JSON of a limited size. It stops at the first exceeded limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from callgate.errors import SchemaRefused
from callgate.tools.values import clip, digest, pointer

MAX_INTEGER_BITS = 1_024


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    """Limits for a schema and for values that are checked against it. Sizes are in approximate bytes of JSON.

    ``max_pattern_cost`` limits the estimated microseconds for compiling all regular expressions of a schema from outside.
    ``max_expansion`` limits the checks of one value in place, through ``$ref``, ``allOf``, ``anyOf``, ``oneOf``, ``not``
    and ``if``; ``budget`` limits the checks of a whole value.
    """

    max_bytes: int = 65_536
    max_depth: int = 64
    max_subschemas: int = 2_000
    max_properties: int = 512
    max_enum: int = 1_000
    max_name: int = 256
    max_pattern: int = 512
    max_patterns: int = 64
    max_pattern_cost: int = 30_000
    max_expansion: int = 2_000
    budget: int = 200_000
    value_characters: int = 1_048_576
    value_depth: int = 64
    value_nodes: int = 50_000

    @property
    def digest(self) -> str:
        """A short digest of this profile, for provenance."""
        return _digest_of(self)


@lru_cache(64)  # a gate has few profiles and many schemas
def _digest_of(limits: SchemaLimits) -> str:
    return digest(asdict(limits))[:12]


INPUT_LIMITS = SchemaLimits()
OUTPUT_LIMITS = SchemaLimits(max_bytes=131_072)
AUTHOR_LIMITS = SchemaLimits(
    max_bytes=262_144, max_depth=128, max_subschemas=5_000, max_properties=5_000, max_enum=5_000,
    max_name=1_024, max_pattern=4_096, max_patterns=1_000,
    value_characters=16_777_216, value_nodes=1_048_576,  # ``Limits`` holds for an author's tool
)  # fmt: skip


def require_json(schema: Mapping[str, object], limits: SchemaLimits) -> int:
    """Refuse a schema that is not JSON or is too large, without recursion; return its approximate size in bytes."""
    stack: list[tuple[Any, _Path]] = [(schema, None)]
    size = 0
    while stack:
        container, path = stack.pop()
        if path is not None and path[2] >= limits.max_depth:
            raise SchemaRefused("too_deep", f"nests deeper than {limits.max_depth} levels", _shown(path))
        depth = 1 if path is None else path[2] + 1
        pairs = container.items() if isinstance(container, dict) else enumerate(container)
        for key, item in pairs:
            if isinstance(container, dict):
                size += _text_size(key, path, key)
            if isinstance(item, dict | list | tuple):
                stack.append((item, (path, key, depth)))
                size += 2
            else:
                size += _scalar_size(item, path, key)
            if size > limits.max_bytes:
                raise SchemaRefused("too_large", f"is over {limits.max_bytes} bytes", _shown(path))
    return size


_Path: TypeAlias = "tuple[_Path, str | int, int] | None"


def _shown(path: _Path, *last: str | int) -> str:
    parts: list[str | int] = list(last)
    while path is not None:
        parts.append(path[1])
        path = path[0]
    return clip(pointer(reversed(parts)), 200)


def _text_size(text: Any, path: _Path, key: str | int) -> int:
    if text.__class__ is not str:
        kind = text.__class__.__name__
        raise SchemaRefused("not_json", f"{kind} is not a JSON type", _shown(path, clip(str(key))))
    if text.isascii():
        return len(text) + 3
    try:
        return len(text.encode()) + 3
    except UnicodeEncodeError:
        raise SchemaRefused("not_json", "a lone surrogate is not Unicode text", _shown(path)) from None


def _scalar_size(item: Any, path: _Path, key: str | int) -> int:
    if item is None or item is True or item is False:
        return 5
    if item.__class__ is int:
        if item.bit_length() > MAX_INTEGER_BITS:
            raise SchemaRefused("number_too_large", "an integer of over 1,024 bits", _shown(path, key))
        return 4 + item.bit_length() // 4
    if item.__class__ is float:
        if not math.isfinite(item):
            raise SchemaRefused("not_json", "a number must be finite", _shown(path, key))
        return 8
    return _text_size(item, path, key)
