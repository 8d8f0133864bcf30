"""Calls that run in a worker while their callers wait: a call becomes a job, whose result is the call's."""

from __future__ import annotations

import asyncio
from typing import Any

from callgate.errors import CallgateError, Conflict, DeadlineExceeded, NotRecorded, OutcomeUnknown, StoreError
from callgate.providers.logs import LogEvent, emit
from callgate.providers.principal import User
from callgate.runtime.jobs.assembly import cancel_whole, submit_or_cancel
from callgate.runtime.jobs.calls import Callers
from callgate.runtime.jobs.jobs import JobHandle
from callgate.runtime.jobs.records import job_id_of, never_began
from callgate.runtime.pipeline.failure import error_info
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import Outcome, ToolCall, ToolResult

_OF_JOBS = ("session_id", "request_id", "task", "deadline", "idle")
SLACK = 2.0
"""Seconds after a deadline in which a worker may still store the result of a call."""


async def run_in_worker(
    gate: Any, given: ToolCall | HydrationResult, call: ToolCall, user: User, options: dict[str, Any], *, reads: bool
) -> ToolResult:
    """Submit a call as a job and await it. Without a response the outcome is ``unknown``, unless the tool only reads."""
    key, known = options.get("idempotency_key"), {name: options.get(name) for name in _OF_JOBS}
    id = None if key is None else job_id_of(user, call.name, key, gate.jobs.keys.namespace)
    try:
        with gate.jobs.callers.of(id) as callers:
            job: JobHandle = await submit_or_cancel(gate.submit(given, user=user, key=key, **known), callers)
            return await _result(job, callers, call, known["deadline"], reads=reads)
    except Conflict:
        return _failed(call, Conflict)
    except Exception as error:  # of a store, of any type: the job may be stored, although the store reported an error
        if isinstance(error, CallgateError) and not isinstance(error, StoreError):
            raise
        emit(LogEvent.JOB_STORE_FAILED, error=error)
        return _failed(call, NotRecorded if reads else OutcomeUnknown)


async def _result(
    job: JobHandle, callers: Callers, call: ToolCall, deadline: float | None, *, reads: bool
) -> ToolResult:
    """Await a job for one of its callers. The last caller that gives up cancels it."""
    try:
        async with asyncio.timeout(None if deadline is None else deadline + SLACK):
            return await job.settled()
    except TimeoutError:  # no worker took it, or the worker is late
        never_ran = reads
        if callers.may_cancel:
            await job.cancel()
            never_ran = reads or never_began(await job.status())
        return _failed(call, DeadlineExceeded if never_ran else OutcomeUnknown)
    except asyncio.CancelledError:
        await cancel_whole(job, callers)
        raise


def _failed(call: ToolCall, error: type[CallgateError]) -> ToolResult:
    outcome = {"outcome_unknown": Outcome.UNKNOWN, "conflict": Outcome.CONFLICT}.get(error.code, Outcome.ERROR)
    return ToolResult(call.id, call.name, outcome, error=error_info(error()))
