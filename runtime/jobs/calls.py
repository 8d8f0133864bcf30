"""The calls of jobs: their progress is kept, and they have a result also when they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from callgate.errors import InvocationError, OutcomeUnknown, RegistrationError
from callgate.hooks.context import InvokeContext
from callgate.providers.principal import User
from callgate.providers.stores.effects import EffectState
from callgate.runtime.call.calls import context_of_none
from callgate.runtime.call.options import CallOptions
from callgate.runtime.call.results import cancelled_call, run_to_result
from callgate.runtime.call.streams import Progress
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
        registry = self._plans.registry
        if request.tool not in registry:
            return False
        return request.version in {None, registry.get(request.tool).definition.binding_digest}

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
