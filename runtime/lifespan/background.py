"""What a gate looks after while it is open: chores, each in its own time, so that none waits for another."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from callgate.providers import logs

TASKS = "callgate upkeep: "
"""How the names of its tasks begin."""


@dataclass(frozen=True, slots=True)
class Chore:
    """Work that comes back every so many seconds. Of what is ``urgent`` a round is given up when the next one is due."""

    name: str
    every: float
    work: Callable[[], Awaitable[object] | object]
    urgent: bool = False


class Upkeep:
    """Does chores until it is ended. One that fails is logged, and comes back in its time."""

    def __init__(self) -> None:
        self.chores: list[Chore] = []
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Look after things from now on."""
        self._tasks = [asyncio.create_task(self._repeat(chore), name=f"{TASKS}{chore.name}") for chore in self.chores]

    async def end(self) -> None:
        """Stop; returns when nothing is under way."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def now(self) -> None:
        """Every chore, once."""
        for chore in self.chores:
            await self._do(chore)

    async def _repeat(self, chore: Chore) -> None:
        while True:
            await asyncio.sleep(chore.every)
            await self._do(chore)

    @staticmethod
    async def _do(chore: Chore) -> None:
        try:
            doing = chore.work()
            if inspect.isawaitable(doing):
                async with asyncio.timeout(chore.every if chore.urgent else None):
                    await doing
        except Exception as error:  # noqa: BLE001  (the next round may do better)
            logs.emit(logs.Event.PROVIDER_FAILED, provider=chore.name, phase="upkeep", error=error)
