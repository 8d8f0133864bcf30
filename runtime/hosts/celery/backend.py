"""Celery as a ``JobBackend``: the ids of jobs go over its broker, as JSON.

The broker knows no transactions: a message is sent when the record is written. Whatever becomes of it, the record stays,
and a job that may run and that nobody has taken for some time is sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from callgate.errors import RegistrationError
from callgate.providers.logs import Event, emit
from callgate.providers.stores.base import Transaction
from callgate.providers.stores.jobs import Job
from callgate.runtime.hosts.celery.sender import Senders
from callgate.runtime.jobs.engine_base import OfOneGate
from callgate.runtime.jobs.jobs import Jobs, Tally

TASK = "callgate.run_invocation"
JSON = {"json", "application/json"}

SLACK = 0.1
"""Seconds that a delayed job is delivered late, so that by the clock of no worker it is early."""

LONGEST_RESEND = 600.0
LEVELS, USUAL = 9, 4
"""A broker has priorities from 0 to 9; the usual priority of a job, 0, is 4 there."""


class CeleryJobs(OfOneGate):
    """Moves the jobs of a gate over the broker of a Celery application; its workers run them (see ``register``).

    *app* is the application, or the address of a broker, for an application of its own. Messages are JSON: one that
    accepts anything else, such as pickle, is refused. *queues* are the queues that jobs may be submitted to; in the broker
    their names begin with *queue_prefix*. Priorities from -4 to 5 are told apart (by Redis four bands of them).

    *resend*: seconds after which a job that may run, and that no worker has taken, is sent again: its message was lost, or
    waits still, and then the second finds nothing to do. What is to run later than that waits in the store, and not
    in the memory of a worker. Default: four fifths of the lease of ``JobOptions``, 600 at most.

    Raises:
        RegistrationError: a number that means nothing, no queues, or the extra is not installed.
    """

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
        if isinstance(queues, str) or not queues or (resend is not None and not resend > 0):
            raise RegistrationError("CeleryJobs: queues are some names, resend is seconds, above 0")
        self.app = _app_at(app) if isinstance(app, str) else app
        self.queues, self.queue_prefix = tuple(queues), queue_prefix
        self._resend = resend
        self._senders: Senders | None = None
        self._lowest_first = False

    @property
    def resend(self) -> float:
        """Seconds after which a job that nobody has taken is sent again, and that a message may wait in a worker."""
        options = self.jobs.options
        return self._resend or min(options.lease - options.every, LONGEST_RESEND)  # looked for within the lease

    # ------------------------------------------------------------------ as an engine

    def check(self, jobs: Jobs) -> None:
        """See ``OfOneGate``.

        Raises:
            RegistrationError: the store of the gate is in the memory of this process.
        """
        if not jobs.store.durable:
            raise RegistrationError(
                f"CeleryJobs: workers are other processes, and jobs are kept in the memory of this one "
                f'({jobs.store.name}): give Gate(store="postgresql://...")'
            )

    async def open(self) -> None:
        """See ``JobBackend``.

        Raises:
            RegistrationError: the application accepts more than JSON.
        """
        self.prepare()
        self._senders = Senders(self.app)
        self._lowest_first = self.app.connection_for_write().transport.driver_type == "redis"

    async def close(self) -> None:
        """See ``JobBackend``."""
        senders, self._senders = self._senders, None
        if senders is not None:
            senders.close()

    def prepare(self) -> None:
        """Declare the queues, for sending and for a worker that is told no others.

        Raises:
            RegistrationError: the application accepts more than JSON.
        """
        conf = self.app.conf
        accepted = {*(conf.accept_content or ()), *(conf.result_accept_content or ())}
        if not accepted <= JSON:
            raise RegistrationError(
                f"the Celery application accepts {', '.join(sorted(map(str, accepted - JSON)))}: its workers would run what "
                'whoever can write to the broker sends; set accept_content = ["json"], or make an application of its own'
            )
        declared = self.app.amqp.queues
        for queue in self.queues:
            name = self.queue_prefix + queue
            if name not in declared:
                declared.select_add(
                    name, exchange=name, exchange_type="direct", routing_key=name, durable=True, max_priority=LEVELS
                )

    async def submit(self, tenant: str, job: Job, within: Transaction) -> None:
        """See ``JobBackend``.

        Raises:
            RegistrationError: there is no such queue.
        """
        if job.queue not in self.queues:
            known = ", ".join(sorted(self.queues))
            raise RegistrationError(f"no worker looks at that queue: CeleryJobs(queues=...) has {known}")

    async def submitted(self, job: Job) -> None:
        """See ``JobBackend``."""
        await self._send(job, job.run_at)

    async def retry_later(self, job: Job, run_at: float) -> None:
        """See ``JobBackend``."""
        await self._send(job, run_at)

    async def cancel(self, job: Job) -> None:
        """Whoever gets its message finds nothing to take."""

    async def keep_up(self) -> None:
        """Send what may run and was sent long ago.

        While the broker is away one attempt is enough, and it is cut short. What was not sent is not marked either, so
        that another process, which may reach the broker, finds it.
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
            await store.sent(sent, now)

    async def work(
        self, concurrency: int, queues: Collection[str], stop: asyncio.Event, grace: float, tally: Tally
    ) -> int:
        """Nothing runs here: a worker of Celery forks its processes, and each has to open the gate after that.

        Raises:
            RegistrationError: always; it says what to start.
        """
        names = ",".join(self.queue_prefix + queue for queue in queues or self.queues)
        raise RegistrationError(
            "these jobs run in workers of Celery: in the module of its application say register(app, gate), and start "
            f"`celery -A MODULE worker --queues {names} --concurrency {concurrency}`"
        )

    # ------------------------------------------------------------------ inside

    async def _send(self, job: Job, run_at: float) -> bool:
        """Send its id, unless it waits in the store; False when the broker could not be reached in time."""
        delay = max(run_at - self.jobs.now(), 0.0)
        if delay > self.resend or self._senders is None:
            return True
        try:
            await self._senders.send(
                TASK,
                args=[job.id],
                queue=self.queue_prefix + job.queue,
                priority=self._level(job.priority),
                countdown=delay + SLACK if delay else None,
                serializer="json",
                ignore_result=True,
                retry=True,
                retry_policy={"max_retries": 1, "interval_start": 0.0},  # a connection may have gone stale
            )
        except Exception as error:  # noqa: BLE001  (whatever it is, the record is written: `keep_up` sends again)
            emit(Event.JOB_NOT_SENT, job=job.id, error=error)
            return False
        return True

    def _level(self, priority: int) -> int:
        """A priority as the broker has it: RabbitMQ begins with the highest number, Redis with the lowest."""
        level = min(max(priority + USUAL, 0), LEVELS)
        return LEVELS - level if self._lowest_first else level


def _app_at(broker: str) -> Any:
    from celery import Celery

    app = Celery("callgate", broker=broker, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        result_accept_content=["json"],
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        worker_prefetch_multiplier=1,  # a job waits in the broker, where it has its priority, and not in a worker
    )
    return app
