"""The texts of hooks that a store keeps, such as a cache key: each store refuses the same ones, with the same error."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import iscoroutinefunction, signature
from typing import TypeVar

from callgate.errors import StoreError
from callgate.providers.ids import flaw_of
from callgate.providers.stores.base import CacheEntry, Grant
from callgate.providers.stores.effects import Pin

LONGEST_KEY = 2_000
"""Maximum size of such a text, in bytes of UTF-8: PostgreSQL indexes no row of more than 2.7 kB."""
_SHORT = LONGEST_KEY // 4

T = TypeVar("T")
R = TypeVar("R")


def refuse_unkept(name: str, value: object) -> None:
    """Refuse a text, or a record or a collection with texts, that a database cannot keep. Other values pass.

    Raises:
        StoreError: a text has a NUL character, half of a surrogate pair, or too many bytes.
    """
    if isinstance(value, str):
        if (flaw := flaw_of(value, LONGEST_KEY)) is not None:
            raise StoreError(f"the {name} {flaw}; a database cannot keep it")
    elif isinstance(value, CacheEntry):
        refuse_unkept("tags", value.tags)
    elif isinstance(value, Grant):
        refuse_unkept("user", value.user)
        refuse_unkept("tool", value.tool)
        refuse_unkept("scope", value.scope)
    elif isinstance(value, Pin):
        for field in ("provider", "tool", "digest", "by"):
            refuse_unkept(field, getattr(value, field))
    elif name == "tags" and isinstance(value, frozenset | set | list | tuple):
        for tag in value:
            refuse_unkept("tag", tag)


def keepable(part: type[T]) -> type[T]:
    """Check the arguments of all public coroutine methods of a part of a store with ``refuse_unkept``."""
    for name, method in list(vars(part).items()):
        if not name.startswith("_") and iscoroutinefunction(method):
            setattr(part, name, _checked(method))
    return part


def _checked(method: Callable[..., Coroutine[object, object, R]]) -> Callable[..., Coroutine[object, object, R]]:
    _, *names = signature(method).parameters

    @wraps(method)
    async def checked(self: object, *args: object, **more: object) -> R:
        for name, value in zip(names, args, strict=False):
            if not (isinstance(value, str) and len(value) < _SHORT and value.isprintable()):  # most are harmless
                refuse_unkept(name, value)
        for name, value in more.items():
            refuse_unkept(name, value)
        return await method(self, *args, **more)

    return checked
