"""Store submitted jobs: those of concurrent callers in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

from callgate.errors import Conflict, Invalid, NotPending, RegistrationError, RetryLater, StoreConflict, StoreError
from callgate.providers.stores.base import Store, Transaction
from callgate.providers.stores.effects import EffectState
from callgate.providers.stores.group_commit import GroupCommit, RolledBack
from callgate.providers.stores.jobs import Job, JobState
from callgate.providers.stores.server_answers import is_locked
from callgate.providers.stores.sql.database.states import in_transaction, is_session_lost
from callgate.providers.stores.turns import KeyedTurns
from callgate.runtime.effects.idempotency_keys import given_key
from callgate.runtime.jobs.calls import JobCalls
from callgate.runtime.jobs.records import JobRequest, outcome_in, request_of
from callgate.runtime.options.job_engine import JobBackend
from callgate.runtime.suspensions.crowding import RETRY_AFTER, count_in_turn
from callgate.tools.calls import Outcome


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

    def __init__(
        self, store: Callable[[], Store], backend: JobBackend, calls: JobCalls, namespace: str, limit: int | None = None
    ) -> None:
        self._store, self._backend, self._calls, self._namespace = store, backend, calls, namespace
        self._limit, self._turns = limit, KeyedTurns()
        self._group: GroupCommit[NewJob] = GroupCommit(self._write, size=lambda new: 2 * len(new.job.body))

    async def add(self, tenant: str, job: Job, *, once: bool = False) -> Job:
        """Add a job. Return it, or the job that has its id.

        A job replaces an earlier one of its id that has ended without running; see ``_is_free``.

        Raises:
            RetryLater: the user has as many jobs in the queue as one may have.
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

        async def add(within: Transaction) -> Sequence[Job]:
            await self._refuse_queued(within, jobs)
            return await self.add_within(within, jobs)

        return await in_transaction(self._store(), add)

    async def add_checked(self, made: Sequence[Made], connection: object = None) -> None:
        """Add new jobs, all of them or none, in one transaction. Jobs with one id are one job.

        Args:
            made: the jobs and their requests.
            connection: the transaction of the application, on the database of the store; None for one of its own.

        Raises:
            Conflict: the job of a key has other arguments.
            RetryLater: the user would have more jobs in the queue than one may have.
            RegistrationError: *connection* is given, and the store is in no database.
            StoreError: *connection* is of another kind or database than the store.
        """
        if connection is None:
            user = made[0][1].user if made else None
            async with self._turns.of(user and (user.tenant, user.id)):
                await in_transaction(self._store(), lambda own: self._add_checked(own, made))
            for job in {job.id: job for job, _ in made}.values():
                await self._backend.submitted(job)
            return
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
        await self._add_checked(within, made)

    async def _add_checked(self, within: Transaction, made: Sequence[Made]) -> None:
        first: dict[str, NewJob] = {}
        for job, request in made:
            first.setdefault(job.id, NewJob(request.user.tenant or "", job))
        await self._refuse_queued(within, list(first.values()))
        known = dict(zip(first, await self.add_within(within, list(first.values())), strict=True))
        for job, request in made:
            self.check_repeat(known[job.id], request)

    def check_repeat(self, known: Job, request: JobRequest) -> None:
        """Check that the stored job is the one of a request.

        Raises:
            NotPending: it is of another user.
            Conflict: it has other arguments.
        """
        if known.user != request.user.id:
            raise NotPending("no such job of this user")
        if not self._calls.is_repeat(request_of(known), request):
            raise Conflict(f"{request.tool}: this key was used with other arguments")

    async def add_within(self, within: Transaction, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Add jobs in a transaction. Return for each the job, or the job that has its id."""
        if not jobs:
            return []
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
        if not _did_not_run(job):
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
        return outcome_in(job.result) == Outcome.INVALID or self._calls.may_replace(request, request_of(new))

    async def _over_limit(self, within: Transaction, jobs: Sequence[NewJob]) -> set[int]:
        """Return the indexes of new jobs whose users would have more in the queue than one may have; repeats are not new.

        The transaction that adds the jobs counts, and transactions of one user take turns near the limit: of jobs that
        come at the same time, no more than the limit gets through, also from several processes.
        """
        over, limit = set[int](), self._limit
        if limit is None:
            return over
        users: dict[tuple[str, str], list[int]] = {}
        for index, (tenant, job, once) in enumerate(jobs):
            if not once:
                users.setdefault((tenant, job.user), []).append(index)
        for (tenant, user), mine in sorted(users.items()):  # in one order, or transactions would wait for each other
            count = partial(within.jobs.count_queued, tenant, user, limit)
            free = limit - await count_in_turn(within, tenant, user, limit, len(mine), count)
            if len(mine) <= free:
                continue
            for index in mine:
                known = await within.jobs.get(tenant, jobs[index].job.id)
                if known is not None and not _did_not_run(known):
                    continue
                if free <= 0:
                    over.add(index)
                free -= 1
        return over

    async def _refuse_queued(self, within: Transaction, jobs: Sequence[NewJob]) -> None:
        """Refuse all of these jobs where one is over the limit.

        Raises:
            RetryLater: the limit is reached.
        """
        if await self._over_limit(within, jobs):
            raise self._refusal()

    def _refusal(self) -> RetryLater:
        return RetryLater(
            RETRY_AFTER,
            f"{self._limit} jobs of the user are queued already; see Jobs(max_per_user=...)",
            public="Too many of your jobs are queued. Wait until some of them have begun, or cancel some.",
            no_effect=True,
        )

    async def close(self) -> None:
        """Write what is left."""
        await self._group.close()

    async def _write(self, jobs: Sequence[NewJob], lock_wait: int) -> Sequence[Job | Exception]:
        adding = False

        async def add(within: Transaction) -> Sequence[Job | Exception]:
            nonlocal adding
            adding = True
            over = await self._over_limit(within, jobs)
            added = iter(await self.add_within(within, [new for index, new in enumerate(jobs) if index not in over]))
            adding = False
            return [self._refusal() if index in over else next(added) for index in range(len(jobs))]

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


def _did_not_run(job: Job) -> bool:
    """Return True if a job was cancelled or abandoned, or its call was refused."""
    if job.state is JobState.DONE:
        return outcome_in(job.result) in REFUSED
    return job.state in {JobState.CANCELLED, JobState.DEAD}


def _is_outage(error: Exception) -> bool:
    """Return True if each job would meet this error, so that adding them alone is of no use."""
    if not isinstance(error, StoreError) or isinstance(error, StoreConflict) or error.__cause__ is None:
        return False
    return error.sqlstate is None or is_session_lost(error)
