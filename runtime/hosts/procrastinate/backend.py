"""Procrastinate as a ``JobBackend``: enqueued with the record, delivered to a worker, and delivered again if that dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from typing import Any

from callgate.errors import RegistrationError, StoreError
from callgate.providers.logs import Event, emit
from callgate.providers.stores.base import Transaction
from callgate.providers.stores.jobs import Job
from callgate.runtime.hosts.procrastinate.rows import Rows, driver_of, failing
from callgate.runtime.jobs.engine_base import OfOneGate
from callgate.runtime.jobs.jobs import Jobs, Tally

LONGEST_RESEND = 600.0
PAUSE = 1.0
"""Seconds between a failure of the engine's worker and the next one."""
NEVER = 86_400.0

LONGEST_QUEUE = 40
"""Bytes: the engine puts 23 before the name of a queue, and PostgreSQL has channels of 63."""


class ProcrastinateJobs(OfOneGate):
    """Moves the jobs of a gate whose store is a PostgreSQL; ``callgate worker`` runs them, in as many processes as wanted.

    What is submitted is enqueued by the transaction that writes it down: both are there, or neither. The engine's tables
    are made in the database of the store, where they are missing, and it connects as the store does.

    *poll*: seconds between two looks for jobs whose time has come; workers are told at once of what may run at once.
    *resend*: seconds after which a job that may run, and that no worker has taken, is looked for in the engine, and
    enqueued again if it is not there; default: the lease of ``JobOptions``, 600 at most.

    Raises:
        RegistrationError: a number that means nothing, or the extra is not installed.
    """

    def __init__(self, *, poll: float = 1.0, resend: float | None = None) -> None:
        if not poll > 0 or (resend is not None and not resend > 0):
            raise RegistrationError("ProcrastinateJobs: poll and resend are seconds, above 0")
        if not all(find_spec(name) for name in ("procrastinate", "psycopg", "psycopg_pool")):
            raise RegistrationError(
                'ProcrastinateJobs needs packages that are not installed: pip install "callgate[sql,worker]"'
            )
        self.poll = poll
        self._resend = resend
        self._rows: Rows | None = None
        self._works = False
        self._tally = Tally()
        self._handed_back = 0

    @property
    def rows(self) -> Rows:
        """What waits in the engine.

        Raises:
            RegistrationError: the gate is not open.
        """
        if self._rows is None:
            raise RegistrationError("ProcrastinateJobs: the gate is not open; use it inside `async with gate:`")
        return self._rows

    # ------------------------------------------------------------------ where calls are submitted

    def check(self, jobs: Jobs) -> None:
        """See ``OfOneGate``.

        Raises:
            RegistrationError: the store of the gate is no PostgreSQL.
        """
        if jobs.store.name != "postgresql":
            raise RegistrationError(
                "ProcrastinateJobs enqueues in the transaction that writes a job down, in one PostgreSQL, and jobs are "
                f'kept in {jobs.store.name} here: give Gate(store="postgresql://...")'
            )

    async def open(self) -> None:
        """Make the engine's tables where there are none.

        Raises:
            StoreError: the database failed.
            RegistrationError: they are of another version of Procrastinate.
        """
        with failing():
            async with self.jobs.store.transaction() as within:
                rows = Rows(driver_of(within).info, self._deliver)
                await rows.make_tables(within)
        self._rows = rows

    async def close(self) -> None:
        """What it had open was closed as ``work`` ended."""

    async def submit(self, tenant: str, job: Job, within: Transaction) -> None:
        """See ``JobBackend``.

        Raises:
            RegistrationError: the name of the queue is longer than 40 bytes.
            StoreError: the database failed.
        """
        if not _fits(job.queue):
            raise RegistrationError(f"ProcrastinateJobs: the names of queues have at most {LONGEST_QUEUE} bytes")
        with failing():
            await self.rows.add(within, job.id, job.queue, job.priority, self._later(job.run_at))

    async def submitted(self, job: Job) -> None:
        """It was enqueued with its record."""

    async def retry_later(self, job: Job, run_at: float) -> None:
        """See ``JobBackend``."""
        await self._again(job.id, job.queue, job.priority, run_at)

    async def cancel(self, job: Job) -> None:
        """See ``JobBackend``."""
        with suppress(StoreError), failing():  # it is cancelled: whoever gets it finds nothing to take
            async with self.jobs.store.transaction() as within:
                await self.rows.cancel(within, job.id)

    # ------------------------------------------------------------------ where they run

    async def work(
        self, concurrency: int, queues: Collection[str], stop: asyncio.Event, grace: float, tally: Tally
    ) -> int:
        """See ``JobBackend``. A failure of the engine is logged, and its worker begun again.

        Raises:
            StoreError: the database failed at the start.
            RegistrationError: no queues are named, and the engine has jobs of another application.
        """
        self._tally, self._handed_back = tally, 0
        ending = asyncio.create_task(stop.wait())
        try:
            async with self._opened(queues):
                while not stop.is_set():
                    error = await self._serve(concurrency, queues, ending, grace)
                    if not stop.is_set():
                        tally.failures += 1
                        emit(Event.JOB_STORE_FAILED, error=error)
                        await asyncio.wait({ending}, timeout=PAUSE)
        finally:
            ending.cancel()
        return self._handed_back

    async def keep_up(self) -> None:
        """What was under way in a worker that died is delivered again, and what the engine has lost is enqueued again.

        Workers do that, one at a time: without them there is nobody to deliver to.
        """
        if not self._works:
            return
        with failing():
            async with self.jobs.store.transaction() as within:
                if await self.rows.is_keeper(within):
                    await self.rows.free_stalled(self._silent)
                    await self._send_lost(within)

    async def _serve(
        self, concurrency: int, queues: Collection[str], ending: asyncio.Task[Any], grace: float
    ) -> BaseException | None:
        """Run the engine's worker until it is to end, or fails; with what."""
        named: Any = list(queues) or None  # None: all of them
        serving = asyncio.create_task(
            self.rows.app.run_worker_async(
                concurrency=concurrency,
                queues=named,
                fetch_job_polling_interval=self.poll,
                abort_job_polling_interval=NEVER,
                shutdown_graceful_timeout=grace,
                update_heartbeat_interval=self.jobs.options.every,
                stalled_worker_timeout=self._silent,
                delete_jobs="successful",
                install_signal_handlers=False,
            )
        )
        try:
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()  # it takes no more, and ends when what runs has ended, or was handed back
            await asyncio.wait({serving})
        return None if serving.cancelled() else serving.exception()

    async def _deliver(self, context: Any, id: str) -> None:
        """The one task. Its row goes when it ends: what is to be delivered once more has another one by then."""
        try:
            state = await self.jobs.run_invocation(id)
        except (
            asyncio.CancelledError
        ):  # the grace is over, and the job was put back; the engine is told that all is done
            self._handed_back += 1
            delay = 0.0
        except StoreError as error:
            self._tally.failures += 1
            emit(Event.JOB_STORE_FAILED, error=error)
            delay = self.jobs.options.valid
        else:
            self._tally.count(state)
            if state is not None or not context.job.attempts:
                return
            delay = self.jobs.options.valid  # its worker was taken for dead: by then its lease is over
        with suppress(StoreError):  # then `keep_up` finds it
            await self._again(id, context.job.queue, context.job.priority, self.jobs.now() + delay)

    async def _again(self, id: str, queue: str, priority: int, run_at: float) -> None:
        from procrastinate.exceptions import AlreadyEnqueued

        with failing(), suppress(AlreadyEnqueued):
            async with self.jobs.store.transaction() as within:
                await self.rows.add(within, id, queue, priority, self._later(run_at))

    async def _send_lost(self, within: Transaction) -> None:
        """Enqueue what may run and does not wait in the engine."""
        now = self.jobs.now()
        before = now - (self._resend or min(self.jobs.options.lease, LONGEST_RESEND))
        lost = [job for _, job in await within.jobs.unsent(now, before)]
        if not lost:
            return
        waiting = await self.rows.waiting(within, [job.id for job in lost])
        for job in lost:
            if job.id not in waiting and _fits(job.queue):
                await self.rows.add(within, job.id, job.queue, job.priority, None)
        await within.jobs.sent([job.id for job in lost], now)

    @asynccontextmanager
    async def _opened(self, queues: Collection[str]) -> AsyncGenerator[None, None]:
        """Connections of the engine's own."""
        try:
            with failing():
                await self.rows.open()
                has_others = not queues and await self.rows.has_others()
            if has_others:
                raise RegistrationError(
                    "the tables of Procrastinate hold jobs of another application, which this worker would take, too: "
                    "name its queues (--queues)"
                )
            self._works = True
            yield
        finally:
            self._works = False
            with failing():
                await self.rows.close()

    @property
    def _silent(self) -> float:
        """Seconds without a sign of life after which a worker is dead; the leases of what it ran are over then."""
        return self.jobs.options.valid + self.jobs.options.every

    def _later(self, run_at: float) -> float | None:
        """When it is to be delivered; None when that is now."""
        return run_at if run_at > self.jobs.now() else None


def _fits(queue: str) -> bool:
    return len(queue.encode()) <= LONGEST_QUEUE
