"""Who asks: the principal that every invocation runs for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class User:
    """The principal of an invocation. ``roles`` and ``scopes`` are kept as frozen sets."""

    id: str
    tenant: str | None = None
    roles: frozenset[str] | Iterable[str] = frozenset()
    scopes: frozenset[str] | Iterable[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("roles", "scopes"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise TypeError(f"User.{name} takes a collection of names, not one string; write {name}={{{value!r}}}")
            object.__setattr__(self, name, frozenset(value))


ANONYMOUS = User(id="anonymous")
