"""The calls of jobs: their progress is kept, and they have a result also when they are cancelled.

A worker leaves jobs that do not fit it, such as those of a tool that another version has, to other workers. After the first
such job it takes for a while only what fits it, however many others wait.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from callgate.errors import Control, InvocationError, OutcomeUnknown, RegistrationError
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.providers.foreign_errors import is_pressed, understood
from callgate.providers.logs import LogEvent, emit
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import EffectState
from callgate.providers.stores.jobs import EXPLAIN_BATCH, NO_KEY, Fitting, Job
from callgate.runtime.effects.idempotency_keys import tenant_of
from callgate.runtime.jobs.records import (
    INTERRUPTED,
    UNSETTLED,
    VERSION,
    WAITS,
    JobRequest,
    fitting,
    is_intact,
    key_id_of,
)
from callgate.runtime.pipeline.calls import context_of_none
from callgate.runtime.pipeline.contexts import context_for, context_of_mistake
from callgate.runtime.pipeline.guards import closes
from callgate.runtime.pipeline.options import CallOptions
from callgate.runtime.pipeline.plans import Plans
from callgate.runtime.pipeline.results import cancelled_call, run_to_result
from callgate.runtime.pipeline.streams import Progress
from callgate.runtime.pipeline.under_way import UnderWay
from callgate.tools.arguments.parse_errors import ParseError
from callgate.tools.calls import ErrorInfo, Outcome, ToolCall, ToolResult
from callgate.tools.definition import Effect
from callgate.tools.values import hash_of

OF_VERSION = f"{WAITS} with the version of Callgate that wrote it"
OF_TOOL, OF_DEFINITION = f"{WAITS} with its tool", f"{WAITS} with its definition of the tool"
LEAVE_PAUSE, LONGEST_PAUSE = 5.0, 120.0
"""Seconds until a job that was left may be taken again: at first, and at most. In this time workers take others."""
LOOK_AGAIN = 30.0
"""Seconds in which a worker that left a job takes only what fits it. Then it takes one job of any kind again."""
_EXPLAINED = 100
"""The maximum number of batches of jobs that a worker explains at once."""
_FORM = re.compile(rb'\{"v":%d,"tool":"[^"]*","version":"[^"]*","key_id":"([^"]*)",' % VERSION)


class ProgressReports:
    """The last progress that a running tool reported. Plain tools report it from their threads."""

    def __init__(self) -> None:
        self._last: Progress | None = None
        self.in_order = asyncio.Lock()  # parts are shaped one at a time, as in a stream

    def progress(self, ctx: InvokeContext, progress: float, total: float | None, message: str | None) -> None:
        """See ``ToolContext.progress``."""
        self._last = Progress(ctx.tool_id, progress, total, message)

    async def partial(self, ctx: InvokeContext, value: object) -> None:
        """Drop a partial output: the result of a job has the whole."""

    def take_latest(self) -> Progress | None:
        """Return the last progress since the previous call, or None."""
        last, self._last = self._last, None
        return last


class UnusableResult(Exception):
    """A call has ended without a result that can be stored; the cause says why. A repeat would end alike."""


@dataclass(slots=True)
class RunningJob:
    """A job that this process runs. ``work`` is its call; ``stopped`` says that its user has cancelled it."""

    tenant: str
    job: Job
    reports: ProgressReports = field(default_factory=ProgressReports)
    work: asyncio.Future[ToolResult | BaseException] | None = None
    stopped: bool = False
    is_over: bool = False  # its call ended as cancelled, without an effect
    worker: asyncio.Task[object] | None = field(default_factory=asyncio.current_task)

    def start(self, made: Awaitable[ToolResult]) -> None:
        """Start the call."""
        # asyncio: a lost lease cancels this call alone, and once; an anyio scope cancels at each checkpoint
        self.work = asyncio.ensure_future(_contained(made))

    def stop(self) -> None:
        """Cancel the call; the worker goes on."""
        if not self.stopped and self.work is not None:
            self.work.cancel()
        self.stopped = True

    async def ended(self, call: ToolCall) -> ToolResult:
        """Return the result of the call.

        Raises:
            CancelledError: this worker ends; another one takes the job.
            KeyboardInterrupt: a person pressed Ctrl-C.
            UnusableResult: the call raised an error, its cause.
        """
        assert self.work is not None
        if self.stopped:
            self.work.cancel()
        try:
            result = await self.work
        except asyncio.CancelledError:  # before its call began
            result = cancelled_call(call)
        self.is_over = isinstance(result, ToolResult) and result.outcome is Outcome.CANCELLED
        if self.worker is not None and self.worker.cancelling():
            raise asyncio.CancelledError
        if isinstance(result, ToolResult):
            return result
        if is_pressed(result):
            raise result
        raise UnusableResult(f"the call of {call.name} raised an error instead of its result") from result

    def worker_stops(self, error: BaseException) -> bool:
        """Return whether *error* ends the worker itself; see ``stops``."""
        return stops(error, self.worker)


def stops(error: BaseException, task: asyncio.Task[object] | None) -> bool:
    """Return whether *error* ends *task*, its current task: it cancels or closes the task, or is the Ctrl-C of a person.

    Any other error came from what the task ran.
    """
    if issubclass(type(error), asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    return is_pressed(error) or (issubclass(type(error), GeneratorExit) and closes(error, task))


def as_fault(error: BaseException) -> BaseException:
    """Return an error that the log shows with its traceback, also for a cancellation or a decision."""
    error = understood(error)
    if not issubclass(type(error), (asyncio.CancelledError, GeneratorExit, Control, InvocationError)):
        return error
    fault = RuntimeError(f"a job raised {type(error).__name__}")
    fault.__cause__ = error
    return fault


async def _contained(made: Awaitable[ToolResult]) -> ToolResult | BaseException:
    """Return the result of a call, or its error: a ``SystemExit`` of a task would end the event loop.

    A Ctrl-C is an error as well: the worker gives the job back, and then raises it.
    """
    try:
        return await made
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  (the worker ends the job)
        return error


class JobCalls:
    """The calls of a gate as its jobs make them. *refresh* returns a user with their current roles, or None."""

    def __init__(self, under_way: UnderWay, plans: Plans, refresh: Callable[[User], Awaitable[User | None]]) -> None:
        self._under_way, self._plans = under_way, plans
        self.refresh = refresh

    def version_of(self, tool: str) -> str:
        """Return the digest of a tool's definition that its jobs are bound to.

        Raises:
            UnknownTool: the gate has no such tool.
        """
        return self._plans.of(tool).definition.binding_digest

    def plan_of(self, tool: str) -> Plan:
        """Return the plan of a tool."""
        return self._plans.of(tool)

    def fits(self, request: JobRequest) -> bool:
        """Return whether this gate has the tool of a job, with the definition that the job was submitted for."""
        if not self.has(request.tool):
            return False
        definition = self._plans.registry.get(request.tool).definition
        # Earlier versions named the digest of the whole definition; before jobs named their key, it bound no worker.
        return request.key_id is None or request.version in {None, definition.binding_digest, definition.digest}

    def has(self, tool: str) -> bool:
        """Return whether this gate has a tool of that name."""
        return tool in self._plans.registry

    def fitting(self, key_ids: Iterable[str]) -> Fitting:
        """Return which jobs this gate fits, as ``fits`` does, with the ids of its signing keys."""
        known = ((one.id, one.definition) for one in self._plans.registry)
        return fitting(
            ((tool, version) for tool, its in known for version in (its.binding_digest, its.digest)), key_ids
        )

    def left(self, reason: str, job: Job) -> str:
        """Return the reason of a job whose last worker died during an attempt: the call may have taken effect."""
        return f"{reason}; {UNSETTLED}" if self._may_have_effect(job.tool) else reason

    def interrupted(self, here: RunningJob) -> str | None:
        """Return the reason of a job whose worker ends; None if the call did not begin, or ended without an effect."""
        is_settled = here.work is None or here.is_over or not self._may_have_effect(here.job.tool)
        return None if is_settled else INTERRUPTED

    def _may_have_effect(self, tool: str) -> bool:
        return not self.has(tool) or self._plans.registry.get(tool).definition.effect is not Effect.READ

    def is_repeat(self, known: JobRequest, request: JobRequest) -> bool:
        """Return whether two requests for one tool have the same arguments: as text, or as an object."""
        builtins = self._plans.of(request.tool).builtins

        def arguments(given: object) -> object:
            try:
                return builtins.parsed(given).value
            except ParseError:  # the call will fail alike for the same text
                return given

        return hash_of(arguments(known.arguments)) == hash_of(arguments(request.arguments))

    def tenant_of(self, user: User, tool: str) -> str:
        """Return the tenant that the rows of a tool's effects have."""
        return tenant_of(user, self._plans.of(tool).record)

    def may_replace(self, known: JobRequest, request: JobRequest) -> bool:
        """Return whether a request can take the key of a job without an effect under that key.

        A tool with declared key fields may have an effect under those. There only a repeat can, which the ledger recognises.
        """
        return not self._plans.of(request.tool).definition.key or self.is_repeat(known, request)

    async def make(self, call: ToolCall, user: User, options: CallOptions, job: str) -> ToolResult:
        """Run the call of a job as ``Gate.call`` does; see ``run``."""
        try:
            ctx = context_for(self._plans, call, user, False, options)
        except RegistrationError as refused:  # a plan that is refused at its first call
            ctx = context_of_mistake(self._plans, call, None, user, refused, options)
        ctx.run.job = job
        return await self.run(ctx, call)

    async def run(self, ctx: InvokeContext, call: ToolCall) -> ToolResult:
        """Run a call. A cancelled call has a result, too: ``unknown`` where it may have had an effect."""
        try:
            with self._under_way.block(closing=True):  # a closing gate stops its jobs by itself
                return await run_to_result(ctx)
        except asyncio.CancelledError:
            result = cancelled_call(call)
            if ctx.run.claim is not None and ctx.run.claim.outcome(ctx.run) is EffectState.UNKNOWN:
                error = ErrorInfo(OutcomeUnknown.code, OutcomeUnknown.default_public)
                result = replace(result, outcome=Outcome.UNKNOWN, error=error)
            return result

    async def refuse(self, error: InvocationError, call: ToolCall, user: User, options: CallOptions) -> ToolResult:
        """Return the result of a call that must not run any more; hooks observe and record it."""
        ctx = context_of_none(self._plans.of_refusal(call.name), call, user, error, options)
        with self._under_way.block(closing=True):
            return await run_to_result(ctx)


class Misfits:
    """The jobs that do not fit a worker. Once one was found, its takes are limited to what fits, until none is left."""

    def __init__(
        self, store: Callable[[], Store], keys: SigningKeys, now: Callable[[], float], calls: JobCalls
    ) -> None:
        self._store, self._keys, self._now, self._calls = store, keys, now, calls
        self._fitting: Fitting | None = None
        self._look_at, self._is_explaining = 0.0, False

    def limit(self) -> Fitting | None:
        """Return what the next take is limited to; None for any job. Of concurrent workers one takes any job again."""
        if self._fitting is not None and (now := self._now()) >= self._look_at:
            self._look_at = now + LOOK_AGAIN
            return None
        return self._fitting

    def none_left(self) -> None:
        """End the limit: a take of any job has found none."""
        self._fitting = None

    def request_of(self, tenant: str, job: Job) -> JobRequest | str | None:
        """Return the call of a job; the reason if it does not fit this worker; None if it was changed without the key."""
        if not is_intact(self._keys, tenant, job):
            return None if key_id_of(job) in self._keys.ids else NO_KEY
        try:
            request = JobRequest.load(job.body)
        except (ValueError, TypeError, KeyError):
            return OF_VERSION
        late = request.deadline_at is not None and request.deadline_at <= self._now()
        if late or self._calls.fits(request):
            return request
        return OF_DEFINITION if self._calls.has(job.tool) else OF_TOOL

    def pause(self, job: Job, reason: str) -> float:
        """Return the seconds until a job that is left may be taken again: about as long as it has waited."""
        emit(LogEvent.JOB_LEFT, job=job.id, tool=job.tool, reason=reason)
        if not (job.reason or "").startswith(WAITS):
            return LEAVE_PAUSE
        return min(max(LEAVE_PAUSE, self._now() - job.made_at), LONGEST_PAUSE)

    async def leave_out(self) -> None:
        """Take for a while only jobs that fit, and record why the others wait.

        A job that another worker has explained keeps that reason: two workers would otherwise replace it in turn.

        Raises:
            StoreError: the store failed.
        """
        now = self._now()
        self._look_at = now + LOOK_AGAIN
        self._fitting = fits = self._calls.fitting(self._keys.ids)
        if self._is_explaining:  # workers that explain the same jobs would wait for each other
            return
        self._is_explaining = True
        try:
            await self._explain(fits, now)
        finally:
            self._is_explaining = False

    async def _explain(self, fits: Fitting, now: float) -> None:
        jobs, before = self._store().jobs, list[str]()
        for _ in range(_EXPLAINED):
            found = await jobs.unfit(fits, now, WAITS)
            reasons = defaultdict[str, list[str]](list)
            for id, tool, first in found:
                reasons[self._why(tool, first)].append(id)
            if before == (before := [id for id, *_ in found]):  # another process has locked them, and explains them
                return
            for reason, ids in reasons.items():
                await jobs.explain(ids, reason)
            if len(found) < EXPLAIN_BATCH:
                return

    def _why(self, tool: str, first: bytes) -> str:
        """Return why a job waits, by the first bytes of its body."""
        form = _FORM.match(first)
        if form is None:
            return OF_VERSION
        if form[1].decode() not in self._keys.ids:
            return NO_KEY
        return OF_DEFINITION if self._calls.has(tool) else OF_TOOL


@dataclass(slots=True)
class Callers:
    """The callers that wait for a job. ``owned``: one of them has added it. ``kept`` counts those who submitted it for later."""

    waiting: int = 1
    owned: bool = False
    kept: int = 0

    @property
    def may_cancel(self) -> bool:
        """True if a caller that gives up may cancel the job: no other one waits for it, and none submitted it for later."""
        return self.owned and self.waiting <= 1 and self.kept <= 0


class JobCallers:
    """The callers of all jobs of a gate, by the ids of the jobs."""

    def __init__(self) -> None:
        self._of: dict[str, Callers] = {}

    @contextmanager
    def of(self, id: str | None) -> Generator[Callers]:
        """Count a caller while it waits for a job. Callers know a job of None only by its handle."""
        if id is None:
            yield Callers()
            return
        callers = self._of.setdefault(id, Callers(0))
        callers.waiting += 1
        try:
            yield callers
        finally:
            callers.waiting -= 1
            if not callers.waiting:
                del self._of[id]

    def submitted(self, *ids: str) -> None:
        """Record that jobs were submitted for later, or by callers that wait for them, which take this back."""
        for id in ids:
            if id in self._of:
                self._of[id].kept += 1
