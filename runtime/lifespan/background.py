"""The background tasks of an open gate, such as renewing leases. Each has an asyncio task of its own.

Old rows of a store are deleted in batches, so that no statement and no lock is long.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import plan_of
from callgate.providers import logs
from callgate.providers.stores.effects import PRUNE_BATCH
from callgate.runtime.pipeline.plans import Plans
from callgate.runtime.pipeline.services import Services

TASKS = "callgate background: "
"""Prefix of the names of the asyncio tasks."""
PRUNE_EVERY = 600.0
"""Seconds between two prunings. Services that are restarted often prune, too."""
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


async def close_left_hooks(services: Services, plans: Plans) -> None:
    """Close what hooks opened that no tool has any longer, such as the segment of an audit log.

    A hook counts as present while a call with it is under way. A hook that is present again registers again.
    """
    owned = {close: hook for close, hook in services.closers.items() if hook is not None}
    present = {id(hook) for hook in _hooks(services, plans)} if owned else set[int]()
    for close, hook in owned.items():
        if id(hook) not in present and services.closers.pop(close, None) is not None:
            await close()


def _hooks(services: Services, plans: Plans) -> Iterator[object]:
    """Yield the hooks of the gate, of its tools, and of the calls under way."""
    yield from (one.hook for one in plans.current.shared)
    yield from (one.hook for hooked in plans.hooked() for one in hooked.registrations)
    for ctx in list(services.under_way):
        if isinstance(ctx, InvokeContext):
            yield from (one.hook for one in plan_of(ctx).registrations)
            yield from (ctx.run.hooks or {}).values()
