"""A thread that watches the event loop of an open gate, and names the call that blocks it."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import NamedTuple

from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage
from callgate.providers.log_chain import print_line
from callgate.providers.logs import LogEvent, emit
from callgate.runtime.pipeline.under_way import UnderWay

BLOCKED = 0.25
"""Seconds without an iteration of the event loop that are reported; the deadline of a call, if that is shorter."""
INTERVAL = 0.05
"""Seconds between two looks at the loop, and so the error of what is measured."""
_BUSY = 0.5
"""The share of a processor at which a thread that kept this one waiting was busy, and not waiting itself."""


class Sample(NamedTuple):
    """The call that a loop was found in, with its stage, hook and line of code."""

    ctx: InvokeContext
    stage: Stage
    hook: str
    where: str


class LoopWatch:
    """Asks the loop for an answer while calls are under way; the call in which the answer is late has blocked the loop.

    Only another thread can see which task runs while the loop is blocked. A block in C code that keeps the interpreter
    lock stops this thread, too: it then wakes late, and finds the loop still in that call, with its processor time used.
    """

    def __init__(self, calls: UnderWay) -> None:
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        self._used = _processor_time_of(self._ident)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="callgate-loop-watch", daemon=True)

    def start(self) -> Callable[[], None]:
        """Start the thread; return the function that stops it."""
        self._thread.start()
        return self._stop

    def _stop(self) -> None:
        """Stop the thread, and wait for it: it never waits for the loop."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        due, used = time.monotonic() + INTERVAL, self._used()
        while not self._stopped.wait(INTERVAL) and not self._loop.is_closed():
            if self._calls:
                late = (now := time.monotonic()) - due
                if late > INTERVAL and self._used() - used > _BUSY * late:
                    self._report(self._sample(), late)
                self._ask(now)
            due, used = time.monotonic() + INTERVAL, self._used()

    def _ask(self, asked: float) -> None:
        """Wait for an answer of the loop, and report the call that it was in since *asked*."""
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set, context=Context())
        except RuntimeError:  # the loop is closed
            self._stopped.set()
            return
        found: Sample | None = None
        while not answered.is_set() and not self._stopped.is_set():
            # To ask or report gives the interpreter lock away. A block that begins then is over here; a wait would miss it.
            if time.monotonic() - asked > INTERVAL:
                found = found or self._sample()
            answered.wait(INTERVAL)
        self._report(found, time.monotonic() - asked)

    def _sample(self) -> Sample | None:
        """Return the innermost call whose task runs; None for code that is in no call."""
        task = asyncio.current_task(self._loop)
        if task is None:
            return None
        try:
            calls = list(self._calls.items())
        except RuntimeError:  # the loop goes on meanwhile: it is not blocked
            return None
        for ctx, own in reversed(calls):
            if isinstance(ctx, InvokeContext) and task in (own, ctx.run.body_task):
                step = getattr(ctx.run, "step", ctx.run.plan.start)  # a call that has just begun has none
                return Sample(ctx, step.stage, step.name, _line_of(self._ident))
        return None

    def _report(self, found: Sample | None, seconds: float) -> None:
        if found is None or seconds < _limit_of(found.ctx) - INTERVAL:
            return
        try:
            self._loop.call_soon_threadsafe(_emit, found, seconds, context=Context())
        except RuntimeError:
            self._stopped.set()


def _emit(found: Sample, seconds: float) -> None:
    """Log that a call blocked the event loop; in development mode, print it. Never raises."""
    ctx, stage, hook, where = found
    emit(LogEvent.CALL_BLOCKED, ctx, seconds=round(seconds, 3), stage=stage, hook=hook, where=where)
    if ctx.run.plan.host.development:
        with suppress(Exception):
            print_line(
                f"callgate: {ctx.tool_id} blocked the event loop for {seconds:.3f} s: {hook} at {stage}, {where}; await "
                "in it, use a plain `def` tool, which runs in a thread, or asyncio.to_thread; a factory of a provider runs "
                "on the loop, so write it with `async def`"
            )


def _limit_of(ctx: InvokeContext) -> float:
    run = ctx.run
    return BLOCKED if run.deadline_at is None else min(BLOCKED, run.deadline_at - run.started)


def _line_of(ident: int) -> str:
    """Return the file, line and function that a thread is in."""
    frame = sys._current_frames().get(ident)
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _processor_time_of(ident: int) -> Callable[[], float]:
    """Return the clock of the processor time of a thread; where the system has none, it stands still."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return lambda: 0.0
    clock: int = clock_of(ident)

    def used() -> float:
        try:
            return time.clock_gettime(clock)
        except OSError:  # the thread has ended, and its loop with it
            return 0.0

    return used
