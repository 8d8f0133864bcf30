"""One job in a worker: taken, run through the gate like any call, and its result written down once.

Whatever a crash leaves behind is delivered again when its lease is over. The effect ledger then answers for what ran
before: with a receipt, or, where nobody knows, with ``unknown``; a tool without an effect just runs again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from callgate.errors import DeadlineExceeded, Denied, RegistrationError, StoreError
from callgate.hooks.stock.records.telemetry import continued
from callgate.providers.logs import Event, emit
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store
from callgate.providers.stores.jobs import Job, JobState
from callgate.runtime.call.results import cancelled_call
from callgate.runtime.engine import CallOptions
from callgate.runtime.jobs.calls import JobCalls, Reports, progress_as_json
from callgate.runtime.jobs.records import Order, dump_result, is_whole
from callgate.tools.calls import Outcome, ToolCall, ToolResult

_T = TypeVar("_T")

CANCELLED = "cancelled by whoever asked for it"

LIMITS = frozenset({"over_quota", "semaphore_full", "threads_busy"})
"""Codes of calls that a limit put off. They may come back as often as it takes: a deadline says how long that may be."""

STORE_FAILED = frozenset({"not_recorded", "quota_unavailable", "semaphore_unavailable"})
"""Codes of calls that were refused because a store failed: nothing ran, and the next attempt may do better."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How jobs are run; times in seconds.

    ``lease``: what a worker that died was running is delivered again at the latest after this. ``most``: how often a job
    is taken before it is given up as dead; to be put off by a limit, or because a store fails, does not count.
    ``pause``: before a job that has to be tried again is; it doubles each time, up to ``longest_pause``. ``keep``: what is
    over is forgotten after this, with its result; None keeps it for ever.

    Raises:
        RegistrationError: a number that means nothing.
    """

    lease: float = 60.0
    most: int = 5
    pause: float = 1.0
    longest_pause: float = 300.0
    keep: float | None = 7 * 86_400.0

    def __post_init__(self) -> None:
        if not (self.lease > 0 and self.most >= 1 and 0 <= self.pause <= self.longest_pause):
            raise RegistrationError("JobOptions: lease above 0, most at least 1, pause at most longest_pause")
        if self.keep is not None and not self.keep > 0:
            raise RegistrationError("JobOptions: keep is seconds, above 0, or None")

    @property
    def valid(self) -> float:
        """How long a row is leased: less than the promise, so that sweeping has time."""
        return self.lease * 0.6

    @property
    def every(self) -> float:
        """How often leases are renewed."""
        return self.lease * 0.2

    def pause_after(self, attempts: int) -> float:
        """Seconds before the next attempt."""
        return min(self.pause * 2.0 ** min(attempts - 1, 30), self.longest_pause)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a job stands after a worker had it; ``run_at`` is when it may run again, where it was put back."""

    job: Job
    state: JobState
    run_at: float


@dataclass(slots=True)
class Running:
    """A job that runs here: in *work*, once its tool does. ``stopped``: whoever asked for it has cancelled it."""

    tenant: str
    job: Job
    reports: Reports = field(default_factory=Reports)
    work: asyncio.Future[ToolResult] | None = None
    stopped: bool = False

    def stop(self) -> None:
        """Cancel the call, and not the worker."""
        if not self.stopped and self.work is not None:
            self.work.cancel()
        self.stopped = True


class JobRunner:
    """Takes jobs of a store and makes their *calls*. ``running`` has what it takes them as, and what becomes of them."""

    def __init__(
        self,
        store: Callable[[], Store],
        keys: SigningKeys,
        now: Callable[[], float],
        calls: JobCalls,
        options: JobOptions,
    ) -> None:
        self.options = options
        self._store, self._keys, self._now = store, keys, now
        self._calls = calls
        self.running: dict[str, Running] = {}

    async def run(
        self, id: str | None = None, queues: Collection[str] = (), begins: Callable[[], None] = lambda: None
    ) -> Ran | None:
        """Take the job with that id, or the next one, and run it; how it stands then. None when there is none to take.

        *begins* is told when one was taken.

        Raises:
            StoreError: the store failed; the job is delivered again when its lease is over.
        """
        jobs, now = self._store().jobs, self._now()
        # Of this taking alone: a job whose end could not be written is not renewed with others, nor by a forked sibling.
        owner = secrets.token_hex(8)
        taken = await self._told(jobs.take(owner, now, now + self.options.valid, id=id, queues=queues))
        if taken is None:
            return None
        tenant, job = taken
        here = self.running[owner] = Running(tenant, job, stopped=job.stop)
        begins()
        try:
            return await self._run(tenant, job, here)
        except asyncio.CancelledError:  # this worker is to end: another takes it
            await self._told(jobs.put_back(tenant, job.id, job.token, run_at=self._now(), reason=None))
            raise
        finally:
            del self.running[owner]

    async def renew(self) -> None:
        """Renew the leases of what runs here."""
        if self.running:
            await self._store().jobs.renew(list(self.running), self._now() + self.options.valid)

    async def look(self) -> Sequence[str]:
        """Write down how far what runs here is, and stop what was cancelled; the ids of what there is news of."""
        if not self.running:
            return ()
        jobs, told = self._store().jobs, list[str]()
        for here in list(self.running.values()):
            news = here.reports.news()
            if news is not None:
                await self._told(jobs.tell(here.tenant, here.job.id, here.job.token, progress_as_json(news)))
                told.append(here.job.id)
        for owner in await self._told(jobs.stopped(list(self.running))):
            if owner in self.running:
                self.running[owner].stop()
        return told

    def stop_job(self, id: str) -> None:
        """Cancel that job, if it runs here."""
        for here in list(self.running.values()):
            if here.job.id == id:
                here.stop()

    async def _told(self, answer: Awaitable[_T]) -> _T:
        """What the store says. It has as long as a lease; then it means nothing any more, and another connection may do.

        Raises:
            StoreError: it failed, or says nothing.
        """
        try:
            async with asyncio.timeout(self.options.lease):
                return await answer
        except TimeoutError:
            raise StoreError(f"{self._store().name}: no answer in {self.options.lease:g} s") from None

    async def _run(self, tenant: str, job: Job, here: Running) -> Ran:
        if not is_whole(self._keys, tenant, job):
            return await self._bury(tenant, job, "its record was changed by somebody without the signing key")
        if here.stopped:  # since it was last taken; what an attempt before has done, the ledger knows
            return await self._end(tenant, job, JobState.CANCELLED, None, CANCELLED)
        if job.attempts > job.most:  # whoever took it before did not live to say how it ended
            return await self._bury(
                tenant, job, f"given up after {job.most} attempts: {job.reason or 'no worker survived it'}"
            )
        try:
            order = Order.load(job.body)
        except (ValueError, TypeError, KeyError):
            return await self._bury(tenant, job, "its record was written by another version of Callgate")
        result = await self._result(job, order, here)
        if here.stopped and result.outcome in {Outcome.CANCELLED, Outcome.UNKNOWN, Outcome.RETRY_LATER}:
            return await self._end(tenant, job, JobState.CANCELLED, result, CANCELLED)
        if (pause := self._pause(job, result)) is None:
            return await self._end(tenant, job, JobState.DONE, result, None)
        if _had_to_wait(result):
            return await self._put_back(tenant, job, pause, None)
        reason = f"{result.outcome.value}: {_code(result)}"
        if job.attempts >= job.most:
            return await self._end(tenant, job, JobState.DEAD, result, f"{reason}, {job.attempts} times")
        return await self._put_back(tenant, job, pause, reason)

    async def _result(self, job: Job, order: Order, here: Running) -> ToolResult:
        call, options = order.call, order.options
        if order.synthetic_id:  # such ids repeat: what this call is known by is the job
            call = ToolCall(f"job_{job.id}", order.tool, order.arguments, truncated=order.truncated)
        user = await self._calls.refresh(order.user)
        left = None if order.deadline_at is None else order.deadline_at - self._now()
        if user is None:
            nobody = Denied(f"{order.user.id} is nobody any more", code="no_user")
            result = await self._calls.refuse(nobody, call, order.user, options)
        elif left is not None and left <= 0:
            late = DeadlineExceeded("it was over before a worker came")
            result = await self._calls.refuse(late, call, user, options)
        else:
            told: CallOptions = {**options, "deadline": left, "events": here.reports}
            with continued(order.trace):
                here.work = asyncio.ensure_future(self._calls.make(call, user, told))
            result = await self._ended(here, call)
        return replace(result, call_id=order.call_id)

    @staticmethod
    async def _ended(here: Running, call: ToolCall) -> ToolResult:
        """The result of what runs here.

        Raises:
            CancelledError: the worker is to end, and not the job: another takes it.
        """
        assert here.work is not None
        if here.stopped:
            here.work.cancel()
        try:
            result = await here.work
        except asyncio.CancelledError:  # before it could begin
            result = cancelled_call(call)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        return result

    def _pause(self, job: Job, result: ToolResult) -> float | None:
        """Seconds until it is tried again; None when this is its result."""
        if result.outcome is Outcome.RETRY_LATER:
            return max((result.retry_after or 0) / 1000, self.options.pause)
        if result.outcome is Outcome.IN_FLIGHT:
            return self.options.pause
        return self.options.pause_after(self.options.most) if _code(result) in STORE_FAILED else None

    async def _put_back(self, tenant: str, job: Job, pause: float, reason: str | None) -> Ran:
        """Without a reason the attempt does not count."""
        run_at = self._now() + pause
        await self._told(self._store().jobs.put_back(tenant, job.id, job.token, run_at=run_at, reason=reason))
        return Ran(job, JobState.QUEUED, run_at)

    async def _bury(self, tenant: str, job: Job, reason: str) -> Ran:
        return await self._end(tenant, job, JobState.DEAD, None, reason)

    async def _end(self, tenant: str, job: Job, state: JobState, result: ToolResult | None, reason: str | None) -> Ran:
        body = None if result is None else dump_result(result)
        at = self._now()
        end = self._store().jobs.end(tenant, job.id, job.token, state, at=at, result=body, reason=reason)
        if not await self._told(end):
            raise StoreError("the job was taken by another worker: its lease was over")
        if state is JobState.DEAD:
            emit(Event.JOB_DEAD, job=job.id, tool=job.tool, reason=reason)
        return Ran(job, state, at)


def _code(result: ToolResult) -> str:
    return "" if result.error is None else result.error.code


def _had_to_wait(result: ToolResult) -> bool:
    """Whether it did not begin, and nothing is wrong with it: an earlier run may go on, a limit or a store put it off."""
    return result.outcome is Outcome.IN_FLIGHT or _code(result) in LIMITS | STORE_FAILED
