"""What only Callgate's own tests need of the stepping loop; the loop itself is ``callgate.runtime.testing.virtual_time``."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, cast

from callgate.runtime.testing.virtual_time import FAR, StepLoop, Stepping, close_loop, from_outside, run_virtual

__all__ = [
    "FAR",
    "Cost",
    "StepLoop",
    "Stepping",
    "close_loop",
    "cost_of",
    "from_outside",
    "on_virtual_time",
    "run_virtual",
    "uvloop_stepping",
]


def uvloop_stepping() -> Stepping:
    """uvloop, counting; its time is real."""
    import uvloop

    def call_later(loop: Any, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return loop.timed(functools.partial(uvloop.Loop.call_later, loop), delay, delay, callback, args, context)

    made: Any = type("UvStepLoop", (Stepping, uvloop.Loop), {"call_later": call_later})()
    made.prepare()
    return cast("Stepping", made)


def on_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An async test on a clock that jumps. Its first parameter is the loop; others come from pytest."""

    def run(**given: Any) -> None:
        loop = StepLoop()
        try:
            loop.run_until_complete(asyncio.wait_for(test(loop, **given), None))
            assert loop.faults == []
        finally:
            close_loop(loop)

    signature = inspect.signature(test)
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    return run


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one run made the loop do."""

    tasks: int
    callbacks: int


def cost_of(scenario: Callable[[], Awaitable[Any]]) -> Cost:
    """Tasks made and callbacks run by a scenario alone, on its second run."""
    loop = StepLoop()

    async def measured() -> Cost:
        await scenario()
        tasks, steps = loop.tasks_made, loop.steps
        await scenario()
        return Cost(loop.tasks_made - tasks, loop.steps - steps)

    try:
        return run_virtual(measured(), loop)
    finally:
        close_loop(loop)
