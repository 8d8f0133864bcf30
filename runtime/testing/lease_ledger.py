"""The leases that a scenario holds, as the scenario reports them or as a reading shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

UNITS = 2
"""Units of one lease, so that an incomplete acquire shows as one unit."""


class LeaseLedger:
    """The leases of a scenario; ``every_cancel_point`` finds the leaked ones.

    Watch a reading with ``watch``, such as the number of permits that a hook has given out. Or call ``acquired`` and
    ``released`` in the scenario. ``take`` and ``give`` move one of the two units of a lease, for an acquire that can be
    interrupted in the middle. Set ``may_outlive_call`` if leases may outlive the call (``pending_release``).
    """

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Clear the ledger."""
        self.units: Counter[Hashable] = Counter()
        self.stack: list[Hashable] = []
        self.problems: list[str] = []
        self.taken = 0
        self.in_order = True
        self.may_outlive_call: Callable[[], bool] = lambda: False
        self.scratch: dict[str, object] = {}
        self.watched: dict[str, tuple[Callable[[], object], object]] = {}

    def watch(self, name: str, reading: Callable[[], object]) -> None:
        """Watch a value: if *reading* returns another value after the scenario than now, *name* leaked or was late."""
        self.watched[name] = (reading, reading())

    def acquired(self, lease: Hashable) -> None:
        """Record a lease as held."""
        for _ in range(UNITS):
            self.take(lease)

    def released(self, lease: Hashable) -> None:
        """Record a lease as released."""
        for _ in range(UNITS):
            self.give(lease)

    def take(self, lease: Hashable) -> None:
        """Record one of the two units of an acquire."""
        self.units[lease] += 1
        if self.units[lease] == UNITS:
            self.taken += 1
            self.stack.append(lease)
        elif self.units[lease] > UNITS:
            self.problems.append(f"acquired twice: {lease}")

    def undo(self, lease: Hashable) -> None:
        """Record that a failed acquire cleaned up."""
        self.units[lease] = 0

    def give(self, lease: Hashable) -> None:
        """Record one of the two units of a release."""
        if self.units[lease] == UNITS:
            if self.in_order and self.stack[-1:] != [lease]:
                self.problems.append(f"released out of order: {lease}")
            if lease in self.stack:
                self.stack.remove(lease)
        self.units[lease] -= 1
        if self.units[lease] < 0:
            self.problems.append(f"double release: {lease}")

    def held(self) -> list[Hashable]:
        """The leases that are not fully released, and the readings that changed."""
        changed = [(name, reading(), before) for name, (reading, before) in self.watched.items()]
        return [
            *(lease for lease, units in self.units.items() if units),
            *(f"{name} is {now!r}, it was {before!r}" for name, now, before in changed if now != before),
        ]
