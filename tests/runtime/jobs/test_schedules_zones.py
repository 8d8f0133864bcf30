"""The times of schedules in zones that change their clocks, against a search through every minute."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.jobs import Schedule
from callgate.runtime.jobs import schedule_times
from callgate.runtime.jobs.schedule_times import last_time

MINUTE, DAY = 60, 86_400
CHANGES = [  # a zone, and a moment shortly before its clocks change
    ("Europe/Berlin", "2026-03-28T12:00"),
    ("Europe/Berlin", "2026-10-24T12:00"),
    ("America/New_York", "2026-03-07T18:00"),
    ("America/New_York", "2026-10-31T18:00"),
    ("Australia/Lord_Howe", "2026-04-04T00:00"),  # half an hour
    ("Australia/Lord_Howe", "2026-10-03T00:00"),
    ("America/Havana", "2026-03-07T12:00"),  # at midnight
    ("America/Havana", "2026-10-31T12:00"),
    ("America/St_Johns", "2011-03-12T12:00"),  # a minute after midnight
    ("America/St_Johns", "2010-11-06T12:00"),
    ("Africa/Casablanca", "2026-02-14T12:00"),
    ("Africa/Casablanca", "2026-03-21T12:00"),
    ("Antarctica/Troll", "2026-03-28T12:00"),  # two hours
    ("Antarctica/Troll", "2026-10-24T12:00"),
    ("Pacific/Apia", "2011-12-29T12:00"),  # a whole day was left out
    ("Asia/Kolkata", "2026-03-28T12:00"),  # no change
    ("UTC", "2026-10-24T12:00"),
]
Minutes = list[tuple[int, datetime]]


@cache
def minutes_around(zone: str, moment: str) -> Minutes:
    """Every minute of four days, in seconds since the epoch and on the wall."""
    start = int(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()) - DAY
    return [
        (at, datetime.fromtimestamp(at, ZoneInfo(zone)).replace(tzinfo=None))
        for at in range(start, start + 4 * DAY, MINUTE)
    ]


def expected(minutes: Minutes, matches: Callable[[datetime], bool], *, fixed: bool) -> list[int]:
    """The times of a schedule: each minute that matches; of fixed times the first of each, or the change that leaves it out."""
    if not fixed:
        return [at for at, wall in minutes if matches(wall)]
    first: dict[datetime, int] = {}
    for at, wall in minutes:
        first.setdefault(wall, at)
    found: set[int] = set()
    wall, last = minutes[0][1], minutes[-1][1]
    while wall <= last:
        if matches(wall):
            found.add(first[wall] if wall in first else next(at for at, shown in minutes if shown > wall))
        wall += timedelta(minutes=1)
    return sorted(found)


@st.composite
def fields(draw: st.DrawFn, size: int) -> tuple[str, set[int]]:
    """A field of cron, and the numbers that it names."""
    kind = draw(st.sampled_from(["one", "list", "range", "step", "all", "every"]))
    low, high = sorted((draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))))
    step = draw(st.sampled_from([1, 2, 5, 7, 15, 20]))
    match kind:
        case "one":
            return str(low), {low}
        case "list":
            return f"{low},{high}", {low, high}
        case "range" if low < high:  # croniter takes a range of one number for the whole circle
            return f"{low}-{high}", set(range(low, high + 1))
        case "step" if low < size - 1:
            return f"{low}-{size - 1}/{step}", set(range(low, size, step))
        case "every":
            return f"*/{step}", set(range(0, size, step))
        case _:
            return "*", set(range(size))


@given(
    change=st.sampled_from(CHANGES),
    minute=fields(60),
    hour=st.integers(0, 3).map(lambda hour: (str(hour), {hour})) | fields(24),
    asked=st.lists(st.floats(1.0, 2.9), min_size=5, max_size=10),
)
def test_a_schedule_has_the_times_that_a_search_through_every_minute_finds(
    change: tuple[str, str], minute: tuple[str, set[int]], hour: tuple[str, set[int]], asked: list[float]
) -> None:
    zone, moment = change
    minutes = minutes_around(zone, moment)
    fixed = not any(sign in minute[0] + hour[0] for sign in "*/") and len(minute[1]) < 60 and len(hour[1]) < 24
    times = expected(minutes, lambda wall: wall.minute in minute[1] and wall.hour in hour[1], fixed=fixed)
    schedule = Schedule(tool="report", cron=f"{minute[0]} {hour[0]} * * *", zone=zone)
    start = minutes[0][0]
    inside = times[bisect_left(times, start + DAY) : bisect_right(times, start + 3 * DAY)]
    chosen = inside[:: max(1, len(inside) // 20)]
    for now in [start + part * DAY for part in asked] + [at + by for at in chosen for by in (-0.5, 0.0, 0.5, 59.9)]:
        before = times[: bisect_right(times, now)]
        if before:
            assert last_time(schedule, now) == before[-1]


def test_times_in_both_folds_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: fixed times that run in both hours."""
    moments = schedule_times._moments
    monkeypatch.setattr(schedule_times, "_moments", lambda wall, zone, *, fixed: moments(wall, zone, fixed=False))
    inner = test_a_schedule_has_the_times_that_a_search_through_every_minute_finds.hypothesis.inner_test  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        inner(change=CHANGES[1], minute=("30", {30}), hour=("2", {2}), asked=[])


def runs(cron: str, zone: str, day: str) -> list[str]:
    """The times of a schedule on a day of a zone, as UTC."""
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).timestamp()
    end = datetime.fromisoformat(f"{day}T23:59").replace(tzinfo=ZoneInfo(zone)).timestamp()
    schedule = Schedule(tool="report", cron=cron, zone=zone)
    found = {last_time(schedule, float(now)) for now in range(int(start), int(end) + MINUTE, 5 * MINUTE)}
    return [f"{datetime.fromtimestamp(at, UTC):%H:%M}" for at in sorted(found) if at >= start]


@pytest.mark.parametrize(
    ("cron", "autumn", "spring"),
    [
        ("30 2 * * *", ["00:30"], ["01:00"]),
        ("0,30 2 * * *", ["00:00", "00:30"], ["01:00"]),
        ("0 3 * * *", ["02:00"], ["01:00"]),
        ("30 1-3 * * *", ["23:30", "00:30", "02:30"], ["00:30", "01:00", "01:30"]),
        ("*/30 2 * * *", ["00:00", "00:30", "01:00", "01:30"], []),
        ("30 */2 * * *", None, None),
    ],
)
def test_the_rules_of_the_two_nights_in_berlin(cron: str, autumn: list[str] | None, spring: list[str] | None) -> None:
    """The examples of the documentation."""
    if autumn is None:  # every second hour: by the wall, so 02:30 occurs twice, or not at all
        assert (len(runs(cron, "Europe/Berlin", "2026-10-25")), len(runs(cron, "Europe/Berlin", "2026-03-29"))) == (
            13,
            11,
        )
        return
    assert sorted(runs(cron, "Europe/Berlin", "2026-10-25")) == sorted(autumn)
    assert runs(cron, "Europe/Berlin", "2026-03-29") == spring


def test_a_schedule_of_each_quarter_of_an_hour_goes_on_through_the_repeated_hour() -> None:
    assert len(runs("*/15 * * * *", "Europe/Berlin", "2026-10-25")) == 100
    assert len(runs("*/15 * * * *", "Europe/Berlin", "2026-03-29")) == 92


@pytest.mark.parametrize(
    ("cron", "most"), [("* * * * *", 61), ("30 2 * * *", 2), ("0 0 29 2 *", 1), ("30 2 31 3 *", 1)]
)
def test_a_look_at_the_clock_in_the_repeated_hour_reads_the_times_of_that_hour_only(
    monkeypatch: pytest.MonkeyPatch, cron: str, most: int
) -> None:
    """A look takes place each second."""
    moments, looks = schedule_times._moments, list[datetime]()

    def counted(wall: datetime, zone: ZoneInfo, *, fixed: bool) -> list[float]:
        looks.append(wall)
        return moments(wall, zone, fixed=fixed)

    monkeypatch.setattr(schedule_times, "_moments", counted)
    schedule = Schedule(tool="report", cron=cron, zone="Europe/Berlin")
    last_time(schedule, datetime(2026, 10, 25, 1, 0, 30, tzinfo=UTC).timestamp())
    assert 1 <= len(looks) <= most
    looks.clear()
    last_time(schedule, datetime(2026, 10, 25, 2, 0, 30, tzinfo=UTC).timestamp())
    assert len(looks) <= (1 if cron != "* * * * *" else 61)
