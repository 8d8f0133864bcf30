"""Procrastinate as a ``JobBackend``: jobs are enqueued with their records, and redelivered if a worker dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from typing import Any

from callgate.errors import RegistrationError, StoreError
from callgate.providers.kinds import checks_kinds
from callgate.providers.logs import LogEvent, emit
from callgate.providers.stores.base import Transaction
from callgate.providers.stores.jobs import Job
from callgate.runtime.hosts.procrastinate.rows import Delivery, Rows, driver_of, store_errors
from callgate.runtime.jobs.engine_base import EngineBase
from callgate.runtime.jobs.jobs import JobQueue
from callgate.runtime.options.job_engine import Tally

MAX_RESEND = 600.0
PAUSE = 1.0
"""Pause after a failure of the engine's worker, in seconds."""
NEVER = 86_400.0

MAX_QUEUE_BYTES = 40
"""Maximum length of the name of a queue: the engine adds 23 bytes, and a channel of PostgreSQL has 63."""


class ProcrastinateJobs(EngineBase):
    """Enqueues the jobs of a gate in the PostgreSQL of its store; any number of ``callgate worker`` processes run them.

    A job is enqueued in the transaction that writes its record. The engine uses the connection settings of the store,
    and creates its tables in the same database if they are missing.

    Args:
        queues: the queues that accept jobs. Workers take from all of them, unless ``--queues`` names some. A gate in a
            namespace has queues of its own in the tables, such as ``callgate.billing.default``, as with ``CeleryJobs``.
        poll: interval of polling for delayed jobs, in seconds. Workers are notified of jobs without a delay.
        resend: seconds after which a due job that no worker has taken is enqueued again, if the engine has lost it.
            Default: the lease of ``Jobs``, at most 600.

    Raises:
        RegistrationError: an invalid number, no queues, or the extra is not installed.
    """

    @checks_kinds(RegistrationError)
    def __init__(
        self, *, queues: Collection[str] = ("default",), poll: float = 1.0, resend: float | None = None
    ) -> None:
        if not queues or not poll > 0 or (resend is not None and not resend > 0):
            raise RegistrationError("ProcrastinateJobs: give names of queues, and poll and resend as seconds above 0")
        if not all(find_spec(name) for name in ("procrastinate", "psycopg", "psycopg_pool")):
            raise RegistrationError(
                'ProcrastinateJobs needs packages that are not installed: pip install "callgate[sql,worker]"'
            )
        self.queues, self.poll = tuple(queues), poll
        self._resend = resend
        self._rows: Rows | None = None
        self._is_working = False
        self._tally = Tally()
        self._handed_back = 0

    @property
    def rows(self) -> Rows:
        """The queue tables of the engine.

        Raises:
            RegistrationError: the gate is not open.
        """
        if self._rows is None:
            raise RegistrationError("ProcrastinateJobs: the gate is not open; use it inside `async with gate:`")
        return self._rows

    def check(self, jobs: JobQueue) -> None:
        """See ``EngineBase``.

        Raises:
            RegistrationError: the store of the gate is not a PostgreSQL, or the name of a queue is too long.
        """
        if jobs.store.name != "postgresql":
            raise RegistrationError(
                "ProcrastinateJobs needs a PostgreSQL store, because it enqueues in the transaction of the record, and this "
                f'store is {jobs.store.name}: give Gate(store="postgresql://...")'
            )
        self.check_names(jobs)
        for name in self._names(self.queues, jobs):
            if len(name.encode()) > MAX_QUEUE_BYTES:
                raise RegistrationError(
                    f"ProcrastinateJobs: the name of a queue has at most {MAX_QUEUE_BYTES} bytes, with its namespace, and "
                    f"{name!r} has {len(name.encode())}"
                )

    async def open(self) -> None:
        """Create the engine's tables if they are missing.

        Raises:
            StoreError: the database failed.
            RegistrationError: the tables belong to another version of Procrastinate.
        """
        with store_errors():
            async with self.jobs.store.transaction() as within:
                rows = Rows(driver_of(within).info, self._deliver, self.jobs.keys.namespace)
                await rows.create_tables(within)
        self._rows = rows

    async def close(self) -> None:
        """Do nothing: ``work`` closes its connections."""

    async def submit(self, tenant: str, job: Job, within: Transaction) -> None:
        """See ``JobBackend``.

        Raises:
            RegistrationError: the queue is not declared.
            StoreError: the database failed.
        """
        await self.submit_many([(tenant, job)], within)

    async def submit_many(self, jobs: Sequence[tuple[str, Job]], within: Transaction) -> None:
        """See ``submit``."""
        for _, job in jobs:
            self.check_queue(job.queue)
        # A job in the place of a cancelled one: the row of that one waits if the connection broke after the cancellation.
        replaced = [job.id for _, job in jobs if job.token]
        with store_errors():
            if replaced:
                await self.rows.cancel(within, *replaced)
            await self.rows.add(within, *(self._delivery(job, job.run_at) for _, job in jobs))

    async def submitted(self, job: Job) -> None:
        """Do nothing: the job was enqueued with its record."""

    async def retry_later(self, job: Job, run_at: float) -> None:
        await self._enqueue(self._delivery(job, run_at))

    async def cancel(self, job: Job) -> None:
        with suppress(StoreError), store_errors():  # the record says cancelled: a worker that gets the job skips it
            async with self.jobs.store.transaction() as within:
                await self.rows.cancel(within, job.id)

    async def work(
        self, concurrency: int, queues: Collection[str], stop: asyncio.Event, grace: float, tally: Tally
    ) -> int:
        """See ``JobBackend``. A failure of the engine is logged, and its worker restarts.

        Raises:
            StoreError: the database failed at the start.
            RegistrationError: a queue holds jobs of another application.
        """
        self._tally, self._handed_back = tally, 0
        # asyncio: the engine and the signal that stops it are asyncio's own
        ending = asyncio.create_task(stop.wait())
        try:
            names = self._names(queues or self.queues, self.jobs)
            async with self._opened(names):
                while not stop.is_set():
                    error = await self._serve(concurrency, names, ending, grace)
                    if not stop.is_set():
                        tally.failures += 1
                        emit(LogEvent.JOB_STORE_FAILED, error=error)
                        await asyncio.wait({ending}, timeout=PAUSE)
        finally:
            ending.cancel()
        return self._handed_back

    async def recover(self) -> None:
        """Redeliver the jobs of dead workers, and enqueue jobs again that the engine has lost.

        Only workers do this, one at a time.
        """
        if not self._is_working:
            return
        with store_errors():
            async with self.jobs.store.transaction() as within:
                if await self.rows.try_keeper_lock(within):
                    await self.rows.retry_stalled(self._stalled_after)
                    await self._enqueue_lost(within)

    async def _serve(
        self, concurrency: int, names: list[str], ending: asyncio.Task[object], grace: float
    ) -> BaseException | None:
        """Run the engine's worker until it has to stop; returns its error, if it fails."""
        # asyncio: the engine's worker ends by one cancellation; an anyio scope cancels at each checkpoint
        serving = asyncio.create_task(
            self.rows.app.run_worker_async(
                concurrency=concurrency,
                queues=names,
                fetch_job_polling_interval=self.poll,
                abort_job_polling_interval=NEVER,
                shutdown_graceful_timeout=grace,
                update_heartbeat_interval=self.jobs.options.every,
                stalled_worker_timeout=NEVER,  # it would remove workers of other services, whose leases may be longer
                delete_jobs="successful",
                install_signal_handlers=False,
            )
        )
        try:
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()  # it takes no more jobs, and ends when running jobs have ended or were handed back
            await asyncio.wait({serving})
        return None if serving.cancelled() else serving.exception()

    async def _deliver(self, context: Any, id: object) -> None:
        """Run a job: the only task of the engine. Its row is deleted at the end, so a redelivery needs a new row."""
        if not self.is_job(id):
            return
        try:
            state = await self.jobs.run_invocation(id)
        except asyncio.CancelledError:  # the grace period ended and the job was put back: for the engine it succeeded
            self._handed_back += 1
            delay = 0.0
        except Exception as error:  # noqa: BLE001  (of the store; the engine would keep its row for ever)
            self._tally.failures += 1
            emit(LogEvent.JOB_STORE_FAILED, error=error)
            delay = self.jobs.options.valid
        else:
            self._tally.count(state)
            if state is not None or not context.job.attempts:
                return
            delay = self.jobs.options.valid  # its worker counts as dead: wait until its lease expires
        with suppress(StoreError):  # `recover` finds it
            run_at = self._later(self.jobs.now() + delay)
            await self._enqueue(Delivery(id, context.job.queue, context.job.priority, run_at))

    async def _enqueue(self, delivery: Delivery) -> None:
        from procrastinate.exceptions import AlreadyEnqueued

        with store_errors(), suppress(AlreadyEnqueued):
            async with self.jobs.store.transaction() as within:
                await self.rows.add(within, delivery)

    async def _enqueue_lost(self, within: Transaction) -> None:
        """Enqueue due jobs that the engine does not have."""
        now = self.jobs.now()
        before = now - (self._resend or min(self.jobs.options.lease, MAX_RESEND))
        found = [job for _, job in await within.jobs.unsent(now, before)]
        if not found:
            return
        waiting = await self.rows.waiting(within, [job.id for job in found])
        if lost := [job for job in found if job.id not in waiting and job.queue in self.queues]:
            await self.rows.cancel(within, *(job.id for job in lost))  # a row of the version before, in another queue
            await self.rows.add(within, *(self._delivery(job, 0.0) for job in lost))
        await within.jobs.mark_sent([job.id for job in found], now)

    @asynccontextmanager
    async def _opened(self, names: list[str]) -> AsyncGenerator[None, None]:
        """Open the connections of the engine."""
        try:
            with store_errors():
                await self.rows.open()
                foreign = await self.rows.queues_with_foreign_jobs(names)
            if foreign:
                raise RegistrationError(
                    f"the queues {', '.join(foreign)} of Procrastinate hold jobs of another application, and this worker "
                    "would take them: give ProcrastinateJobs(queues=...) queues of their own"
                )
            self._is_working = True
            yield
        finally:
            self._is_working = False
            with store_errors():
                await self.rows.close()

    @property
    def _stalled_after(self) -> float:
        """Seconds without a heartbeat after which a worker counts as dead; its leases have expired by then."""
        return self.jobs.options.valid + self.jobs.options.every

    def _names(self, queues: Collection[str], jobs: JobQueue) -> list[str]:
        """Return the names of queues in the tables."""
        namespace = jobs.keys.namespace
        return [f"callgate.{namespace}.{queue}" if namespace else queue for queue in queues]

    def _delivery(self, job: Job, run_at: float) -> Delivery:
        (name,) = self._names([job.queue], self.jobs)
        return Delivery(job.id, name, job.priority, self._later(run_at))

    def _later(self, run_at: float) -> float | None:
        """Return the time of delivery; None for now."""
        return run_at if run_at > self.jobs.now() else None
