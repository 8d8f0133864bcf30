"""The calls of jobs: their progress is kept, and they have a result also when they are cancelled.

A worker leaves jobs that do not fit it, such as those of a tool that another version has, to other workers. It learns from
the first such job how the others begin, and asks the store for jobs without them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from callgate.errors import Control, InvocationError, OutcomeUnknown, RegistrationError
from callgate.hooks.context import InvokeContext
from callgate.hooks.guards import closes
from callgate.providers.foreign_errors import understood
from callgate.providers.logs import LogEvent, emit
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import EffectState
from callgate.providers.stores.jobs import EXPLAIN_BATCH, Group, Job
from callgate.runtime.call.calls import context_of_none
from callgate.runtime.call.options import CallOptions
from callgate.runtime.call.results import cancelled_call, run_to_result
from callgate.runtime.call.streams import Progress
from callgate.runtime.effects.keys import tenant_of
from callgate.runtime.jobs.records import JobRequest, is_intact, key_id_of
from callgate.runtime.plans import Plans
from callgate.tools.arguments.parse_errors import ParseError
from callgate.tools.arguments.parsing import parse_arguments
from callgate.tools.calls import ErrorInfo, Outcome, ToolCall, ToolResult
from callgate.tools.values import hash_of

WAITS = "waits for a worker"
"""What the ``reason`` of a job begins with that a worker has left."""
LEAVE_PAUSE, LONGEST_PAUSE = 5.0, 120.0
"""Seconds until a job that was left may be taken again: at first, and at most. In this time workers take others."""
LOOK_AGAIN = 30.0
"""Seconds until a worker takes one job again of a group that it left."""
MAX_GROUPS = 64
"""The maximum number of groups that a worker leaves out at once."""
_EXPLAINED = 100
"""The maximum number of statements that explain the jobs of one group."""

_HEAD = re.compile(rb'\{"v":\d+,"tool":"(?:[^"\\]|\\.)*","version":"[^"\\]+","key_id":"[^"\\]+","deadline_at":null,')


class ProgressReports:
    """The last progress that a running tool reported. Plain tools report it from their threads."""

    def __init__(self) -> None:
        self._last: Progress | None = None
        self.in_order = asyncio.Lock()  # parts are shaped one at a time, as in a stream

    def progress(self, ctx: InvokeContext, progress: float, total: float | None, message: str | None) -> None:
        """See ``ToolContext.progress``."""
        self._last = Progress(ctx.tool_id, progress, total, message)

    async def partial(self, ctx: InvokeContext, value: Any) -> None:
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
    worker: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)

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
            UnusableResult: the call raised an error, its cause.
        """
        assert self.work is not None
        if self.stopped:
            self.work.cancel()
        try:
            result = await self.work
        except asyncio.CancelledError:  # before its call began
            result = cancelled_call(call)
        if self.worker is not None and self.worker.cancelling():
            raise asyncio.CancelledError
        if isinstance(result, ToolResult):
            return result
        raise UnusableResult(f"the call of {call.name} raised an error instead of its result") from result

    def worker_stops(self, error: BaseException) -> bool:
        """Return whether *error* cancels or closes the worker itself; any other error came from what it ran."""
        return stops(error, self.worker)


def stops(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return whether *error* cancels or closes *task*, its current task; any other error came from what the task ran."""
    if issubclass(type(error), asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    return issubclass(type(error), GeneratorExit) and closes(error, task)


def as_fault(error: BaseException) -> BaseException:
    """Return an error that the log shows with its traceback, also for a cancellation or a decision."""
    error = understood(error)
    if not issubclass(type(error), (asyncio.CancelledError, GeneratorExit, Control, InvocationError)):
        return error
    fault = RuntimeError(f"a job raised {type(error).__name__}")
    fault.__cause__ = error
    return fault


async def _contained(made: Awaitable[ToolResult]) -> ToolResult | BaseException:
    """Return the result of a call, or its error: a ``SystemExit`` of a task would end the event loop."""
    try:
        return await made
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  (the worker ends the job)
        return error


class JobCalls:
    """The calls of a gate as its jobs make them. *refresh* returns a user with their current roles, or None."""

    def __init__(self, gate: Any, plans: Plans, refresh: Callable[[User], Awaitable[User | None]]) -> None:
        self._gate, self._plans = gate, plans
        self.refresh = refresh

    def version_of(self, tool: str) -> str:
        """Return the digest of a tool's definition that its jobs are bound to.

        Raises:
            UnknownTool: the gate has no such tool.
        """
        return self._plans.of(tool).definition.binding_digest

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

    def is_repeat(self, known: JobRequest, request: JobRequest) -> bool:
        """Return whether two requests for one tool have the same arguments: as text, or as an object."""
        builtins = self._plans.of(request.tool).builtins

        def arguments(given: Any) -> Any:
            try:
                return parse_arguments(
                    given,
                    limits=builtins.limits,
                    tolerant=builtins.tolerates,
                    takes_nothing=builtins.takes_nothing,
                ).value
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
            ctx = self._gate._context(call, user, False, options)
        except RegistrationError as refused:  # a plan that is refused at its first call
            ctx = self._gate._refused(call, None, user, refused, options)
        ctx.run.job = job
        return await self.run(ctx, call)

    async def run(self, ctx: InvokeContext, call: ToolCall) -> ToolResult:
        """Run a call. A cancelled call has a result, too: ``unknown`` where it may have had an effect."""
        try:
            with self._gate._engine.under_way.block(closing=True):  # a closing gate stops its jobs by itself
                return await run_to_result(ctx)
        except asyncio.CancelledError:
            result = cancelled_call(call)
            if ctx.run.claim is not None and ctx.run.claim.state(ctx) is EffectState.UNKNOWN:
                error = ErrorInfo(OutcomeUnknown.code, OutcomeUnknown.default_public)
                result = replace(result, outcome=Outcome.UNKNOWN, error=error)
            return result

    async def refuse(self, error: InvocationError, call: ToolCall, user: User, options: CallOptions) -> ToolResult:
        """Return the result of a call that must not run any more; hooks observe and record it."""
        ctx = context_of_none(self._plans.of_refusal(call.name), call, user, error, options)
        with self._gate._engine.under_way.block(closing=True):
            return await run_to_result(ctx)


class Misfits:
    """The groups of jobs that do not fit a worker. Its takes leave out each of the ``groups`` until a time."""

    def __init__(
        self, store: Callable[[], Store], keys: SigningKeys, now: Callable[[], float], calls: JobCalls
    ) -> None:
        self._store, self._keys, self._now, self._calls = store, keys, now, calls
        self._until: dict[Group, float] = {}

    def groups(self) -> list[Group]:
        """Return the groups that this worker leaves out now."""
        if self._until:
            now = self._now()
            self._until = {group: until for group, until in self._until.items() if until > now}
        return list(self._until)

    def request_of(self, tenant: str, job: Job) -> JobRequest | str | None:
        """Return the call of a job; the reason if it does not fit this worker; None if it was changed without the key."""
        if not is_intact(self._keys, tenant, job):
            return None if key_id_of(job) in self._keys.ids else f"{WAITS} with its signing key"
        try:
            request = JobRequest.load(job.body)
        except (ValueError, TypeError, KeyError):
            return f"{WAITS} with the version of Callgate that wrote it"
        late = request.deadline_at is not None and request.deadline_at <= self._now()
        if late or self._calls.fits(request):
            return request
        return f"{WAITS} with its definition of the tool" if self._calls.has(job.tool) else f"{WAITS} with its tool"

    def pause(self, job: Job, reason: str) -> float:
        """Return the seconds until a job that is left may be taken again: about as long as it has waited."""
        emit(LogEvent.JOB_LEFT, job=job.id, tool=job.tool, reason=reason)
        if not (job.reason or "").startswith(WAITS):
            return LEAVE_PAUSE
        return min(max(LEAVE_PAUSE, self._now() - job.made_at), LONGEST_PAUSE)

    async def leave_out(self, job: Job, reason: str) -> None:
        """Take no more jobs like this one for a while, and record why they wait.

        Jobs with a deadline are not left out: any worker ends those that are late.

        Raises:
            StoreError: the store failed.
        """
        head = _HEAD.match(job.body)
        if head is None or len(self._until) >= MAX_GROUPS:
            return
        group, now, jobs = Group(job.tool, head[0]), self._now(), self._store().jobs
        self._until[group] = now + LOOK_AGAIN
        for _ in range(_EXPLAINED):
            if await jobs.explain(group, now, reason) < EXPLAIN_BATCH:
                return
