"""The background tasks of an open gate, such as renewing leases. Each has an asyncio task of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from callgate.providers import logs

TASKS = "callgate background: "
"""Prefix of the names of the asyncio tasks."""


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
