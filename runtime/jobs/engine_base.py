"""The base class of job engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from callgate.errors import RegistrationError, StoreError
from callgate.providers.ids import is_id
from callgate.providers.logs import LogEvent, emit
from callgate.providers.stores.base import Transaction
from callgate.providers.stores.jobs import Job
from callgate.runtime.jobs.jobs import JobQueue


class EngineBase:
    """Base class of job engines: an engine is bound to one gate and moves the jobs of that gate only."""

    queues: tuple[str, ...] = ()
    _jobs: JobQueue | None = None

    @property
    def jobs(self) -> JobQueue:
        """The jobs of the gate.

        Raises:
            RegistrationError: the engine is bound to no gate.
        """
        if self._jobs is None:
            name = type(self).__name__
            raise RegistrationError(f"{name} belongs to no gate: Gate(jobs={name}(...))")
        return self._jobs

    def bind(self, jobs: JobQueue) -> None:
        """See ``JobBackend``.

        Raises:
            RegistrationError: the engine is bound to another gate, or cannot move these jobs.
        """
        if self._jobs is not None:
            raise RegistrationError(f"{type(self).__name__} belongs to another gate: make one for each")
        self.check(jobs)
        self._jobs = jobs

    async def submit(self, tenant: str, job: Job, within: Transaction) -> None:
        """See ``JobBackend``."""

    async def submit_many(self, jobs: Sequence[tuple[str, Job]], within: Transaction) -> None:
        """See ``JobBackend``."""
        for tenant, job in jobs:
            await self.submit(tenant, job, within)

    def check(self, jobs: JobQueue) -> None:
        """Check that the engine can move these jobs.

        Raises:
            RegistrationError: it cannot.
        """

    def check_names(self, jobs: JobQueue) -> None:
        """Check the names of queues outside of the store, such as ``callgate.billing.default``: each is of one namespace.

        Raises:
            RegistrationError: the gate has a namespace, and a queue has a dot.
        """
        dotted = next((queue for queue in self.queues if "." in queue), None)
        if jobs.keys.namespace and dotted is not None:
            raise RegistrationError(
                f"{type(self).__name__}: the queue {dotted!r} has a dot, so workers of another namespace could take its jobs; "
                "in a namespace write names such as 'eu_default'"
            )

    def is_job(self, id: object) -> TypeGuard[str]:
        """Return True for the id of a job in a message. A message of others is logged: without an id, any job would run."""
        if is_id(id):
            return True
        error = StoreError("a message has no id of a job")
        emit(LogEvent.PROVIDER_FAILED, provider=type(self).__name__, phase="deliver", error=error)
        return False

    def check_queue(self, queue: str) -> None:
        """Check that the engine declares a queue: no worker would take the jobs of another one.

        Raises:
            RegistrationError: it does not.
        """
        if queue not in self.queues:
            name, known = type(self).__name__, ", ".join(sorted(self.queues))
            raise RegistrationError(f"no worker serves the queue {queue!r}: {name}(queues=...) has {known}")
