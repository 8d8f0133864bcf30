"""The clock of a PostgreSQL server, which all processes that share the database read."""

from __future__ import annotations

import time


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
