"""Invocations that run in a worker: submitted once, run at least as often as needed, with one outcome (design 8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Generator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from callgate.errors import NotPending, StoreError
from callgate.hooks.stock.records.telemetry import current_trace
from callgate.providers.ids import new_id
from callgate.providers.logs import Event, emit
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store, Transaction
from callgate.providers.stores.jobs import OVER, Job, JobState
from callgate.runtime.call.streams import Progress
from callgate.runtime.call.waiting import Waiters
from callgate.runtime.jobs.calls import JobCalls, progress_from_json
from callgate.runtime.jobs.records import Order, load_result, sealed
from callgate.runtime.jobs.running import JobOptions, JobRunner
from callgate.tools.calls import ErrorInfo, Outcome, ToolCall, ToolResult
from callgate.tools.values import hash_of

FIRST_LOOK, LAST_LOOK = 0.02, 1.0
"""Seconds between two looks at a job that is awaited, first and at last."""

LOOK_EVERY = 1.0
"""Seconds between two looks at what runs here: how far it is, and whether it was cancelled."""
PRUNE_EVERY = 3_600.0
"""Seconds between two times that old jobs are forgotten."""

_CANCELLED = ErrorInfo("cancelled", "The call was cancelled.")
_DEAD = ErrorInfo("job_dead", "The call was given up.")


class JobBackend(Protocol):
    """An engine that moves jobs to workers. It is told ids, never what is to run: that lies in the store.

    In a worker it calls ``run_invocation(id)`` for each id, as often as it likes: a job is taken by one at a time.
    """

    def bind(self, jobs: Jobs) -> None:
        """The jobs that it is to move."""
        ...

    async def submit(self, tenant: str, job: Job, within: Transaction) -> None:
        """A job is being added in this transaction: what is enqueued on its connection is kept or lost with it."""
        ...

    async def submitted(self, job: Job) -> None:
        """It is added: an engine that knows no transactions is told now. What is lost here is found by ``keep_up``."""
        ...

    async def retry_later(self, job: Job, run_at: float) -> None:
        """It was put back until then."""
        ...

    async def cancel(self, job: Job) -> None:
        """It was cancelled before it ran."""
        ...

    async def keep_up(self) -> None:
        """One round of looking after jobs that the engine has lost."""
        ...

    async def work(
        self, concurrency: int, queues: Collection[str], stop: asyncio.Event, grace: float, tally: Tally
    ) -> int:
        """Run jobs in this process until *stop* is set; then take no more, and hand back what still runs after *grace*.

        Returns how many were handed back.
        """
        ...

    async def open(self) -> None:
        """The gate has opened."""
        ...

    async def close(self) -> None:
        """The gate closes."""
        ...


@dataclass(slots=True)
class Tally:
    """What a worker has done: how many jobs ended in each way, and how often the store failed."""

    done: int = 0
    dead: int = 0
    put_back: int = 0
    failures: int = 0

    def count(self, state: JobState | None) -> None:
        """One more."""
        if state is JobState.DONE:
            self.done += 1
        elif state is JobState.DEAD:
            self.dead += 1
        elif state is not None:
            self.put_back += 1

    def line(self) -> str:
        """For people."""
        told = f"{self.done} done, {self.dead} dead, {self.put_back} put back"
        return f"{told}, {self.failures} failures of the store" if self.failures else told


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How a job stands. Times are seconds since the epoch; ``reason`` says why it was put back, given up, or cancelled.

    ``progress`` is how far the tool last said it was (``ToolContext.progress``), up to a second old.
    """

    id: str
    state: JobState
    attempts: int
    run_at: float
    made_at: float
    ended_at: float | None
    reason: str | None
    progress: Progress | None = None


class JobHandle:
    """A submitted call: ``await`` it for its result, ask how it stands, cancel it. Any process of its user's can have one."""

    def __init__(self, jobs: Jobs, tenant: str, user: str, id: str) -> None:
        self.id = id
        self._jobs, self._tenant, self._user = jobs, tenant, user

    def __await__(self) -> Generator[Any, None, ToolResult]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    async def status(self) -> JobStatus:
        """How it stands now.

        Raises:
            NotPending: there is no such job, or it is somebody else's.
        """
        job = await self._job()
        progress = progress_from_json(job.tool, job.progress)
        return JobStatus(job.id, job.state, job.attempts, job.run_at, job.made_at, job.ended_at, job.reason, progress)

    async def result(self) -> ToolResult:
        """Its result, once it has one; a job that was given up or cancelled has one that says so.

        Raises:
            NotPending: there is no such job, or it is somebody else's.
        """
        job = await self._job()
        look = FIRST_LOOK
        while job.state not in OVER:
            look = await self._wait(look)
            job = await self._job()
        return self._jobs.result_of(self._tenant, job)

    async def events(self) -> AsyncGenerator[JobStatus, None]:
        """How it stands, and how far it is, whenever that changes, to its end."""
        seen: JobStatus | None = None
        look = FIRST_LOOK
        while True:
            status = await self.status()
            if status != seen:
                seen, look = status, FIRST_LOOK
                yield status
            if status.state in OVER:
                return
            look = await self._wait(look)

    async def cancel(self) -> bool:
        """Cancel it. False when it was over; else it will not run, or the worker that runs it is told, within a second.

        What runs then is cancelled as any call is: its result says what became of it, ``unknown`` where its effect may
        have taken place. Await the handle for that.

        Raises:
            NotPending: there is no such job, or it is somebody else's.
        """
        return await self._jobs.cancel(self._tenant, await self._job())

    async def _wait(self, look: float) -> float:
        """Until there is news of it in this process, or it is time to look; how long the next wait may be."""
        await self._jobs.waiters.wait(self.id, look)
        return min(look * 1.5, LAST_LOOK)

    async def _job(self) -> Job:
        job = await self._jobs.store.jobs.get(self._tenant, self.id)
        if job is None or job.user != self._user:
            raise NotPending("no such job of this user")
        return job


class Jobs:
    """The jobs of one gate, whose calls *calls* makes."""

    def __init__(
        self,
        store: Callable[[], Store],
        keys: SigningKeys,
        now: Callable[[], float],
        calls: JobCalls,
        options: JobOptions,
        backend: JobBackend,
    ) -> None:
        self._store, self.keys, self.now = store, keys, now
        self._calls = calls
        self.options = options
        self.runner = JobRunner(store, keys, now, calls, options)
        self.backend = backend
        self.waiters = Waiters()
        self._pruned_at = 0.0
        self._looking: asyncio.Task[None] | None = None
        backend.bind(self)

    @property
    def store(self) -> Store:
        """Where they are."""
        return self._store()

    async def submit(
        self,
        call: ToolCall,
        user: User,
        *,
        at: datetime | float | None = None,
        key: str | None = None,
        queue: str = "default",
        priority: int = 0,
        session_id: str | None = None,
        request_id: str | None = None,
        deadline: float | None = None,
    ) -> JobHandle:
        """See ``Gate.submit``."""
        tenant, now = user.tenant or "", self.now()
        id = new_id() if key is None else hash_of(["job", tenant, user.id, call.tool, key])[:32]
        run_at = now if at is None else at.timestamp() if isinstance(at, datetime) else now + at
        order = Order(
            tool=call.tool,
            version=self._calls.version_of(call.tool),
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
        )
        job = Job(
            id,
            call.tool,
            user.id,
            order.dump(),
            "",
            now,
            run_at,
            queue=queue,
            priority=priority,
            most=self.options.most,
            sent_at=now,  # an engine is told with this transaction, or right after it
        )
        job = sealed(self.keys, tenant, job)
        async with self.store.transaction() as within:
            known = await within.jobs.add(tenant, job)
            if known is job or known.mac == job.mac:
                await self.backend.submit(tenant, job, within)
        if known.user != user.id:
            raise NotPending("no such job of this user")
        await self.backend.submitted(job)
        return JobHandle(self, tenant, user.id, id)

    def handle(self, id: str, user: User) -> JobHandle:
        """The handle of a job that was submitted before, perhaps by another process."""
        return JobHandle(self, user.tenant or "", user.id, id)

    async def cancel(self, tenant: str, job: Job) -> bool:
        """Cancel a job; see ``JobHandle.cancel``."""
        if job.state in OVER:
            return False
        state = await self.store.jobs.cancel(tenant, job.id, self.now())
        if state is JobState.CANCELLED:
            self.waiters.wake(job.id)
            await self.backend.cancel(job)
        elif state is JobState.RUNNING:
            self.runner.stop_job(job.id)
        return state in {JobState.CANCELLED, JobState.RUNNING}

    async def open(self) -> None:
        """The gate has opened."""
        await self.backend.open()

    async def close(self) -> None:
        """The gate closes: what runs here ends, or is handed back."""
        await self.backend.close()
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait([looking])

    async def look(self) -> None:
        """One round: write down how far what runs here is, and stop what was cancelled."""
        for id in await self.runner.look():
            self.waiters.wake(id)

    async def renew(self) -> None:
        """Renew the leases of what runs here."""
        await self.runner.renew()

    async def keep_up(self) -> None:
        """One round: look after what the engine has lost, forget what is old."""
        await self.backend.keep_up()
        now, keep = self.now(), self.options.keep
        if keep is not None and not 0 <= now - self._pruned_at < PRUNE_EVERY:
            self._pruned_at = now
            await self.store.jobs.prune(now - keep)

    async def run_invocation(self, id: str | None = None, queues: Collection[str] = ()) -> JobState | None:
        """The one function that engines call in a worker; None when the job is not to be taken (any more).

        Without an id it takes the next one that may run, of these queues if some are named.

        Raises:
            StoreError: the store failed; the job is delivered again.
        """
        done = await self.runner.run(id, queues, self._look_after_it)
        if done is None:
            return None
        self.waiters.wake(done.job.id)
        if done.state is JobState.QUEUED:
            await self.backend.retry_later(done.job, done.run_at)
        return done.state

    def _look_after_it(self) -> None:
        """A job begins here: from now on there is somebody who looks, until none runs any more."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._keep_looking(), name="callgate jobs look")

    async def _keep_looking(self) -> None:
        while self.runner.running:
            await asyncio.sleep(LOOK_EVERY)
            try:
                await self.look()
            except StoreError as error:
                emit(Event.JOB_STORE_FAILED, error=error)

    def result_of(self, tenant: str, job: Job) -> ToolResult:
        """The result of one that is over."""
        if job.result is not None:
            return load_result(self.keys, tenant, job.result)
        return _without_result(job)


def _without_result(job: Job) -> ToolResult:
    outcome = Outcome.CANCELLED if job.state is JobState.CANCELLED else Outcome.ERROR
    told = _CANCELLED if outcome is Outcome.CANCELLED else _DEAD
    return ToolResult(Order.load(job.body).call_id, job.tool, outcome, error=told)
