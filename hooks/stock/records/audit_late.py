"""Audit rows that are written after their calls: a call ends at its deadline although the store is slow, and no row is lost."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from callgate.errors import StoreError
from callgate.providers.logs import LogEvent, emit

Body: TypeAlias = dict[str, object]
MAX_LEFT = 10_000
"""Maximum number of rows that are kept to be written again; each further one is logged as lost."""


class LateRows:
    """The rows of one chain for which no call waits any more. *write* writes one row."""

    def __init__(self, write: Callable[[str, Body], Awaitable[None]]) -> None:
        self._write = write
        self._under_way = set[asyncio.Future[object]]()
        self._left = deque[tuple[str, Body]]()
        self._task: asyncio.Task[None] | None = None

    def follow(self, tenant: str, body: Body, done: asyncio.Future[object]) -> None:
        """Follow a row in the queue of the store. A row that the store fails to write is kept, and written again."""
        self._under_way.add(done)
        done.add_done_callback(partial(self._ended, tenant, body))

    def _ended(self, tenant: str, body: Body, done: asyncio.Future[object]) -> None:
        self._under_way.discard(done)
        if done.cancelled() or done.exception() is not None or isinstance(done.result(), Exception):
            if len(self._left) < MAX_LEFT:
                self._left.append((tenant, body))
            else:
                _log(StoreError(f"{MAX_LEFT} rows wait for the store already: a row is lost"))

    def retry(self) -> None:
        """Write the rows that are left in a task, as the store has just written another one."""
        if self._left and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._write_left())

    async def _write_left(self) -> None:
        while self._left:
            try:
                await self._write(*self._left[0])
            except Exception as error:  # noqa: BLE001  (the next row that is written tries again)
                _log(error)
                return
            self._left.popleft()

    async def close(self) -> None:
        """Wait for the rows under way, and write those that are left; the rows that are lost are logged."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        await self._write_left()
        if self._left:
            _log(StoreError(f"{len(self._left)} audit rows were not written: they are lost"))
            self._left.clear()


def _log(error: Exception) -> None:
    emit(LogEvent.PROVIDER_FAILED, provider="audit", phase="write", error=error)
