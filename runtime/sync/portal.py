"""The portal of a synchronous gate: an event loop in a thread, which runs coroutines for other threads."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, ExitStack
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

from callgate.errors import GateClosed

R = TypeVar("R")
_NOT_OPEN = (
    "gate.sync() is not open: call open() as the process starts, after any fork, or use it in `with gate.sync() as g:`"
)
_FORKED = (
    "gate.sync() was opened before this process was forked, and its thread and connections stayed with the parent: "
    "open it after the fork, in each worker (gunicorn: post_fork, Celery: worker_process_init), and not before"
)
CLOSE_LIMIT = 10.0
"""Seconds that the portal waits for the end of calls that it cancelled, and without ``drain`` for calls under way."""
_CANCELLED_ITSELF = (
    "the call was cancelled from inside: its tool, a hook or a library cancelled the task that runs it; look there for "
    "current_task().cancel()"
)
_IN_A_LOOP = "gate.sync() blocks, and this thread runs an event loop: use the gate itself and await its calls"


class Portal:
    """Keeps one async context manager open in a thread with an event loop, while at least one caller uses it."""

    def __init__(self, target: AbstractAsyncContextManager[object], drain: float = CLOSE_LIMIT) -> None:
        self._target = target
        self._drain = drain
        self._lifecycle = threading.Lock()  # for opening and closing
        self._sending = threading.RLock()  # for handing calls over; reentrant, because a finaliser may interrupt it
        self._pid: int | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._portal: Any = None
        self._stack = ExitStack()
        self._entered = 0
        self._held = False
        self._tasks: set[asyncio.Task[object]] = set()
        self.streams: set[AsyncGenerator[object, None]] = set()

    @property
    def is_open(self) -> bool:
        """True while the portal accepts calls, in this process."""
        return self.loop is not None and self._pid == os.getpid()

    def enter(self, *, hold: bool = False) -> None:
        """Open the portal for a caller, until ``leave``; with *hold*, once for all who hold it.

        Raises:
            GateClosed: the portal was opened before this process was forked.
            RegistrationError: gevent or eventlet has replaced the threads of this process.
            RuntimeError: this thread runs an event loop.
        """
        self.check_thread()
        with self._lifecycle:
            if not (hold and self._held):
                if not self._entered:
                    self._start()
                self._entered += 1
                self._held = self._held or hold

    def leave(self, *, hold: bool = False) -> None:
        """Close the portal for the last caller; with *hold*, end what ``enter(hold=True)`` began, if it did."""
        if self._is_parents():  # before any lock is taken: in a forked process it may never be released
            return
        with self._lifecycle:
            if not hold or self._held:
                self._held = self._held and not hold
                self._entered -= 1
                if not self._entered:
                    self._stop()

    def check_thread(self) -> None:
        """Refuse a forked process, and a thread with an event loop.

        Raises:
            GateClosed: the portal was opened before this process was forked.
            RuntimeError: this thread runs an event loop.
        """
        if self._is_parents():
            raise GateClosed(_FORKED)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if "trio" in sys.modules:
                from callgate.providers.concurrency import refuse_trio

                refuse_trio()
            return
        raise RuntimeError(_IN_A_LOOP)

    def require_open(self) -> None:
        """Refuse a portal that is not open.

        Raises:
            GateClosed: the portal is not open.
        """
        self.check_thread()
        if self.loop is None:
            raise GateClosed(_NOT_OPEN)

    def run(self, make: Callable[[], Coroutine[object, None, R]], context: Context | None = None) -> R:
        """Run the coroutine that *make* returns, in a copy of *context*, and wait for its result.

        Raises:
            GateClosed: the portal is not open, or was closed during the call.
            RuntimeError: the coroutine has cancelled its own task.
        """
        self.check_thread()
        call = _PortalCall(make, self._tasks)
        try:
            with self._sending:
                call.send(self.loop, context or copy_context())
            return call.future.result()
        except asyncio.CancelledError:
            if self.loop is call.loop and self.is_open:
                raise RuntimeError(_CANCELLED_ITSELF) from None
            raise GateClosed("gate.sync() was closed while the call was under way; it was cancelled") from None
        except BaseException:  # the error of the call, or an interruption of this waiting thread
            call.cancel()
            raise

    def do(self, work: Callable[[], R]) -> R:
        """Run *work* in the loop's thread and return its result; while the portal is not open, run it here."""
        if not self.is_open:
            return work()

        async def call() -> R:
            return work()

        return self.run(call)

    def _is_parents(self) -> bool:
        """Return True if the parent process opened the portal before a fork."""
        return self._pid not in {None, os.getpid()}

    def _start(self) -> None:
        from anyio.from_thread import start_blocking_portal

        from callgate.providers.concurrency import refuse_green_threads

        refuse_green_threads()
        self._pid = os.getpid()
        try:
            with ExitStack() as stack:  # an interruption closes what is open so far
                self._portal = stack.enter_context(start_blocking_portal())
                stack.enter_context(self._portal.wrap_async_context_manager(self._target))
                self.loop = self._portal.call(asyncio.get_running_loop)
                self._stack = stack.pop_all()
        except BaseException:
            self._pid = self.loop = None
            raise
        atexit.register(self._at_exit)

    def _stop(self) -> None:
        atexit.unregister(self._at_exit)
        with self._sending:
            self.loop = None  # no call is sent from here on; those sent before are ahead of `_finish`
        try:
            with self._stack:
                self._portal.call(self._finish)
        finally:
            self._portal = self._pid = None

    def _at_exit(self) -> None:
        if self._pid == os.getpid():
            with self._lifecycle:
                if self._entered:
                    self._entered, self._held = 0, False
                    self._stop()

    async def _finish(self) -> None:
        """Wait for the calls under way, at most the seconds to drain; then cancel them, and close open streams."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._drain)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CLOSE_LIMIT)
        for events in list(self.streams):
            await events.aclose()
        self.streams.clear()


class _PortalCall(Generic[R]):
    """One coroutine that the loop runs, and the future that the calling thread waits for."""

    def __init__(self, make: Callable[[], Coroutine[object, None, R]], tasks: set[asyncio.Task[object]]) -> None:
        self.make = make
        self.tasks = tasks
        self.future: concurrent.futures.Future[R] = concurrent.futures.Future()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: asyncio.Task[R] | None = None

    def send(self, loop: asyncio.AbstractEventLoop | None, context: Context) -> None:
        """Send the call to the loop; after that, ``cancel`` works.

        Raises:
            GateClosed: there is no loop.
        """
        if loop is None:
            raise GateClosed(_NOT_OPEN)
        self.loop = loop
        loop.call_soon_threadsafe(self._start, context=context.copy())

    def _start(self) -> None:
        try:
            # asyncio: the waiting thread cancels this call alone, and once; anyio runs the portal itself
            self.task = asyncio.ensure_future(self.make())
        except Exception as error:  # noqa: BLE001  (it goes to the calling thread)
            self.future.set_exception(error)
            return
        self.tasks.add(self.task)
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[R]) -> None:
        self.tasks.discard(task)
        if task.cancelled():
            self.future.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())

    def cancel(self) -> None:
        """Cancel the call and wait for its end, at most ``CLOSE_LIMIT`` seconds; a second interruption ends the wait."""
        if self.loop is None or self.future.done():
            return
        try:
            self.loop.call_soon_threadsafe(self._cancel_task)
        except RuntimeError:  # the loop has closed
            return
        concurrent.futures.wait([self.future], timeout=CLOSE_LIMIT)

    def _cancel_task(self) -> None:
        if self.task is not None:
            self.task.cancel()
