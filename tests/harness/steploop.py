"""An event loop that counts its callbacks, acts just before the k-th, and whose clock jumps instead of waiting."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import inspect
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

T = TypeVar("T")

FAR = 7_777_777.0
"""Seconds of a time limit that only the harness lets pass."""
TURN = 0.001
"""Seconds on the loop's clock that one turn of it takes, so that a busy loop gets on, too."""
STUCK = 200_000
"""Callbacks after which a run is given up: it goes round in circles."""


class Stuck(AssertionError):
    """Nothing is left that could ever wake the loop, or it turns for ever."""


class _Jumping(selectors.DefaultSelector):
    """Does not sleep: the loop's clock jumps instead. Only where nothing but a thread can wake it, it waits for real."""

    loop: StepLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or timeout == 0:
            self.loop.now += TURN
        elif timeout is not None:
            self.loop.now += timeout
        else:
            found = super().select(5.0)
            if not found:
                raise Stuck("nothing is left that could wake the loop")
        return found


class Stepping(asyncio.AbstractEventLoop):
    """What makes an event loop count its callbacks and act just before the k-th. Mixed into a real one."""

    steps: int
    tasks_made: int
    acts: dict[int, Callable[[], object]]
    far: list[Callable[[], None]]
    faults: list[str]

    def prepare(self) -> None:
        """Once, when the loop is made."""
        self.start_over()
        self.set_exception_handler(self._note)
        self.set_task_factory(self._make_task)

    def start_over(self) -> None:
        """Count from zero."""
        self.steps = self.tasks_made = 0
        self.acts, self.far, self.faults = {}, [], []

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return cast("Any", super()).call_soon(self._step, callback, args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return cast("Any", super()).call_soon_threadsafe(self._step, callback, args, context=context)

    def timed(self, real: Callable[..., Any], at: float, delay: float, callback: Any, args: Any, context: Any) -> Any:
        """A timer that counts when it fires; one of ``FAR`` seconds can be made to fire by its entry in ``far``."""
        handle = real(at, self._step, callback, args, context=context)
        if delay >= FAR - 1.0:

            def pass_by() -> None:
                if not handle.cancelled():
                    handle.cancel()
                    callback(*args)

            self.far.append(pass_by)
        return handle

    def settle(self, turns: int = 6) -> None:
        """Let what is ready run; no timer."""
        for _ in range(turns):
            cast("Any", super()).call_soon(self.stop)
            self.run_forever()

    def drain(self) -> None:
        """Let time pass."""
        self.call_later(0.05, self.stop)
        self.run_forever()

    def _step(self, callback: Any, args: Any) -> None:
        act = self.acts.get(self.steps)
        self.steps += 1
        if act is not None:
            from_outside(act)
        if self.steps > STUCK:
            self.stop()
        callback(*args)

    def _make_task(self, loop: Any, coroutine: Any, **options: Any) -> Any:
        self.tasks_made += 1
        return asyncio.Task(coroutine, loop=loop, **options)

    def _note(self, loop: Any, context: dict[str, Any]) -> None:
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")


class StepLoop(Stepping, asyncio.SelectorEventLoop):  # type: ignore[misc]
    """asyncio's own loop, counting, on a clock that jumps to the next timer instead of waiting."""

    def __init__(self) -> None:
        selector = _Jumping()
        selector.loop = self
        self.now = 1000.0
        self.start_over()
        super().__init__(selector)
        self.prepare()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        real = functools.partial(asyncio.SelectorEventLoop.call_at, self)
        return self.timed(real, when, when - self.now, callback, args, context)

    def drain(self) -> None:
        self.call_later(100.0, self.stop)
        self.run_forever()


def uvloop_stepping() -> Stepping:
    """uvloop, counting; its time is real."""
    import uvloop

    def call_later(loop: Any, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return loop.timed(functools.partial(uvloop.Loop.call_later, loop), delay, delay, callback, args, context)

    made: Any = type("UvStepLoop", (Stepping, uvloop.Loop), {"call_later": call_later})()
    made.prepare()
    return cast("Stepping", made)


def from_outside(act: Callable[[], T]) -> T:
    """Do what a caller outside does: in a context that no scope or time limit of the scenario made."""
    return contextvars.Context().run(act)


def run_virtual(main: Coroutine[Any, Any, T], loop: StepLoop | None = None) -> T:
    """``asyncio.run`` on a clock that jumps."""
    own = loop or StepLoop()
    try:
        return own.run_until_complete(main)
    finally:
        if loop is None:
            close(own)


def on_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An async test on a clock that jumps. Its first parameter is the loop; others come from pytest."""

    def run(**given: Any) -> None:
        loop = StepLoop()
        try:
            loop.run_until_complete(asyncio.wait_for(test(loop, **given), None))
            assert loop.faults == []
        finally:
            close(loop)

    signature = inspect.signature(test)
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    return run


def close(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop as ``asyncio.run`` does."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


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
        close(loop)
