"""Invocations for workers, in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush, nlargest, nsmallest
from typing import Any, TypeAlias

from callgate.errors import StoreConflict
from callgate.providers.stores.jobs import OVER, Job, JobState, free_at
from callgate.providers.stores.memory_changes import Changes

Kept: TypeAlias = tuple[str, Job]
"""A job with its tenant."""


class MemoryJobs:
    """Jobs by id, each with its tenant; those that are over stay until they are pruned."""

    def __init__(self) -> None:
        self._jobs: dict[str, Kept] = {}
        # By queue and priority a heap of what may be taken when. An entry that is not true any more goes when it is first.
        self._lines: dict[tuple[str, int], list[tuple[float, float, str]]] = {}
        self._adding: dict[str, HeldJobs] = {}  # what a transaction adds that has not ended: nobody else sees it

    async def add(self, tenant: str, job: Job) -> Job:
        """See ``JobStore``."""
        if job.id not in self._jobs:
            self._place(job.id, (tenant, job))
            return job
        found = await self.get(tenant, job.id)
        if found is None:
            raise StoreConflict("another's job has that id, or a transaction is just adding it")
        return found

    async def get(self, tenant: str, id: str) -> Job | None:
        """See ``JobStore``."""
        found = self._seen(id)
        return found[1] if found is not None and found[0] == tenant else None

    async def take(
        self, owner: str, now: float, until: float, *, id: str | None = None, queues: Collection[str] = ()
    ) -> Kept | None:
        """See ``JobStore``."""
        chosen = self._next(now, queues) if id is None else id
        found = None if chosen is None else self._seen(chosen)
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
        self._place(job.id, (tenant, taken))
        return tenant, taken

    async def end(
        self, tenant: str, id: str, token: int, state: JobState, *, at: float, result: bytes | None, reason: str | None
    ) -> bool:
        """See ``JobStore``."""
        job = await self._held(tenant, id, token)
        if job is None:
            return False
        over = replace(job, state=state, lease_until=None, ended_at=at, result=result, reason=reason)
        self._place(id, (tenant, over))
        return True

    async def put_back(self, tenant: str, id: str, token: int, *, run_at: float, reason: str | None) -> bool:
        """See ``JobStore``."""
        job = await self._held(tenant, id, token)
        if job is None:
            return False
        told: dict[str, Any] = {"attempts": job.attempts - 1} if reason is None else {"reason": reason}
        queued = replace(job, state=JobState.QUEUED, lease_until=None, run_at=run_at, **told)
        self._place(id, (tenant, queued))
        return True

    async def cancel(self, tenant: str, id: str, at: float) -> JobState | None:
        """See ``JobStore``."""
        job = await self.get(tenant, id)
        if job is None:
            return None
        if job.state is JobState.QUEUED:
            job = replace(job, state=JobState.CANCELLED, ended_at=at)
        elif job.state is JobState.RUNNING:
            job = replace(job, stop=True)
        self._place(id, (tenant, job))
        return job.state

    async def stopped(self, owners: Collection[str]) -> Sequence[str]:
        """See ``JobStore``."""
        return [
            job.owner
            for _, job in self._all()
            if job.stop and job.state is JobState.RUNNING and job.owner is not None and job.owner in owners
        ]

    async def tell(self, tenant: str, id: str, token: int, progress: bytes) -> bool:
        """See ``JobStore``."""
        job = await self._held(tenant, id, token)
        if job is not None:
            self._place(id, (tenant, replace(job, progress=progress)))
        return job is not None

    async def revive(self, tenant: str, id: str, run_at: float) -> bool:
        """See ``JobStore``."""
        job = await self.get(tenant, id)
        if job is None or job.state is not JobState.DEAD:
            return False
        again = replace(
            job, state=JobState.QUEUED, run_at=run_at, attempts=0, ended_at=None, sent_at=None, result=None, stop=False
        )
        self._place(id, (tenant, again))
        return True

    async def renew(self, owners: Collection[str], until: float) -> Sequence[str]:
        """See ``JobStore``."""
        held = [kept for kept in self._all() if kept[1].owner in owners and kept[1].state is JobState.RUNNING]
        for tenant, job in held:
            self._place(job.id, (tenant, replace(job, lease_until=until)))
        return [job.id for _, job in held]

    async def sent(self, ids: Collection[str], at: float) -> None:
        """See ``JobStore``."""
        for id in ids:
            found = self._seen(id)
            if found is not None:
                self._place(id, (found[0], replace(found[1], sent_at=at)))

    async def unsent(self, now: float, before: float, limit: int = 100) -> Sequence[Kept]:
        """See ``JobStore``."""
        found = [
            (job.sent_at is not None, job.sent_at or 0.0, free_at(job) or 0.0, job.id)
            for _, job in self._all()
            if _free(job, now) and (job.sent_at is None or job.sent_at < before)
        ]
        return [self._jobs[id] for *_, id in nsmallest(limit, found)]

    async def count(self, queues: Collection[str] = ()) -> dict[JobState, int]:
        """See ``JobStore``."""
        counts = dict.fromkeys(JobState, 0)
        for _, job in self._all():
            counts[job.state] += not queues or job.queue in queues
        return counts

    async def list(self, tenant: str | None, *, state: JobState | None = None, limit: int = 100) -> Sequence[Kept]:
        """See ``JobStore``."""
        found = [kept for kept in self._all() if tenant in {None, kept[0]} and state in {None, kept[1].state}]
        return nlargest(limit, found, key=lambda kept: (kept[1].made_at, kept[1].id))

    async def prune(self, before: float) -> int:
        """See ``JobStore``."""
        old = [
            job.id for _, job in self._all() if job.state in OVER and job.ended_at is not None and job.ended_at < before
        ]
        for id in old:
            self._place(id, None)
        return len(old)

    def _next(self, now: float, queues: Collection[str]) -> str | None:
        """The first of each line, and of these the first: what waits behind them is not looked at."""
        firsts: list[tuple[int, float, str, str]] = []
        for (queue, priority), line in list(self._lines.items()):
            if queues and queue not in queues:
                continue
            while line and not self._true(*line[0]):
                heappop(line)
            if not line:
                del self._lines[queue, priority]
            elif line[0][0] <= now:
                firsts.append((-priority, line[0][0], queue, line[0][2]))
        return min(firsts)[-1] if firsts else None

    def _true(self, free: float, made_at: float, id: str) -> bool:
        """Whether a job may be taken at that time."""
        found = self._seen(id)
        return found is not None and free_at(found[1]) == free

    def _all(self) -> Iterator[Kept]:
        return (kept for id, kept in self._jobs.items() if self._adding.get(id) in {None, self})

    def _seen(self, id: str) -> Kept | None:
        return self._jobs.get(id) if self._adding.get(id) in {None, self} else None

    async def _held(self, tenant: str, id: str, token: int) -> Job | None:
        """The job, if whoever has that token holds it."""
        job = await self.get(tenant, id)
        return None if job is None or job.state is not JobState.RUNNING or job.token != token else job

    def _place(self, id: str, kept: Kept | None) -> None:
        """Put it in the place of what is there; None forgets that."""
        if kept is None:
            self._jobs.pop(id, None)
            return
        self._jobs[id] = kept
        free = free_at(kept[1])
        if free is not None:
            heappush(self._lines.setdefault((kept[1].queue, kept[1].priority), []), (free, kept[1].made_at, id))


class HeldJobs(MemoryJobs):
    """Jobs within a transaction: what it adds nobody else sees until ``keep``, and ``forget`` takes all back."""

    def __init__(self, outer: MemoryJobs) -> None:
        super().__init__()
        self._jobs, self._lines, self._adding = outer._jobs, outer._lines, outer._adding
        self._changes = Changes[str, Kept](self._jobs.get, super()._place)

    async def add(self, tenant: str, job: Job) -> Job:
        """See ``MemoryJobs``."""
        if job.id not in self._jobs:
            self._adding[job.id] = self
        return await super().add(tenant, job)

    def keep(self) -> None:
        """Everybody sees it."""
        for id in self._end():
            super()._place(id, self._jobs[id])  # others have passed over its entry meanwhile

    def forget(self) -> None:
        """See ``Changes``."""
        self._changes.forget()
        self._end()

    def _end(self) -> list[str]:
        """Nothing is being added any more; what was."""
        mine = [id for id, adder in self._adding.items() if adder is self]
        for id in mine:
            del self._adding[id]
        return [id for id in mine if id in self._jobs]

    def _place(self, id: str, kept: Kept | None) -> None:
        self._changes.place(id, kept)


def _free(job: Job, now: float) -> bool:
    """Whether it may be taken."""
    free = free_at(job)
    return free is not None and free <= now
