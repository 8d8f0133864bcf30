"""When a schedule runs, by the clock on the wall of its time zone."""

from __future__ import annotations

import math
from bisect import bisect_left
from datetime import datetime, timedelta, tzinfo

from callgate.runtime.options.schedule import Schedule, times_of

DAY = 86_400


def last_time(schedule: Schedule, now: float) -> float:
    """Return the last time of a schedule that is not after *now*, in seconds since the epoch.

    A schedule with ``*`` or a step in its minutes or hours goes by the clock on the wall: it runs in both hours when the
    clock is set back, and not in the hour that is left out when it is set forward. Any other schedule has fixed times:
    a time that occurs twice counts once, the first time, and a time that is left out counts when the clock is set forward.
    """
    from zoneinfo import ZoneInfo  # few applications have schedules

    zone, fixed = ZoneInfo(schedule.zone), has_fixed_times(schedule.cron)
    wall = _wall(math.floor(now), zone)
    # For a while after the clock was set back, times with a later text than the present one have passed, too.
    repeated = max(_wall(math.floor(now) - DAY, zone) + timedelta(seconds=DAY) - wall, timedelta())
    # croniter gets naive times: it knows no rule for hours that occur twice. It returns the time before a given one.
    times = times_of(schedule.cron, wall + repeated + timedelta(seconds=1))
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


def _moments(wall: datetime, zone: tzinfo, *, fixed: bool) -> list[float]:
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


def _wall(at: float, zone: tzinfo) -> datetime:
    """Return the time on the wall of a zone, as a naive datetime."""
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None, fold=0)
