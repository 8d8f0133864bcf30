"""The base of the parts of the store in memory that a transaction can change and roll back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import Generic, Self, TypeAlias, TypeVar

MemoryKey: TypeAlias = tuple[str, str]
"""A tenant and a key or id."""

K = TypeVar("K")
V = TypeVar("V")


class MemoryPart(ABC, Generic[K, V]):
    """Values by key. ``in_transaction`` returns a view of the same values whose changes can be undone.

    Other readers see the changes at once.
    """

    _log: list[tuple[K, V | None, V | None]] | None = None  # of a transaction: key, value before, value after

    def in_transaction(self) -> Self:
        """Return a view of the same values that can be rolled back."""
        view = copy(self)
        view._log = []
        return view

    def roll_back(self) -> None:
        """Undo the changes, except where a later writer has changed the value again."""
        log, self._log = self._log or [], None
        for key, before, after in reversed(log):
            if self._read(key) is after:
                self._write(key, before)

    @abstractmethod
    def _read(self, key: K, /) -> V | None:
        """Return the value of a key, or None."""

    def _note(self, key: K, value: V | None) -> None:
        """Record a change before it is made, within a transaction."""
        if self._log is not None:
            self._log.append((key, self._read(key), value))

    @abstractmethod
    def _write(self, key: K, value: V | None, /) -> None:
        """Note the change, and set the value of a key; None deletes it."""
