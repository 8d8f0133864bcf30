"""The background tasks of an open gate, such as renewing leases. Each has an asyncio task of its own.

Old rows of a store are deleted in batches, so that no statement and no lock is long.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from callgate.providers import logs
from callgate.providers.stores.effects import PRUNE_BATCH

TASKS = "callgate background: "
"""Prefix of the names of the asyncio tasks."""
PRUNE_EVERY = 600.0
"""Seconds between two prunings. Services that are restarted often prune, too."""
KEPT = 90 * 86_400.0
"""Seconds that effects and suspended calls are kept, unless the application sets another time."""
_REPORT_EVERY = 100
"""Batches between two reports of the progress."""


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """Work that runs every so many seconds. A run of an ``urgent`` task is cancelled when the next run is due."""

    name: str
    every: float
    work: Callable[[], Awaitable[object] | object]
    urgent: bool = False


class BackgroundTasks:
    """Runs background tasks. A failure is logged, and the task runs again at its next time."""

    def __init__(self) -> None:
        self.tasks: list[BackgroundTask] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Run each task every so many seconds from now on."""
        # asyncio: stop() may run in another task, where an anyio task group cannot be left
        self._tasks = [asyncio.create_task(self._repeat(task), name=f"{TASKS}{task.name}") for task in self.tasks]

    async def stop(self, seconds: float | None = None) -> None:
        """Cancel the tasks and wait until they have ended; *seconds* bounds the wait."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def run_all(self) -> None:
        """Run every task once, now."""
        for task in self.tasks:
            await self._run(task)

    async def _repeat(self, task: BackgroundTask) -> None:
        while True:
            await asyncio.sleep(task.every)
            await self._run(task)

    @staticmethod
    async def _run(task: BackgroundTask) -> None:
        try:
            running = task.work()
            if inspect.isawaitable(running):
                async with asyncio.timeout(task.every if task.urgent else None):
                    await running
        except Exception as error:  # noqa: BLE001  (the next run may succeed)
            logs.emit(logs.LogEvent.PROVIDER_FAILED, provider=task.name, phase="background", error=error)


async def prune_all(prune: Callable[[float], Awaitable[int]], before: float, progress: Callable[[int], object]) -> int:
    """Delete the rows from before a time, ``PRUNE_BATCH`` in each statement. Return their number.

    *progress* gets the number so far, from time to time.
    """
    deleted = batches = 0
    while True:
        number = await prune(before)
        deleted, batches = deleted + number, batches + 1
        if number < PRUNE_BATCH:
            return deleted
        if batches % _REPORT_EVERY == 0:
            progress(deleted)


async def prune_and_log(what: str, prune: Callable[[float], Awaitable[int]], before: float) -> None:
    """Delete the rows from before a time, and log their number and the progress."""

    def log(deleted: int, *, done: bool = False) -> None:
        logs.emit(logs.LogEvent.ROWS_PRUNED, rows=what, number=deleted, done=done)

    if deleted := await prune_all(prune, before, log):
        log(deleted, done=True)
