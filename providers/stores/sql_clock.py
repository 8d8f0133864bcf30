"""The clocks of the stores: that of a PostgreSQL server, which all processes read, and that of a SQLite file."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_AHEAD = 86_400.0
"""Seconds that the file may be ahead of the machine's clock. A row beyond it has a wrong time, and not the clock."""


class ServerClock:
    """Seconds since the epoch by the server. Until the first ``set`` it is the clock of this process.

    Between two readings of the server the monotonic clock of the process counts, so a step of the machine's own clock
    changes nothing.
    """

    def __init__(self) -> None:
        self._offset: float | None = None

    def __call__(self) -> float:
        """Return the time."""
        return time.time() if self._offset is None else time.perf_counter() + self._offset

    def set(self, server: float, asked: float, answered: float) -> None:
        """Set the clock: the server read *server* at some time between two readings of ``time.perf_counter``."""
        self._offset = server - (asked + answered) / 2


NEWEST = """
SELECT max(
    coalesce((SELECT at FROM callgate_audit ORDER BY rowid DESC LIMIT 1), 0),
    coalesce((SELECT made_at FROM callgate_jobs ORDER BY rowid DESC LIMIT 1), 0),
    coalesce((SELECT made_at FROM callgate_waits ORDER BY rowid DESC LIMIT 1), 0),
    coalesce((SELECT began_at FROM callgate_effects ORDER BY rowid DESC LIMIT 1), 0),
    coalesce((SELECT max(ended_at) FROM callgate_effects WHERE state = 'committed'), 0)
)
"""
"""The newest time in a SQLite file, from its last rows: none of these reads grows with the tables."""


def _elapsed() -> float:
    """Return a monotonic time that counts while the machine sleeps, too, where the system has one."""
    boottime: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class FileClock:
    """Seconds since the epoch for a SQLite file. Until ``begin`` it is the clock of this process.

    A step of the machine's clock changes nothing in an open process. A process that starts after a step back goes on at
    the newest time in the file, so no time is written twice and no lease is longer than it should be.
    """

    def __init__(self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = _elapsed) -> None:
        self._wall, self._elapsed = wall, elapsed
        self._offset: float | None = None

    def __call__(self) -> float:
        """Return the time."""
        return self._wall() if self._offset is None else self._elapsed() + self._offset

    @property
    def begun(self) -> bool:
        """True once the clock is set."""
        return self._offset is not None

    def begin(self, newest: float | None) -> None:
        """Set the clock once, with the newest time in the file; later calls change nothing."""
        if self._offset is None:
            now = self._wall()
            if newest is not None and now < newest <= now + MOST_AHEAD:
                now = newest
            self._offset = now - self._elapsed()
