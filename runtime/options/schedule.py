"""Calls that are submitted by the clock: the record of a schedule, and its times. Extra ``schedules``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from callgate.errors import RegistrationError
from callgate.providers.kinds import check_fields
from callgate.providers.principal import ANONYMOUS, User
from callgate.tools.limits import fault_of_seconds

LONGEST_NAME = 200
"""Maximum length of the name of a schedule, in characters."""

_RANDOM = re.compile(r"\br\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A call that workers submit by the clock, once for each time, however many processes run.

    Args:
        tool: the name of the tool.
        cron: five fields of cron, such as ``"0 3 * * *"`` for 3 o'clock. With a day of the month and a day of the week, it
            runs on the days of either; if one of the two fields begins with ``*``, on those of both.
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
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])
    user: User = ANONYMOUS
    zone: str = "UTC"
    catch_up: float = 3_600.0
    queue: str = "default"
    priority: int = 0
    deadline: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, RegistrationError, skip=("cron", "zone", "catch_up", "deadline"))
        if len(self.key) > LONGEST_NAME:  # it is part of the idempotency key of each run
            raise RegistrationError(
                f"the schedule {self.key[:20]}...: its name has more than {LONGEST_NAME} characters"
            )
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


def times_of(cron: str, start: datetime) -> Any:
    """Return the times of a schedule around *start*."""
    from croniter import croniter

    # As in Vixie cron, `*/2` in the day of the month and a day of the week are days of both; the default is either.
    return croniter(cron, start, implement_cron_bug=True)


def check_schedule(key: str, cron: str, zone: str) -> None:
    """Check that the times of a schedule can be read, and that there is one.

    Raises:
        RegistrationError: they cannot, there is none, or the extra is not installed.
    """
    from zoneinfo import ZoneInfo

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
    day, week = cron.split()[2], cron.split()[4]
    if day not in ("*", "?") and re.search("[#lL]", week):  # croniter drops the day of the month
        raise RegistrationError(
            f"the schedule {key}: {cron!r} has a day of the month and {week}, a day of certain weeks; write two schedules"
        )
    try:
        times_of(cron, datetime(2000, 1, 1)).get_next(datetime)  # noqa: DTZ001  (a time on the wall)
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
