"""Scheduled calls, once for each time; and the rate limits of queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, Jobs, RegistrationError, UnknownTool, User, tool
from callgate.errors import StoreError
from callgate.jobs import EmbeddedJobs, Schedule
from callgate.runtime.jobs import schedules
from callgate.runtime.jobs.schedule_times import last_time
from callgate.stores import JobState
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place

KEY = "a key of the tests, long enough"
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()
RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran_yet() -> None:
    RAN.clear()


@tool(effect="read")
async def report(what: str) -> str:
    """Make a report."""
    RAN.append(what)
    return what


class WallClock:
    """A clock that the test moves; deadlines go by the real one."""

    def __init__(self, now: float) -> None:
        self.now = now

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def hourly(**more: Any) -> Schedule:
    return Schedule(tool="report", cron="0 * * * *", arguments={"what": "sales"}, user=User("robot", "acme"), **more)


@asynccontextmanager
async def a_gate(address: str, clock: WallClock, *each: Schedule, **options: Any) -> AsyncGenerator[Gate]:
    flat = {name: options.pop(name) for name in ("durable", "refresh_user") if name in options}
    jobs = Jobs(engine=EmbeddedJobs(0), schedules=each, **options)
    given = gate_options(store=address, signing_keys=[KEY], jobs=jobs, clock=clock, **flat)
    async with Gate([report], allow_unguarded=True, **given) as gate:
        yield gate


async def submitted(gate: Gate) -> int:
    return len(await gate.store.jobs.list(None))


# ---------------------------------------------------------------------- once for each time


@pytest.mark.parametrize("kind", ["sqlite-file", "postgresql"])
async def test_of_many_processes_one_submits_the_call_of_each_time(tmp_path: Path, kind: str) -> None:
    clock = WallClock(NOON + 2.0)
    with place(kind, tmp_path) as (address, _):
        async with a_gate(address, clock, hourly()) as one, a_gate(address, clock, hourly()) as other:
            for hour in range(3):
                clock.now = NOON + 2.0 + hour * 3_600.0
                for _ in range(2):
                    await asyncio.gather(one.jobs.scheduler.tick(), other.jobs.scheduler.tick())
                assert await submitted(one) == hour + 1
            while await one.jobs.run_invocation() is not None:
                pass
            assert RAN == ["sales"] * 3


async def test_a_schedule_without_the_time_in_its_key_would_be_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the key two processes submit twice."""
    clock, address = WallClock(NOON + 2.0), f"sqlite:///{tmp_path}/a.db"
    async with a_gate(address, clock, hourly()) as one, a_gate(address, clock, hourly()) as other:
        for gate in (one, other):
            submit = gate.jobs.submit

            async def without_key(*given: Any, submit: Any = submit, key: str = "", **more: Any) -> Any:
                return await submit(*given, **more)

            monkeypatch.setattr(gate.jobs, "submit", without_key)
            await gate.jobs.scheduler.tick()
        assert await submitted(one) == 2


async def test_of_several_missed_times_the_last_is_caught_up_while_it_is_not_too_old(tmp_path: Path) -> None:
    clock, address = WallClock(NOON + 1.0), f"sqlite:///{tmp_path}/a.db"
    async with a_gate(address, clock, hourly(catch_up=1_800.0)) as gate:
        await gate.jobs.scheduler.tick()
        assert await submitted(gate) == 1
        clock.now += 5 * 3_600.0 + 1_700.0
        await gate.jobs.scheduler.tick()
        assert await submitted(gate) == 2, "one of the five"
        clock.now += 3_600.0 + 200.0  # 1,901 seconds late
        await gate.jobs.scheduler.tick()
        assert await submitted(gate) == 2, "too old"
        clock.now += 1_800.0
        await gate.jobs.scheduler.tick()
        assert await submitted(gate) == 3, "the next time"


async def test_two_schedules_of_one_tool_have_names(tmp_path: Path) -> None:
    with pytest.raises(RegistrationError, match="two schedules have one name"):
        Jobs(schedules=[hourly(), hourly()])
    clock = WallClock(NOON + 1.0)
    async with a_gate(f"sqlite:///{tmp_path}/a.db", clock, hourly(name="a"), hourly(name="b", queue="q")) as gate:
        await gate.jobs.scheduler.tick()
        assert {job.queue for _, job in await gate.store.jobs.list("acme")} == {"default", "q"}


async def test_a_failing_store_delays_a_run_and_does_not_lose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = WallClock(NOON + 1.0)
    async with a_gate(f"sqlite:///{tmp_path}/a.db", clock, hourly()) as gate:

        async def fails(*_given: Any, **_more: Any) -> None:
            raise OSError("no disk")

        monkeypatch.setattr(gate.jobs, "submit", fails)
        await gate.jobs.scheduler.tick()
        assert await submitted(gate) == 0
        monkeypatch.undo()
        await gate.jobs.scheduler.tick()
        assert await submitted(gate) == 1


class Broken(Exception):
    """An error that is no use to those who read it."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


FAILURES: list[tuple[str, Callable[[], BaseException]]] = [
    ("submit", lambda: OSError("no disk")),
    ("submit", lambda: StoreError("no store")),
    ("submit", lambda: ExceptionGroup("two", [ValueError("one"), KeyError("other")])),
    ("submit", Broken),
    ("submit", lambda: RegistrationError("no worker serves the queue")),
    ("time", lambda: ValueError("no such time")),
    ("time", lambda: ZeroDivisionError("of a package")),
    ("call", lambda: TypeError("no arguments")),
    ("call", lambda: SystemExit(3)),
    ("submit", asyncio.CancelledError),
]


@pytest.mark.parametrize("kind", ["memory", "sqlite-file", "postgresql"])
@pytest.mark.parametrize(("where", "made"), FAILURES)
async def test_a_schedule_that_fails_stops_no_other_is_named_in_the_log_once_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str, where: str, made: Any
) -> None:
    clock, bad = WallClock(NOON + 2.0), hourly(name="bad")
    options: dict[str, Any] = {"durable": False} if kind == "memory" else {}
    with place(kind, tmp_path) as (address, _):
        async with a_gate(address, clock, hourly(name="a"), bad, hourly(name="z"), **options) as gate:
            breaks(monkeypatch, gate, where, bad, made)
            for _ in range(3):
                clock.now += 1.0
                await gate.maintain()
            assert await submitted(gate) == 2
            (logged,) = [record.message for record in caplog.records if "schedule.failed" in record.message]
            assert "schedule='bad'" in logged
            assert "tool='report'" in logged
            assert type(made()).__name__ in logged
            assert "Traceback" in logged
            monkeypatch.undo()
            await gate.maintain()
            assert await submitted(gate) == 3


def breaks(
    monkeypatch: pytest.MonkeyPatch, gate: Gate, where: str, bad: Schedule, made: Callable[[], BaseException]
) -> None:
    """Let one schedule fail at that place."""
    if where == "submit":
        submit = gate.jobs.submit

        async def fails(*given: Any, key: str, **more: Any) -> Any:
            if key.startswith("schedule bad "):
                raise made()
            return await submit(*given, key=key, **more)

        monkeypatch.setattr(gate.jobs, "submit", fails)
        return
    target, name = (schedules, "last_time") if where == "time" else (schedules.Scheduler, "_call")
    inner = getattr(target, name)

    def fails_for_bad(schedule: Schedule, *rest: Any) -> Any:
        if schedule is bad:
            raise made()
        return inner(schedule, *rest)

    monkeypatch.setattr(target, name, fails_for_bad if where == "time" else staticmethod(fails_for_bad))


@pytest.mark.parametrize("kind", ["memory", "sqlite-file", "postgresql"])
async def test_a_fixed_time_is_submitted_once_in_the_autumn_night_and_once_in_the_spring_night(
    tmp_path: Path, kind: str
) -> None:
    """Each look is that of a process that has just started, which knows nothing of earlier looks."""
    nights = {"2026-10-24T22:00+00:00": (1, 14), "2026-03-28T23:00+00:00": (1, 10)}
    with place(kind, tmp_path) as (address, _):
        for night, (fixed, quarters) in nights.items():
            clock = WallClock(datetime.fromisoformat(night).timestamp())
            each: dict[str, Any] = {
                "arguments": {"what": "sales"},
                "zone": "Europe/Berlin",
                "catch_up": 0.0,
                "user": User("robot", night),
            }
            all_night = [
                Schedule(tool="report", name="fixed", cron="30 2 * * *", queue="fixed", **each),
                Schedule(tool="report", name="quarters", cron="*/30 0-5 * * *", queue="quarters", **each),
            ]
            async with a_gate(address, clock, *all_night) as gate:
                for _ in range(7 * 60 if quarters > 10 else 5 * 60):
                    await schedules.Scheduler(gate.jobs, all_night).tick()
                    clock.now += 60.0
                queues = [job.queue for _, job in await gate.store.jobs.list(night, limit=100)]
            assert (queues.count("fixed"), queues.count("quarters")) == (fixed, quarters)


@pytest.mark.parametrize("kind", ["sqlite-file", "postgresql"])
@pytest.mark.parametrize("end", ["denied", "cancelled", "dead", "invalid"])
async def test_a_time_whose_job_did_not_run_is_not_submitted_again(tmp_path: Path, kind: str, end: str) -> None:
    """The keys of other jobs are free again after such an end."""
    clock, wrong = WallClock(NOON + 2.0), {"what": 7} if end == "invalid" else {"what": "sales"}
    schedule = Schedule(tool="report", cron="0 * * * *", arguments=wrong, user=User("robot", "acme"))
    with place(kind, tmp_path) as (address, _):
        options = {"refresh_user": lambda _: None} if end == "denied" else {}
        async with a_gate(address, clock, **options) as gate:
            await schedules.Scheduler(gate.jobs, [schedule]).tick()
            ((_, job),) = await gate.store.jobs.list(None)
            if end == "cancelled":
                await gate.store.jobs.cancel("acme", job.id, clock.now)
            elif end == "dead":
                taken = await gate.store.jobs.take("w", clock.now, clock.now + 9.0)
                assert taken is not None
                await gate.store.jobs.end("acme", job.id, 1, JobState.DEAD, at=clock.now, result=None, reason="gone")
            else:
                assert await gate.jobs.run_invocation() is JobState.DONE
                assert (await gate.job(job.id, user=User("robot", "acme"))).outcome == end
            await schedules.Scheduler(gate.jobs, [schedule]).tick()
            ((_, after),) = await gate.store.jobs.list(None)
            assert after.state in {JobState.CANCELLED, JobState.DEAD, JobState.DONE}
            assert RAN == []


async def test_the_gate_runs_its_schedules_while_it_is_open(tmp_path: Path) -> None:
    async with a_gate(f"sqlite:///{tmp_path}/a.db", WallClock(NOON + 1.0), hourly()) as gate:
        await gate.maintain()
        assert await submitted(gate) == 1


@pytest.mark.parametrize(
    ("zone", "now", "expected"),
    [
        ("UTC", "2026-03-02T03:00:00+00:00", "2026-03-02T03:00:00+00:00"),
        ("UTC", "2026-03-02T02:59:59.9+00:00", "2026-03-01T03:00:00+00:00"),
        ("Europe/Berlin", "2026-03-02T02:30:00+00:00", "2026-03-02T02:00:00+00:00"),
        ("Europe/Berlin", "2026-07-02T01:30:00+00:00", "2026-07-02T01:00:00+00:00"),
    ],
)
def test_the_times_are_those_of_the_zone(zone: str, now: str, expected: str) -> None:
    at = last_time(Schedule(tool="report", cron="0 3 * * *", zone=zone), datetime.fromisoformat(now).timestamp())
    assert at == datetime.fromisoformat(expected).timestamp()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"cron": "never"}, "is not five fields"),
        ({"cron": "0 0 * * * *"}, "is not five fields"),
        ({"cron": "99 * * * *"}, "is not five fields"),
        ({"cron": "R 3 * * *"}, "is not five fields"),  # a random number: other times in each process
        ({"cron": "0 R(1-5) * * *"}, "is not five fields"),
        ({"cron": None}, "is not five fields"),
        ({"cron": "0 0 30 2 *"}, "names a date that no year has"),
        ({"cron": "0 0 30,31 2 *"}, "names a date that no year has"),
        ({"cron": "0 0 31 2,4,6,9,11 *"}, "names a date that no year has"),
        ({"cron": "0 0 31 4,6 *", "zone": "Europe/Berlin"}, "names a date that no year has"),
        ({"cron": "0 3 * * *", "zone": "Mars/Base"}, "the time zone 'Mars/Base' is unknown"),
        ({"cron": "0 3 * * *", "zone": None}, "the time zone None is unknown"),
        ({"cron": "0 3 * * *", "catch_up": float("nan")}, "catch_up is .*at least 0"),
        ({"cron": "0 3 * * *", "deadline": float("nan")}, "deadline is .*above 0"),
        ({"cron": "0 3 * * *", "deadline": 0.0}, "deadline is .*above 0"),
        ({"cron": "0 0 13 * 1#2"}, "write two schedules"),  # croniter drops the 13
        ({"cron": "0 0 */2 * L5"}, "write two schedules"),
    ],
)
def test_times_that_cannot_be_read_are_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(RegistrationError, match=f"the schedule report: .*{why}"):
        Schedule(tool="report", **wrong)


@pytest.mark.parametrize(
    ("cron", "days"),
    [
        ("0 0 */2 * 1", "09 23"),  # Monday, on odd days
        ("0 0 1-9 * */7", "01 08"),  # Sunday, in the first nine days
        ("0 0 */1 * 1", "02 09 16 23 30"),
        ("0 0 * * 1", "02 09 16 23 30"),
        ("0 0 13 * 1", "02 09 13 16 23 30"),
        ("0 0 1-31/10 * 1", "01 02 09 11 16 21 23 30 31"),
    ],
)
def test_days_of_the_month_and_of_the_week_are_joined_as_in_vixie_cron(cron: str, days: str) -> None:
    """With a field that begins with ``*``, a run needs both days; else either. ``*/2`` and Monday ran each odd day, too."""
    schedule, found = Schedule(tool="report", cron=cron), set[str]()
    first = datetime(2026, 3, 1, tzinfo=UTC)
    for day in range(31):
        at = (first + timedelta(days=day)).timestamp()
        if last_time(schedule, at) == at:
            found.add(f"{day + 1:02}")
    assert " ".join(sorted(found)) == days


_UNSTORABLE: list[Any] = [{"queue": "a\0"}, {"priority": 2**31}, {"name": "\ud800"}]


async def test_what_no_run_could_be_stored_with_is_refused_at_the_opening(tmp_path: Path) -> None:
    """Each run failed: its key has the name of the schedule, and the queue and the priority are those of its job."""
    with pytest.raises(RegistrationError, match="its name has more than 200 characters"):
        Schedule(tool="report", cron="0 3 * * *", name="n" * 201)
    long: Any = {"name": "n" * 200}
    for wrong in (long, *_UNSTORABLE):
        schedule = Schedule(tool="report", cron="0 3 * * *", arguments={"what": "sales"}, **wrong)
        opening = a_gate(f"sqlite:///{tmp_path}/store.db", WallClock(NOON), schedule)
        if wrong is long:
            async with opening:
                continue
        with pytest.raises(RegistrationError, match=r"the schedule .*(NUL|surrogate|priority)"):
            async with opening:
                pass


@pytest.mark.parametrize(
    "cron", ["0 0 29 2 *", "0 0 30 2 1", "0 0 31 1,4 *", "0 0 * 2 2#5", "0 0 L 2 *", "0 0 1 mar fri"]
)
def test_dates_that_are_rare_are_accepted(cron: str) -> None:
    schedule = Schedule(tool="report", cron=cron)
    assert last_time(schedule, NOON) < NOON


async def test_what_could_never_run_is_refused_at_the_opening(tmp_path: Path) -> None:
    clock, address = WallClock(NOON), f"sqlite:///{tmp_path}/a.db"
    with pytest.raises(UnknownTool):
        async with a_gate(address, clock, Schedule(tool="gone", cron="* * * * *")):
            pass


class Fills(Hook):
    """Adds an argument that the model does not give."""

    def will_parse_input(self, ctx: InvokeContext) -> None:
        ctx.input = {"what": "sales"}


@pytest.mark.parametrize("arguments", [{}, {"what": 5}, {"what": "sales", "more": 1}])
async def test_a_schedule_whose_arguments_are_not_valid_is_refused_at_the_opening(
    arguments: Any, tmp_path: Path
) -> None:
    """Each run ended as ``invalid``, in a job that no one awaits. A hook may still change them first."""
    schedule = Schedule(tool="report", cron="0 3 * * *", arguments=arguments)
    for hooks in ([], [Fills()]):
        jobs = Jobs(engine=EmbeddedJobs(0), schedules=[schedule])
        options = gate_options(store=f"sqlite:///{tmp_path}/store.db", signing_keys=[KEY], jobs=jobs)
        opening = Gate([report], hooks, allow_unguarded=True, **options)
        if hooks:
            async with opening:
                continue
        with pytest.raises(RegistrationError, match="the schedule report: each run would be invalid: "):
            await opening.open()


@pytest.mark.parametrize("catch_up", [0.0, 10.0, 200.0])
@pytest.mark.parametrize("keep", [5.0, 60.0, 61.0, 201.0])
async def test_a_run_whose_job_was_deleted_is_not_made_again(tmp_path: Path, catch_up: float, keep: float) -> None:
    """Its process is restarted right after the job was deleted; where the run would be made twice, the gate does not open."""
    clock, address = WallClock(NOON + 1.0), f"sqlite:///{tmp_path}/a.db"
    try:
        async with a_gate(address, clock, hourly(catch_up=catch_up), keep=keep) as gate:
            await gate.jobs.scheduler.tick()
            assert await gate.jobs.run_invocation() is JobState.DONE
            clock.now += keep + 0.5
            await gate.jobs.prune()
            assert await submitted(gate) == 0
    except RegistrationError as error:
        assert "give Jobs(keep=...) of more seconds" in str(error)  # noqa: PT017  (some of these are accepted)
        assert keep <= max(catch_up, 60.0)
        return
    async with a_gate(address, clock, hourly(catch_up=catch_up), keep=keep) as gate:
        await gate.jobs.scheduler.tick()
        assert await submitted(gate) == 0


# ---------------------------------------------------------------------- rates


@pytest.mark.parametrize("kind", ["sqlite-file", "postgresql"])
async def test_the_jobs_of_a_queue_run_at_its_rate_in_all_workers_and_each_is_put_off_once(
    tmp_path: Path, kind: str
) -> None:
    clock, rates = WallClock(NOON), {"mail": (2, 10.0)}
    with place(kind, tmp_path) as (address, _):
        async with a_gate(address, clock, rates=rates) as one, a_gate(address, clock, rates=rates) as other:
            for n in range(6):
                await one.submit("report", {"what": f"mail {n}"}, user=User("ann"), queue="mail")
            await one.submit("report", {"what": "free"}, user=User("ann"))
            looks = 0
            while (await one.jobs.run_invocation()) is not None or (await other.jobs.run_invocation()) is not None:
                looks += 1
            assert looks <= 7
            assert len(RAN) == 3
            assert "free" in RAN
            for seconds in range(1, 61):
                clock.now = NOON + seconds
                for gate in (one, other):
                    while await gate.jobs.run_invocation() is not None:
                        looks += 1
                assert len(RAN) <= 1 + 2 * (1 + seconds // 10)
            assert len(RAN) == 7
            assert {job.state for _, job in await one.store.jobs.list(None)} == {JobState.DONE}
            assert {job.attempts for _, job in await one.store.jobs.list(None)} == {1}


def test_a_rate_out_of_range_is_refused() -> None:
    for rate in ((0, 1.0), (1, 0.0)):
        with pytest.raises(RegistrationError, match="a rate is at least one call"):
            Jobs(rates={"mail": rate})
