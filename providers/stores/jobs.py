"""What a store keeps of invocations that run in a worker: the facts and the protocol. See ``base`` for tenants and times."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class JobState(StrEnum):
    """Where a job is: ``queued → running → done | dead | cancelled``; a worker may put it back."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"  # there is a result, whatever its outcome
    DEAD = "dead"  # given up, and ``reason`` says why
    CANCELLED = "cancelled"


OVER = (JobState.DONE, JobState.DEAD, JobState.CANCELLED)
"""The states in which a job stays."""


@dataclass(slots=True)
class Job:
    """One invocation of a tenant that runs in a worker; ``id`` is like no other, whatever the tenant.

    ``body`` is JSON: what is to run, for whom; ``mac`` says that nobody has changed it. ``run_at`` is when it may run,
    at the earliest. ``attempts`` counts how often a worker took it; ``most``, how often one may, is for the workers to
    heed. ``token`` grows with every taking: who holds an old one changes nothing. ``owner`` is the worker that has it, or
    had it last, ``lease_until`` set while it is ``running``. ``sent_at`` is when an engine was last told of it. ``stop``:
    whoever asked for it wants it cancelled while it runs. ``progress`` is JSON, how far it last said it was. ``reason`` is
    for people. ``result`` is JSON.
    """

    id: str
    tool: str
    user: str
    body: bytes
    mac: str
    made_at: float
    run_at: float
    queue: str = "default"
    priority: int = 0
    most: int = 5
    state: JobState = JobState.QUEUED
    attempts: int = 0
    token: int = 0
    owner: str | None = None
    lease_until: float | None = None
    sent_at: float | None = None
    stop: bool = False
    progress: bytes | None = None
    ended_at: float | None = None
    result: bytes | None = None
    reason: str | None = None


def free_at(job: Job) -> float | None:
    """When a job may be taken: a ``queued`` one at its ``run_at``, a ``running`` one when its lease is over; else never."""
    match job.state:
        case JobState.QUEUED:
            return job.run_at
        case JobState.RUNNING:
            return job.lease_until
        case _:
            return None


class JobStore(Protocol):
    """The record of invocations for workers. Every method is one atomic step.

    Where a method has no tenant, it serves workers, who work for all. Jobs of another version of Callgate are there for
    nobody but ``get`` and ``add``, which say so.
    """

    async def add(self, tenant: str, job: Job) -> Job:
        """Add a job; the one that is there already, and nothing changed, where its id is known.

        Raises:
            StoreConflict: another tenant's job has that id; in memory also while a transaction is adding it.
            StoreError: the job that is there was written by another version of Callgate.
        """
        ...

    async def get(self, tenant: str, id: str) -> Job | None:
        """A job of a tenant, None when there is none.

        Raises:
            StoreError: it was written by another version of Callgate.
        """
        ...

    async def take(
        self, owner: str, now: float, until: float, *, id: str | None = None, queues: Collection[str] = ()
    ) -> tuple[str, Job] | None:
        """Take a job for a worker: the one with that id, or the next that may run (of those queues, if some are named).

        It may be taken when it is ``queued`` and its ``run_at`` has come, or ``running`` with its lease over; then it is
        ``running``, leased to *owner* until then, with one more attempt and the next token. The next is the one with the
        highest priority; of several the one that may be taken for longest, in one queue then the oldest. None when there
        is none, or somebody is just changing it. Two who ask at once never get the same one.
        """
        ...

    async def end(
        self, tenant: str, id: str, token: int, state: JobState, *, at: float, result: bytes | None, reason: str | None
    ) -> bool:
        """Write down how it ended, in a state of ``OVER``, with result and reason, None where it has none.

        False, and nothing changed, unless it is ``running`` with that token.
        """
        ...

    async def put_back(self, tenant: str, id: str, token: int, *, run_at: float, reason: str | None) -> bool:
        """Queue it again, for then; False, and nothing changed, unless it is ``running`` with that token.

        Where no reason is given the worker only hands it back: the attempt does not count, and the reason of an earlier
        one stays.
        """
        ...

    async def cancel(self, tenant: str, id: str, at: float) -> JobState | None:
        """Cancel it if it is ``queued``; if it is ``running``, have its worker ``stop``. The state that it is in then.

        None when there is none.
        """
        ...

    async def stopped(self, owners: Collection[str]) -> Sequence[str]:
        """Those of these workers of whose ``running`` jobs one is to ``stop``."""
        ...

    async def tell(self, tenant: str, id: str, token: int, progress: bytes) -> bool:
        """Write down how far it is; False, and nothing changed, unless it is ``running`` with that token."""
        ...

    async def revive(self, tenant: str, id: str, run_at: float) -> bool:
        """Queue a ``dead`` one again, for then, as one that no worker took yet; False when it is not dead."""
        ...

    async def renew(self, owners: Collection[str], until: float) -> Sequence[str]:
        """These live: all that is ``running`` and theirs is leased until then, whatever the tenant; the ids of that."""
        ...

    async def sent(self, ids: Collection[str], at: float) -> None:
        """An engine was told of these. One that somebody is just changing may be left out: it is told of again."""
        ...

    async def unsent(self, now: float, before: float, limit: int = 100) -> Sequence[tuple[str, Job]]:
        """Jobs that may be taken and that no engine was told of since *before*, with their tenants.

        First those that none was ever told of, the ones that may be taken for longest first; then the others, the ones
        that it was told of longest ago first.
        """
        ...

    async def count(self, queues: Collection[str] = ()) -> dict[JobState, int]:
        """How many jobs are in each state, of all tenants (of those queues, if some are named)."""
        ...

    async def list(
        self, tenant: str | None, *, state: JobState | None = None, limit: int = 100
    ) -> Sequence[tuple[str, Job]]:
        """Jobs with their tenants, the newest first; of all tenants for None, which only operators ask for."""
        ...

    async def prune(self, before: float) -> int:
        """Forget jobs that ended before then, whatever the tenant; how many."""
        ...
