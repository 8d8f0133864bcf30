"""Worker tasks that take jobs of the store and run them in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from callgate.providers.logs import LogEvent, emit
from callgate.runtime.jobs.calls import as_fault, stops
from callgate.runtime.jobs.jobs import JobQueue
from callgate.runtime.options.job_engine import Tally

FIRST_POLL, LAST_POLL = 0.05, 1.0
"""Seconds between two polls of the store: after a job was found, and at most. A job submitted here wakes at once."""
CANCEL_LIMIT = 10.0
"""Seconds that jobs which were cancelled may take to end."""


class Executor:
    """A number of worker tasks, each with one job at a time. Start it in the event loop of the gate."""

    def __init__(
        self, jobs: JobQueue, concurrency: int, queues: Collection[str] = (), tally: Tally | None = None
    ) -> None:
        self.jobs = jobs
        self.queues = tuple(queues)
        self.concurrency = concurrency
        self.tally = tally or Tally()
        self._workers: list[asyncio.Task[None]] = []
        self._wake_up = asyncio.Event()
        self._ending = False

    @property
    def is_running(self) -> bool:
        """Return whether the tasks take jobs."""
        return bool(self._workers) and not self._ending

    def start(self) -> None:
        """Start the tasks, unless they run."""
        if not self._workers:
            self._ending, self._wake_up = False, asyncio.Event()
            # asyncio: stop() may run in another task, where an anyio task group cannot be left
            self._workers = [
                asyncio.create_task(self._work(), name="callgate job worker") for _ in range(self.concurrency)
            ]

    def wake(self) -> None:
        """Poll the store now."""
        self._wake_up.set()

    async def stop(self, grace: float = 10.0) -> int:
        """Take no more jobs; after *grace* seconds hand back what still runs. Return the number of those.

        Jobs that are handed back are cancelled, and have ``CANCEL_LIMIT`` seconds to end.
        """
        self._ending = True
        self._wake_up.set()
        workers, self._workers = self._workers, []
        if not workers:
            return 0
        _, late = await asyncio.wait(workers, timeout=grace)
        left = len(self.jobs.runner.running)
        for one in late:
            one.cancel()
        if late:
            await asyncio.wait(late, timeout=CANCEL_LIMIT)
        return left

    async def _work(self) -> None:
        longest = min(LAST_POLL, self.jobs.options.every)  # an expired lease is found before `lease` has passed
        pause, task = FIRST_POLL, asyncio.current_task()
        while not self._ending:
            try:
                found = await self.jobs.run_invocation(queues=self.queues)
                if found is None:
                    self.jobs.listen()
            except BaseException as error:  # a store or a listener may raise anything, and the worker goes on
                if stops(error, task):
                    raise
                self.tally.failures += 1
                emit(LogEvent.JOB_STORE_FAILED, error=as_fault(error))
                found, pause = None, longest
            if found is not None:
                self.tally.count(found)
                pause = FIRST_POLL
            elif not self._ending:
                self._wake_up.clear()
                try:
                    async with asyncio.timeout(pause):
                        await self._wake_up.wait()
                except TimeoutError:
                    pause = min(pause * 2.0, longest)
