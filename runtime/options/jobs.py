"""The options of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypedDict

from callgate.errors import RegistrationError
from callgate.providers.kinds import Count, check_fields
from callgate.runtime.options.job_engine import JobBackend
from callgate.runtime.options.schedule import Schedule
from callgate.tools.execution import TaskIds


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetries:
    """The attempts of the jobs of one tool, in ``Jobs(by_tool=...)``; the arguments are those of ``Jobs``.

    Raises:
        RegistrationError: a number is out of range.
    """

    max_attempts: int = 5
    backoff: float = 1.0
    max_backoff: float = 300.0

    def __post_init__(self) -> None:
        check_fields(self, RegistrationError)
        if not (self.max_attempts >= 1 and 0 <= self.backoff <= self.max_backoff):
            raise RegistrationError("JobRetries: max_attempts at least 1, backoff at most max_backoff")

    def backoff_after(self, attempts: int) -> float:
        """Return the seconds before the next attempt."""
        return min(self.backoff * 2.0 ** min(attempts - 1, 30), self.max_backoff)


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
        by_tool: the attempts of single tools by name, for those that differ.
        rates: rate limits of queues by name, in all workers together: the number of calls and the seconds of the window,
            such as ``{"mail": (10, 1.0)}``. A job that exceeds the rate waits; this does not count as an attempt.
        schedules: calls that are submitted by the clock.
        notify: announce ends of jobs and new jobs through PostgreSQL, so that other processes need not poll for them.
        keep: time that a finished job and its result are kept; None keeps them for ever.
        max_per_user: number of jobs of one user that may be queued at the same time; ``submit`` of a further one raises
            ``RetryLater``. Schedules are not limited. Each transaction that adds jobs counts them, and near the limit
            those of one user take turns, in all processes. None means no limit, and no count.

    Raises:
        RegistrationError: a number is out of range.
    """

    engine: JobBackend | str | None = None
    lease: float = 60.0
    max_attempts: int = 5
    backoff: float = 1.0
    max_backoff: float = 300.0
    by_tool: Mapping[str, JobRetries] = field(default_factory=dict[str, JobRetries])
    rates: Mapping[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    schedules: Sequence[Schedule] = ()
    notify: bool = True
    keep: float | None = 7 * 86_400.0
    max_per_user: Count | None = 10_000

    def __post_init__(self) -> None:
        check_fields(self, RegistrationError)
        if not (self.lease > 0 and self.max_attempts >= 1 and 0 <= self.backoff <= self.max_backoff):
            raise RegistrationError("Jobs: lease above 0, max_attempts at least 1, backoff at most max_backoff")
        if self.keep is not None and not self.keep > 0:
            raise RegistrationError("Jobs: keep is seconds, above 0, or None")
        if not all(number >= 1 and seconds > 0 for number, seconds in self.rates.values()):
            raise RegistrationError("Jobs: a rate is at least one call in a window above 0 seconds")
        names = [one.key for one in self.schedules]
        if len(names) != len(set(names)):
            raise RegistrationError("Jobs: two schedules have one name; a name makes the jobs of a schedule unique")

    @property
    def valid(self) -> float:
        """Seconds that a row is leased: less than ``lease``, which leaves time to sweep."""
        return self.lease * 0.6

    @property
    def every(self) -> float:
        """Seconds between two renewals of the leases."""
        return self.lease * 0.2

    def retries_of(self, tool: str) -> JobRetries:
        """Return the attempts of the jobs of a tool."""
        default = JobRetries(max_attempts=self.max_attempts, backoff=self.backoff, max_backoff=self.max_backoff)
        return self.by_tool.get(tool, default)


class SubmitOptions(TypedDict, total=False):
    """The options of a job.

    ``at`` is the earliest time to run, an aware datetime; ``delay`` is the same in seconds from now. ``key`` is the
    idempotency key: a second job with the same key and arguments is the first one, unless that was cancelled, denied, invalid
    or dead without an effect. ``queue`` and ``priority`` (higher first) are for
    workers. ``deadline`` is in seconds from now, and includes the time in the queue. ``idle`` and ``task`` are as in
    ``CallOptions``.
    ``within`` is a transaction of the application, a session or connection of SQLAlchemy on the database of the store: the
    job exists if it commits.
    """

    at: datetime | None
    delay: float | None
    key: str | None
    queue: str
    priority: int
    session_id: str | None
    request_id: str | None
    deadline: float | None
    idle: float | None
    task: TaskIds | None
    within: object
