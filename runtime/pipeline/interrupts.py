"""Ctrl-C while a call takes or gives back capacity.

Python runs the handler of SIGINT between any two instructions of the main thread. In the middle of a release, both the
KeyboardInterrupt and the cancellation by ``asyncio.run`` would leave the lease half released, and a release cannot be
repeated unless its hook says so. So a gate that is open in the main thread handles SIGINT: while the running task
takes or gives back capacity, the event loop runs the former handler in its next turn instead. A release that waits is
not running: the former handler runs at once, and its cancellation is deferred by the shield of the release.

Where the former handler raises in a body or a hook, the call ends: its releases run, its outcome is recorded, and the
KeyboardInterrupt is raised then. Nothing repeats the call.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import weakref
from collections.abc import Callable, Mapping
from contextvars import Context
from types import FrameType
from typing import TypeAlias

from callgate.hooks.context import InvokeContext
from callgate.providers.exits import TAKING
from callgate.providers.foreign_errors import mark_pressed

DELAYED = 2
"""How often SIGINT waits for a step: ``asyncio.run`` cancels at the first and raises at the second. The next one acts."""


CallTasks: TypeAlias = Mapping[object, "asyncio.Task[object] | None"]
"""The calls under way of one gate, each with its task."""


class Interrupts:
    """The handler of SIGINT while a gate of this process is open in the main thread."""

    def __init__(self) -> None:
        self._gates: list[weakref.ref[CallTasks]] = []
        self._former: Callable[[int, FrameType | None], object] | None = None
        self._delayed = 0

    def watch(self, calls: CallTasks) -> None:
        """Handle SIGINT for the calls of a gate that opens, if it opens in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and handler != self._handle:  # SIG_IGN and SIG_DFL run no code of Python
            self._former = handler
            signal.signal(signal.SIGINT, self._handle)
        self._gates = [*self._others(calls), weakref.ref(calls)]

    def forget(self, calls: CallTasks) -> None:
        """Forget a gate that closes; after the last one, restore the former handler, unless another replaced this one."""
        self._gates = self._others(calls)
        if not self._gates:
            self._restore()

    def _others(self, calls: CallTasks) -> list[weakref.ref[CallTasks]]:
        return [one for one in self._gates if (known := one()) is not None and known is not calls]

    def _restore(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._former)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        loop = asyncio._get_running_loop()
        self._delayed += 1
        if loop is None or self._delayed > DELAYED or not self._is_in_step(asyncio.current_task(loop)):
            self._deliver(number, frame)
        else:  # in a context of its own: the cancellation comes from outside of the step (see ``shield.INSIDE``)
            loop.call_soon_threadsafe(self._deliver, number, None, context=Context())

    def _deliver(self, number: int, frame: FrameType | None) -> None:
        """Run the former handler for each delayed signal."""
        assert self._former is not None
        try:
            while self._delayed:
                self._delayed -= 1
                self._former(number, frame)
        except BaseException as error:
            mark_pressed(error)
            # The loop ends before its gates close, and ``asyncio.run`` looks for its own handler then.
            self._delayed = 0
            self._restore()
            raise

    def _is_in_step(self, task: asyncio.Task[object] | None) -> bool:
        """Return True if the running task takes or gives back the capacity of a call."""
        if task is None or task in TAKING:
            return task is not None
        found = [one for gate in self._gates if (calls := gate()) is not None for one in calls.items()]
        return any(its is task and isinstance(ctx, InvokeContext) and _takes_or_gives_back(ctx) for ctx, its in found)


def _takes_or_gives_back(ctx: InvokeContext) -> bool:
    run = ctx.run
    step = getattr(run, "step", None)  # unset before the first one
    return run.finished is not None or (step is not None and step.release is not None)


INTERRUPTS = Interrupts()
"""The one handler of this process: a process has one for each signal."""
