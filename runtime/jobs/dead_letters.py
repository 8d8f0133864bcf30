"""Dead letters: jobs that were abandoned, for operators, and their replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from callgate.providers.stores.base import Store
from callgate.providers.stores.jobs import Job, JobState
from callgate.runtime.jobs.records import JobStatus, status_of_job
from callgate.runtime.options.job_engine import JobBackend

SEARCHED = 10_000
"""The newest dead jobs that ``replay`` considers."""


class DeadLetters:
    """The dead jobs of all tenants: ``gate.jobs.dead_letters``. *tool* and *queue* select those of one tool or queue."""

    def __init__(self, store: Callable[[], Store], backend: JobBackend, now: Callable[[], float]) -> None:
        self._store, self._backend, self._now = store, backend, now

    async def list(self, *, tool: str | None = None, queue: str | None = None, limit: int = 100) -> list[JobStatus]:
        """Return dead jobs, newest first, of the newest *limit*."""
        return [status_of_job(job) for _, job in await self._find(tool, queue, limit)]

    async def replay(self, id: str) -> bool:
        """Queue a dead job again, with its attempts reset. Return False if there is no dead job of that id.

        The effect ledger knows the effects of earlier attempts, so no effect takes place twice.
        """
        found = [one for one in await self._find(None, None, SEARCHED) if one[1].id == id]
        return bool(await self._revive(found))

    async def replay_all(self, *, tool: str | None = None, queue: str | None = None) -> int:
        """Queue all dead jobs again, among the newest 10,000; return their number. See ``replay``."""
        return await self._revive(await self._find(tool, queue, SEARCHED))

    async def _find(self, tool: str | None, queue: str | None, limit: int) -> Sequence[tuple[str, Job]]:
        found = await self._store().jobs.list(None, state=JobState.DEAD, limit=limit)
        return [one for one in found if tool in {None, one[1].tool} and queue in {None, one[1].queue}]

    async def _revive(self, found: Sequence[tuple[str, Job]]) -> int:
        count = 0
        for tenant, job in found:
            now = self._now()
            if await self._store().jobs.revive(tenant, job.id, now):
                await self._backend.retry_later(job, now)
                count += 1
        return count
