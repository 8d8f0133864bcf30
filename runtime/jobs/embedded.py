"""The embedded job engine: the process of the gate runs its jobs, also those that a crash left."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from callgate.errors import RegistrationError
from callgate.providers.kinds import checks_kinds
from callgate.providers.stores.jobs import Job
from callgate.runtime.jobs.engine_base import EngineBase
from callgate.runtime.jobs.executor import Executor
from callgate.runtime.jobs.jobs import NEW
from callgate.runtime.options.job_engine import Tally


class EmbeddedJobs(EngineBase):
    """Runs the jobs of the gate's store in this process.

    The engine starts with the first job that is submitted here. With a durable store that has open jobs, it starts
    when the gate opens, or within a fifth of ``Jobs(lease=...)``: another process that had them may have died.

    Args:
        concurrency: number of jobs that run at once; with 0 other processes run them, such as ``callgate worker``.
        queues: run only the jobs of these queues, as does ``callgate worker`` without ``--queues``; None: of all.
        grace: seconds that running jobs have to end when the gate closes; the rest is handed back to other workers.

    Raises:
        RegistrationError: a number is negative, *queues* is empty, or a setting of another type.
    """

    @checks_kinds(RegistrationError)
    def __init__(self, concurrency: int = 4, *, queues: Collection[str] | None = None, grace: float = 10.0) -> None:
        if concurrency < 0 or not grace >= 0:
            raise RegistrationError("EmbeddedJobs: concurrency and grace are at least 0")
        if queues is not None and not queues:
            raise RegistrationError(
                "EmbeddedJobs: queues is empty, so it would run no job; leave it out for all queues"
            )
        self.concurrency, self.queues, self.grace = concurrency, tuple(queues or ()), grace
        self._executor: Executor | None = None
        self._closing = False  # maintenance goes on while running jobs end, and must not start the engine then

    async def submitted(self, job: Job) -> None:
        self._offer()

    async def retry_later(self, job: Job, run_at: float) -> None:
        """See ``JobBackend``: the store has the time."""
        if run_at <= self.jobs.now():
            self._offer()

    async def cancel(self, job: Job) -> None:
        """See ``JobBackend``: the store has the state."""

    async def recover(self) -> None:
        """See ``JobBackend``: start for the jobs of others. Once it runs, it takes jobs with an expired lease like any other."""
        idle = self._executor is None and self.concurrency and self.jobs.store.durable
        if idle and await self.jobs.store.jobs.has_open(self.queues):
            self._wake()

    async def work(
        self, concurrency: int, queues: Collection[str], stop: asyncio.Event, grace: float, tally: Tally
    ) -> int:
        await self.close()
        self._executor = Executor(self.jobs, concurrency, queues or self.queues, tally)
        self._executor.start()
        await stop.wait()
        executor, self._executor, self.concurrency = self._executor, None, 0
        return await executor.stop(grace)

    async def open(self) -> None:
        """Start when a durable store has open jobs."""
        self._closing = False
        self.jobs.on_new_job = self._wake
        await self.recover()

    async def close(self) -> None:
        self._closing = True
        executor, self._executor = self._executor, None
        if executor is not None:
            await executor.stop(self.grace)

    def _offer(self) -> None:
        self._wake()
        if not self.concurrency and self._executor is None:
            self.jobs.announce(NEW)  # a process without workers: others have them

    def _wake(self) -> None:
        if self._executor is None:
            if not self.concurrency or self._closing:
                return
            self._executor = Executor(self.jobs, self.concurrency, self.queues)
            self._executor.start()
        self._executor.wake()
