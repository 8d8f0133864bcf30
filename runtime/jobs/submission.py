"""Store submitted jobs: those of concurrent callers in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from callgate.errors import Invalid, RegistrationError, StoreConflict, StoreError
from callgate.providers.principal import User
from callgate.providers.stores.base import Store, Transaction
from callgate.providers.stores.effects import EffectState
from callgate.providers.stores.group_commit import ASIDE_WAIT_MS, LOCK_WAIT_MS, RETRY_WAIT_MS, GroupCommit, RolledBack
from callgate.providers.stores.jobs import Job, JobState
from callgate.providers.stores.server_answers import is_locked
from callgate.providers.stores.sql_states import in_transaction, is_session_lost
from callgate.runtime.effects.keys import given_key
from callgate.runtime.jobs.backend import JobBackend
from callgate.runtime.jobs.calls import JobCalls
from callgate.runtime.jobs.jobs import JobHandle, JobQueue
from callgate.runtime.jobs.records import JobRequest, outcome_in, request_of
from callgate.tools.calls import Outcome, ToolCall


class NewJob(NamedTuple):
    """A job to add. With ``once`` the job that has its id is never replaced."""

    tenant: str
    job: Job
    once: bool = False


REFUSED = frozenset({Outcome.DENIED.value, Outcome.INVALID.value})
"""Outcomes of calls that did not begin."""
Made: TypeAlias = tuple[Job, JobRequest]
"""A job that is not stored yet."""


class JobWriter:
    """Adds jobs to the store and to the engine. With a durable store, concurrent callers share a transaction."""

    def __init__(self, store: Callable[[], Store], backend: JobBackend, calls: JobCalls, namespace: str) -> None:
        self._store, self._backend, self._calls, self._namespace = store, backend, calls, namespace
        self._group: GroupCommit[NewJob] = GroupCommit(
            partial(self._write, lock_wait=LOCK_WAIT_MS),
            partial(self._write, lock_wait=ASIDE_WAIT_MS),
            retry=partial(self._write, lock_wait=RETRY_WAIT_MS),
            size=lambda new: 2 * len(new.job.body),
        )

    async def add(self, tenant: str, job: Job, *, once: bool = False) -> Job:
        """Add a job. Return it, or the job that has its id.

        A job replaces an earlier one of its id that has ended without running; see ``_is_free``.

        Raises:
            StoreConflict: a job of another tenant has that id.
            StoreError: the store failed.
        """
        store, new = self._store(), NewJob(tenant, job, once)
        if not store.durable:
            return (await self.add_all([new]))[0]
        if (refuse := getattr(store, "refuse_nesting", None)) is not None:
            refuse()
        found: Job | Exception = await self._group.put(new, job.id, withdraw=True)
        if isinstance(found, Exception):
            raise found
        return found

    async def add_all(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Add all of these jobs or none, in one transaction; see ``add``."""
        return await in_transaction(self._store(), lambda within: self.add_within(within, jobs))

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
            await in_transaction(self._store(), lambda own: self._add_checked(jobs, own, made))
            for job in {job.id: job for job, _ in made}.values():
                await self._backend.submitted(job)
        return [jobs.handle(job.id, user) for job, _ in made]

    async def _add_joined(self, jobs: JobQueue, connection: object, made: Sequence[Made]) -> None:
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
        first: dict[str, NewJob] = {}
        for job, request in made:
            first.setdefault(job.id, NewJob(request.user.tenant or "", job))
        known = dict(zip(first, await self.add_within(within, list(first.values())), strict=True))
        for job, request in made:
            jobs.check_repeat(known[job.id], request)

    async def add_within(self, within: Transaction, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Add jobs in a transaction. Return for each the job, or the job that has its id."""
        known = [*await within.jobs.add_many([(tenant, job) for tenant, job, _ in jobs])]
        added: list[tuple[str, Job]] = []
        for index, (tenant, job, once) in enumerate(jobs):
            found = known[index]
            if found is job or found.mac == job.mac:
                added.append((tenant, job))
            elif not once and await self._is_free(within, tenant, found, job):
                new = replace(job, token=found.token + 1)
                if await within.jobs.replace(tenant, new):
                    known[index] = new
                    added.append((tenant, new))
                else:  # another process did so first
                    known[index] = await within.jobs.get(tenant, job.id) or found
        if not added or added[0][1].sent_at is None:  # the engine shares no transaction with this one
            return known
        if len(added) == 1:
            await self._backend.submit(*added[0], within)
        else:
            await self._backend.submit_many(added, within)
        return known

    async def _is_free(self, within: Transaction, tenant: str, job: Job, new: Job) -> bool:
        """Return whether *new* may take the key of a job that was cancelled, refused or abandoned without an effect."""
        outcome = outcome_in(job.result) if job.state is JobState.DONE else None
        if outcome not in REFUSED and job.state not in {JobState.CANCELLED, JobState.DEAD}:
            return False
        try:
            request = request_of(job)
            key = given_key(request.user, job.tool, request.idempotency_key or "", self._namespace)
        except StoreError:  # another version wrote it
            return False
        except Invalid:  # such a key has no effect: its calls are refused
            return True
        effect = await within.effects.get(self._calls.tenant_of(request.user, job.tool), key)
        if effect is not None and effect.state is not EffectState.NO_EFFECT:
            return False
        return outcome == Outcome.INVALID or self._calls.may_replace(request, request_of(new))

    async def close(self) -> None:
        """Write what is left."""
        await self._group.close()

    async def _write(self, jobs: Sequence[NewJob], lock_wait: int) -> Sequence[Job | Exception]:
        adding = False

        async def add(within: Transaction) -> Sequence[Job]:
            nonlocal adding
            adding = True
            known = await self.add_within(within, jobs)
            adding = False
            return known

        try:
            known = await in_transaction(self._store(), add, lock_wait=lock_wait)
        except Exception as error:
            if isinstance(error, StoreError) and is_locked(error):  # such as a job of a transaction that is still open
                raise RolledBack(error, waited=True) from error
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
    return error.sqlstate is None or is_session_lost(error)
