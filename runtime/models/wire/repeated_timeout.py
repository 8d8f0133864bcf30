"""A time limit for many short waits, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class Watch:
    """``asyncio.timeout`` for each of many waits, at the price of one timer: it is set anew only when it rings.

    A stream has thousands of pieces, most of which are there already. For one wait at a time; close it after the last.
    """

    __slots__ = ("_due", "_handle", "_loop", "_rang", "_task")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self._due = 0.0
        self._rang = False

    async def wait(self, awaited: Awaitable[T], due: float | None) -> T:
        """What is awaited. *due* is on the loop's clock; None means no limit.

        Raises:
            TimeoutError: it was due, and not there.
        """
        task = asyncio.current_task()
        if due is None or task is None:
            return await awaited
        self._task, self._due = task, due
        if self._handle is None or due < self._handle.when():
            self._set()
        cancelled = task.cancelling()
        try:
            return await awaited
        except asyncio.CancelledError:
            if self._taken_back(task) and task.cancelling() <= cancelled:  # nobody else wants the task cancelled
                raise TimeoutError from None
            raise
        finally:
            self._taken_back(task)
            self._task = None

    def _taken_back(self, task: asyncio.Task[Any]) -> bool:
        """Whether it rang; if so, the cancellation that it sent no longer counts."""
        rang, self._rang = self._rang, False
        if rang:
            task.uncancel()
        return rang

    def close(self) -> None:
        """No more waits."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _set(self) -> None:
        self.close()
        self._handle = self._loop.call_at(self._due, self._ring)

    def _ring(self) -> None:
        self._handle = None
        if self._task is None:
            return  # between two waits: the next one sets it
        if self._loop.time() < self._due:
            self._set()  # it was set for an earlier wait
        else:
            self._rang = True
            self._task.cancel()
