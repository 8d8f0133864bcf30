"""Celery as a ``JobBackend``: its broker carries the ids of jobs, as JSON.

The broker has no transactions: a message is sent after the record is written. If the message is lost, the record stays, and
the job is sent again when no worker takes it in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from callgate.errors import RegistrationError
from callgate.providers.kinds import checks_kinds
from callgate.providers.logs import LogEvent, emit
from callgate.providers.stores.base import Transaction
from callgate.providers.stores.jobs import Job
from callgate.runtime.hosts.celery.sender import SenderPool
from callgate.runtime.jobs.engine_base import EngineBase
from callgate.runtime.jobs.jobs import JobQueue
from callgate.runtime.options.job_engine import Tally

TASK = "callgate.run_invocation"
JSON = {"json", "application/json"}

SLACK = 0.1
"""Extra delay of a delayed job, in seconds, so that it is not early by the clock of any worker."""

MAX_RESEND = 600.0
MAX_LEVEL, DEFAULT_LEVEL = 9, 4
"""A broker has priorities from 0 to 9; the default priority of a job, 0, is 4 there."""


class CeleryJobs(EngineBase):
    """Sends the jobs of a gate over the broker of a Celery application, whose workers run them; see ``register``.

    Messages are JSON: an application that accepts another format, such as pickle, is refused. Priorities from -4 to 5
    are distinct (Redis has four bands). A job that starts later than *resend* waits in the store, not in the memory of a
    worker.

    Args:
        app: the Celery application; or the address of a broker, for an application of Callgate's.
        queues: the queues that accept jobs.
        queue_prefix: the prefix of their names in the broker. A gate in a namespace has queues of its own, such as
            ``callgate.billing.default``: workers of another one could not run its jobs.
        resend: seconds after which a due job is sent again if no worker has taken it. A second message of the same job
            does nothing. Default: four fifths of the lease of ``Jobs``, at most 600.

    Raises:
        RegistrationError: an invalid number, no queues, or the extra is not installed.
    """

    @checks_kinds(RegistrationError)
    def __init__(
        self,
        app: Any,
        *,
        queues: Collection[str] = ("default",),
        queue_prefix: str = "callgate.",
        resend: float | None = None,
    ) -> None:
        if find_spec("celery") is None:
            raise RegistrationError('CeleryJobs needs packages that are not installed: pip install "callgate[celery]"')
        if not isinstance(app, str) and not hasattr(app, "send_task"):
            raise RegistrationError("CeleryJobs: give a Celery application, or the address of a broker")
        if not queues or (resend is not None and not resend > 0):
            raise RegistrationError("CeleryJobs: give names of queues, and resend as seconds above 0")
        self.app = _app_at(app) if isinstance(app, str) else app
        self.queues, self.queue_prefix = tuple(queues), queue_prefix
        self._resend = resend
        self._senders: SenderPool | None = None
        self._lowest_first = False

    @property
    def resend(self) -> float:
        """Seconds after which a job is sent again, and the longest delay of a message in a worker."""
        options = self.jobs.options
        return self._resend or min(options.lease - options.every, MAX_RESEND)  # a sweep finds the job within the lease

    # ------------------------------------------------------------------ the engine

    def check(self, jobs: JobQueue) -> None:
        """See ``EngineBase``.

        Raises:
            RegistrationError: the store of the gate is in memory, or see ``check_names``.
        """
        self.check_names(jobs)
        if not jobs.store.durable:
            raise RegistrationError(
                f"CeleryJobs: workers are other processes, and the store is in the memory of this one "
                f'({jobs.store.name}): give Gate(store="postgresql://...")'
            )

    async def open(self) -> None:
        """See ``JobBackend``.

        Raises:
            RegistrationError: the application accepts more than JSON.
        """
        self.prepare()
        self._senders = SenderPool(self.app)
        self._lowest_first = self.app.connection_for_write().transport.driver_type == "redis"

    async def close(self) -> None:
        senders, self._senders = self._senders, None
        if senders is not None:
            senders.close()

    def prepare(self) -> None:
        """Declare the queues, for sending and for workers without ``--queues``.

        Raises:
            RegistrationError: the application accepts more than JSON.
        """
        conf = self.app.conf
        accepted = {*(conf.accept_content or ()), *(conf.result_accept_content or ())}
        if not accepted <= JSON:
            raise RegistrationError(
                f"the Celery application accepts {', '.join(sorted(map(str, accepted - JSON)))}: a client with access to the "
                'broker could run code in its workers; set accept_content = ["json"], or use a separate application'
            )
        declared = self.app.amqp.queues
        for name in self.names(self.queues):
            if name not in declared:
                declared.select_add(
                    name, exchange=name, exchange_type="direct", routing_key=name, durable=True, max_priority=MAX_LEVEL
                )

    def names(self, queues: Collection[str]) -> list[str]:
        """Return the names of queues in the broker."""
        namespace = self.jobs.keys.namespace
        return [
            f"{self.queue_prefix}{namespace}.{queue}" if namespace else self.queue_prefix + queue for queue in queues
        ]

    async def submit(self, tenant: str, job: Job, within: Transaction) -> None:
        """See ``JobBackend``.

        Raises:
            RegistrationError: the queue is not declared.
        """
        self.check_queue(job.queue)

    async def submitted(self, job: Job) -> None:
        await self._send(job, job.run_at)

    async def retry_later(self, job: Job, run_at: float) -> None:
        await self._send(job, run_at)

    async def cancel(self, job: Job) -> None:
        """Do nothing: a worker that gets the message finds the job cancelled."""

    async def recover(self) -> None:
        """Send due jobs again whose messages are old.

        If the broker is unreachable, the first failure or a timeout ends the round. An unsent job is not marked, so that
        another process that reaches the broker can send it.
        """
        store, now = self.jobs.store.jobs, self.jobs.now()
        found = [job for _, job in await store.unsent(now, now - self.resend)]
        sent: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(self.jobs.options.every):
                for job in found:
                    if job.queue in self.queues and not await self._send(job, now):
                        break
                    sent.append(job.id)
        if sent:
            await store.mark_sent(sent, now)

    async def work(
        self, concurrency: int, queues: Collection[str], stop: asyncio.Event, grace: float, tally: Tally
    ) -> int:
        """Refuse to run jobs: Celery's own worker has to run them, because it forks before each process opens the gate.

        Raises:
            RegistrationError: always; the message has the command to start.
        """
        names = ",".join(self.names(queues or self.queues))
        raise RegistrationError(
            "workers of Celery run these jobs: call register(app, gate) in the module of the application, and start "
            f"`celery -A MODULE worker --queues {names} --concurrency {concurrency}`"
        )

    # ------------------------------------------------------------------ inside

    async def _send(self, job: Job, run_at: float) -> bool:
        """Send the id of a job, unless it waits in the store; False if the broker is unreachable."""
        delay = max(run_at - self.jobs.now(), 0.0)
        if delay > self.resend or self._senders is None:
            return True
        try:
            await self._senders.send(
                TASK,
                args=[job.id],
                queue=self.names([job.queue])[0],
                priority=self._level(job.priority),
                countdown=delay + SLACK if delay else None,
                serializer="json",
                ignore_result=True,
                retry=True,
                retry_policy={"max_retries": 1, "interval_start": 0.0},  # a connection may be stale
            )
        except Exception as error:  # noqa: BLE001  (the record is written: `recover` sends again)
            emit(LogEvent.JOB_NOT_SENT, job=job.id, error=error)
            return False
        return True

    def _level(self, priority: int) -> int:
        """Convert a priority for the broker: RabbitMQ prefers the highest number, Redis the lowest."""
        level = min(max(priority + DEFAULT_LEVEL, 0), MAX_LEVEL)
        return MAX_LEVEL - level if self._lowest_first else level


def _app_at(broker: str) -> Any:
    from celery import Celery

    app = Celery("callgate", broker=broker, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        result_accept_content=["json"],
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        worker_prefetch_multiplier=1,  # a job waits in the broker, which knows its priority
    )
    return app
