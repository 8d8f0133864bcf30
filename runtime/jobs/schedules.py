"""Scheduled calls: jobs that are submitted by the clock, once for each time of a schedule. Extra ``schedules``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from callgate.errors import RegistrationError
from callgate.runtime.jobs.jobs import JobQueue
from callgate.runtime.jobs.options import Schedule
from callgate.tools.calls import ToolCall

TICK = 1.0
"""Seconds between two looks at the clock."""
LATE = 60.0
"""Seconds after its time in which a run is never missed, as on a busy machine."""


class Scheduler:
    """Submits the calls of schedules. The key of a job is the schedule and the time, so each time has one job."""

    def __init__(self, jobs: JobQueue, schedules: Sequence[Schedule]) -> None:
        self._jobs, self._schedules = jobs, schedules
        self._submitted: dict[str, float] = {}

    def check(self) -> None:
        """Check that the gate can submit the calls.

        Raises:
            UnknownTool: the gate does not have a tool.
            RegistrationError: a run could be caught up after its job was deleted, and so run twice.
        """
        keep = self._jobs.options.keep
        for schedule in self._schedules:
            if keep is not None and schedule.catch_up >= keep:
                raise RegistrationError(
                    f"the schedule {schedule.key}: catch_up is less than Jobs(keep=...), because a job that is deleted is "
                    "not known any more"
                )
            self._jobs.prepare(self._call(schedule), schedule.user)

    async def tick(self) -> None:
        """Submit the calls whose time has come; of several missed times of a schedule, the last one only.

        Raises:
            StoreError: the store failed; the next round submits them.
        """
        for schedule in self._schedules:
            now = self._jobs.now()
            at = last_time(schedule, now)
            if at <= self._submitted.get(schedule.key, -math.inf):
                continue
            if now - at <= max(schedule.catch_up, LATE):
                await self._jobs.submit(
                    self._call(schedule),
                    schedule.user,
                    key=f"schedule {schedule.key} {at:.0f}",
                    queue=schedule.queue,
                    priority=schedule.priority,
                    deadline=None if schedule.deadline is None else max(at + schedule.deadline - now, 0.0),
                )
            self._submitted[schedule.key] = at

    @staticmethod
    def _call(schedule: Schedule) -> ToolCall:
        return ToolCall(name=schedule.tool, arguments=dict(schedule.arguments))


def last_time(schedule: Schedule, now: float) -> float:
    """Return the last time of a schedule that is not after *now*, in seconds since the epoch."""
    from croniter import croniter

    # croniter returns the time before a given one, and counts in whole seconds.
    after = datetime.fromtimestamp(math.floor(now) + 1, ZoneInfo(schedule.zone))
    found: Any = croniter(schedule.cron, after).get_prev(float)
    return float(found)


def check_schedule(key: str, cron: str, zone: str) -> None:
    """Check that the times of a schedule can be read.

    Raises:
        RegistrationError: they cannot, or the extra is not installed.
    """
    try:
        from croniter import croniter
    except ImportError:
        raise RegistrationError(
            'Schedule needs a package that is not installed: pip install "callgate[schedules]"'
        ) from None
    if len(cron.split()) != 5 or not croniter.is_valid(cron):
        raise RegistrationError(
            f'the schedule {key}: {cron!r} is not five fields of cron; write "0 3 * * *" for 3 o\'clock'
        )
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        raise RegistrationError(
            f"the schedule {key}: the time zone {zone!r} is unknown; write one such as Europe/Berlin"
        ) from None
