"""An event loop whose clock jumps to the next timer instead of waiting, and which can act before its k-th callback.

Timeouts and deadlines of minutes pass at once. If a task waits for a socket or a thread while a timer is set, the timer
fires first. So code that is tested on this loop should wait for neither.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import selectors
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any, Self, TypeVar, cast

T = TypeVar("T")

FAR = 7_777_777.0
"""A timeout in seconds that passes only when ``every_cancel_point`` lets it pass."""
ITERATION = 0.001
"""Seconds on the loop's clock for one iteration, so that time passes in a busy loop too."""
STUCK = 200_000
"""The number of callbacks after which a run counts as an endless loop."""


class Stuck(AssertionError):
    """Nothing can wake the loop any more, or it runs endlessly."""


class _Jumping(selectors.DefaultSelector):
    """A selector that advances the loop's clock instead of sleeping; it waits for real only if a thread must wake it."""

    loop: StepLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if timeout == 0:
            self.loop.now += ITERATION
        elif found:  # another thread or a socket: the clock waits for timers
            return found
        elif timeout is not None:
            self.loop.now += timeout
        else:
            found = super().select(5.0)
            if not found:
                raise Stuck("nothing can wake the loop any more")
        return found


class Stepping(asyncio.AbstractEventLoop):
    """A mixin for event loops: counts the callbacks and acts before the k-th."""

    thread: int
    steps: int
    tasks_made: int
    acts: dict[int, Callable[[], object]]
    far: list[Callable[[], None]]
    faults: list[str]

    def prepare(self) -> None:
        """Initialise the loop once, in its thread."""
        self.thread = threading.get_ident()
        self.start_over()
        self.set_exception_handler(self._note)
        self.set_task_factory(self._make_task)

    def start_over(self) -> None:
        """Reset the counters."""
        self.steps = self.tasks_made = 0
        self.acts, self.far, self.faults = {}, [], []

    def call_soon(self, callback: object, *args: object, context: object = None) -> object:  # type: ignore[override]
        """Schedule a callback, and count it."""
        return cast("Any", super()).call_soon(self._step, callback, args, context=context)

    def call_soon_threadsafe(self, callback: object, *args: object, context: object = None) -> object:  # type: ignore[override]
        """Schedule a callback, and count it if it comes from the loop's own thread: others have times of their own."""
        soon = cast("Any", super()).call_soon_threadsafe
        if threading.get_ident() != self.thread:
            return soon(callback, *args, context=context)
        return soon(self._step, callback, args, context=context)

    def timed(
        self,
        real: Callable[..., asyncio.TimerHandle],
        at: float,
        delay: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
        context: object,
    ) -> object:
        """Schedule a timer that counts when it fires; a timer of ``FAR`` seconds fires by its entry in ``far``."""
        handle = real(at, self._step, callback, args, context=context)
        if delay >= FAR - 1.0:

            def pass_by() -> None:
                if not handle.cancelled():
                    handle.cancel()
                    callback(*args)

            self.far.append(pass_by)
        return handle

    def settle(self, iterations: int = 6) -> None:
        """Run the ready callbacks, but no timers."""
        for _ in range(iterations):
            cast("Any", super()).call_soon(self.stop)
            self.run_forever()

    def drain(self) -> None:
        """Let pending timers fire."""
        self.call_later(0.05, self.stop)
        self.run_forever()

    def _step(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        act = self.acts.get(self.steps)
        self.steps += 1
        if act is not None:
            from_outside(act)
        if self.steps > STUCK:
            self.stop()
        callback(*args)

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        self.tasks_made += 1
        return asyncio.Task(coroutine, loop=loop, **options)

    def _note(self, loop: object, context: Mapping[str, object]) -> None:
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")


class StepLoop(Stepping, asyncio.SelectorEventLoop):  # type: ignore[misc]
    """asyncio's loop with counted callbacks and a clock that jumps to the next timer."""

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

    def call_at(self, when: float, callback: Callable[..., object], *args: object, context: object = None) -> object:  # type: ignore[override]
        """Schedule a timer, and count it when it fires."""
        real = functools.partial(asyncio.SelectorEventLoop.call_at, self)
        return self.timed(real, when, when - self.now, callback, args, context)

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until *future* is done.

        Raises:
            Stuck: it takes more than ``STUCK`` callbacks.
        """
        try:
            return super().run_until_complete(future)
        except RuntimeError as error:
            if self.steps <= STUCK:
                raise
            raise Stuck(
                f"the run is not over after {STUCK:,} callbacks of the event loop. Find the loop that never ends, such as "
                "that of a tool that polls. Or split a long scenario into several runs, each with a loop of its own"
            ) from error

    def drain(self) -> None:
        """Let pending timers fire."""
        self.call_later(100.0, self.stop)
        self.run_forever()


def from_outside(act: Callable[[], T]) -> T:
    """Call *act* in an empty context, as a caller outside of the scenario's scopes and timeouts does."""
    return contextvars.Context().run(act)


class LoopClock:
    """A clock for ``Options(clock=...)`` that reads the virtual time of a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        """Seconds on the loop's clock."""
        return self._loop.time()

    def time(self) -> float:
        """Seconds on the loop's clock; virtual time has no calendar."""
        return self._loop.time()


class VirtualTime:
    """An event loop on virtual time for one test: call ``run``, then check ``elapsed``.

    ``clock`` is for ``Options(clock=...)``. Close it, or use it in a ``with`` statement. It cannot be used inside a running
    event loop.
    """

    def __init__(self) -> None:
        self.loop = StepLoop()
        self.clock = LoopClock(self.loop)
        self._began = self.loop.now

    @property
    def elapsed(self) -> float:
        """Virtual seconds since this object was made."""
        return self.loop.now - self._began

    def run(self, main: Coroutine[object, None, T]) -> T:
        """Run a coroutine to its end and return its result; may be called several times.

        Raises:
            Stuck: the coroutine waits for an event that cannot happen.
        """
        return self.loop.run_until_complete(main)

    def close(self) -> None:
        """Cancel the remaining tasks and close the loop; a second call does nothing."""
        if not self.loop.is_closed():
            close_loop(self.loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def run_virtual(main: Coroutine[object, None, T], loop: StepLoop | None = None) -> T:
    """Run a coroutine like ``asyncio.run``, on virtual time: an hour's sleep takes no time.

    Raises:
        Stuck: the coroutine waits for an event that cannot happen, or loops endlessly.
    """
    own = loop or StepLoop()
    try:
        return own.run_until_complete(main)
    finally:
        if loop is None:
            close_loop(own)


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop as ``asyncio.run`` does."""
    left = asyncio.all_tasks(loop)
    if isinstance(loop, Stepping):
        loop.steps = 0  # a loop that was stuck runs on for its cancelled tasks
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
