"""The worker threads of a plain function. They are daemons: a thread that hangs does not keep the process alive."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from callgate.errors import RetryLater
from callgate.tools.record import ToolRecord

MAX_WAITING = 1_000
"""Maximum number of calls of one tool that wait for a thread; further calls are refused with ``threads_busy``."""
EXIT_GRACE = 5.0
"""Seconds that a process waits, as it exits, for threads that still run; then it exits without them."""
IDLE = 10.0
"""Seconds after which an idle thread ends."""

_Job: TypeAlias = "tuple[Future[Any], Callable[[], Any]]"


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
        self._threads = self._idle = self._running = 0

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
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
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._threads < self.maximum:
                name = f"callgate-{self.name}_{self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._threads += 1
        return future

    def busy(self) -> bool:
        """Return True while a thread runs a call."""
        return self._running > 0

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
            self._changed.wait_for(lambda: self._waiting, IDLE)
            self._idle -= 1
            if self._waiting:
                self._running += 1
                return self._waiting.popleft()
            self._threads -= 1
            return None


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        output = call()
    except BaseException as error:  # noqa: BLE001  (the caller gets it)
        future.set_exception(error)
    else:
        future.set_result(output)


UNITS_OF_WORK = Threads("unit_of_work", 40)
"""The threads for the code of plain providers of the scope ``"execution"``, of tools that run in threads themselves."""

_BY_TOOL: WeakKeyDictionary[ToolRecord, Threads] = WeakKeyDictionary()


def threads_of(record: ToolRecord) -> Threads:
    """Return the threads of a tool; all plans of the tool share them."""
    known = _BY_TOOL.get(record)
    if known is None:  # several threads may compile plans
        known = _BY_TOOL.setdefault(record, Threads(record.id, record.max_threads))
    return known


def _all() -> list[Threads]:
    return [UNITS_OF_WORK, *_BY_TOOL.values()]


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
