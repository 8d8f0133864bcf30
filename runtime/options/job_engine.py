"""The interface of job engines."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from callgate.providers.stores.base import Transaction
from callgate.providers.stores.jobs import Job, JobState


class JobBackend(Protocol):
    """A job engine: it moves the ids of jobs to workers; the store keeps the jobs themselves.

    In a worker the engine calls ``jobs.run_invocation(id)`` for each id, as often as it likes: one worker at a time
    takes a job.
    """

    def bind(self, jobs: Any) -> None:
        """Receive the ``JobQueue`` of the gate: the jobs that this engine moves."""
        ...

    async def submit(self, tenant: str, job: Job, within: Transaction) -> None:
        """Enqueue a job in the transaction that adds it, where the engine can; else do nothing."""
        ...

    async def submit_many(self, jobs: Sequence[tuple[str, Job]], within: Transaction) -> None:
        """Enqueue jobs with their tenants, as ``submit`` does for each; if one is refused, enqueue none."""
        ...

    async def submitted(self, job: Job) -> None:
        """Enqueue a job after its transaction, where the engine has no transactions. ``recover`` finds what is lost."""
        ...

    async def retry_later(self, job: Job, run_at: float) -> None:
        """Deliver the job again at *run_at*, in seconds since the epoch."""
        ...

    async def cancel(self, job: Job) -> None:
        """Drop a job that was cancelled before it ran."""
        ...

    async def recover(self) -> None:
        """Run one round of maintenance: enqueue jobs that the engine has lost."""
        ...

    async def work(
        self, concurrency: int, queues: Collection[str], stop: asyncio.Event, grace: float, tally: Tally
    ) -> int:
        """Run jobs in this process until *stop* is set; then hand back what still runs after *grace* seconds.

        Returns the number of jobs that were handed back.
        """
        ...

    async def open(self) -> None:
        """Start, after the gate has opened."""
        ...

    async def close(self) -> None:
        """Stop, before the gate closes."""
        ...


@dataclass(slots=True)
class Tally:
    """Statistics of a worker: the number of jobs by their end, and of failures of the store."""

    done: int = 0
    dead: int = 0
    suspended: int = 0
    put_back: int = 0
    failures: int = 0

    def count(self, state: JobState | None) -> None:
        """Count one job that is now in *state*."""
        if state is JobState.DONE:
            self.done += 1
        elif state is JobState.DEAD:
            self.dead += 1
        elif state is JobState.INPUT_REQUIRED:
            self.suspended += 1
        elif state is not None:
            self.put_back += 1

    def line(self) -> str:
        """Return the statistics as one line of text."""
        counts = f"{self.done} done, {self.dead} dead, {self.put_back} put back"
        if self.suspended:
            counts = f"{counts}, {self.suspended} suspended"
        return f"{counts}, {self.failures} failures of the store" if self.failures else counts
