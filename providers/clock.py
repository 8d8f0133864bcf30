"""Time as the gate sees it; a fake one in tests."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Two readings, both in seconds."""

    def monotonic(self) -> float:
        """Never goes back; for durations and deadlines."""
        ...

    def time(self) -> float:
        """Since the epoch; for people."""
        ...


class SystemClock:
    """The machine's clocks."""

    monotonic = staticmethod(time.perf_counter)
    time = staticmethod(time.time)


@dataclass
class FakeClock:
    """A clock that moves only when told to."""

    now: float = 1_000_000.0

    def monotonic(self) -> float:
        """The fake time."""
        return self.now

    def time(self) -> float:
        """The fake time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass."""
        self.now += seconds
