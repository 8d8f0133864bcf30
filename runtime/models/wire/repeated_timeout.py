"""A timeout for many short waits, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class RepeatedTimeout:
    """``asyncio.timeout`` for each of many waits, with one timer that is armed again only when it fires.

    A stream has thousands of pieces, and most of them are there already. Use it for one wait at a time; close it after
    the last.
    """

    __slots__ = ("_deadline", "_fired", "_handle", "_loop", "_task")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._deadline = 0.0
        self._fired = False

    async def wait(self, awaited: Awaitable[T], due: float | None) -> T:
        """Await *awaited*. *due* is a time on the loop's clock; None means no timeout.

        Raises:
            TimeoutError: *due* has passed.
        """
        task = asyncio.current_task()
        if due is None or task is None:
            return await awaited
        self._task, self._deadline = task, due
        if self._handle is None or due < self._handle.when():
            self._arm()
        cancelled = task.cancelling()
        try:
            return await awaited
        except asyncio.CancelledError:
            if self._absorb(task) and task.cancelling() <= cancelled:  # no other caller has cancelled the task
                raise TimeoutError from None
            raise
        finally:
            self._absorb(task)
            self._task = None

    def _absorb(self, task: asyncio.Task[object]) -> bool:
        """True if the timer fired; its own cancellation of the task is then undone."""
        fired, self._fired = self._fired, False
        if fired:
            task.uncancel()
        return fired

    def close(self) -> None:
        """Cancel the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        self.close()
        self._handle = self._loop.call_at(self._deadline, self._fire)

    def _fire(self) -> None:
        self._handle = None
        if self._task is None:
            return  # between two waits: the next one arms the timer
        if self._loop.time() < self._deadline:
            self._arm()  # it was armed for an earlier wait
        else:
            self._fired = True
            self._task.cancel()
