"""An event loop whose clock jumps to the next timer instead of waiting, and which can act just before its k-th callback.

Time limits and deadlines of minutes pass at once. Only timers pass so: where a socket or a worker thread is waited for
and a timer is set as well, the timer wins. What is tested on it should wait for neither.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar, cast

T = TypeVar("T")

FAR = 7_777_777.0
"""Seconds of a time limit that passes only where ``every_cancel_point`` lets it."""
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
        """As the loop's own, counted."""
        return cast("Any", super()).call_soon(self._step, callback, args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        """As the loop's own, counted."""
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
        """Virtual seconds."""
        return self.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        """As the loop's own, counted when it fires."""
        real = functools.partial(asyncio.SelectorEventLoop.call_at, self)
        return self.timed(real, when, when - self.now, callback, args, context)

    def drain(self) -> None:
        """Let time pass."""
        self.call_later(100.0, self.stop)
        self.run_forever()


def from_outside(act: Callable[[], T]) -> T:
    """Do what a caller outside does: in a context that no scope or time limit of the scenario made."""
    return contextvars.Context().run(act)


class LoopClock:
    """A clock for ``Gate(clock=...)`` that reads the virtual time of a loop: ``ctx.remaining()`` and ``duration`` fit it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        """Seconds on the loop's clock."""
        return self._loop.time()

    def time(self) -> float:
        """The same: virtual time has no calendar."""
        return self._loop.time()


class VirtualTime:
    """An event loop on virtual time for one test: ``run`` what waits, then look at ``elapsed``.

    ``clock`` is for ``Gate(clock=...)``. Close it, or use it in a ``with`` statement. Not to be used inside of a
    running event loop.
    """

    def __init__(self) -> None:
        self.loop = StepLoop()
        self.clock = LoopClock(self.loop)
        self._began = self.loop.now

    @property
    def elapsed(self) -> float:
        """Virtual seconds since this was made."""
        return self.loop.now - self._began

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and give what it returns; may be called several times.

        Raises:
            Stuck: it waits for what will never come.
        """
        return self.loop.run_until_complete(main)

    def close(self) -> None:
        """Cancel what is left and close the loop; again does nothing."""
        if not self.loop.is_closed():
            close(self.loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def run_virtual(main: Coroutine[Any, Any, T], loop: StepLoop | None = None) -> T:
    """``asyncio.run`` on a clock that jumps: an hour's sleep takes no time.

    Raises:
        Stuck: it waits for what will never come.
    """
    own = loop or StepLoop()
    try:
        return own.run_until_complete(main)
    finally:
        if loop is None:
            close(own)


def close(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop as ``asyncio.run`` does."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
