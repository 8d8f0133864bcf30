"""The calls of jobs: their progress is kept, and they have a result also when they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from callgate.errors import Control, InvocationError, OutcomeUnknown, RegistrationError
from callgate.hooks.context import InvokeContext
from callgate.hooks.guards import closes
from callgate.providers.foreign_errors import understood
from callgate.providers.principal import User
from callgate.providers.stores.effects import EffectState
from callgate.providers.stores.jobs import Job
from callgate.runtime.call.calls import context_of_none
from callgate.runtime.call.options import CallOptions
from callgate.runtime.call.results import cancelled_call, run_to_result
from callgate.runtime.call.streams import Progress
from callgate.runtime.effects.keys import tenant_of
from callgate.runtime.jobs.records import JobRequest
from callgate.runtime.plans import Plans
from callgate.tools.arguments.parse_errors import ParseError
from callgate.tools.arguments.parsing import parse_arguments
from callgate.tools.calls import ErrorInfo, Outcome, ToolCall, ToolResult
from callgate.tools.values import hash_of


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
        return request.version in {None, definition.binding_digest}

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
