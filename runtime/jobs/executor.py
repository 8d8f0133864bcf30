"""The embedded engine: runs jobs of the store in this process, a few at a time, and resumes what a crash left."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from callgate.errors import StoreError
from callgate.providers.logs import Event, emit
from callgate.runtime.jobs.jobs import Jobs, Tally

FIRST_LOOK, LAST_LOOK = 0.05, 1.0
"""Seconds between two looks for jobs: after one was found, and when there was none for long. A submit here wakes at once."""


class Executor:
    """So many takers, each with one job at a time. Start it in the loop that the gate runs in."""

    def __init__(self, jobs: Jobs, concurrency: int, queues: Collection[str] = (), tally: Tally | None = None) -> None:
        self.jobs = jobs
        self.queues = tuple(queues)
        self.concurrency = concurrency
        self.tally = tally or Tally()
        self._takers: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._ending = False

    @property
    def is_running(self) -> bool:
        """Whether it takes jobs."""
        return bool(self._takers) and not self._ending

    def start(self) -> None:
        """Take jobs from now on; nothing happens when it does already."""
        if not self._takers:
            self._ending, self._news = False, asyncio.Event()
            self._takers = [
                asyncio.create_task(self._take(), name="callgate job taker") for _ in range(self.concurrency)
            ]

    def wake(self) -> None:
        """There may be a job."""
        self._news.set()

    async def stop(self, grace: float = 10.0) -> int:
        """Take no more; after *grace* seconds hand back what still runs. How many were handed back."""
        self._ending = True
        self._news.set()
        takers, self._takers = self._takers, []
        if not takers:
            return 0
        _, late = await asyncio.wait(takers, timeout=grace)
        left = len(self.jobs.runner.running)
        for one in late:
            one.cancel()
        if late:
            await asyncio.wait(late)
        return left

    async def _take(self) -> None:
        look = FIRST_LOOK
        while not self._ending:
            try:
                found = await self.jobs.run_invocation(queues=self.queues)
            except StoreError as error:
                self.tally.failures += 1
                emit(Event.JOB_STORE_FAILED, error=error)
                found, look = None, LAST_LOOK
            if found is not None:
                self.tally.count(found)
                look = FIRST_LOOK
            elif not self._ending:
                self._news.clear()
                try:
                    async with asyncio.timeout(look):
                        await self._news.wait()
                except TimeoutError:
                    look = min(look * 2.0, LAST_LOOK)
