"""The options of jobs."""

from __future__ import annotations

from dataclasses import dataclass

from callgate.errors import RegistrationError
from callgate.runtime.jobs.backend import JobBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The jobs of a gate: ``Gate(jobs=Jobs(lease=60, max_attempts=5))``. Times are seconds.

    Args:
        engine: the job engine, or its name such as ``"procrastinate"``; None means ``EmbeddedJobs()``.
        lease: time after which the jobs of a dead worker are delivered again, at the latest.
        max_attempts: how often a job is tried before it is dead. An attempt that a limit or a failing store puts off
            does not count.
        backoff: pause before the second attempt; it doubles with each attempt.
        max_backoff: the longest such pause.
        keep: time that a finished job and its result are kept; None keeps them for ever.

    Raises:
        RegistrationError: a number is out of range.
    """

    engine: JobBackend | str | None = None
    lease: float = 60.0
    max_attempts: int = 5
    backoff: float = 1.0
    max_backoff: float = 300.0
    keep: float | None = 7 * 86_400.0

    def __post_init__(self) -> None:
        if not (self.lease > 0 and self.max_attempts >= 1 and 0 <= self.backoff <= self.max_backoff):
            raise RegistrationError("Jobs: lease above 0, max_attempts at least 1, backoff at most max_backoff")
        if self.keep is not None and not self.keep > 0:
            raise RegistrationError("Jobs: keep is seconds, above 0, or None")

    @property
    def valid(self) -> float:
        """Seconds that a row is leased: less than ``lease``, which leaves time to sweep."""
        return self.lease * 0.6

    @property
    def every(self) -> float:
        """Seconds between two renewals of the leases."""
        return self.lease * 0.2

    def backoff_after(self, attempts: int) -> float:
        """Return the seconds before the next attempt."""
        return min(self.backoff * 2.0 ** min(attempts - 1, 30), self.max_backoff)
