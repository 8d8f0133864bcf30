"""A call as a job makes it: how far it is is kept, and its end is told also when it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import orjson

from callgate.errors import InvocationError, OutcomeUnknown
from callgate.providers.principal import User
from callgate.providers.stores.effects import EffectState
from callgate.runtime.call.calls import context_of_none
from callgate.runtime.call.results import cancelled_call, run_to_result
from callgate.runtime.call.streams import Progress
from callgate.runtime.engine import CallOptions
from callgate.runtime.plans import Plans
from callgate.tools.calls import ErrorInfo, Outcome, ToolCall, ToolResult


class Reports:
    """What a running tool last said of how far it is; ``news`` gives it once. Plain tools say so from their threads."""

    def __init__(self) -> None:
        self._last: Progress | None = None

    def progress(self, ctx: Any, progress: float, total: float | None, message: str | None) -> None:
        """See ``ToolContext.progress``."""
        self._last = Progress(ctx.tool_id, progress, total, message)

    async def partial(self, ctx: Any, value: Any) -> None:
        """Nobody reads parts of a job's output: its result has the whole."""

    def news(self) -> Progress | None:
        """What it said since it was last asked."""
        last, self._last = self._last, None
        return last


def progress_as_json(progress: Progress) -> bytes:
    """For the store."""
    return orjson.dumps([progress.progress, progress.total, progress.message])


def progress_from_json(tool: str, data: bytes | None) -> Progress | None:
    """What ``progress_as_json`` wrote."""
    return None if data is None else Progress(tool, *orjson.loads(data))


class JobCalls:
    """The calls of a gate as its jobs make them. *refresh* tells who somebody is now; None: nobody any more."""

    def __init__(self, gate: Any, plans: Plans, refresh: Callable[[User], Awaitable[User | None]]) -> None:
        self._gate, self._plans = gate, plans
        self.refresh = refresh

    def version_of(self, tool: str) -> str:
        """The digest of a tool's definition.

        Raises:
            UnknownTool: there is no such tool.
        """
        return self._plans.of(tool).definition.digest

    async def make(self, call: ToolCall, user: User, options: CallOptions) -> ToolResult:
        """``Gate.call``, with a result also when it is cancelled: then, where its effect may have taken place, ``unknown``."""
        ctx = self._gate._context(call, user, False, options)
        try:
            return await run_to_result(ctx)
        except asyncio.CancelledError:
            result = cancelled_call(call)
            if ctx.claim is not None and ctx.claim.state(ctx) is EffectState.UNKNOWN:
                told = ErrorInfo(OutcomeUnknown.code, OutcomeUnknown.default_public)
                result = replace(result, outcome=Outcome.UNKNOWN, error=told)
            return result

    async def refuse(self, error: InvocationError, call: ToolCall, user: User, options: CallOptions) -> ToolResult:
        """The result of a call that must not run any more: hooks that observe and record are told of it."""
        ctx = context_of_none(self._plans.of_refusal(call.tool), call, user, error, options)
        return await run_to_result(ctx)
