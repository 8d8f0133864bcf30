"""Scheduled calls: jobs that are submitted by the clock, once for each time of a schedule. Extra ``schedules``."""

from __future__ import annotations

import asyncio
import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from callgate.errors import RegistrationError
from callgate.providers.logs import LogEvent, emit
from callgate.runtime.jobs.calls import as_fault, stops
from callgate.runtime.jobs.jobs import JobQueue
from callgate.runtime.jobs.options import Schedule
from callgate.tools.calls import ToolCall

TICK = 1.0
"""Seconds between two looks at the clock."""
LATE = 60.0
"""Seconds after its time in which a run is never missed, as on a busy machine."""
DAY = 86_400

_RANDOM = re.compile(r"\br\b", re.IGNORECASE)


class Scheduler:
    """Submits the calls of schedules. The key of a job is the schedule and the time, so each time has one job."""

    def __init__(self, jobs: JobQueue, schedules: Sequence[Schedule]) -> None:
        self._jobs, self._schedules = jobs, schedules
        self._submitted: dict[str, float] = {}
        self._failing: dict[str, type[BaseException]] = {}

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

        A schedule that fails does not stop the others. Its failure is logged, and the next round submits the call.
        """
        for schedule in self._schedules:
            try:
                await self._submit_due(schedule)
            except BaseException as error:  # a store, an engine or a time zone may raise anything
                if stops(error, asyncio.current_task()):
                    raise
                if self._failing.get(schedule.key) is not type(error):  # a round each second: log a failure once
                    emit(LogEvent.SCHEDULE_FAILED, schedule=schedule.key, tool=schedule.tool, error=as_fault(error))
                self._failing[schedule.key] = type(error)
            else:
                self._failing.pop(schedule.key, None)

    async def _submit_due(self, schedule: Schedule) -> None:
        now = self._jobs.now()
        at = last_time(schedule, now)
        if at <= self._submitted.get(schedule.key, -math.inf):
            return
        if now - at <= max(schedule.catch_up, LATE):
            await self._jobs.submit(
                self._call(schedule),
                schedule.user,
                key=f"schedule {schedule.key} {at:.0f}",
                once=True,
                queue=schedule.queue,
                priority=schedule.priority,
                deadline=None if schedule.deadline is None else max(at + schedule.deadline - now, 0.0),
            )
        self._submitted[schedule.key] = at

    @staticmethod
    def _call(schedule: Schedule) -> ToolCall:
        return ToolCall(name=schedule.tool, arguments=dict(schedule.arguments))


def last_time(schedule: Schedule, now: float) -> float:
    """Return the last time of a schedule that is not after *now*, in seconds since the epoch.

    A schedule with ``*`` or a step in its minutes or hours goes by the clock on the wall: it runs in both hours when the
    clock is set back, and not in the hour that is left out when it is set forward. Any other schedule has fixed times:
    a time that occurs twice counts once, the first time, and a time that is left out counts when the clock is set forward.
    """
    from croniter import croniter

    zone, fixed = ZoneInfo(schedule.zone), has_fixed_times(schedule.cron)
    wall = _wall(math.floor(now), zone)
    # For a while after the clock was set back, times with a later text than the present one have passed, too.
    repeated = max(_wall(math.floor(now) - DAY, zone) + timedelta(seconds=DAY) - wall, timedelta())
    # croniter gets naive times: it knows no rule for hours that occur twice. It returns the time before a given one.
    times: Any = croniter(schedule.cron, wall + repeated + timedelta(seconds=1))
    passed: list[float] = []
    while True:
        found: datetime = times.get_prev(datetime)
        passed += [at for at in _moments(found, zone, fixed=fixed) if at <= now]
        if passed and found <= wall:
            return max(passed)


def has_fixed_times(cron: str) -> bool:
    """Return whether the minutes and hours of a schedule are numbers, without ``*`` and without steps."""
    from croniter import croniter

    minutes, hours, *_ = croniter.expand(cron)[0]
    return ["*"] not in (minutes, hours) and not any(sign in part for sign in "*/" for part in cron.split()[:2])


def _moments(wall: datetime, zone: ZoneInfo, *, fixed: bool) -> list[float]:
    """Return when a time on the wall of a zone occurs, in seconds since the epoch."""
    first, second = (wall.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    if first == second:
        return [first]
    if first < second:  # the clock was set back: it occurs twice
        return [first] if fixed else [first, second]
    if not fixed:  # the clock was set forward: it never occurs
        return []
    seconds = range(math.floor(second), math.ceil(first) + 1)
    return [float(seconds[bisect_left(seconds, True, key=lambda at: _wall(at, zone) > wall)])]


def _wall(at: float, zone: ZoneInfo) -> datetime:
    """Return the time on the wall of a zone, as a naive datetime."""
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None, fold=0)


def check_schedule(key: str, cron: str, zone: str) -> None:
    """Check that the times of a schedule can be read, and that there is one.

    Raises:
        RegistrationError: they cannot, there is none, or the extra is not installed.
    """
    try:
        from croniter import croniter
    except ImportError:
        raise RegistrationError(
            'Schedule needs a package that is not installed: pip install "callgate[schedules]"'
        ) from None
    # ``R`` is a random number: each process would have other times.
    if not _is_text(cron) or len(cron.split()) != 5 or _RANDOM.search(cron) or not croniter.is_valid(cron):
        raise RegistrationError(
            f'the schedule {key}: {cron!r} is not five fields of cron; write "0 3 * * *" for 3 o\'clock'
        )
    try:
        croniter(cron, datetime(2000, 1, 1)).get_next(datetime)  # noqa: DTZ001  (a time on the wall)
    except ValueError:
        raise RegistrationError(
            f"the schedule {key}: {cron!r} names a date that no year has, such as 30 February; it would never run"
        ) from None
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError, TypeError, AttributeError):
        raise RegistrationError(
            f"the schedule {key}: the time zone {zone!r} is unknown; write one such as Europe/Berlin"
        ) from None


def _is_text(value: object) -> bool:
    return isinstance(value, str)
