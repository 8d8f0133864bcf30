"""The job queue in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush, nlargest, nsmallest
from itertools import islice
from typing import TypeAlias

from callgate.errors import StoreConflict
from callgate.providers.stores.effects import PRUNE_BATCH
from callgate.providers.stores.jobs import EXPLAIN_BATCH, FINAL_STATES, HEAD_BYTES, Fitting, Job, JobState, free_at
from callgate.providers.stores.memory.changes import MemoryPart

TenantJob: TypeAlias = tuple[str, Job]
"""A job with its tenant."""
Waiting: TypeAlias = tuple[float, float, str]
"""An entry of a queue: the time from which a job may be taken, the time it was made, its id."""


class MemoryJobs(MemoryPart[str, TenantJob]):
    """Jobs by id, each with its tenant. Ended jobs stay until they are pruned.

    Other readers see the jobs that a transaction adds after its ``commit``.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, TenantJob] = {}
        # A heap of entries for each queue and priority. A stale entry is dropped when it comes first.
        self._queues: dict[tuple[str, int], list[Waiting]] = {}
        self._adding: dict[str, MemoryJobs] = {}  # jobs of open transactions: other readers do not see them

    def commit(self) -> None:
        """Show the added jobs to other readers."""
        self._log = None
        for id in self._end():
            self._write(id, self._jobs[id])  # other readers may have dropped its entry as stale

    def roll_back(self) -> None:
        super().roll_back()
        self._end()

    def _end(self) -> list[str]:
        """Release the ids that this transaction was adding, and return them."""
        mine = [id for id, adder in self._adding.items() if adder is self]
        for id in mine:
            del self._adding[id]
        return [id for id in mine if id in self._jobs]

    async def add(self, tenant: str, job: Job) -> Job:
        if job.id not in self._jobs:
            if self._log is not None:
                self._adding[job.id] = self
            self._write(job.id, (tenant, job))
            return job
        found = await self.get(tenant, job.id)
        if found is None:
            raise StoreConflict("another tenant's job has that id, or a transaction is adding it; use another id")
        return found

    async def add_many(self, jobs: Sequence[TenantJob]) -> Sequence[Job]:
        if self._log is not None:
            return [await self.add(tenant, job) for tenant, job in jobs]
        part = self.in_transaction()
        try:
            known = await part.add_many(jobs)
        except BaseException:
            part.roll_back()
            raise
        part.commit()
        return known

    async def replace(self, tenant: str, job: Job) -> bool:
        found = await self.get(tenant, job.id)
        if found is None or found.state not in FINAL_STATES or found.token + 1 != job.token:
            return False
        self._write(job.id, (tenant, job))
        return True

    async def get(self, tenant: str, id: str) -> Job | None:
        found = self._find(id)
        return found[1] if found is not None and found[0] == tenant else None

    def oldest(self, now: float) -> float | None:
        """Return the time from which the longest waiting job could have run; None without one."""
        waiting = [time for _, job in self._jobs.values() if (time := free_at(job)) is not None and time <= now]
        return min(waiting, default=None)

    async def take(
        self,
        owner: str,
        now: float,
        until: float,
        *,
        id: str | None = None,
        queues: Collection[str] = (),
        fitting: Fitting | None = None,
    ) -> TenantJob | None:
        chosen = self._next(now, queues, fitting) if id is None else id
        found = None if chosen is None else self._find(chosen)
        if found is None or not _free(found[1], now):
            return None
        tenant, job = found
        taken = replace(
            job,
            state=JobState.RUNNING,
            owner=owner,
            lease_until=until,
            attempts=job.attempts + 1,
            token=job.token + 1,
        )
        self._write(job.id, (tenant, taken))
        return tenant, taken

    async def end(
        self,
        tenant: str,
        id: str,
        token: int,
        state: JobState,
        *,
        at: float | None,
        result: bytes | None,
        reason: str | None,
    ) -> bool:
        job = await self._held(tenant, id, token)
        if job is None:
            return False
        ended = replace(job, state=state, lease_until=None, ended_at=at, result=result, reason=reason)
        self._write(id, (tenant, ended))
        return True

    async def put_back(
        self, tenant: str, id: str, token: int, *, run_at: float, reason: str | None, counts: bool = True
    ) -> bool:
        job = await self._held(tenant, id, token)
        if job is None:
            return False
        attempts = job.attempts - (reason is None or not counts)
        queued = replace(
            job,
            state=JobState.QUEUED,
            lease_until=None,
            run_at=run_at,
            attempts=attempts,
            reason=job.reason if reason is None else reason,
        )
        self._write(id, (tenant, queued))
        return True

    async def unfit(
        self, fitting: Fitting, now: float, explained: str, limit: int = EXPLAIN_BATCH
    ) -> Sequence[tuple[str, str, bytes]]:
        found = (
            (job.id, job.tool, job.body[:HEAD_BYTES])
            for _, job in self._all()
            if job.state is JobState.QUEUED
            and _free(job, now)
            and not (job.reason or "").startswith(explained)
            and not fitting.has(job, now)
        )
        return list(islice(found, limit))

    async def explain(self, ids: Collection[str], reason: str) -> None:
        for id in ids:
            found = self._find(id)
            if found is not None and found[1].state is JobState.QUEUED:
                self._write(id, (found[0], replace(found[1], reason=reason)))

    async def cancel(self, tenant: str, id: str, at: float) -> JobState | None:
        job = await self.get(tenant, id)
        if job is None:
            return None
        if job.state in {JobState.QUEUED, JobState.INPUT_REQUIRED}:
            job = replace(job, state=JobState.CANCELLED, ended_at=at)
        elif job.state is JobState.RUNNING:
            job = replace(job, stop=True)
        self._write(id, (tenant, job))
        return job.state

    async def wake(self, tenant: str, id: str, at: float) -> JobState | None:
        job = await self.get(tenant, id)
        if job is None or job.state not in {JobState.INPUT_REQUIRED, JobState.RUNNING}:
            return None
        if job.state is JobState.INPUT_REQUIRED:
            job = replace(job, state=JobState.QUEUED, run_at=at, sent_at=at, attempts=0)
            self._write(id, (tenant, job))
        return job.state

    async def stopped(self, owners: Collection[str]) -> Sequence[str]:
        return [
            job.owner
            for _, job in self._all()
            if job.stop and job.state is JobState.RUNNING and job.owner is not None and job.owner in owners
        ]

    async def record_progress(self, tenant: str, id: str, token: int, progress: bytes) -> bool:
        job = await self._held(tenant, id, token)
        if job is not None:
            self._write(id, (tenant, replace(job, progress=progress)))
        return job is not None

    async def revive(self, tenant: str, id: str, run_at: float) -> bool:
        job = await self.get(tenant, id)
        if job is None or job.state is not JobState.DEAD:
            return False
        revived = replace(
            job,
            state=JobState.QUEUED,
            run_at=run_at,
            attempts=0,
            ended_at=None,
            sent_at=None,
            result=None,
            stop=False,
            reason=None,
        )
        self._write(id, (tenant, revived))
        return True

    async def renew(self, owners: Collection[str], until: float) -> Sequence[str]:
        held = [one for one in self._all() if one[1].owner in owners and one[1].state is JobState.RUNNING]
        for tenant, job in held:
            self._write(job.id, (tenant, replace(job, lease_until=until)))
        return [job.id for _, job in held]

    async def mark_sent(self, ids: Collection[str], at: float) -> None:
        for id in ids:
            found = self._find(id)
            if found is not None:
                self._write(id, (found[0], replace(found[1], sent_at=at)))

    async def unsent(self, now: float, before: float, limit: int = 100) -> Sequence[TenantJob]:
        found = [
            (job.sent_at is not None, job.sent_at or 0.0, free_at(job) or 0.0, job.id)
            for _, job in self._all()
            if _free(job, now) and (job.sent_at is None or job.sent_at < before)
        ]
        return [self._jobs[id] for *_, id in nsmallest(limit, found)]

    async def has_open(self, queues: Collection[str] = ()) -> bool:
        return any(free_at(job) is not None and (not queues or job.queue in queues) for _, job in self._all())

    async def count(self, queues: Collection[str] = ()) -> dict[JobState, int]:
        counts = dict.fromkeys(JobState, 0)
        for _, job in self._all():
            counts[job.state] += not queues or job.queue in queues
        return counts

    async def count_queued(self, tenant: str, user: str, limit: int) -> int:
        wanted = (tenant, user, JobState.QUEUED)
        return sum(1 for _ in islice((1 for of, job in self._all() if (of, job.user, job.state) == wanted), limit))

    async def list(self, tenant: str | None, *, state: JobState | None = None, limit: int = 100) -> Sequence[TenantJob]:
        found = [one for one in self._all() if tenant in {None, one[0]} and state in {None, one[1].state}]
        return nlargest(limit, found, key=lambda one: (one[1].made_at, one[1].id))

    async def prune(self, before: float, limit: int = PRUNE_BATCH) -> int:
        old = [
            job.id
            for _, job in self._all()
            if job.state in FINAL_STATES and job.ended_at is not None and job.ended_at < before
        ]
        for id in old[:limit]:
            self._write(id, None)
        return len(old[:limit])

    def _next(self, now: float, queues: Collection[str], fitting: Fitting | None) -> str | None:
        """Return the id of the next job: compares the first entry of each queue and priority only."""
        firsts: list[tuple[int, float, str, str]] = []
        for (queue, priority), heap in list(self._queues.items()):
            if queues and queue not in queues:
                continue
            while heap and not self._is_current(*heap[0]):
                heappop(heap)
            if not heap:
                del self._queues[queue, priority]
            elif (first := self._first(heap, now, fitting)) is not None:
                firsts.append((-priority, first[0], queue, first[2]))
        return min(firsts)[-1] if firsts else None

    def _first(self, heap: Sequence[Waiting], now: float, fitting: Fitting | None) -> Waiting | None:
        """Return the first entry of a heap that may be taken. Its own first entry is current."""
        if heap[0][0] > now:
            return None
        if fitting is None:
            return heap[0]
        ready = (
            entry
            for entry in heap
            if entry[0] <= now and self._is_current(*entry) and fitting.has(self._jobs[entry[2]][1], now)
        )
        return min(ready, default=None)

    def _is_current(self, free: float, made_at: float, id: str) -> bool:
        """Return True when a job may still be taken from that time on."""
        found = self._find(id)
        return found is not None and (free_at(found[1]), found[1].made_at) == (free, made_at)  # it may be replaced

    def _all(self) -> Iterator[TenantJob]:
        return (one for id, one in self._jobs.items() if self._adding.get(id) in {None, self})

    def _find(self, id: str) -> TenantJob | None:
        return self._jobs.get(id) if self._adding.get(id) in {None, self} else None

    async def _held(self, tenant: str, id: str, token: int) -> Job | None:
        """Return the running job if *token* is its current token, else None."""
        job = await self.get(tenant, id)
        return None if job is None or job.state is not JobState.RUNNING or job.token != token else job

    def _read(self, id: str) -> TenantJob | None:
        return self._jobs.get(id)

    def _write(self, id: str, value: TenantJob | None) -> None:
        self._note(id, value)
        if value is None:
            self._jobs.pop(id, None)
            return
        self._jobs[id] = value
        job = value[1]
        free = free_at(job)
        if free is not None:
            heappush(self._queues.setdefault((job.queue, job.priority), []), (free, job.made_at, id))


def _free(job: Job, now: float) -> bool:
    """Return True when the job may be taken now."""
    free = free_at(job)
    return free is not None and free <= now
