"""Whatever is raised in the end of a job, it ends, the log has the traceback, and its worker goes on."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from callgate import Effects, Gate, Jobs, Outcome, ToolCall, ToolContext, User, tool
from callgate.jobs import EmbeddedJobs
from callgate.runtime.hosts.celery import CeleryJobs
from callgate.runtime.hosts.celery.worker import _task
from callgate.runtime.hosts.procrastinate import ProcrastinateJobs
from callgate.runtime.jobs import running
from callgate.runtime.jobs.calls import UnusableResult
from callgate.runtime.jobs.jobs import JobHandle
from callgate.runtime.options.job_engine import Tally
from callgate.stores import JobState
from tests.providers.stores.backends import place
from tests.runtime.jobs.engine_app import celery_app
from tests.runtime.jobs.test_celery import Delivered

ANN, EVE = User("ann", "acme"), User("eve", "acme")
KEY = "a key of the tests, long enough"
PAID: Counter[str] = Counter()
ATTEMPTS = 3


class Silent(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Bare(Exception):
    """An error without attributes."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Strange(BaseException):
    """An error that `except Exception` does not see."""


WHAT: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("wrong"),
    "ExceptionGroup": lambda: ExceptionGroup("both", [ValueError("one"), KeyError("other")]),
    "Silent": Silent,
    "Bare": Bare,
    "Strange": Strange,
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "TimeoutError": TimeoutError,
}
"""What is raised, by the argument of the call for which it is."""
WHERE = ["dump", "call", "lookup", "end", "wake", "announce"]
ENGINES = ["embedded memory", "embedded sqlite-file", "embedded postgresql", "procrastinate postgresql"]


@pytest.fixture(autouse=True)
def _nothing_is_paid_yet() -> None:
    PAID.clear()


@tool(effect="irreversible")
async def pay(who: str) -> str:
    """Pay somebody."""
    PAID[who] += 1
    return who


@tool(effect="read")
async def odd(kind: str, ctx: ToolContext) -> Any:
    """Return what is no JSON, and report what is no progress."""
    ctx.progress(float("nan"))
    outputs: dict[str, Any] = {
        "object": object(),
        "set in a list": [{"a", "b"}],
        "bytes": {"b": b"\xff"},
        "key": {(1, 2): 3},
        "surrogate": "\ud800",
        "not finite": [float("inf")],
    }
    if kind == "circle":
        outputs["circle"] = circle = list[Any]()
        circle.append(circle)
    return outputs[kind]


@tool(effect="read")
async def hold(ctx: ToolContext) -> None:
    """Report progress until the call is cancelled."""
    for number in itertools.count():
        ctx.progress(number)
        await asyncio.sleep(0.01)


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[tuple[str, str]]:
    engine, kind = request.param.split()
    with ExitStack() as stack:
        yield engine, stack.enter_context(place(kind, tmp_path))[0]


def options_of(store: str, engine: Any) -> dict[str, Any]:
    jobs = Jobs(engine=engine, backoff=0.0, max_attempts=ATTEMPTS, lease=600.0)
    effects = Effects(durable=False) if store == "memory://" else Effects()
    return {"store": store, "signing_keys": [KEY], "jobs": jobs, "effects": effects, "allow_unguarded": True}


@asynccontextmanager
async def working(engine: str, store: str, concurrency: int = 1) -> AsyncGenerator[Gate]:
    """A gate with one worker, which takes one job at a time."""
    backend: Any = EmbeddedJobs(concurrency) if engine == "embedded" else ProcrastinateJobs(poll=0.05)
    async with Gate([pay, odd, hold], **options_of(store, backend)) as gate, asyncio.timeout(100):
        if engine == "embedded":
            yield gate
            return
        stop = asyncio.Event()
        work = asyncio.create_task(backend.work(concurrency, ("default",), stop, 20.0, Tally()))
        try:
            yield gate
        finally:
            stop.set()
            await work


def breaks(monkeypatch: pytest.MonkeyPatch, gate: Gate, where: str, ids: dict[str, str]) -> None:
    """Raise at that place, for the jobs whose ids are given with what to raise."""
    jobs: Any = gate.jobs
    raised = set[str]()

    def fail(what: str | None) -> None:
        if what in WHAT:
            error = WHAT[what]()
            raise error

    def once(id: str) -> None:
        if id in ids and id not in raised:
            raised.add(id)
            fail(ids[id])

    def before(target: Any, name: str, check: Callable[..., None], *, waits: bool) -> None:
        inner = getattr(target, name)

        async def checked_later(*given: Any, **more: Any) -> Any:
            check(*given, **more)
            return await inner(*given, **more)

        def checked(*given: Any, **more: Any) -> Any:
            check(*given, **more)
            return inner(*given, **more)

        monkeypatch.setattr(target, name, checked_later if waits else checked)

    match where:
        case "dump":
            before(running, "dump_result", lambda result: fail(result.output), waits=False)
        case "call":
            before(jobs._calls, "make", lambda call, *_: fail(call.arguments["who"]), waits=True)
        case "lookup":
            before(jobs._calls, "refresh", lambda user: fail(user.id), waits=True)
        case "end":
            before(gate.store.jobs, "end", lambda tenant, id, *_, **__: once(id), waits=True)
        case "wake":
            before(jobs.waiters, "wake", once, waits=False)
        case _:
            before(jobs, "announce", once, waits=False)


def caller(where: str, what: str) -> User:
    return User(what, "acme") if where == "lookup" else ANN


async def check(where: str, what: str, job: JobHandle, logs: str) -> None:
    """Check how the job has ended for which that was raised at that place."""
    result, status = await job, await job.status()
    lines = [line for line in logs.splitlines() if f"job='{job.id}'" in line]
    if where in {"wake", "announce"}:
        assert (status.state, status.attempts, result.output) == (JobState.DONE, 1, what)
        assert any("job.not_sent" in line and "Traceback" in line for line in lines)
    elif where == "end":  # of the store: the next attempt has the receipt of the first
        assert (status.state, status.attempts, result.output) == (JobState.DONE, 2, what)
        assert any("job.failed" in line and "Traceback" in line for line in lines)
    elif (where, what) == ("call", "CancelledError"):
        assert (status.state, result.outcome) == (JobState.DONE, Outcome.CANCELLED)
    else:
        assert (status.state, result.outcome) == (JobState.DEAD, Outcome.ERROR)
        assert result.error is not None
        assert result.error.code == "job_failed"
        assert (result.call_id, status.attempts) == (f"c {what}", ATTEMPTS if where == "lookup" else 1)
        assert any("job.failed" in line and "Traceback" in line and what in line for line in lines)
        assert f"its worker failed: {what}" == status.reason
    assert PAID[what] == (0 if where in {"call", "lookup"} else 1)


def call_of(what: str) -> ToolCall:
    return ToolCall(id=f"c {what}", name="pay", arguments={"who": what})


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("address", ENGINES, indirect=True)
async def test_whatever_is_raised_in_the_end_of_a_job_it_ends_and_its_worker_goes_on(
    address: tuple[str, str], where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I4, I20."""
    monkeypatch.setattr("callgate.runtime.jobs.jobs.LIVE_POLL", 0.2)  # where a notice fails, callers poll
    async with working(*address) as gate:
        later, ids = time.time() + 0.2, dict[str, str]()
        jobs: dict[str, JobHandle] = {}
        breaks(monkeypatch, gate, where, ids)
        for what in WHAT:
            user = caller(where, what)
            job = jobs[what] = await gate.submit(call_of(what), user=user, delay=max(later - time.time(), 0.0))
            ids[job.id] = what
        good = await gate.submit(call_of("good"), user=ANN, delay=max(later - time.time(), 0.0))
        assert (await good).output == "good"
        await asyncio.gather(*(job.result() for job in jobs.values()))
        while gate.jobs.runner.running:  # noqa: ASYNC110  (the worker writes the log after it has stored the end)
            await asyncio.sleep(0.01)
        for what, job in jobs.items():
            await check(where, what, job, caplog.text)
        assert (await gate.store.jobs.count())[JobState.RUNNING] == 0


@pytest.mark.parametrize("where", WHERE)
def test_in_celery_no_error_of_a_job_leaves_its_task(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I4, I20: the message is acknowledged, and the worker's process goes on."""
    app = celery_app("memory://", "x")
    gate = Gate([pay, odd, hold], **options_of(f"sqlite:///{tmp_path}/a.db", CeleryJobs(app)))
    deliver = _task(gate, gate.jobs.backend)  # type: ignore[arg-type]  # it is CeleryJobs
    with gate.sync() as tools:
        run, ids = tools._portal.run, dict[str, str]()
        breaks(monkeypatch, gate, where, ids)
        for what in WHAT:
            job = run(partial(gate.submit, call_of(what), user=caller(where, what)))
            ids[job.id] = what
            for _ in range(ATTEMPTS):
                deliver(Delivered(redelivered=False), job.id)
            run(partial(check, where, what, job, caplog.text))
        tools.close()  # the task has opened it, too
    app.close()


@pytest.mark.parametrize("address", ENGINES, indirect=True)
async def test_outputs_and_progress_that_are_no_json_end_their_jobs(address: tuple[str, str]) -> None:
    async with working(*address) as gate:
        kinds = ["object", "set in a list", "bytes", "key", "surrogate", "not finite", "circle"]
        jobs = [await gate.submit("odd", {"kind": kind}, user=ANN) for kind in kinds]
        good = await gate.submit(call_of("good"), user=ANN)
        assert (await good).output == "good"
        for job in jobs:
            await job
            assert (await job.status()).state in {JobState.DONE, JobState.DEAD}
            await gate.jobs.poll()


@pytest.mark.parametrize("part", ["take", "listen", "stopped", "record_progress"])
async def test_a_worker_goes_on_after_any_error_of_its_store(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also its polls go on, which find that another process has cancelled a job."""
    monkeypatch.setattr("callgate.runtime.jobs.executor.LAST_POLL", 0.01)
    monkeypatch.setattr("callgate.runtime.jobs.jobs.POLL_EVERY", 0.01)
    async with working("embedded", "memory://", 2) as gate:
        target: Any = gate.jobs if part == "listen" else gate.store.jobs
        inner, left = getattr(target, part), list(WHAT.values())

        def fails(*given: Any, **more: Any) -> Any:
            task = asyncio.current_task()
            if left and task is not None and task.get_name().startswith("callgate job"):
                error = left.pop()()
                raise error
            return inner(*given, **more)

        monkeypatch.setattr(target, part, fails)
        held = await gate.submit("hold", user=ANN)
        assert (await (await gate.submit(call_of("good"), user=ANN))).output == "good"
        while left or (await held.status()).progress is None:  # noqa: ASYNC110  (the worker makes it so)
            await asyncio.sleep(0.01)
        assert await gate.store.jobs.cancel("acme", held.id, time.time()) is JobState.RUNNING
        assert (await held).outcome is Outcome.CANCELLED


async def test_a_worker_that_does_not_contain_an_error_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the error ends the only worker, and the next job waits for ever."""

    async def fail(_self: Any, _here: Any, error: BaseException) -> Any:
        raise error

    monkeypatch.setattr(running.JobRunner, "_fail", fail)
    monkeypatch.setattr("callgate.runtime.jobs.executor.stops", lambda *_: True)
    async with working("embedded", "memory://") as gate:
        ids = dict[str, str]()
        breaks(monkeypatch, gate, "dump", ids)
        bad = await gate.submit(call_of("ValueError"), user=ANN)
        good = await gate.submit(call_of("good"), user=ANN)
        executor: Any = gate.jobs.backend._executor  # type: ignore[attr-defined]
        await asyncio.wait(executor._workers)
        assert ((await bad.status()).state, (await good.status()).state) == (JobState.RUNNING, JobState.QUEUED)
        for worker in executor._workers:
            assert isinstance(worker.exception(), UnusableResult)
