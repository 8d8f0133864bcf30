"""What a transaction in memory changes, and how it is taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Changes(Generic[K, V]):
    """Changes of one part, which everybody sees at once; *kept* is what is at a place, *place* puts it there."""

    def __init__(self, kept: Callable[[K], V | None], place: Callable[[K, V | None], None]) -> None:
        self._kept, self._place = kept, place
        self._done: list[tuple[K, V | None, V | None]] = []

    def place(self, at: K, value: V | None) -> None:
        """Put it in the place of what is there; None forgets that."""
        self._done.append((at, self._kept(at), value))
        self._place(at, value)

    def forget(self) -> None:
        """Nothing was written; what somebody else has changed since is left to him."""
        for at, before, after in reversed(self._done):
            if self._kept(at) is after:
                self._place(at, before)
