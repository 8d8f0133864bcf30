"""The embedded engine as a ``JobBackend``: the gate's own process runs what is submitted, and what a crash left."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from callgate.errors import RegistrationError
from callgate.providers.stores.base import Transaction
from callgate.providers.stores.jobs import Job, JobState
from callgate.runtime.jobs.engine_base import OfOneGate
from callgate.runtime.jobs.executor import Executor
from callgate.runtime.jobs.jobs import Tally


class EmbeddedJobs(OfOneGate):
    """Runs jobs of the gate's store in its own process, *concurrency* at a time; of *queues*, if some are named.

    It begins with the first job that is submitted here, or, where the store remembers jobs, as the gate opens.
    *concurrency* 0 runs none here: others do, such as ``callgate worker``. As the gate closes, jobs under way have
    *grace* seconds to end; the rest is handed back, for whoever comes.

    Raises:
        RegistrationError: a number that means nothing.
    """

    def __init__(self, concurrency: int = 4, *, queues: Collection[str] = (), grace: float = 10.0) -> None:
        if concurrency < 0 or grace < 0:
            raise RegistrationError("EmbeddedJobs: concurrency and grace are at least 0")
        self.concurrency, self.queues, self.grace = concurrency, tuple(queues), grace
        self._executor: Executor | None = None

    async def submit(self, tenant: str, job: Job, within: Transaction) -> None:
        """The store is all there is."""

    async def submitted(self, job: Job) -> None:
        """See ``JobBackend``."""
        self._wake()

    async def retry_later(self, job: Job, run_at: float) -> None:
        """It is found when its time has come."""

    async def cancel(self, job: Job) -> None:
        """It is not found any more."""

    async def keep_up(self) -> None:
        """Leases that are over are found like any job."""

    async def work(
        self, concurrency: int, queues: Collection[str], stop: asyncio.Event, grace: float, tally: Tally
    ) -> int:
        """See ``JobBackend``."""
        await self.close()
        self._executor = Executor(self.jobs, concurrency, queues, tally)
        self._executor.start()
        await stop.wait()
        executor, self._executor, self.concurrency = self._executor, None, 0
        return await executor.stop(grace)

    async def open(self) -> None:
        """Go on with what a crash left."""
        if self.jobs.store.durable and self.concurrency:
            counted = await self.jobs.store.jobs.count(self.queues)
            if counted.get(JobState.QUEUED, 0) or counted.get(JobState.RUNNING, 0):
                self._wake()

    async def close(self) -> None:
        """See ``JobBackend``."""
        executor, self._executor = self._executor, None
        if executor is not None:
            await executor.stop(self.grace)

    def _wake(self) -> None:
        if not self.concurrency:
            return
        if self._executor is None:
            self._executor = Executor(self.jobs, self.concurrency, self.queues)
            self._executor.start()
        self._executor.wake()
