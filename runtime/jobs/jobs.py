"""The job queue of a gate: a call is submitted once, delivered at least once, and has one outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Sequence
from datetime import datetime
from typing import Any

from callgate.errors import NotPending, StoreError
from callgate.providers.ids import is_id, new_id
from callgate.providers.logs import LogEvent, emit
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store
from callgate.providers.stores.jobs import FINAL_STATES, Job, JobState, fault_of_priority
from callgate.runtime.jobs.calls import JobCallers, JobCalls, as_fault, stops
from callgate.runtime.jobs.records import (
    JobRequest,
    JobStatus,
    find_job,
    job_id_of,
    load_result,
    result_without_run,
    signed,
    status_of_job,
    suspension_in,
    time_of,
)
from callgate.runtime.jobs.resuming import SuspendedJobs
from callgate.runtime.jobs.running import JobRunner
from callgate.runtime.lifespan.background import prune_and_log
from callgate.runtime.options.job_engine import JobBackend
from callgate.runtime.options.jobs import Jobs, SubmitOptions
from callgate.runtime.pipeline.options import BadCall, check_limits, checked_ids, no_option
from callgate.runtime.pipeline.waiting import Waiters
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.execution import NO_TASK, TaskIds

FIRST_POLL, LAST_POLL = 0.02, 1.0  # seconds between two polls of an awaited job, at first and at last
LIVE_POLL = 10.0
"""Seconds between two polls where the store sends notices: one may be lost."""
NEW = "+"
"""The notice of a job that any worker may take."""
POLL_EVERY = 1.0
"""Seconds between two rounds that store the progress of running jobs and stop cancelled ones."""


class JobHandle:
    """The handle of a job: ``await`` it for the result; ``status``, ``events`` and ``cancel``. Any process may have one."""

    def __init__(self, jobs: JobQueue, tenant: str, user: str, id: str, *, added: bool = False) -> None:
        self.id, self.added = id, added  # ``added``: the submission of this handle has added the job
        self._jobs, self._tenant, self._user = jobs, tenant, user

    def __await__(self) -> Generator[object, None, ToolResult]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    async def status(self) -> JobStatus:
        """Return the state of the job.

        Raises:
            NotPending: there is no such job of this user.
        """
        job = await self._job()
        waits = job.state is JobState.INPUT_REQUIRED
        return status_of_job(job, self._jobs.result_of(self._tenant, job).pending if waits else None)

    async def result(self) -> ToolResult:
        """Wait for the result and return it. A dead or cancelled job has a result, too.

        A job whose call is suspended has its result after the decision; ``status`` shows what it waits for.

        Raises:
            NotPending: there is no such job of this user.
        """
        return await self._until(FINAL_STATES)

    async def settled(self) -> ToolResult:
        """Wait until the job ends, or until its call is suspended; the result is then ``suspended``.

        Raises:
            NotPending: there is no such job of this user.
        """
        return await self._until((*FINAL_STATES, JobState.INPUT_REQUIRED))

    async def _until(self, states: Collection[JobState]) -> ToolResult:
        with self._jobs.callers.of(self.id):
            job, pause = await self._job(), FIRST_POLL
            while job.state not in states:
                pause = await self._jobs.wait(self.id, pause, for_end=states is FINAL_STATES)
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
            pause = await self._jobs.wait(self.id, pause)

    async def cancel(self) -> bool:
        """Cancel the job; return False when it had ended.

        A queued job does not run again. A job that waits for input ends, and its suspension with it. A worker cancels a running
        job within a second, as any call is cancelled: the result is ``unknown`` where the effect may have taken place,
        also in an attempt whose worker ended or died. Await the handle for it.

        Raises:
            NotPending: there is no such job of this user.
        """
        return await self._jobs.cancel(self._tenant, await self._job())

    async def _job(self) -> Job:
        job = await find_job(self._jobs.store.jobs, self._jobs.keys, self._tenant, self.id, self._user)
        if job is None:
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
        suspended: SuspendedJobs,
    ) -> None:
        self._store, self.keys, self.now = store, keys, now
        self._calls, self.options = calls, options
        self.runner = JobRunner(store, keys, now, calls, options, suspended)
        self.backend, self.waiters, self.callers = backend, Waiters(), JobCallers()
        self._polling: asyncio.Task[None] | None = None
        self._writer: Any = None
        self.scheduler: Any = None
        self.on_new_job: Callable[[], None] = lambda: None
        backend.bind(self)

    @property
    def store(self) -> Store:
        """The store that keeps the jobs."""
        return self._store()

    @property
    def writer(self) -> Any:
        """The writer of submitted jobs, a ``JobWriter``."""
        if self._writer is None:
            from callgate.runtime.jobs.submission import JobWriter  # not for gates without jobs

            limit = self.options.max_per_user
            self._writer = JobWriter(self._store, self.backend, self._calls, self.keys.namespace, limit)
        return self._writer

    async def submit(self, call: ToolCall, user: User, *, within: Any = None, **options: Any) -> JobHandle:
        """See ``Gate.submit``; for *options* see ``prepare``. ``once=True``, of a schedule, never frees the key again."""
        once = options.pop("once", False)
        for name in options.keys() - SubmitOptions.__annotations__.keys():
            raise no_option(name, SubmitOptions.__annotations__, "submit")
        if within is not None:
            return (await self.submit_many([(call, options.pop("key", None))], user, within=within, **options))[0]
        job, request = self.prepare(call, user, **options)
        tenant = user.tenant or ""
        known = await self.writer.add(tenant, job, once=once)
        self.writer.check_repeat(known, request)
        self.callers.submitted(job.id)
        await self.backend.submitted(job)
        return JobHandle(self, tenant, user.id, job.id, added=known.mac == job.mac)

    def prepare(
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
        idle: float | None = None,
        task: TaskIds | None = None,
    ) -> tuple[Job, JobRequest]:
        """Return the signed job of a call, which is not stored yet, and its request.

        Raises:
            BadCall, Invalid: a time, a limit or the priority cannot be read; an id cannot be stored.
        """
        from callgate.hooks.stock.records.telemetry import current_trace

        check_limits(deadline, idle)
        if (fault := fault_of_priority(priority)) is not None:
            raise BadCall(f"priority {fault}")
        checked_ids(call_id=call.id, key=key, queue=queue, session_id=session_id, request_id=request_id)
        tenant, now = user.tenant or "", self.now()
        id = new_id() if key is None else job_id_of(user, call.name, key, self.keys.namespace)
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
            idle=idle,
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
            time_of(now, at, delay),
            queue=queue,
            priority=priority,
            max_attempts=self.options.retries_of(call.name).max_attempts,
            sent_at=now,  # the engine enqueues it in this transaction, or right after it
        )
        return signed(self.keys, tenant, job), request

    async def submit_many(
        self, calls: Sequence[tuple[ToolCall, str | None]], user: User, *, within: Any = None, **options: Any
    ) -> list[JobHandle]:
        """See ``Gate.submit_many``; each call has its key, or None."""
        made = [self.prepare(call, user, key=key, **options) for call, key in calls]
        if made:
            await self.writer.add_checked(made, within)
            self.callers.submitted(*(job.id for job, _ in made))
        return [self.handle(job.id, user) for job, _ in made]

    @property
    def dead_letters(self) -> Any:
        """The dead jobs of all tenants, as ``DeadLetters``."""
        from callgate.runtime.jobs.dead_letters import DeadLetters  # not for gates without jobs

        return DeadLetters(self._store, self.backend, self.now)

    def handle(self, id: str, user: User) -> JobHandle:
        """See ``Gate.job``."""
        return JobHandle(self, user.tenant or "", user.id, id)

    async def cancel(self, tenant: str, job: Job) -> bool:
        """Cancel a job; see ``JobHandle.cancel``."""
        if job.state in FINAL_STATES:
            return False
        state = await self.runner.cancel(tenant, job)
        if state is JobState.CANCELLED:
            self.waiters.wake(job.id)
            self.announce(job.id)
            await self.backend.cancel(job)
        elif state is JobState.RUNNING:
            self.runner.stop_job(job.id)
        return state in {JobState.CANCELLED, JobState.RUNNING}

    async def deliver(self, tenant: str, id: str) -> None:
        """Hand a job to the engine that a decision has queued again. ``recover`` finds what is lost."""
        self.waiters.wake(id)
        job = await self.store.jobs.get(tenant, id)
        if job is not None:
            await self.backend.retry_later(job, job.run_at)

    async def wait(self, id: str, pause: float, *, for_end: bool = False) -> float:
        """Wait for a change of a job, or until the next poll; return the seconds of the next wait.

        Other processes announce the ends of jobs only.
        """
        notices = self.listen() if for_end else None
        live = notices is not None and notices.is_live
        await self.waiters.wait(id, LIVE_POLL if live else pause)
        return FIRST_POLL if live else min(pause * 1.5, LAST_POLL)

    def listen(self) -> Any:
        """Listen for the notices of other processes. Return them, or None where the store has none."""
        notices = getattr(self.store, "notices", None) if self.options.notify else None
        if notices is not None:
            notices.listen(self._heard, self.keys.namespace)
        return notices

    def announce(self, word: str) -> None:
        """Tell other processes that a job has ended, or of a new job (``NEW``)."""
        notices = getattr(self.store, "notices", None) if self.options.notify else None
        if notices is not None:
            notices.announce(word, self.keys.namespace)

    def _heard(self, word: str) -> None:
        if word == NEW:
            self.on_new_job()
        else:
            self.waiters.wake(word)

    async def open(self) -> None:
        """Start the engine."""
        if self.scheduler is not None:
            self.scheduler.check(self._calls)
        await self.backend.open()

    async def close(self) -> None:
        """Stop the engine: running jobs end, or are handed back."""
        if self._writer is not None:
            await self._writer.close()
        await self.backend.close()
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.wait([polling])
        if (notices := getattr(self.store, "notices", None)) is not None:
            await notices.forget(self._heard)
        self.runner.running.clear()  # those of an event loop that was closed under them never end

    async def poll(self) -> None:
        """Run one round: store the progress of running jobs, and stop cancelled ones."""
        for id in await self.runner.poll():
            self.waiters.wake(id)

    async def renew(self) -> None:
        """Renew the leases of the running jobs."""
        await self.runner.renew()

    async def recover(self) -> None:
        """Run one round of maintenance: enqueue what the engine has lost."""
        await self.backend.recover()

    async def prune(self) -> None:
        """Delete old jobs."""
        if self.options.keep is not None:
            await prune_and_log("jobs", self.store.jobs.prune, self.now() - self.options.keep)

    async def run_invocation(self, id: str | None = None, queues: Collection[str] = ()) -> JobState | None:
        """Run one job; engines call this in a worker. Return its new state, or None when there is no job to take.

        Without an id, take the next job that may run, of *queues* if some are named. No job has an id that is no text: an
        engine checks the ids of its messages with ``is_id``, because None would take any job.

        Raises:
            StoreError: the store failed; the engine delivers the job again.
        """
        if id is not None and not is_id(id):
            return None
        done = await self.runner.run(id, queues, self._start_polling)
        if done is None:
            return None
        try:
            self.waiters.wake(done.job.id)
            if done.state is not JobState.QUEUED:
                self.announce(done.job.id)
            else:
                await self.backend.retry_later(done.job, done.run_at)
        except BaseException as error:  # the job is stored: who waits polls, and `recover` sends again
            if isinstance(error, StoreError) or stops(error, asyncio.current_task()):
                raise
            emit(LogEvent.JOB_NOT_SENT, job=done.job.id, error=as_fault(error))
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
            except BaseException as error:  # the next round may succeed
                if stops(error, asyncio.current_task()):
                    raise
                emit(LogEvent.JOB_STORE_FAILED, error=as_fault(error))

    def result_of(self, tenant: str, job: Job) -> ToolResult:
        """Return the result of a job that has ended."""
        is_stale = job.state is JobState.CANCELLED and suspension_in(job.result) is not None
        if job.result is not None and not is_stale:
            return load_result(self.keys, tenant, job.result)
        return result_without_run(job)
