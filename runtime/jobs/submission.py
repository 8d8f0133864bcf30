"""Store submitted jobs: those of concurrent callers in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from callgate.errors import RegistrationError, StoreConflict, StoreError
from callgate.providers.principal import User
from callgate.providers.stores.base import Store, Transaction
from callgate.providers.stores.group_commit import GroupCommit, RolledBack
from callgate.providers.stores.jobs import Job
from callgate.runtime.jobs.backend import JobBackend
from callgate.runtime.jobs.jobs import JobHandle, JobQueue
from callgate.runtime.jobs.records import JobRequest
from callgate.tools.calls import ToolCall

TenantJob: TypeAlias = tuple[str, Job]
"""A job with its tenant."""
Made: TypeAlias = tuple[Job, JobRequest]
"""A job that is not stored yet."""


class JobWriter:
    """Adds jobs to the store and to the engine. With a durable store, concurrent callers share a transaction."""

    def __init__(self, store: Callable[[], Store], backend: JobBackend) -> None:
        self._store, self._backend = store, backend
        self._group: GroupCommit[TenantJob] = GroupCommit(self._write, self._write)

    async def add(self, tenant: str, job: Job) -> Job:
        """Add a job. Return it, or the job that has its id.

        Raises:
            StoreConflict: a job of another tenant has that id.
            StoreError: the store failed.
        """
        store = self._store()
        if not store.durable:
            return (await self.add_all([(tenant, job)]))[0]
        if (refuse := getattr(store, "refuse_nesting", None)) is not None:
            refuse()
        found: Job | Exception = await self._group.put((tenant, job), job.id, withdraw=True)
        if isinstance(found, Exception):
            raise found
        return found

    async def add_all(self, jobs: Sequence[TenantJob]) -> Sequence[Job]:
        """Add all of these jobs or none, in one transaction; see ``add``."""
        async with self._store().transaction() as within:
            return await self.add_within(within, jobs)

    async def submit_many(
        self,
        jobs: JobQueue,
        calls: Sequence[tuple[ToolCall, str | None]],
        user: User,
        *,
        within: Any = None,
        **options: Any,
    ) -> list[JobHandle]:
        """Add the jobs of calls with their keys, all of them or none, in one transaction. Jobs with one id are one job.

        Raises:
            Conflict: the job of a key has other arguments.
            RegistrationError: *within* is given, and the store is in no database.
            StoreError: *within* is of another kind or database than the store.
        """
        made = [jobs.prepare(call, user, key=key, **options) for call, key in calls]
        if within is not None:
            await self._add_joined(jobs, within, made)
        else:
            async with self._store().transaction() as own:
                await self._add_checked(jobs, own, made)
            for job in {job.id: job for job, _ in made}.values():
                await self._backend.submitted(job)
        return [jobs.handle(job.id, user) for job, _ in made]

    async def _add_joined(self, jobs: JobQueue, connection: Any, made: Sequence[Made]) -> None:
        store = self._store()
        join = getattr(store, "joined", None)
        if join is None:
            raise RegistrationError(
                f"submit(within=...) needs a store in the database of the transaction, and this one is {store.name}: "
                'give Gate(store="postgresql://...")'
            )
        within = await join(connection)
        if within.driver() is None:  # `recover` enqueues the job, or a worker finds it in the store
            made = [(replace(job, sent_at=None), request) for job, request in made]
        await self._add_checked(jobs, within, made)

    async def _add_checked(self, jobs: JobQueue, within: Transaction, made: Sequence[Made]) -> None:
        first: dict[str, TenantJob] = {}
        for job, request in made:
            first.setdefault(job.id, (request.user.tenant or "", job))
        known = dict(zip(first, await self.add_within(within, list(first.values())), strict=True))
        for job, request in made:
            jobs.check_repeat(known[job.id], request)

    async def add_within(self, within: Transaction, jobs: Sequence[TenantJob]) -> Sequence[Job]:
        """Add jobs in a transaction. Return for each the job, or the job that has its id."""
        known = await within.jobs.add_many(jobs)
        pairs = zip(jobs, known, strict=True)
        added = [(tenant, job) for (tenant, job), found in pairs if found is job or found.mac == job.mac]
        if not added or added[0][1].sent_at is None:  # the engine shares no transaction with this one
            return known
        if len(added) == 1:
            await self._backend.submit(*added[0], within)
        else:
            await self._backend.submit_many(added, within)
        return known

    async def close(self) -> None:
        """Write what is left."""
        await self._group.close()

    async def _write(self, jobs: Sequence[TenantJob]) -> Sequence[Job | Exception]:
        adding = False
        try:
            async with self._store().transaction() as within:
                adding = True
                known = await self.add_within(within, jobs)
                adding = False
        except Exception as error:
            if not adding or _is_outage(error):
                raise
            if len(jobs) > 1:  # each is added alone, so that a job which is refused takes no others along
                raise RolledBack(StoreError("a job of the same transaction was refused")) from error
            return [error]
        return known


def _is_outage(error: Exception) -> bool:
    """Return True if each job would meet this error, so that adding them alone is of no use."""
    if not isinstance(error, StoreError) or isinstance(error, StoreConflict) or error.__cause__ is None:
        return False
    return getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) is None
