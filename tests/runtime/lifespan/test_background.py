"""Background tasks of an open gate: none waits for another, and none for ever."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from callgate.runtime.lifespan.background import BackgroundTask, BackgroundTasks
from tests.harness.steploop import StepLoop, on_virtual_time


class Work:
    """Chores that are counted, and end, fail, or do neither."""

    def __init__(self) -> None:
        self.begun, self.ended = Counter[str](), Counter[str]()

    async def ends(self) -> None:
        self.begun["ends"] += 1

    async def fails(self) -> None:
        self.begun["fails"] += 1
        raise OSError("secret")

    async def hangs(self) -> None:
        self.begun["hangs"] += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.ended["hangs"] += 1


@on_virtual_time
async def test_a_chore_that_does_not_end_delays_no_other(loop: StepLoop) -> None:
    """Leases are renewed while something else is slow, such as finding out what became of an effect (I3, I5)."""
    work, background = Work(), BackgroundTasks()
    background.tasks += [BackgroundTask("slow", 1.0, work.hangs), BackgroundTask("leases", 1.0, work.ends)]
    background.start()
    await asyncio.sleep(10.5)
    assert work.begun == {"hangs": 1, "ends": 10}
    assert not work.ended
    await background.stop()
    assert work.ended == {"hangs": 1}


@on_virtual_time
async def test_an_urgent_chore_that_does_not_end_is_given_up_and_comes_back(loop: StepLoop) -> None:
    """A store that says nothing on one connection may answer on the next."""
    work, background = Work(), BackgroundTasks()
    background.tasks.append(BackgroundTask("leases", 1.0, work.hangs, urgent=True))
    background.start()
    await asyncio.sleep(10.5)
    assert work.begun["hangs"] == work.ended["hangs"] == 5  # a second passes before each, and each has one
    await background.stop()
    assert work.ended == work.begun


@on_virtual_time
async def test_a_background_task_that_fails_is_logged_each_time_with_its_traceback_and_comes_back(
    loop: StepLoop, caplog: pytest.LogCaptureFixture
) -> None:
    work, background = Work(), BackgroundTasks()
    background.tasks.append(BackgroundTask("fails", 1.0, work.fails))
    background.start()
    await asyncio.sleep(3.5)
    await background.stop()
    assert work.begun["fails"] == 3
    assert caplog.text.count("provider='fails'") == 3
    assert caplog.text.count("Traceback (most recent call last)") == 3


@on_virtual_time
async def test_all_background_tasks_can_run_at_once(loop: StepLoop) -> None:
    """``Gate.maintain``; what fails keeps none from being done."""
    work, background = Work(), BackgroundTasks()
    background.tasks += [BackgroundTask("fails", 60.0, work.fails), BackgroundTask("ends", 60.0, work.ends)]
    await background.run_all()
    assert work.begun == {"fails": 1, "ends": 1}
