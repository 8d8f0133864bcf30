"""The worker threads of a plain function. They are daemons: a thread that hangs does not keep the process alive."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from callgate.errors import RetryLater
from callgate.hooks.state.host import ThreadContext
from callgate.providers.exits import PlainThreads
from callgate.runtime.pipeline.thread_settings import surrounded_call
from callgate.tools.record import ToolRecord

MAX_WAITING = 1_000
"""Maximum number of calls of one tool that wait for a thread; further calls are refused with ``threads_busy``."""
EXIT_GRACE = 5.0
"""Seconds that a process waits, as it exits, for threads that still run; then it exits without them."""
IDLE = 10.0
"""Seconds after which an idle thread ends."""

T = TypeVar("T")
_Job: TypeAlias = "tuple[Future[Any], Callable[[], object]]"


class Threads:
    """At most ``maximum`` threads, started as needed; calls wait for a thread in the order in which they came."""

    def __init__(self, name: str, maximum: int) -> None:
        self.name = name
        self.maximum = maximum
        self.reset()

    def reset(self) -> None:
        """Start afresh, as after a fork: threads and locks stay with the parent process."""
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._threads = self._idle = self._running = self._lent = 0

    def submit(self, call: Callable[[], object]) -> Future[Any]:
        """Run *call* in a thread as soon as one is free. Until then ``cancel`` of the future takes it back.

        Raises:
            RetryLater: too many calls wait.
        """
        future: Future[Any] = Future()
        with self._changed:
            if self._is_full():  # calls that were taken back make room
                self._waiting = deque(job for job in self._waiting if not job[0].cancelled())
            if self._is_full():
                text = f"{MAX_WAITING} calls of {self.name} wait for its {self.maximum} threads"
                raise RetryLater(1000, text, code="threads_busy", no_effect=True)
            self._waiting.append((future, call))
            self._find_thread()
        return future

    @contextmanager
    def lent(self) -> Generator[None]:
        """Let another thread run while an attempt holds one and waits for a nested call, which may need one itself."""
        with self._changed:
            self._lent += 1
            self._find_thread()
        try:
            yield
        finally:
            with self._changed:
                self._lent -= 1

    def _find_thread(self) -> None:
        if self._idle >= len(self._waiting):
            self._changed.notify()
        elif self._threads < self.maximum + self._lent:
            name = f"callgate-{self.name}_{self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
            self._threads += 1

    def busy(self) -> bool:
        """Return True while a thread runs a call."""
        return self._running > 0

    def _may_run(self) -> bool:
        return bool(self._waiting) and self._running < self.maximum + self._lent

    def _is_full(self) -> bool:
        return self._running + len(self._waiting) >= self.maximum + MAX_WAITING

    def _work(self) -> None:
        while (job := self._next()) is not None:
            _run(*job)
            del job  # an idle thread keeps nothing of a call alive
            with self._changed:
                self._running -= 1

    def _next(self) -> _Job | None:
        """Wait for the next call; return None when the thread was idle for too long, and ends."""
        with self._changed:
            self._idle += 1
            found = self._changed.wait_for(self._may_run, IDLE)
            self._idle -= 1
            if found:
                self._running += 1
                return self._waiting.popleft()
            self._threads -= 1
            return None


def _run(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        output = call()
    except BaseException as error:  # noqa: BLE001  (the caller gets it)
        future.set_exception(error)
    else:
        future.set_result(output)


class Lease(PlainThreads):
    """One of the threads of a tool, held by one attempt: its plain providers begin, its body runs and they end there.

    All of this code shares one context. It begins as that of the call, and gets what the call's own context changes
    later, such as a variable that an asynchronous provider sets. The thread is taken at the first use.
    """

    def __init__(self, threads: Threads, around: ThreadContext | None = None) -> None:
        self._threads = threads
        self._around = around
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._taken: Future[None] | None = None
        self._ended = False
        self._thread: int | None = None
        self._context = Context()
        self._seen = Context()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run *call* after those that were submitted before. Until it begins, ``cancel`` of the future takes it back.

        Raises:
            RetryLater: too many calls wait for a thread.
        """
        future: Future[T] = Future()
        outside = copy_context()
        job: _Job = future, lambda: self._context.run(self._work, outside, call)
        if self._ended:  # a provider was still made as its execution ended
            self._threads.submit(functools.partial(_run, *job))
            return future
        if self._taken is None:
            serve = self._serve if self._around is None else surrounded_call(self._around, self._serve)
            self._taken = self._threads.submit(serve)
        self._jobs.put(job)
        return future

    async def start(self, make: Callable[[], T], undo: Callable[[T], object]) -> T:
        """Return what *make* returns; *undo* it if the call is cancelled meanwhile. The body asks in its own thread."""
        if threading.get_ident() == self._thread or not _has_loop():
            return make()
        lock, ended, left = threading.Lock(), False, False

        def first() -> T:
            nonlocal ended
            made = make()
            with lock:
                ended, unwanted = True, left
            if unwanted:  # there is no exit that closes it
                undo(made)
            return made

        running = self.submit(first)
        try:
            return await asyncio.wrap_future(running)
        except BaseException:
            with lock:
                left, over = True, ended
            if over:
                self.submit(lambda: undo(running.result()))
            raise

    async def run(self, call: Callable[..., T], *args: object) -> T:
        """Run a function, and return its result. A cancellation does not take it back: it ends an instance."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(functools.partial(call, *args))))

    def end(self) -> None:
        """Give the thread back after the functions that were submitted."""
        self._ended = True
        if self._taken is not None and not self._taken.cancel():
            self._jobs.put(None)

    def _serve(self) -> None:
        self._thread = threading.get_ident()
        while (job := self._jobs.get()) is not None:
            _run(*job)
            del job  # while the call does other work, the thread keeps nothing alive
        self._thread = None

    def _work(self, outside: Context, call: Callable[[], T]) -> T:
        """Run a function in the shared context, after the changes in the context of the call."""
        seen, self._seen = self._seen, outside
        for variable, value in outside.items():
            if seen.get(variable, self) is not value:
                variable.set(value)
        try:
            return call()
        except StopIteration as error:  # a future of asyncio cannot hold it: the call would never end
            raise RuntimeError("StopIteration was raised") from error


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_BY_TOOL: WeakKeyDictionary[ToolRecord, Threads] = WeakKeyDictionary()


def threads_of(record: ToolRecord) -> Threads:
    """Return the threads of a tool; all plans of the tool share them."""
    known = _BY_TOOL.get(record)
    if known is None:  # several threads may compile plans
        known = _BY_TOOL.setdefault(record, Threads(record.id, record.max_threads))
    return known


def _all() -> list[Threads]:
    return list(_BY_TOOL.values())


def _forget_parents() -> None:
    for threads in _all():
        threads.reset()


@atexit.register
def _wait_at_exit() -> None:
    """Wait for calls that still run, at most ``EXIT_GRACE`` seconds in all."""
    until = time.monotonic() + EXIT_GRACE
    while any(threads.busy() for threads in _all()) and time.monotonic() < until:
        time.sleep(0.01)


os.register_at_fork(after_in_child=_forget_parents)
