"""Group commit: concurrent changes of a store are written in one transaction.

A change that arrives while a transaction is under way waits for the next one, together with all others that have
arrived. No timer delays a change: the first one starts a transaction at once.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from callgate.errors import StoreError

C = TypeVar("C")
Write: TypeAlias = Callable[[Sequence[C]], Awaitable[Sequence[Any]]]
"""Writes changes in one transaction, and returns their results in order."""

MAX_BATCH = 256
"""The maximum number of changes in one transaction."""
_TURNS_ALONE, _TURNS = 2, 32
"""Turns of the event loop after a transaction of one change, and at most of more, in which its callers may ask again.

Without them the callers are two groups that take turns: every second transaction is small, and all others wait for it.
"""
CLOSE_LIMIT = 5.0
"""Seconds that closing waits for a database that does not answer."""


class RolledBack(Exception):
    """A transaction was rolled back because of one of its changes. The cause is the error of the store.

    ``waited`` means that the change waited for the lock of a row for too long, and not that it is wrong.
    """

    def __init__(self, error: StoreError, *, waited: bool = False) -> None:
        super().__init__()
        self.error = error
        self.waited = waited


class _Entry(Generic[C]):
    """A change that waits for its transaction."""

    __slots__ = ("change", "done", "key")

    def __init__(self, change: C, key: Hashable, done: asyncio.Future[Any]) -> None:
        self.change, self.key, self.done = change, key, done


class GroupCommit(Generic[C]):
    """The queue of changes, and the task that writes them; the task ends when the queue is empty.

    Args:
        write: raises ``RolledBack`` when nothing was written and each change may be tried alone. Any other error is that
            of all changes.
        aside: writes a change that waits for a lock, with a connection of its own, so that no other change waits for it.
        limit: the maximum number of changes in one transaction.
    """

    def __init__(
        self,
        write: Write[C],
        aside: Write[C],
        *,
        limit: int = MAX_BATCH,
    ) -> None:
        self._write, self._aside, self._limit = write, aside, limit
        self._waiting: deque[_Entry[C]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._asides: set[asyncio.Task[None]] = set()

    async def put(self, change: C, key: Hashable, *, withdraw: bool) -> Any:
        """Write a change, and return its result.

        Args:
            change: the change.
            key: what it changes. Changes with equal keys are written one after another, in separate transactions.
            withdraw: a cancelled caller takes the change back, unless its transaction has begun.

        Raises:
            StoreError: the change was not written, or that is unknown.
        """
        loop = asyncio.get_running_loop()
        entry = _Entry(change, key, loop.create_future())
        if self._task is not None and self._task.get_loop() is not loop:  # its event loop has ended
            self._task, self._waiting = None, deque()
        self._waiting.append(entry)
        if self._task is None:
            self._task = loop.create_task(self._write_all(), name="group commit", context=contextvars.Context())
        if withdraw:
            return await entry.done
        return await asyncio.shield(entry.done)  # a change that is not withdrawn keeps its future

    async def close(self) -> None:
        """Wait until everything is written, for a limited time; then stop."""
        loop = asyncio.get_running_loop()
        until = loop.time() + CLOSE_LIMIT
        while tasks := self._under_way(loop):
            _, left = await asyncio.wait(tasks, timeout=max(0.05, until - loop.time()))
            if loop.time() >= until:
                for task in left:
                    task.cancel()

    def _under_way(self, loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[None]]:
        tasks = self._asides if self._task is None else {*self._asides, self._task}
        return {task for task in tasks if task.get_loop() is loop}

    async def _write_all(self) -> None:
        waiting = self._waiting
        try:
            while batch := self._next():
                expected = len(batch) + len(waiting)
                await self._settle(batch, self._write)
                for _ in range(_TURNS if len(batch) > 1 else _TURNS_ALONE):
                    if len(waiting) >= expected:
                        break
                    await asyncio.sleep(0)
        finally:  # also when the event loop ends: no caller may wait forever
            if self._waiting is waiting:
                self._task = None
            for entry in waiting:
                _fail(entry, StoreError("the change was not written: the writer was stopped"))
            waiting.clear()

    def _next(self) -> list[_Entry[C]]:
        """Take the next changes from the queue, in order of arrival, with at most one of each key."""
        batch: list[_Entry[C]] = []
        keys, later = set[Hashable](), list[_Entry[C]]()
        while self._waiting and len(batch) < self._limit:
            entry = self._waiting.popleft()
            if entry.done.cancelled():
                continue
            (later if entry.key in keys else batch).append(entry)
            keys.add(entry.key)
        self._waiting.extendleft(reversed(later))
        return batch

    async def _settle(self, batch: list[_Entry[C]], write: Write[C]) -> None:
        try:
            results = await write([entry.change for entry in batch])
        except RolledBack as rolled_back:
            await self._settle_alone(batch, rolled_back, write)
        except BaseException as error:
            for entry in batch:
                _fail(entry, error)
            if not isinstance(error, Exception):
                raise
        else:
            for entry, result in zip(batch, results, strict=True):
                if not entry.done.done():
                    entry.done.set_result(result)

    async def _settle_alone(self, batch: list[_Entry[C]], rolled_back: RolledBack, write: Write[C]) -> None:
        """Write each change of a batch that was rolled back, so that no change takes others along."""
        if len(batch) > 1:
            for entry in batch:
                await self._settle([entry], self._write)
        elif rolled_back.waited and write is self._write:
            task = asyncio.ensure_future(self._settle(batch, self._aside))
            self._asides.add(task)
            task.add_done_callback(self._asides.discard)
        else:
            _fail(batch[0], rolled_back.error)


def _fail(entry: _Entry[Any], error: BaseException) -> None:
    if entry.done.done():
        return
    # One exception for each caller: a shared one would collect the tracebacks of all.
    known = type(error) if isinstance(error, StoreError) else StoreError
    failure = known(str(error) or f"the change was not written: {type(error).__name__}")
    failure.__cause__ = error
    entry.done.set_exception(failure)
