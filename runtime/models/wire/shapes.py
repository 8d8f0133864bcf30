"""Type checks of untrusted JSON values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """True if the value is a JSON object."""
    return isinstance(value, (dict, Mapping))  # dict first: the check of an abstract class is slow


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """True if the value is a JSON array."""
    return isinstance(value, list | tuple)


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, (dict, Mapping)) else {}


def items(value: object) -> Sequence[Any]:
    """The value if it is a JSON array, else an empty one."""
    return value if isinstance(value, (list, tuple)) else ()
