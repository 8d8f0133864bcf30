"""CPU time of a piece of work, for bounds that hold on a busy or slow machine, too."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import pytest

REFERENCE = 0.002
"""CPU seconds of :func:`_known_work` on the idle machine on which the bounds of the tests were set."""


def _known_work() -> None:
    """Some milliseconds of what the tests measure: Python, small objects, and a library in C."""
    rows = {str(number): [number, {"x": number % 7}] for number in range(1_500)}
    assert json.loads(json.dumps(rows))["7"] == [7, {"x": 0}]


def pace() -> float:
    """How many times slower than the reference this thread computes now; at least 1.

    CPU time is not the same on each day: a neighbour takes caches and half of a core, and a host takes time unseen.
    """
    least = float("inf")
    for _ in range(3):
        began = time.thread_time()
        _known_work()
        least = min(least, time.thread_time() - began)
    return max(1.0, least / REFERENCE)


def cpu_seconds(work: Callable[[], object], enough: float, tries: int = 5) -> float:
    """The least CPU time of this thread for *work* in some tries, in seconds of the reference machine.

    The first try below *enough* is the last. A collection of garbage, or a neighbour on the same core, makes one try slow.
    What is slow by itself is slow in each. An exception of *work* passes through.
    """
    least = float("inf")
    for _ in range(tries):
        began = time.thread_time()
        work()
        took = time.thread_time() - began
        least = min(least, took if took < enough else took / pace())
        if least < enough:
            break
    return least


async def loop_seconds(
    act: Callable[[], Awaitable[object]], enough: float, of: Callable[[list[float]], float] = max, tries: int = 5
) -> float:
    """The CPU time of the longest step of the event loop while *act* runs, or of all (``of=sum``), as in `cpu_seconds`."""
    steps, step = list[float](), asyncio.Handle._run

    def run(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        step(handle)
        steps.append(time.thread_time() - began)

    least = float("inf")
    for _ in range(tries):
        steps.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.Handle, "_run", run)
            await act()
        took = of(steps)
        least = min(least, took if took < enough else took / pace())
        if least < enough:
            break
    return least
