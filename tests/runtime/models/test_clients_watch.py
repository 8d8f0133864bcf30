"""One timer limits many waits, and does to a task what ``asyncio.timeout`` around each of them would do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.runtime.models.wire.repeated_timeout import RepeatedTimeout
from callgate.testing import VirtualTime

Wait = Callable[[Coroutine[Any, Any, Any], float | None], Coroutine[Any, Any, Any]]


async def story(wait: Wait, steps: list[tuple[float, float | None]], cancel_after: float | None) -> list[Any]:
    """The outcomes of waits of these seconds with these limits, and of the task when it is cancelled."""
    loop = asyncio.get_running_loop()
    told: list[Any] = []

    async def waiting() -> None:
        task = asyncio.current_task()
        assert task is not None
        for seconds, limit in steps:
            began = loop.time()
            try:
                told.append(await wait(asyncio.sleep(seconds, "there"), None if limit is None else began + limit))
            except TimeoutError:
                told.append("late")
            told.append((round(loop.time() - began), task.cancelling()))
            await asyncio.sleep(3)

    task = asyncio.create_task(waiting())
    if cancel_after is not None:
        loop.call_later(cancel_after, task.cancel)
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    return [*told, type(ended).__name__, task.cancelling()]


async def usual(awaited: Coroutine[Any, Any, Any], due: float | None) -> Any:
    async with asyncio.timeout_at(due):
        return await awaited


def both(steps: list[tuple[float, float | None]], cancel_after: float | None = None) -> tuple[list[Any], list[Any]]:
    async def watched() -> list[Any]:
        watch = RepeatedTimeout()
        try:
            return await story(watch.wait, steps, cancel_after)
        finally:
            watch.close()

    with VirtualTime() as time, VirtualTime() as other:
        return time.run(watched()), other.run(story(usual, steps, cancel_after))


seconds = st.integers(0, 40)


@settings(max_examples=200)
@given(st.lists(st.tuples(seconds, st.none() | seconds.map(lambda n: n + 0.5)), max_size=6), st.none() | seconds)
def test_it_does_what_a_timeout_around_each_wait_does(
    steps: list[tuple[float, float | None]], cancel_after: int | None
) -> None:
    watched, expected = both(steps, None if cancel_after is None else cancel_after + 0.25)
    assert watched == expected


@pytest.mark.parametrize(
    "steps", [[(5, 5)], [(5, 5), (5, 9)], [(9, 5), (1, 5)], [(0, 0)]], ids=["tie", "after", "late", "now"]
)
def test_a_tie_leaves_the_task_as_it_was(steps: list[tuple[float, float | None]]) -> None:
    watched, _ = both(steps)
    assert watched[-2:] == ["NoneType", 0]


def test_a_cancellation_at_the_moment_of_the_limit_is_not_lost() -> None:
    async def scenario() -> tuple[str, int]:
        watch = RepeatedTimeout()
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(watch.wait(asyncio.sleep(100), loop.time() + 5))
        loop.call_at(loop.time() + 5, task.cancel)
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        watch.close()
        return type(ended).__name__, task.cancelling()

    with VirtualTime() as time:
        assert time.run(scenario()) == ("CancelledError", 1)


def test_a_thousand_waits_set_a_few_timers() -> None:
    made = 0

    async def scenario() -> None:
        nonlocal made
        loop: Any = asyncio.get_running_loop()
        call_at = loop.call_at

        def counted(when: float, *rest: Any, **more: Any) -> Any:
            nonlocal made
            made += 1
            return call_at(when, *rest, **more)

        loop.call_at = counted
        watch = RepeatedTimeout()
        for _ in range(1000):
            await watch.wait(asyncio.sleep(0), loop.time() + 60)
        watch.close()

    with VirtualTime() as time:
        time.run(scenario())
    assert made <= 3


def test_what_is_awaited_may_end_in_its_own_way() -> None:
    async def fails() -> None:
        raise KeyError

    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def scenario() -> None:
        watch = RepeatedTimeout()
        for awaited, error in ((fails(), KeyError), (cancelled(), asyncio.CancelledError)):
            with pytest.raises(error):
                await watch.wait(awaited, asyncio.get_running_loop().time() + 5)
        watch.close()

    with VirtualTime() as time:
        time.run(scenario())
