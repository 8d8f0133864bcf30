"""The undo log of a transaction in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

MemoryKey: TypeAlias = tuple[str, str]
"""A tenant and a key or id."""

K = TypeVar("K")
V = TypeVar("V")


class Changes(Generic[K, V]):
    """The changes that one transaction made to one part of the store. Other readers see them at once.

    *read* returns the value of a key, and *write* sets it; None stands for no value.
    """

    def __init__(self, read: Callable[[K], V | None], write: Callable[[K, V | None], None]) -> None:
        self._read, self._write = read, write
        self._log: list[tuple[K, V | None, V | None]] = []

    def write(self, key: K, value: V | None) -> None:
        """Set the value of a key; None deletes it."""
        self._log.append((key, self._read(key), value))
        self._write(key, value)

    def roll_back(self) -> None:
        """Undo the changes, except where a later writer has changed the value again."""
        for key, before, after in reversed(self._log):
            if self._read(key) is after:
                self._write(key, before)
