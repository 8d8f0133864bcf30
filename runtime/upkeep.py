"""What a gate looks after while it is open: one task, and every piece of work in its own time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from callgate.providers import logs


@dataclass(frozen=True, slots=True)
class Chore:
    """Work that comes back every so many seconds."""

    name: str
    every: float
    work: Callable[[], Awaitable[object] | object]


class Upkeep:
    """Does chores until it is ended. One that fails is logged, and comes back in its time."""

    def __init__(self) -> None:
        self.chores: list[Chore] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look after things from now on."""
        if self.chores:
            self._task = asyncio.create_task(self._look_after(), name="callgate upkeep")

    async def end(self) -> None:
        """Stop; returns when nothing is under way."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def now(self) -> None:
        """Every chore, once."""
        for chore in self.chores:
            await self._do(chore)

    async def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        due = [loop.time() + chore.every for chore in self.chores]
        while True:
            await asyncio.sleep(max(min(due) - loop.time(), 0.0))
            for number, chore in enumerate(self.chores):
                if due[number] <= loop.time():
                    await self._do(chore)
                    due[number] = loop.time() + chore.every

    @staticmethod
    async def _do(chore: Chore) -> None:
        try:
            doing = chore.work()
            if inspect.isawaitable(doing):
                await doing
        except Exception as error:  # noqa: BLE001  (the next round may do better)
            logs.emit(logs.Event.PROVIDER_FAILED, provider=chore.name, phase="upkeep", error=error)
