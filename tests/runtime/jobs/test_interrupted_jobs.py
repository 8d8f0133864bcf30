"""Ctrl-C while a job runs in the process of the gate: the job is given back, and the program ends; issue 38."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from callgate import Gate, Jobs, Options, Outcome, User, tool
from callgate.jobs import EmbeddedJobs
from callgate.runtime.pipeline.interrupts import Interrupts
from callgate.stores import JobState

ANN = User("ann", "acme")
KEY = "a key of the tests, long enough"
Main = Callable[[], Coroutine[Any, Any, None]]


def in_asyncio_run(main: Main) -> None:
    """The first Ctrl-C cancels the main task, the second raises."""
    asyncio.run(main())


def in_a_loop(main: Main) -> None:
    """Python's own handler raises; the application does not let its tasks end before it looks."""
    loop = asyncio.new_event_loop()
    running = loop.create_task(main())
    try:
        loop.run_until_complete(running)
    finally:
        LEFT.append(loop)
        LEFT.append(running)


LEFT: list[Any] = []


@pytest.fixture(autouse=True)
def _in_the_foreground() -> Generator[None]:
    """A shell lets the processes that it starts in the background ignore SIGINT. No loop is left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    while LEFT:
        running, loop = LEFT.pop(), LEFT.pop()
        running.cancel()
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(running)
        loop.close()


@pytest.mark.parametrize("hard", [False, True], ids=["", "in a task of its own"])
@pytest.mark.parametrize(("run", "times"), [(in_asyncio_run, 2), (in_a_loop, 1)])
@pytest.mark.parametrize("effect", ["read", "irreversible"])
@pytest.mark.parametrize("handled", [True, False], ids=["handled", "control without the handler"])
def test_ctrl_c_in_a_job_gives_the_job_back_and_is_raised(
    handled: bool,
    effect: Literal["read", "irreversible"],
    run: Callable[[Main], None],
    times: int,
    hard: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another worker takes it at once. Its effect is not made again, because nothing says how the first attempt ended."""
    if not handled:
        monkeypatch.setattr(Interrupts, "watch", lambda *_: None)
    ran: list[str] = []
    ids: list[str] = []

    @tool(effect=effect)
    async def work() -> int:
        """Work."""
        ran.append("begun")
        if len(ran) == 1:
            await asyncio.sleep(0)
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            ran.append("it goes on")
        return len(ran)

    def gate(workers: int) -> Gate:
        jobs = Jobs(engine=EmbeddedJobs(workers, grace=0.2))
        store, options = f"sqlite:///{tmp_path}/a.db", Options(hard_deadline=hard, drain=0.2)
        return Gate([work], store=store, signing_keys=[KEY], jobs=jobs, allow_unguarded=True, options=options)

    async def interrupted() -> None:
        async with gate(1) as open_gate:
            job = await open_gate.submit("work", user=ANN)
            ids.append(job.id)
            await asyncio.wait_for(job.result(), 20)

    async def looked(workers: int) -> tuple[JobState, int, Outcome | None]:
        async with gate(workers) as open_gate:
            job = open_gate.job(ids[0], user=ANN)
            outcome = (await asyncio.wait_for(job.result(), 20)).outcome if workers else None
            status = await job.status()
            return status.state, status.attempts, outcome

    try:
        run(interrupted)
    except KeyboardInterrupt:
        ran.append("raised")
    if handled:
        assert ran == ["begun", "raised"]
        assert asyncio.run(looked(0)) == (JobState.QUEUED, 0, None)
        expected = Outcome.SUCCESS if effect == "read" else Outcome.UNKNOWN
        assert asyncio.run(looked(1)) == (JobState.DONE, 1, expected)
        assert ran.count("begun") == (2 if effect == "read" else 1)
    else:
        assert asyncio.run(looked(0))[0] is not JobState.QUEUED
