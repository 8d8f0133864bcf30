"""Run one job in a worker: take it, run its call through the gate, and store the result once.

A job that a crash leaves behind is delivered again when its lease expires. If its tool has an effect, the effect ledger
then has the receipt, or ``unknown``. A tool without an effect runs again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from callgate.errors import DeadlineExceeded, Denied, InvocationError, Stale, StoreError
from callgate.providers.logs import LogEvent, emit
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store, Transaction
from callgate.providers.stores.jobs import Job, JobState
from callgate.runtime.jobs.calls import JobCalls, Misfits, RunningJob, UnusableResult, as_fault
from callgate.runtime.jobs.records import (
    WAITS,
    JobRequest,
    dump_result,
    failed_result,
    is_unsettled,
    load_result,
    progress_as_json,
    suspension_in,
)
from callgate.runtime.jobs.resuming import SuspendedJobs, lost_its_row
from callgate.runtime.options.jobs import Jobs
from callgate.runtime.pipeline.options import CallOptions, apply_options
from callgate.runtime.suspensions.suspensions import STORE_FAILED
from callgate.tools.calls import Outcome, ToolCall, ToolResult

_T = TypeVar("_T")

CANCELLED = "cancelled by its user"

LIMITS = frozenset({"over_quota", "semaphore_full", "threads_busy"})
"""Codes of calls that a limit put off. They are retried without a maximum; a deadline bounds the time."""

NOT_ENDED = frozenset({Outcome.CANCELLED, Outcome.UNKNOWN, Outcome.RETRY_LATER, Outcome.SUSPENDED})
"""Outcomes of a call that its user has cancelled."""

LOST = "the job was taken by another worker: its lease had expired"


class _TakenError(Exception):
    """Rolls back a transaction: a worker has taken the job."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A job after an attempt. ``run_at`` is the time of the next attempt, in seconds since the epoch, if it was put back."""

    job: Job
    state: JobState
    run_at: float


class JobRunner:
    """Takes jobs of a store and makes their *calls*. ``running`` has the jobs of this process by lease owner."""

    def __init__(
        self,
        store: Callable[[], Store],
        keys: SigningKeys,
        now: Callable[[], float],
        calls: JobCalls,
        options: Jobs,
        suspended: SuspendedJobs,
    ) -> None:
        self.options, self._suspended = options, suspended
        self._store, self._keys, self._now = store, keys, now
        self._calls = calls
        self._misfits = Misfits(store, keys, now, calls)
        self._rates: Any = None
        if options.rates:
            from callgate.runtime.jobs.rates import QueueRates  # not for queues without limits

            self._rates = QueueRates(store, options.rates)
        self.running: dict[str, RunningJob] = {}

    async def run(
        self, id: str | None = None, queues: Collection[str] = (), on_begin: Callable[[], None] = lambda: None
    ) -> Finished | None:
        """Take the job of that id, or the next one, and run it; return None when there is no job to take.

        *on_begin* is called when a job was taken.

        Raises:
            StoreError: the store failed; the job is delivered again when its lease expires.
        """
        jobs, now = self._store().jobs, self._now()
        # One owner for each attempt: a job whose end was not stored is not renewed with others, nor by a forked process.
        owner = secrets.token_hex(8)
        until = now + self.options.valid
        limit = self._misfits.limit() if id is None else None
        taken = await self._response(jobs.take(owner, now, until, id=id, queues=queues, fitting=limit))
        if taken is None:
            if id is None and limit is None:
                self._misfits.none_left()
            return None
        tenant, job = taken
        here = self.running[owner] = RunningJob(tenant, job, stopped=job.stop)
        try:
            on_begin()
            return await self._run(tenant, job, here, chosen=id is not None)
        except StoreError:
            raise
        except BaseException as error:
            if not here.worker_stops(error):
                return await self._fail(here, error)
            if not isinstance(error, GeneratorExit):  # another worker takes the job
                with suppress(StoreError):  # without the store, it is taken when its lease expires
                    await self._put_back(tenant, job, 0.0, self._calls.interrupted(here), counts=False)
            raise
        finally:
            del self.running[owner]

    async def renew(self) -> None:
        """Renew the leases of the running jobs."""
        if self.running:
            await self._store().jobs.renew(list(self.running), self._now() + self.options.valid)

    async def poll(self) -> Sequence[str]:
        """Store the progress of the running jobs and stop cancelled ones; return the ids of jobs with new progress."""
        if not self.running:
            return ()
        jobs, changed = self._store().jobs, list[str]()
        for here in list(self.running.values()):
            latest = here.reports.take_latest()
            body = None if latest is None else progress_as_json(latest)
            if body is not None:
                await self._response(jobs.record_progress(here.tenant, here.job.id, here.job.token, body))
                changed.append(here.job.id)
        for owner in await self._response(jobs.stopped(list(self.running))):
            if owner in self.running:
                self.running[owner].stop()
        return changed

    def stop_job(self, id: str) -> None:
        """Cancel the job of that id, if it runs in this process."""
        for here in list(self.running.values()):
            if here.job.id == id:
                here.stop()

    async def _response(self, response: Awaitable[_T]) -> _T:
        """Await a response of the store, at most for the time of a lease: later it would be out of date.

        Raises:
            StoreError: the store failed, or did not respond in time.
        """
        limit = asyncio.timeout(self.options.lease)
        try:
            async with limit:
                return await response
        except TimeoutError:
            if not limit.expired():  # the store raised it
                raise
            raise StoreError(f"{self._store().name}: no answer in {self.options.lease:g} s") from None

    async def _run(self, tenant: str, job: Job, here: RunningJob, *, chosen: bool) -> Finished:
        request = self._misfits.request_of(tenant, job)
        if request is None:
            forged = "its signature does not fit: its record was changed without the signing key"
            return await self._end_dead(tenant, job, forged)
        if here.stopped:  # after the previous attempt, whose effect is in the ledger
            return await self._end(tenant, job, JobState.CANCELLED, None, self._calls.left(CANCELLED, job))
        if isinstance(request, str):
            left = await self._leave(tenant, job, request)
            if not chosen:  # an engine that delivers jobs by their ids delivers each that does not fit
                await self._response(self._misfits.leave_out())
            return left
        if job.attempts > job.max_attempts:  # the previous workers died before they stored its end
            why = "each worker died" if job.reason is None or job.reason.startswith(WAITS) else job.reason
            why = f"abandoned after {job.max_attempts} attempts: {why}"
            return await self._end_dead(tenant, job, self._calls.left(why, job))
        if (limited := await self._rate_pause(job)) is not None:
            return await self._put_back(tenant, job, limited, None)
        try:
            result = await self._result(job, request, here)
        except Stale:  # a worker with the policies of the suspension goes on
            return await self._leave(tenant, job, f"{WAITS} with the tool and the policies of its approval")
        return await self._conclude(tenant, job, here, result)

    async def _conclude(self, tenant: str, job: Job, here: RunningJob, result: ToolResult) -> Finished:
        """Record the result of an attempt."""
        if here.stopped and result.outcome in NOT_ENDED:
            return await self._end(tenant, job, JobState.CANCELLED, result, CANCELLED)
        if getattr(result.pending, "handle", None) is not None:
            return await self._suspend(tenant, job, result)
        if (pause := self._pause(job, result)) is None:
            return await self._end(tenant, job, JobState.DONE, result, None)
        if _was_put_off(result):
            return await self._put_back(tenant, job, pause, None)
        reason = f"{result.outcome.value}: {_code(result)}"
        if job.attempts >= job.max_attempts:
            return await self._end(tenant, job, JobState.DEAD, result, f"{reason}, {job.attempts} times")
        return await self._put_back(tenant, job, pause, reason)

    async def _rate_pause(self, job: Job) -> float | None:
        """Return the seconds to put a job off for the rate limit of its queue, or None."""
        if self._rates is None:
            return None
        pause: float | None = await self._response(self._rates.pause_of(job.queue, self._now()))
        return pause

    async def _result(self, job: Job, request: JobRequest, here: RunningJob) -> ToolResult:
        from callgate.hooks.stock.records.telemetry import continued

        call, options = request.call, request.options
        if request.synthetic_id:  # such ids repeat; the id of the job does not
            call = ToolCall(
                id=f"job_{job.id}", name=request.tool, arguments=request.arguments, truncated=request.truncated
            )
        user = await self._calls.refresh(request.user)
        left = None if request.deadline_at is None else request.deadline_at - self._now()
        if user is None:
            unknown = Denied(f"the user {request.user.id} exists no more", code="no_user")
            result = await self._calls.refuse(unknown, call, request.user, options)
        elif left is not None and left <= 0:
            late = DeadlineExceeded("its deadline passed before a worker took it")
            result = await self._calls.refuse(late, call, user, options)
        else:
            call_options: CallOptions = {**options, "deadline": left, "events": here.reports}
            with continued(request.trace):
                made = (
                    self._calls.make(call, user, call_options, job.id)
                    if suspension_in(job.result) is None
                    else self._resume(call, user, call_options, here)
                )
                here.start(made)
            result = await here.ended(call)
        return replace(result, call_id=request.call_id)

    async def _resume(self, call: ToolCall, user: User, options: CallOptions, here: RunningJob) -> ToolResult:
        """Go on with a suspended call.

        Raises:
            Stale: this process has other policies for the tool.
        """
        job, tenant, tried = here.job, here.tenant, 0
        while True:
            found = await self._response(self._suspended.next_step(tenant, job, user))
            if found is None:
                assert job.result is not None
                return load_result(self._keys, tenant, job.result)
            if isinstance(found, InvocationError):
                return await self._calls.refuse(found, call, user, {**options, "deadline": None})
            limits: CallOptions = {"deadline": options.get("deadline"), "idle": options.get("idle")}
            apply_options(found, {**limits, "events": options.get("events")})
            found.run.job = job.id
            result = await self._calls.run(found, call)
            resumed = found.run.resumed
            if resumed is None or not lost_its_row(found) or resumed.wait.number == tried:
                return result
            tried = resumed.wait.number

    async def _suspend(self, tenant: str, job: Job, result: ToolResult) -> Finished:
        """Let a job wait for a decision, unless it was cancelled or the decision has come already.

        The decision writes the suspension and then the row of the job, so it is read after that row is written.
        """
        body, now = _dumped(result), self._now()
        id, jobs, state = suspension_in(body), self._store().jobs, JobState.INPUT_REQUIRED
        assert id is not None

        async def end(within: Transaction) -> JobState:
            if not await within.jobs.end(tenant, job.id, job.token, state, at=None, result=body, reason=None):
                raise StoreError(LOST)
            if await self._suspended.is_decided(within, tenant, id):
                return await within.jobs.wake(tenant, job.id, now) or state
            return state

        state = await self._transact(end)
        job = replace(job, state=state, result=body)
        found = await self._response(jobs.get(tenant, job.id))
        if found is not None and found.stop:  # its user cancelled it before it was suspended
            return Finished(job, await self.cancel(tenant, job) or state, now)
        return Finished(job, state, now)

    async def _transact(self, work: Callable[[Transaction], Awaitable[_T]]) -> _T:
        from callgate.providers.stores.sql.database.states import in_transaction

        return await in_transaction(self._store(), work)

    async def cancel(self, tenant: str, job: Job) -> JobState | None:
        """Cancel a job and withdraw its suspension, if it has one. Return the state of the job then."""
        store, now = self._store(), self._now()
        if suspension_in(job.result) is None or job.state is JobState.RUNNING:
            return await store.jobs.cancel(tenant, job.id, now)

        async def cancel(within: Transaction) -> JobState | None:
            await self._suspended.void(within, tenant, job)
            state = await within.jobs.cancel(tenant, job.id, now)
            if state is JobState.RUNNING:
                raise _TakenError  # rolls the transaction back
            return state

        try:
            return await self._transact(cancel)
        except _TakenError:  # the suspension is left to its worker
            return await store.jobs.cancel(tenant, job.id, now)

    async def _fail(self, here: RunningJob, error: BaseException) -> Finished:
        """End a job whose result cannot be used; try it again after an error of a store or of the user's lookup.

        Raises:
            StoreError: this failed, too; the job is delivered again when its lease expires.
        """
        tenant, job = here.tenant, here.job
        cause = error.__cause__ if isinstance(error, UnusableResult) and error.__cause__ else error
        reason = f"its worker failed: {type(cause).__name__}"
        try:
            if cause is error and job.attempts < job.max_attempts:
                pause = self.options.retries_of(job.tool).backoff_after(job.attempts)
                return await self._put_back(tenant, job, pause, reason)
            return await self._end(tenant, job, JobState.DEAD, failed_result(job), reason)
        except BaseException as again:
            if isinstance(again, StoreError) or here.worker_stops(again):
                raise
            raise StoreError(f"{job.tool}: the end of a job was not stored") from again
        finally:
            emit(LogEvent.JOB_FAILED, job=job.id, tool=job.tool, error=as_fault(cause))

    def _pause(self, job: Job, result: ToolResult) -> float | None:
        """Return the seconds until the next attempt; None when *result* is final."""
        retries = self.options.retries_of(job.tool)
        if result.outcome is Outcome.RETRY_LATER:
            counted = 1 if _was_put_off(result) else job.attempts
            return max((result.retry_after or 0) / 1000, retries.backoff_after(counted))
        if result.outcome is Outcome.IN_FLIGHT:
            return retries.backoff
        return retries.backoff_after(job.max_attempts) if _code(result) in STORE_FAILED else None

    async def _put_back(self, tenant: str, job: Job, pause: float, why: str | None, *, counts: bool = True) -> Finished:
        """Put the job back for a later attempt. Without a reason this attempt does not count."""
        run_at, jobs = self._now() + pause, self._store().jobs
        await self._response(jobs.put_back(tenant, job.id, job.token, run_at=run_at, reason=why, counts=counts))
        return Finished(job, JobState.QUEUED, run_at)

    async def _leave(self, tenant: str, job: Job, reason: str) -> Finished:
        """Put a job back that does not fit this worker. The attempt does not count."""
        why, pause = None if is_unsettled(job.reason) else reason, self._misfits.pause(job, reason)
        return await self._put_back(tenant, job, pause, why, counts=False)

    async def _end_dead(self, tenant: str, job: Job, reason: str) -> Finished:
        return await self._end(tenant, job, JobState.DEAD, None, reason)

    async def _end(
        self, tenant: str, job: Job, state: JobState, result: ToolResult | None, reason: str | None
    ) -> Finished:
        body = None if result is None else _dumped(result)
        at = self._now()
        ended = job if suspension_in(body) is None else replace(job, result=body)
        if suspension_in(ended.result) is None:
            end = self._store().jobs.end(tenant, job.id, job.token, state, at=at, result=body, reason=reason)
            done = await self._response(end)
        else:

            async def end_both(within: Transaction) -> bool:
                await self._suspended.void(within, tenant, ended)
                if not await within.jobs.end(tenant, job.id, job.token, state, at=at, result=body, reason=reason):
                    raise StoreError(LOST)
                return True

            done = await self._transact(end_both)
        if not done:
            raise StoreError(LOST)
        if state is JobState.DEAD:
            emit(LogEvent.JOB_DEAD, job=job.id, tool=job.tool, reason=reason)
        return Finished(job, state, at)


def _dumped(result: ToolResult) -> bytes:
    """Encode a result as JSON.

    Raises:
        UnusableResult: it is no JSON.
    """
    try:
        return dump_result(result)
    except BaseException as error:
        raise UnusableResult(f"the result of {result.tool} is no JSON") from error


def _code(result: ToolResult) -> str:
    return "" if result.error is None else result.error.code


def _was_put_off(result: ToolResult) -> bool:
    """Return whether the call did not begin: an earlier run goes on, or a limit or a failing store put it off."""
    return result.outcome is Outcome.IN_FLIGHT or _code(result) in LIMITS | STORE_FAILED
