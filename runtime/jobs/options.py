"""The options of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from callgate.errors import RegistrationError
from callgate.providers.principal import ANONYMOUS, User
from callgate.runtime.jobs.backend import JobBackend
from callgate.tools.limits import fault_of_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A call that workers submit by the clock, once for each time, however many processes run.

    Args:
        tool: the name of the tool.
        cron: five fields of cron, such as ``"0 3 * * *"`` for 3 o'clock.
        name: the name of the schedule. Processes with one name share it. Default: the name of the tool.
        arguments: the arguments of the call.
        user: the user of the call.
        zone: the time zone of ``cron``, such as ``"Europe/Berlin"``. When its clocks are set back, a fixed time runs once,
            and a schedule with ``*`` or a step in its minutes or hours goes on through the repeated hour. When they are
            set forward, a fixed time that is left out runs at the change.
        catch_up: seconds after its time in which a missed run is still made: the last missed one only.
        queue: the queue of the jobs.
        priority: their priority.
        deadline: seconds for the call, which start at its time.

    Raises:
        RegistrationError: ``cron`` or ``zone`` cannot be read, no time is ever due, a number is out of range, or the extra
            ``schedules`` is not installed.
    """

    tool: str
    cron: str
    name: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict[str, Any])
    user: User = ANONYMOUS
    zone: str = "UTC"
    catch_up: float = 3_600.0
    queue: str = "default"
    priority: int = 0
    deadline: float | None = None

    def __post_init__(self) -> None:
        from callgate.runtime.jobs.schedules import check_schedule  # only applications with schedules need its package

        check_schedule(self.key, self.cron, self.zone)
        for name, fault in (
            ("catch_up", fault_of_seconds(self.catch_up, least=0.0, none=False)),
            ("deadline", fault_of_seconds(self.deadline)),
        ):
            if fault is not None:
                raise RegistrationError(f"the schedule {self.key}: {name} {fault}")

    @property
    def key(self) -> str:
        """The name, which makes the jobs of the schedule unique."""
        return self.name or self.tool


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

    def __post_init__(self) -> None:
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
