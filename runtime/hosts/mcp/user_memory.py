"""Values of users in memory, within a size, a number and a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
Owner: TypeAlias = tuple[str | None, str]
"""The tenant and the id of a user."""


@dataclass(frozen=True, slots=True)
class _Held(Generic[T]):
    owner: Owner
    until: float
    size: int
    value: T


class UserMemory(Generic[T]):
    """Values of users by key. Only their owner finds them.

    A user who exceeds the bounds loses their own oldest value; the oldest value of all goes only if they have none.
    """

    def __init__(self, max_bytes: int, max_count: int, ttl: float, now: Callable[[], float]) -> None:
        self._max_bytes, self.max_count, self._ttl, self._now = max_bytes, max_count, ttl, now
        self._held: dict[str, _Held[T]] = {}  # the oldest first, which is also the first to expire
        self._keys: dict[Owner, dict[str, None]] = {}  # the keys of each owner, in the same order
        self.size = 0

    def put(self, owner: Owner, key: str, value: T, size: int) -> bool:
        """Hold a value under a new key; return False if it is larger than all values together may be."""
        if size > self._max_bytes:
            return False
        self._expire()
        while self._held and (self.size + size > self._max_bytes or len(self._held) >= self.max_count):
            self.remove(next(iter(self._keys.get(owner) or self._held)))
        self._held[key] = _Held(owner, self._now() + self._ttl, size, value)
        self._keys.setdefault(owner, {})[key] = None
        self.size += size
        return True

    def get(self, owner: Owner, key: str) -> T | None:
        """Return the value of this owner under a key; None without one."""
        self._expire()
        held = self._held.get(key)
        return None if held is None or held.owner != owner else held.value

    def of(self, owner: Owner) -> Iterator[tuple[str, T]]:
        """Return the keys and values of an owner, the oldest first."""
        self._expire()
        return ((key, self._held[key].value) for key in self._keys.get(owner, {}))

    def remove(self, key: str) -> None:
        """Forget the value under a key, if there is one."""
        held = self._held.pop(key, None)
        if held is None:
            return
        self.size -= held.size
        keys = self._keys[held.owner]
        del keys[key]
        if not keys:
            del self._keys[held.owner]

    def _expire(self) -> None:
        now = self._now()
        while self._held and (oldest := next(iter(self._held.items())))[1].until <= now:
            self.remove(oldest[0])
