"""Group commit: concurrent changes of a store are written in one transaction.

A change that arrives while a transaction is under way waits for the next one, together with all others that have
arrived. No timer delays a change: the first one starts a transaction at once.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar

from callgate.errors import StoreError

C = TypeVar("C")
Write: TypeAlias = Callable[[Sequence[C], int], Awaitable[Sequence[object]]]
"""Writes changes in one transaction, and returns their results in order.

The second argument is the time that a statement waits for a locked row, in milliseconds: one of the three below.
"""
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
_change_of = attrgetter("change")


class RolledBack(Exception):
    """A transaction was rolled back because of one of its changes. The cause is the error of the store.

    ``waited`` means that the change waited for the lock of a row for too long, and not that it is wrong.
    """

    def __init__(self, error: StoreError, *, waited: bool = False) -> None:
        super().__init__()
        self.error = error
        self.waited = waited


class _Entry(asyncio.Future[Any], Generic[C]):
    """A change that waits for its transaction, and the future of its result: one object, as each call has two.

    A caller that is cancelled takes the change back, unless another future, its ``heir``, gets the result.
    """

    __slots__ = ("also", "change", "heir", "key", "row", "size")
    change: C
    key: Hashable
    also: Hashable
    row: Hashable
    size: int
    heir: asyncio.Future[Any] | None


class _Kept(_Entry[C]):
    """A change that is not withdrawn. A shield would cost each one a second future and a turn of the event loop."""

    __slots__ = ("late",)
    late: Late[C] | None

    def cancel(self, msg: object = None) -> bool:
        """Cancel the wait of the caller."""
        if not self.done():
            self.heir = self.get_loop().create_future()
            if self.late is not None:
                self.late(self.change, self.heir)
        return super().cancel(msg)


class GroupCommit(Generic[C]):
    """The queue of changes, and the task that writes them; the task ends when the queue is empty.

    ``changes`` and ``transactions`` count what was taken from the queue, without locked rows and repeats.

    Args:
        write: raises ``RolledBack`` when nothing was written and parts of the batch may be tried. Any other error is
            that of all changes.
        limit: the maximum number of changes in one transaction.
        abandon: stop a transaction when all its callers were cancelled, so that the next one gets another connection.
        size: the size of a change in bytes; ``MAX_BYTES`` limits their sum.
        admit: raises the error of a caller that may not write.
    """

    def __init__(
        self,
        write: Write[C],
        *,
        limit: int = MAX_BATCH,
        abandon: bool = False,
        size: Callable[[C], int] | None = None,
        admit: Callable[[], None] | None = None,
    ) -> None:
        self._write, self._limit, self._size = write, limit, size
        self._abandons, self._admit = abandon, admit
        self._waiting: deque[_Entry[C]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._lanes: dict[Hashable, deque[_Entry[C]]] = {}  # by locked row
        self._suspected: dict[Hashable, float] = {}
        self._lane_turns = asyncio.Semaphore(MAX_ASIDE)
        self._asides: set[asyncio.Task[None]] = set()
        self.changes = self.transactions = 0

    def put(
        self,
        change: C,
        key: Hashable,
        *,
        withdraw: bool,
        row: Hashable = None,
        also: Hashable = None,
        late: Late[C] | None = None,
    ) -> asyncio.Future[Any]:
        """Write a change. Return the future of its result: a coroutine would be one more that each call resumes.

        Its errors are ``StoreError``: the change was not written, or that is unknown.

        Args:
            change: the change.
            key: what it changes. Changes with equal keys are written one after another, in separate transactions.
            row: the row that it locks. While that row is locked by others, all its changes wait apart. Default: *key*.
            withdraw: a cancelled caller takes the change back, unless its transaction has begun.
            also: a second key that it changes.
            late: called with the change and its future when the caller is cancelled and the change stays in the queue.
        """
        if self._admit is not None:
            self._admit()
        loop = asyncio.get_running_loop()
        row = key if row is None else row
        entry: _Entry[C]
        if withdraw:
            entry = _Entry(loop=loop)
        else:
            kept: _Kept[C] = _Kept(loop=loop)
            entry, kept.late = kept, late
        entry.change, entry.key, entry.also, entry.row, entry.heir = change, key, also, row, None
        entry.size = 0 if self._size is None else self._size(change)
        if self._task is not None and self._task.get_loop() is not loop:  # its event loop has ended
            self._task, self._waiting = None, deque()
        if self._lanes and next(iter(self._asides)).get_loop() is not loop:
            self._lanes, self._asides, self._lane_turns = {}, set(), asyncio.Semaphore(MAX_ASIDE)
        if row in self._lanes:
            self._lanes[row].append(entry)
        elif self._suspected and self._suspected.get(row, 0.0) > loop.time():
            self._set_aside(entry)
        else:
            self._waiting.append(entry)
            if self._task is None:
                self._task = loop.create_task(self._write_all(), name="group commit", context=contextvars.Context())
        return entry

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
            while batch := self._taken(waiting):
                expected = len(batch) + len(waiting)
                self.changes, self.transactions = self.changes + len(batch), self.transactions + 1
                try:  # as ``_settle`` does; a further coroutine would be resumed for each transaction
                    writing = self._write([*map(_change_of, batch)], LOCK_WAIT_MS)
                    results = await (_while_wanted(batch, writing) if self._abandons else writing)
                except BaseException as error:  # noqa: BLE001  (raised again there)
                    await self._settle_failed(batch, error, LOCK_WAIT_MS, None)
                else:
                    if len(batch) > 1:
                        await _deliver(batch, results)
                    elif not (answer := batch[0].heir or batch[0]).done():
                        answer.set_result(results[0])
                for _ in range(_TURNS if len(batch) > 1 else _TURNS_ALONE):
                    if len(waiting) >= expected:
                        break
                    await asyncio.sleep(0)
        finally:  # also when the event loop ends: no caller may wait forever
            if self._waiting is waiting:
                self._task = None
            _stop(waiting)

    def _taken(self, waiting: deque[_Entry[C]]) -> list[_Entry[C]]:
        """Take changes from a queue up to the limits, in order. Those whose key they have already stay at its head."""
        batch, later, size = list[_Entry[C]](), list[_Entry[C]](), 0
        keys = set[Hashable]()
        while waiting and len(batch) < self._limit and (not batch or size + waiting[0].size <= MAX_BYTES):
            entry = waiting.popleft()
            if entry.cancelled() and entry.heir is None:
                continue
            if entry.key in keys or entry.also in keys:
                later.append(entry)
                continue
            batch.append(entry)
            keys.add(entry.key)
            if entry.also is not None:
                keys.add(entry.also)
            size += entry.size
        waiting.extendleft(reversed(later))
        return batch

    async def _settle(self, batch: list[_Entry[C]], wait: int, lane: deque[_Entry[C]] | None) -> None:
        """Write a batch and tell its callers. *lane* holds the changes that wait for the same locked row, if any."""
        try:
            writing = self._write([*map(_change_of, batch)], wait)
            results = await (_while_wanted(batch, writing) if self._abandons else writing)
        except BaseException as error:  # noqa: BLE001  (raised again there)
            await self._settle_failed(batch, error, wait, lane)
        else:
            await _deliver(batch, results)

    async def _settle_failed(
        self, batch: list[_Entry[C]], error: BaseException, wait: int, lane: deque[_Entry[C]] | None
    ) -> None:
        """Write the halves of a batch that was rolled back, so that only the change at fault fails or waits."""
        rolled_back = error if isinstance(error, RolledBack) else None
        waited = rolled_back is not None and rolled_back.waited
        if waited and lane is not None:
            self._suspect(batch[0].row)
            batch = [*batch, *lane]  # one wait for all of them: each would wait as long
            lane.clear()
        elif waited and len(batch) == 1:
            self._set_aside(batch[0])
            return
        elif rolled_back is not None and len(batch) > 1:
            half = len(batch) // 2
            for part in (batch[:half], batch[half:]):
                free = list[_Entry[C]]()
                for entry in part:
                    (self._lanes.get(entry.row, free) if lane is None else free).append(entry)
                if free:
                    await self._settle(free, RETRY_WAIT_MS if waited else wait, lane)
            return
        for entry in batch:
            _fail(entry, error if rolled_back is None else rolled_back.error)
        if not isinstance(error, Exception):
            raise error

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
                    if batch := self._taken(lane):
                        self._suspected.pop(row, None)
                        await self._settle(batch, ASIDE_WAIT_MS, lane)
        finally:
            if self._lanes.get(row) is lane:
                del self._lanes[row]
            _stop(lane)


async def _while_wanted(batch: list[_Entry[C]], writing: Awaitable[Sequence[object]]) -> Sequence[object]:
    """Await the transaction of a batch; raise ``TimeoutError`` when no caller waits for it any more."""
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
            entry.add_done_callback(note_end)
        return await writing


async def _deliver(batch: Sequence[_Entry[C]], results: Sequence[object]) -> None:
    """Give each caller its result, a few in each turn of the event loop."""
    answers = zip(batch, results, strict=True)
    try:
        for number, (entry, result) in enumerate(answers, 1):
            if not (answer := entry.heir or entry).done():
                answer.set_result(result)
            if number % _RESUMED_AT_ONCE == 0:
                await asyncio.sleep(0)
    finally:  # also when the task is cancelled: the changes of the others are written
        for entry, result in answers:
            if not (answer := entry.heir or entry).done():
                answer.set_result(result)


def _stop(waiting: deque[_Entry[C]]) -> None:
    """Fail the changes that no task writes any more."""
    for entry in waiting:
        _fail(entry, StoreError("the change was not written: the writer was stopped"))
    waiting.clear()


def _fail(entry: _Entry[C], error: BaseException) -> None:
    answer = entry.heir or entry
    if answer.done():
        return
    # One exception for each caller: a shared one would collect the tracebacks of all.
    known = type(error) if isinstance(error, StoreError) else StoreError
    text = str(error) or f"the change was not written: {type(error).__name__}"
    failure = known(text, sqlstate=getattr(error, "sqlstate", None))
    failure.__cause__ = error
    answer.set_exception(failure)
    answer.exception()  # a caller that was cancelled does not retrieve it, and asyncio would log that
