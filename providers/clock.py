"""Clocks: the system clock, and a fake clock for tests."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """A clock with two readings, both in seconds."""

    def monotonic(self) -> float:
        """Return a monotonic time, for durations and deadlines."""
        ...

    def time(self) -> float:
        """Return the time since the epoch, for timestamps."""
        ...


class SystemClock:
    """The clocks of the machine."""

    monotonic = staticmethod(time.perf_counter)
    time = staticmethod(time.time)


@dataclass
class FakeClock:
    """A clock that moves only in ``advance``."""

    now: float = 1_000_000.0

    def monotonic(self) -> float:
        """Return the fake time."""
        return self.now

    def time(self) -> float:
        """Return the fake time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the time by *seconds*."""
        self.now += seconds
