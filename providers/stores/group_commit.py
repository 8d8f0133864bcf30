"""Group commit: concurrent changes of a store are written in one transaction.

A change that arrives while a transaction is under way waits for the next one, together with all others that have
arrived. No timer delays a change: the first one starts a transaction at once.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Generic, TypeAlias, TypeVar

from callgate.errors import StoreError

C = TypeVar("C")
Write: TypeAlias = Callable[[Sequence[C]], Awaitable[Sequence[object]]]
"""Writes changes in one transaction, and returns their results in order."""
Late: TypeAlias = Callable[[C, "asyncio.Future[Any]"], None]
"""Gets a change that is written after its caller was cancelled, and the future of its result."""

MAX_BATCH = 256
"""The maximum number of changes in one transaction."""
MAX_BYTES = 8 << 20
"""The maximum size of the changes in one transaction, in bytes. A change that is larger has a transaction of its own."""
LOCK_WAIT_MS = 200
"""Milliseconds that a batch waits for a row. A change that waits longer gets a connection of its own."""
RETRY_WAIT_MS = 20
"""Milliseconds that the parts of a batch wait, after the batch has waited: they look for the row that is locked."""
ASIDE_WAIT_MS = 10_000
"""Milliseconds that a change with a connection of its own waits for a row."""
MAX_ASIDE = 4
"""The maximum number of locked rows that are waited for at once, each with a connection of its own."""
_SUSPECTED = 60.0
"""Seconds in which a row counts as locked after a change has waited for it in vain."""
_TURNS_ALONE, _TURNS = 2, 32
"""Turns of the event loop after a transaction of one change, and at most of more, in which its callers may ask again.

Without them the callers are two groups that take turns: every second transaction is small, and all others wait for it.
"""
_RESUMED_AT_ONCE = 16
"""The maximum number of callers that go on in one turn of the event loop, after a transaction.

What follows a claim is a tool and its output: 200 outputs of 1 MB in one turn would stop all other calls for a second.
"""
CLOSE_LIMIT = 5.0
"""Seconds that closing waits for a database that does not answer."""
_TO_THE_END = nullcontext()


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

    __slots__ = ("also", "change", "done", "key", "row", "size")

    def __init__(
        self, change: C, key: Hashable, also: Hashable, row: Hashable, size: int, done: asyncio.Future[Any]
    ) -> None:
        self.change, self.key, self.also, self.row, self.size, self.done = change, key, also, row, size, done


class _Kept(asyncio.Future[Any]):
    """The answer to a change that is not withdrawn: if its caller is cancelled, the entry goes on with another future.

    A shield would cost each change a second future, two callbacks and a turn of the event loop.
    """

    entry: _Entry[Any] | None = None
    late: Late[Any] | None = None

    def cancel(self, msg: object = None) -> bool:
        """Cancel the wait of the caller."""
        entry = self.leave()
        if entry is not None and self.late is not None:
            self.late(entry.change, entry.done)
        return super().cancel(msg)

    def leave(self) -> _Entry[Any] | None:
        """End the wait of the caller. Return the entry if it has no answer yet; it goes on with another future."""
        entry, self.entry = self.entry, None  # a cycle would live until the garbage collector runs
        if entry is None or self.done():
            return None
        entry.done = self.get_loop().create_future()
        return entry


class GroupCommit(Generic[C]):
    """The queue of changes, and the task that writes them; the task ends when the queue is empty.

    ``changes`` and ``transactions`` count what was taken from the queue, without locked rows and repeats.

    Args:
        write: raises ``RolledBack`` when nothing was written and parts of the batch may be tried. Any other error is
            that of all changes.
        aside: writes a change that waits for a lock, with a connection of its own, so that no other change waits for it.
        retry: ``write`` for the parts of a batch that waited for a lock; it waits for locks for a short time only.
        limit: the maximum number of changes in one transaction.
        abandon: stop a transaction when all its callers were cancelled, so that the next one gets another connection.
        size: the size of a change in bytes; ``MAX_BYTES`` limits their sum.
    """

    def __init__(
        self,
        write: Write[C],
        aside: Write[C],
        *,
        retry: Write[C] | None = None,
        limit: int = MAX_BATCH,
        abandon: bool = False,
        size: Callable[[C], int] | None = None,
    ) -> None:
        self._write, self._aside, self._retry, self._limit, self._size = write, aside, retry or write, limit, size
        self._abandons = abandon
        self._waiting: deque[_Entry[C]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._lanes: dict[Hashable, deque[_Entry[C]]] = {}  # by locked row
        self._suspected: dict[Hashable, float] = {}
        self._lane_turns = asyncio.Semaphore(MAX_ASIDE)
        self._asides: set[asyncio.Task[None]] = set()
        self.changes = self.transactions = 0

    async def put(
        self,
        change: C,
        key: Hashable,
        *,
        withdraw: bool,
        row: Hashable = None,
        also: Hashable = None,
        late: Late[C] | None = None,
    ) -> Any:
        """Write a change, and return its result.

        Args:
            change: the change.
            key: what it changes. Changes with equal keys are written one after another, in separate transactions.
            row: the row that it locks. While that row is locked by others, all its changes wait apart. Default: *key*.
            withdraw: a cancelled caller takes the change back, unless its transaction has begun.
            also: a second key that it changes.
            late: called with the change and its future when the caller is cancelled and the change stays in the queue.

        Raises:
            StoreError: the change was not written, or that is unknown.
        """
        loop = asyncio.get_running_loop()
        size = 0 if self._size is None else self._size(change)
        done = loop.create_future() if withdraw else _Kept(loop=loop)
        entry = _Entry(change, key, also, key if row is None else row, size, done)
        if self._task is not None and self._task.get_loop() is not loop:  # its event loop has ended
            self._task, self._waiting = None, deque()
        if self._lanes and next(iter(self._asides)).get_loop() is not loop:
            self._lanes, self._asides, self._lane_turns = {}, set(), asyncio.Semaphore(MAX_ASIDE)
        if entry.row in self._lanes:
            self._lanes[entry.row].append(entry)
        elif self._suspected and self._suspected.get(entry.row, 0.0) > loop.time():
            self._set_aside(entry)
        else:
            self._waiting.append(entry)
            if self._task is None:
                self._task = loop.create_task(self._write_all(), name="group commit", context=contextvars.Context())
        if not isinstance(done, _Kept):
            return await done
        done.entry, done.late = entry, late
        try:
            return await done
        finally:
            done.leave()

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
            while True:
                batch, later = self._taken(waiting)
                waiting.extendleft(reversed(later))
                if not batch:
                    break
                expected = len(batch) + len(waiting)
                self.changes, self.transactions = self.changes + len(batch), self.transactions + 1
                await self._settle(batch, self._write)
                for _ in range(_TURNS if len(batch) > 1 else _TURNS_ALONE):
                    if len(waiting) >= expected:
                        break
                    await asyncio.sleep(0)
        finally:  # also when the event loop ends: no caller may wait forever
            if self._waiting is waiting:
                self._task = None
            _stop(waiting)

    def _taken(self, waiting: deque[_Entry[C]]) -> tuple[list[_Entry[C]], list[_Entry[C]]]:
        """Take changes from a queue up to the limits, in order. Return them, and those whose key they have already."""
        batch, later, size = list[_Entry[C]](), list[_Entry[C]](), 0
        keys = set[Hashable]()
        while waiting and len(batch) < self._limit and (not batch or size + waiting[0].size <= MAX_BYTES):
            entry = waiting.popleft()
            if entry.done.cancelled():
                continue
            if entry.key in keys or entry.also in keys:
                later.append(entry)
                continue
            batch.append(entry)
            keys.add(entry.key)
            if entry.also is not None:
                keys.add(entry.also)
            size += entry.size
        return batch, later

    async def _settle(self, batch: list[_Entry[C]], write: Write[C], lane: deque[_Entry[C]] | None = None) -> None:
        """Write a batch and tell its callers. *lane* holds the changes that wait for the same locked row, if any."""
        try:
            async with _while_wanted(batch) if self._abandons else _TO_THE_END:
                results = await write([entry.change for entry in batch])
        except RolledBack as rolled_back:
            if lane is None or not rolled_back.waited:
                await self._settle_parts(batch, rolled_back, write, lane)
                return
            self._suspect(batch[0].row)
            for entry in (*batch, *lane):  # one wait for all of them: each would wait as long
                _fail(entry, rolled_back.error)
            lane.clear()
        except BaseException as error:
            for entry in batch:
                _fail(entry, error)
            if not isinstance(error, Exception):
                raise
        else:
            if len(batch) > 1:
                await _deliver(zip(batch, results, strict=True))
            elif not batch[0].done.done():
                batch[0].done.set_result(results[0])

    async def _settle_parts(
        self, batch: list[_Entry[C]], rolled_back: RolledBack, write: Write[C], lane: deque[_Entry[C]] | None
    ) -> None:
        """Write the halves of a batch that was rolled back, so that only the change at fault fails or waits."""
        if len(batch) == 1:
            if rolled_back.waited:
                self._set_aside(batch[0])
            else:
                _fail(batch[0], rolled_back.error)
            return
        half, write = len(batch) // 2, self._retry if rolled_back.waited else write
        for part in (batch[:half], batch[half:]):
            free = part
            if self._lanes and lane is None:
                free = [entry for entry in part if entry.row not in self._lanes]
                for entry in part:
                    if entry.row in self._lanes:
                        self._lanes[entry.row].append(entry)
            if free:
                await self._settle(free, write, lane)

    # ------------------------------------------------------------------ locked rows

    def _suspect(self, row: Hashable) -> None:
        """Let the next changes of a row wait apart at once, and not in a batch first."""
        now = asyncio.get_running_loop().time()
        self._suspected = {known: until for known, until in self._suspected.items() if until > now}
        self._suspected[row] = now + _SUSPECTED

    def _set_aside(self, entry: _Entry[C]) -> None:
        """Write a change of a locked row, and those of the row that follow, apart from all others."""
        lane = self._lanes[entry.row] = deque([entry])
        for later in [one for one in self._waiting if one.row == entry.row]:
            self._waiting.remove(later)
            lane.append(later)
        work = self._write_lane(entry.row, lane)
        task = asyncio.get_running_loop().create_task(work, name="locked row", context=contextvars.Context())
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)

    async def _write_lane(self, row: Hashable, lane: deque[_Entry[C]]) -> None:
        try:
            async with self._lane_turns:
                while lane:
                    batch, later = self._taken(lane)
                    lane.extendleft(reversed(later))
                    if batch:
                        self._suspected.pop(row, None)
                        await self._settle(batch, self._aside, lane)
        finally:
            if self._lanes.get(row) is lane:
                del self._lanes[row]
            _stop(lane)


@asynccontextmanager
async def _while_wanted(batch: list[_Entry[C]]) -> AsyncGenerator[None]:
    """Raise ``TimeoutError`` in the body when no caller waits for the batch any more."""
    left = len(batch)
    limit = asyncio.timeout(None)

    def note_end(done: asyncio.Future[object]) -> None:
        nonlocal left
        left -= done.cancelled() and not isinstance(done, _Kept)
        if left == 0:
            left = -1
            with suppress(RuntimeError):  # the transaction has ended in this turn of the event loop
                limit.reschedule(0.0)

    async with limit:
        for entry in batch:
            entry.done.add_done_callback(note_end)
        yield


async def _deliver(answers: Iterator[tuple[_Entry[C], object]]) -> None:
    """Give each caller its result, a few in each turn of the event loop."""
    try:
        for number, (entry, result) in enumerate(answers, 1):
            if not entry.done.done():
                entry.done.set_result(result)
            if number % _RESUMED_AT_ONCE == 0:
                await asyncio.sleep(0)
    finally:  # also when the task is cancelled: the changes of the others are written
        for entry, result in answers:
            if not entry.done.done():
                entry.done.set_result(result)


def _stop(waiting: deque[_Entry[C]]) -> None:
    """Fail the changes that no task writes any more."""
    for entry in waiting:
        _fail(entry, StoreError("the change was not written: the writer was stopped"))
    waiting.clear()


def _fail(entry: _Entry[C], error: BaseException) -> None:
    if entry.done.done():
        return
    # One exception for each caller: a shared one would collect the tracebacks of all.
    known = type(error) if isinstance(error, StoreError) else StoreError
    text = str(error) or f"the change was not written: {type(error).__name__}"
    failure = known(text, sqlstate=getattr(error, "sqlstate", None))
    failure.__cause__ = error
    entry.done.set_exception(failure)
    entry.done.exception()  # a caller that was cancelled does not retrieve it, and asyncio would log that
