"""What a scenario holds: told by the scenario itself, or read from the hook under test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

UNITS = 2
"""Units of one lease: a careful reader sees a torn acquire as one unit held."""


class Ledger:
    """What a scenario holds, so that ``every_cancel_point`` can tell what leaked.

    Either name a reading, such as the number of places that a hook has given out, with ``watch``; or say ``acquired``
    and ``released`` where that happens. ``take`` and ``give`` move one of the two units of a lease, for acquires that
    can be torn. ``excuse`` says whether leases may outlive the call (``pending_release``).
    """

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget everything."""
        self.units: Counter[Hashable] = Counter()
        self.stack: list[Hashable] = []
        self.problems: list[str] = []
        self.taken = 0
        self.in_order = True
        self.excuse: Callable[[], bool] = lambda: False
        self.kept: dict[str, Any] = {}
        self.watched: dict[str, tuple[Callable[[], Any], Any]] = {}

    def watch(self, name: str, reading: Callable[[], Any]) -> None:
        """*reading* must give, when the scenario is over, what it gives now: else *name* leaked, or came back late."""
        self.watched[name] = (reading, reading())

    def acquired(self, lease: Hashable) -> None:
        """A lease is held from here on."""
        for _ in range(UNITS):
            self.take(lease)

    def released(self, lease: Hashable) -> None:
        """It is given back."""
        for _ in range(UNITS):
            self.give(lease)

    def take(self, lease: Hashable) -> None:
        """One of the two units of an acquire."""
        self.units[lease] += 1
        if self.units[lease] == UNITS:
            self.taken += 1
            self.stack.append(lease)
        elif self.units[lease] > UNITS:
            self.problems.append(f"acquired twice: {lease}")

    def undo(self, lease: Hashable) -> None:
        """An acquire that fails cleans up after itself."""
        self.units[lease] = 0

    def give(self, lease: Hashable) -> None:
        """One of the two units of a release."""
        if self.units[lease] == UNITS:
            if self.in_order and self.stack[-1:] != [lease]:
                self.problems.append(f"released out of order: {lease}")
            if lease in self.stack:
                self.stack.remove(lease)
        self.units[lease] -= 1
        if self.units[lease] < 0:
            self.problems.append(f"double release: {lease}")

    def held(self) -> list[Hashable]:
        """Leases that are not given back, or only half, and readings that are not what they were."""
        changed = [(name, reading(), before) for name, (reading, before) in self.watched.items()]
        return [
            *(lease for lease, units in self.units.items() if units),
            *(f"{name} is {now!r}, it was {before!r}" for name, now, before in changed if now != before),
        ]
