"""The job queue of a gate: a call is submitted once, delivered at least once, and has one outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from callgate.errors import Conflict, NotPending, StoreError
from callgate.hooks.stock.records.telemetry import current_trace
from callgate.providers.ids import new_id
from callgate.providers.logs import LogEvent, emit
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store
from callgate.providers.stores.jobs import FINAL_STATES, Job, JobState
from callgate.runtime.call.streams import Progress
from callgate.runtime.call.waiting import Waiters
from callgate.runtime.jobs.backend import JobBackend
from callgate.runtime.jobs.calls import JobCalls, progress_from_json
from callgate.runtime.jobs.options import Jobs
from callgate.runtime.jobs.records import JobRequest, load_result, signed
from callgate.runtime.jobs.running import JobRunner
from callgate.tools.calls import ErrorInfo, Outcome, ToolCall, ToolResult
from callgate.tools.execution import NO_TASK, TaskIds
from callgate.tools.values import hash_of

FIRST_POLL, LAST_POLL = 0.02, 1.0
"""Seconds between two polls of an awaited job, at first and at last."""

POLL_EVERY = 1.0
"""Seconds between two rounds that store the progress of running jobs and stop cancelled ones."""
PRUNE_EVERY = 3_600.0
"""Seconds between two prunings of old jobs."""

_CANCELLED = ErrorInfo("cancelled", "The call was cancelled.")
_DEAD = ErrorInfo("job_dead", "The call was abandoned after too many attempts.")


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job.

    ``reason`` says why the job was put back, is dead or was cancelled. ``progress`` is the last that the tool reported
    with ``ToolContext.progress``; it is up to a second old. Times are aware datetimes.
    """

    id: str
    state: JobState
    attempts: int
    run_at: datetime
    made_at: datetime
    ended_at: datetime | None
    reason: str | None
    progress: Progress | None = None


class JobHandle:
    """The handle of a job: ``await`` it for the result; ``status``, ``events`` and ``cancel``. Any process may have one."""

    def __init__(self, jobs: JobQueue, tenant: str, user: str, id: str) -> None:
        self.id = id
        self._jobs, self._tenant, self._user = jobs, tenant, user

    def __await__(self) -> Generator[Any, None, ToolResult]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    async def status(self) -> JobStatus:
        """Return the state of the job.

        Raises:
            NotPending: there is no such job of this user.
        """
        job = await self._job()
        progress = progress_from_json(job.tool, job.progress)
        run_at, made_at = _moment(job.run_at), _moment(job.made_at)
        ended_at = None if job.ended_at is None else _moment(job.ended_at)
        return JobStatus(job.id, job.state, job.attempts, run_at, made_at, ended_at, job.reason, progress)

    async def result(self) -> ToolResult:
        """Wait for the result and return it. A dead or cancelled job has a result, too.

        Raises:
            NotPending: there is no such job of this user.
        """
        job = await self._job()
        pause = FIRST_POLL
        while job.state not in FINAL_STATES:
            pause = await self._wait(pause)
            job = await self._job()
        return self._jobs.result_of(self._tenant, job)

    async def events(self) -> AsyncGenerator[JobStatus, None]:
        """Yield the state of the job whenever it changes, until the job has ended."""
        seen: JobStatus | None = None
        pause = FIRST_POLL
        while True:
            status = await self.status()
            if status != seen:
                seen, pause = status, FIRST_POLL
                yield status
            if status.state in FINAL_STATES:
                return
            pause = await self._wait(pause)

    async def cancel(self) -> bool:
        """Cancel the job; return False when it had ended.

        A queued job does not run. A worker cancels a running job within a second, as any call is cancelled: the result
        is ``unknown`` where the effect may have taken place. Await the handle for it.

        Raises:
            NotPending: there is no such job of this user.
        """
        return await self._jobs.cancel(self._tenant, await self._job())

    async def _wait(self, pause: float) -> float:
        """Wait for a change in this process, or until the next poll; return the seconds of the next wait."""
        await self._jobs.waiters.wait(self.id, pause)
        return min(pause * 1.5, LAST_POLL)

    async def _job(self) -> Job:
        job = await self._jobs.store.jobs.get(self._tenant, self.id)
        if job is None or job.user != self._user:
            raise NotPending("no such job of this user")
        return job


class JobQueue:
    """The jobs of one gate."""

    def __init__(
        self,
        store: Callable[[], Store],
        keys: SigningKeys,
        now: Callable[[], float],
        calls: JobCalls,
        options: Jobs,
        backend: JobBackend,
    ) -> None:
        self._store, self.keys, self.now = store, keys, now
        self._calls = calls
        self.options = options
        self.runner = JobRunner(store, keys, now, calls, options)
        self.backend = backend
        self.waiters = Waiters()
        self._pruned_at = 0.0
        self._polling: asyncio.Task[None] | None = None
        backend.bind(self)

    @property
    def store(self) -> Store:
        """The store that keeps the jobs."""
        return self._store()

    async def submit(
        self,
        call: ToolCall,
        user: User,
        *,
        at: datetime | None = None,
        delay: float | None = None,
        key: str | None = None,
        queue: str = "default",
        priority: int = 0,
        session_id: str | None = None,
        request_id: str | None = None,
        deadline: float | None = None,
        task: TaskIds | None = None,
    ) -> JobHandle:
        """See ``Gate.submit``."""
        tenant, now = user.tenant or "", self.now()
        id = new_id() if key is None else hash_of(["job", tenant, user.id, call.name, key])[:32]
        run_at = _run_at(now, at, delay)
        request = JobRequest(
            tool=call.name,
            version=self._calls.version_of(call.name),
            key_id=self.keys.ids[0],
            arguments=call.arguments,
            user=user,
            call_id=call.id,
            request_id=request_id or id,
            synthetic_id=call.synthetic_id,
            truncated=call.truncated,
            session_id=session_id,
            idempotency_key=key,
            deadline_at=None if deadline is None else now + deadline,
            trace=current_trace(),
            task=task or NO_TASK,
        )
        job = Job(
            id,
            call.name,
            user.id,
            request.dump(),
            "",
            now,
            run_at,
            queue=queue,
            priority=priority,
            max_attempts=self.options.max_attempts,
            sent_at=now,  # the engine enqueues it in this transaction, or right after it
        )
        job = signed(self.keys, tenant, job)
        async with self.store.transaction() as within:
            known = await within.jobs.add(tenant, job)
            if known is job or known.mac == job.mac:
                await self.backend.submit(tenant, job, within)
        if known.user != user.id:
            raise NotPending("no such job of this user")
        if not self._calls.is_repeat(_request_of(known), request):
            raise Conflict(f"{call.name}: this key was used with other arguments")
        await self.backend.submitted(job)
        return JobHandle(self, tenant, user.id, id)

    def handle(self, id: str, user: User) -> JobHandle:
        """See ``Gate.job``."""
        return JobHandle(self, user.tenant or "", user.id, id)

    async def cancel(self, tenant: str, job: Job) -> bool:
        """Cancel a job; see ``JobHandle.cancel``."""
        if job.state in FINAL_STATES:
            return False
        state = await self.store.jobs.cancel(tenant, job.id, self.now())
        if state is JobState.CANCELLED:
            self.waiters.wake(job.id)
            await self.backend.cancel(job)
        elif state is JobState.RUNNING:
            self.runner.stop_job(job.id)
        return state in {JobState.CANCELLED, JobState.RUNNING}

    async def open(self) -> None:
        """Start the engine."""
        await self.backend.open()

    async def close(self) -> None:
        """Stop the engine: running jobs end, or are handed back."""
        await self.backend.close()
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.wait([polling])

    async def poll(self) -> None:
        """Run one round: store the progress of running jobs, and stop cancelled ones."""
        for id in await self.runner.poll():
            self.waiters.wake(id)

    async def renew(self) -> None:
        """Renew the leases of the running jobs."""
        await self.runner.renew()

    async def recover(self) -> None:
        """Run one round of maintenance: enqueue what the engine has lost, and prune old jobs."""
        await self.backend.recover()
        now, keep = self.now(), self.options.keep
        if keep is not None and not 0 <= now - self._pruned_at < PRUNE_EVERY:
            self._pruned_at = now
            await self.store.jobs.prune(now - keep)

    async def run_invocation(self, id: str | None = None, queues: Collection[str] = ()) -> JobState | None:
        """Run one job; engines call this in a worker. Return its new state, or None when there is no job to take.

        Without an id, take the next job that may run, of *queues* if some are named.

        Raises:
            StoreError: the store failed; the engine delivers the job again.
        """
        done = await self.runner.run(id, queues, self._start_polling)
        if done is None:
            return None
        self.waiters.wake(done.job.id)
        if done.state is JobState.QUEUED:
            await self.backend.retry_later(done.job, done.run_at)
        return done.state

    def _start_polling(self) -> None:
        """Poll while jobs run in this process."""
        if self._polling is None or self._polling.done():
            # asyncio: it outlives the call that starts it, which an anyio task group would hold
            self._polling = asyncio.create_task(self._poll(), name="callgate jobs poll")

    async def _poll(self) -> None:
        while self.runner.running:
            await asyncio.sleep(POLL_EVERY)
            try:
                await self.poll()
            except StoreError as error:
                emit(LogEvent.JOB_STORE_FAILED, error=error)

    def result_of(self, tenant: str, job: Job) -> ToolResult:
        """Return the result of a job that has ended."""
        if job.result is not None:
            return load_result(self.keys, tenant, job.result)
        return _without_result(job)


def _request_of(job: Job) -> JobRequest:
    try:
        return JobRequest.load(job.body)
    except (ValueError, TypeError, KeyError):
        raise StoreError("another version of Callgate wrote the job of this key; use another key") from None


def _run_at(now: float, at: datetime | None, delay: float | None) -> float:
    """Return the time to run a job, in seconds since the epoch."""
    if at is None:
        return now + (delay or 0.0)
    if delay is not None:
        raise TypeError("submit takes at= or delay=, not both")
    if not isinstance(at, datetime) or at.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("submit: at takes an aware datetime, such as datetime.now(UTC); for seconds write delay=")
    return at.timestamp()


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _without_result(job: Job) -> ToolResult:
    outcome = Outcome.CANCELLED if job.state is JobState.CANCELLED else Outcome.ERROR
    error = _CANCELLED if outcome is Outcome.CANCELLED else _DEAD
    return ToolResult(JobRequest.load(job.body).call_id, job.tool, outcome, error=error)
