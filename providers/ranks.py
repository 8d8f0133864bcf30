"""The scopes of provided instances, by lifetime."""

from __future__ import annotations

from contextvars import ContextVar
from enum import IntEnum
from typing import Any, Literal, Protocol

ScopeName = Literal["execution", "request", "session", "global"]


class Rank(IntEnum):
    """The lifetime of an instance. An instance never depends on one with a shorter lifetime."""

    EXECUTION = 0
    REQUEST = 1
    SESSION = 2
    GLOBAL = 3

    def __str__(self) -> str:
        return self.name.lower()


class _Asking(Protocol):
    """The scope of a call: ``ProviderScope``, which lies above this module."""

    def made_for(self, scoped: object) -> object: ...
    def take(self, recipe: Any, /) -> object: ...


ASKING: ContextVar[_Asking | None] = ContextVar("callgate_asking", default=None)
"""The scope for which a provider of dependency-injector is called now; scoped providers read it."""
