"""Type checks of untrusted JSON values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard


def is_mapping(value: object) -> TypeGuard[Mapping[str, object]]:
    """True if the value is a JSON object."""
    return isinstance(value, (dict, Mapping))  # dict first: the check of an abstract class is slow


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """True if the value is a JSON array."""
    return isinstance(value, list | tuple)


def are_mappings(values: Sequence[object]) -> TypeGuard[Sequence[Mapping[str, object]]]:
    """True if each of the values is a JSON object."""
    return all(map(is_mapping, values))


def mapping(value: object) -> Mapping[str, object]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, (dict, Mapping)) else {}


def items(value: object) -> Sequence[object]:
    """The value if it is a JSON array, else an empty one."""
    return value if isinstance(value, (list, tuple)) else ()


def place(index: object) -> int | float | str | None:
    """The index of a piece of a stream, of any type that tells places apart; None if there is none."""
    return index if isinstance(index, int | float | str) else None
