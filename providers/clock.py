"""Clocks: the system clock, and a fake clock for tests."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Protocol, cast


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

    def __post_init__(self) -> None:
        _check_finite("now", self.now)

    def advance(self, seconds: float) -> None:
        """Advance the time by *seconds*.

        Raises:
            ValueError: *seconds* is no finite number; no deadline would end.
        """
        _check_finite("seconds", seconds)
        self.now += seconds


def _check_finite(name: str, seconds: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise ValueError(f"FakeClock: {name} is {seconds!r}; give a finite number of seconds")


class _Synchronised(Protocol):
    """A store that knows the time of its server."""

    def time(self) -> float: ...

    async def synchronise(self) -> None: ...


class GateClock:
    """The time of a gate. ``offset`` is what its monotonic time lacks to the time since the epoch, in seconds.

    Processes that share a store agree about leases, whatever the clocks of their machines say: ``synchronise`` sets
    the time by the store, unless the application gave the clock.
    """

    __slots__ = ("_store", "monotonic", "offset")

    def __init__(self, clock: Clock | None, store: object) -> None:
        given = clock is not None and not isinstance(clock, SystemClock)
        clock = clock or SystemClock()
        self.monotonic = clock.monotonic
        self.offset = clock.time() - clock.monotonic()
        # hasattr: the check of a protocol does not see what a wrapper of a store hands through, from Python 3.12 on
        follows = not given and hasattr(store, "synchronise")
        self._store = cast("_Synchronised", store) if follows else None

    @property
    def follows_store(self) -> bool:
        """True if the store sets the time."""
        return self._store is not None

    def now(self) -> float:
        """Return the time since the epoch."""
        return self.monotonic() + self.offset

    async def synchronise(self) -> None:
        """Set the time by the store, if it has one.

        Raises:
            StoreError: the store did not answer.
        """
        store: _Synchronised | None = self._store
        if store is not None:
            await store.synchronise()
            self.offset = store.time() - self.monotonic()
