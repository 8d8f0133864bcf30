"""Records and the protocol of durable jobs: invocations that run in a worker. See ``base`` for tenants and times."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from callgate.providers.stores.effects import PRUNE_BATCH


def fault_of_priority(value: object) -> str | None:
    """Return why *value* is no priority of a job, or None if it is one. PostgreSQL keeps 32 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"is of type {type(value).__name__}; give an integer, such as 5"
    return None if -(2**31) <= value < 2**31 else "is out of range; give an integer of at most 32 bits"


class JobState(StrEnum):
    """The state of a job: ``queued → running → done | dead | cancelled``; a worker may queue it again.

    A job whose call waits for a person or a client is ``input_required``; the decision queues it again.
    """

    QUEUED = "queued"
    RUNNING = "running"
    INPUT_REQUIRED = "input_required"  # its call is suspended; ``result`` names the suspension
    DONE = "done"  # it has a result, of any outcome
    DEAD = "dead"  # abandoned; ``reason`` says why
    CANCELLED = "cancelled"


FINAL_STATES = (JobState.DONE, JobState.DEAD, JobState.CANCELLED)
"""The final states of a job."""


@dataclass(slots=True)
class Job:
    """One job of a tenant; ``id`` is unique across tenants.

    ``body`` is JSON: the tool call and its user; ``mac`` is the signature over it. The job runs at ``run_at`` at the
    earliest. ``attempts`` counts how often a worker took it; workers enforce the maximum, ``max_attempts``. ``token``
    is a fencing token that grows with every take and with ``replace``: a worker with an old token changes nothing.
    ``owner`` is the worker that has the job or had it last; ``lease_until`` is set while the job is ``running``.
    ``sent_at`` is the time of the last message about it to a job engine. ``stop`` is True when the caller cancels a
    running job. ``progress`` and ``result`` are JSON. A job that goes on after a decision keeps the ``result`` of its
    suspension until it ends.
    ``reason`` is a text for operators. ``result_mac`` signs the result in a store with signing keys.
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
    max_attempts: int = 5
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
    result_mac: str | None = None


HEAD_BYTES = 512
"""The members of a body that decide which workers it fits end within so many bytes."""
BODY, KEY, DEADLINE = b'{"v":', b'"key_id":', b'"deadline_at":'
"""The beginning of a body, and the members after the tool and its version, in this order."""
TIME_BYTES = 24
"""The maximum number of bytes of a deadline with its comma."""
_TIME = re.compile(rb"([0-9]+[.]?[0-9]*),")
NO_KEY = "waits for a worker with its signing key"
"""The one reason that has no MAC in a signed store: workers that have none of the keys write it."""
EXPLAIN_BATCH = 1_000
"""The maximum number of jobs that one statement explains."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """The jobs that fit a worker. Each store finds them by the first bytes of their bodies, without a column.

    A body that begins like ``BODY`` fits if the bytes before ``KEY`` are in ``versions``, and those from there to
    ``DEADLINE`` in ``keys``. Other jobs fit any worker: a body of another form, a job past its deadline, and a job that
    its user has cancelled.
    """

    versions: frozenset[bytes]
    keys: frozenset[bytes]

    def has(self, job: Job, now: float) -> bool:
        """Return whether a job fits."""
        first = job.body[:HEAD_BYTES]
        key, end = first.find(KEY), first.find(DEADLINE)
        if job.stop or end < 0 or not first.startswith(BODY):
            return True
        if key >= 0 and first[:key] in self.versions and first[key:end] in self.keys:
            return True
        deadline = _TIME.match(job.body, at := end + len(DEADLINE), at + TIME_BYTES)
        return deadline is not None and float(deadline[1]) <= now


def free_at(job: Job) -> float | None:
    """Return the time from which a worker may take a job: ``run_at``, or the end of its lease while it is running; else None."""
    match job.state:
        case JobState.QUEUED:
            return job.run_at
        case JobState.RUNNING:
            return job.lease_until
        case _:
            return None


class JobStore(Protocol):
    """The job queue. Every method is atomic.

    Methods without a tenant serve workers, which work for all tenants. Rows of another version of Callgate are skipped;
    only ``get`` and ``add`` raise ``StoreError`` for them.
    """

    async def add(self, tenant: str, job: Job) -> Job:
        """Add a job and return it. If the id is known, change nothing and return the job that has it.

        Raises:
            StoreConflict: a job of another tenant has that id; in memory also while a transaction is adding it.
            StoreError: another version of Callgate wrote the job that has that id.
        """
        ...

    async def add_many(self, jobs: Sequence[tuple[str, Job]]) -> Sequence[Job]:
        """Add jobs with their tenants, all of them or none. Return for each what ``add`` returns.

        Raises:
            StoreConflict, StoreError: see ``add``.
        """
        ...

    async def replace(self, tenant: str, job: Job) -> bool:
        """Put *job* in the place of the job that has its id and has ended.

        Its token is that of the ended job plus one. Return False and change nothing if the job of that id has another
        token, or has not ended.
        """
        ...

    async def get(self, tenant: str, id: str) -> Job | None:
        """Return a job of a tenant, or None.

        Raises:
            StoreError: another version of Callgate wrote it.
        """
        ...

    async def take(
        self,
        owner: str,
        now: float,
        until: float,
        *,
        id: str | None = None,
        queues: Collection[str] = (),
        fitting: Fitting | None = None,
    ) -> tuple[str, Job] | None:
        """Take a job for a worker: the job with that id, or the next one (of these queues, if any are given).

        A job may be taken when it is ``queued`` and ``run_at`` has come, or ``running`` and its lease has ended. It is then
        ``running``, leased to *owner* until *until*, with one more attempt and the next token. The next job is the one with
        the highest priority, then the longest ready one, then the oldest in its queue; if *fitting* is given, of the jobs that
        it has.
        Return None when no job is ready or its row is locked. Concurrent calls never get the same job.
        """
        ...

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
        """Record the outcome of a job: a final state, and its result and reason, or None.

        The state ``input_required`` is recorded likewise, with None as *at*: such a job has not ended. Return False and change nothing unless the job is ``running`` with that token.
        """
        ...

    async def put_back(
        self, tenant: str, id: str, token: int, *, run_at: float, reason: str | None, counts: bool = True
    ) -> bool:
        """Queue a job again, to run at *run_at*. Return False and change nothing unless it is ``running`` with that token.

        Without a reason, or without *counts*, the worker only returns the job: the attempt does not count. Without a
        reason an earlier one stays.
        """
        ...

    async def unfit(
        self, fitting: Fitting, now: float, explained: str, limit: int = EXPLAIN_BATCH
    ) -> Sequence[tuple[str, str, bytes]]:
        """Return the ids, the tools and the first ``HEAD_BYTES`` of the bodies of ready jobs that do not fit, in every tenant.

        Jobs whose ``reason`` begins with *explained* are left out.
        """
        ...

    async def explain(self, ids: Collection[str], reason: str) -> None:
        """Record for operators why queued jobs wait. Rows that another process has locked may be skipped."""
        ...

    async def cancel(self, tenant: str, id: str, at: float) -> JobState | None:
        """Cancel a job that is ``queued`` or ``input_required``, or set ``stop`` for the worker of a running one.

        Return its state then, or None for no job.
        """
        ...

    async def wake(self, tenant: str, id: str, at: float) -> JobState | None:
        """Queue an ``input_required`` job to run at *at*, with its attempts reset. Return its state then.

        A ``running`` job stays as it is, but its row is locked until the transaction ends: its worker may be about to
        record ``input_required``, and reads the suspension after that. Return None in every other state.
        """
        ...

    async def stopped(self, owners: Collection[str]) -> Sequence[str]:
        """Return the workers among *owners* that have a ``running`` job with ``stop`` set."""
        ...

    async def record_progress(self, tenant: str, id: str, token: int, progress: bytes) -> bool:
        """Record the progress of a job. Return False and change nothing unless it is ``running`` with that token."""
        ...

    async def revive(self, tenant: str, id: str, run_at: float) -> bool:
        """Queue a ``dead`` job again, to run at *run_at*, with its attempts reset. Return False when it is not dead."""
        ...

    async def renew(self, owners: Collection[str], until: float) -> Sequence[str]:
        """Renew the leases of the running jobs of these workers, in every tenant, until then. Return the ids of the jobs."""
        ...

    async def mark_sent(self, ids: Collection[str], at: float) -> None:
        """Record that a job engine has been sent these ids. Locked rows may be skipped: they are sent again."""
        ...

    async def unsent(self, now: float, before: float, limit: int = 100) -> Sequence[tuple[str, Job]]:
        """Return ready jobs that no engine has been sent since *before*, with their tenants.

        Jobs that were never sent come first, the longest ready first; then the others, the longest unsent first.
        """
        ...

    async def has_open(self, queues: Collection[str] = ()) -> bool:
        """Return True if a job is queued or running, in any tenant (of these queues, if any are given)."""
        ...

    async def count(self, queues: Collection[str] = ()) -> dict[JobState, int]:
        """Return the number of jobs in each state, of all tenants (of these queues, if any are given)."""
        ...

    async def count_queued(self, tenant: str, user: str, limit: int) -> int:
        """Return the number of queued jobs of a user, or *limit* if there are more."""
        ...

    async def list(
        self, tenant: str | None, *, state: JobState | None = None, limit: int = 100
    ) -> Sequence[tuple[str, Job]]:
        """Return jobs with their tenants, newest first; None as tenant means all tenants, for operators."""
        ...

    async def prune(self, before: float, limit: int = PRUNE_BATCH) -> int:
        """Delete at most *limit* jobs that ended before then, in every tenant. Return the number.

        Rows that another process has locked are skipped.
        """
        ...
