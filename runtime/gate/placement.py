"""Placement of calls: in this process, or in a worker as a job. The result has the same form for both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from callgate.errors import CallgateError, Conflict, DeadlineExceeded, NotRecorded, OutcomeUnknown, StoreError
from callgate.providers.logs import LogEvent, emit
from callgate.providers.principal import User
from callgate.runtime.jobs.assembly import cancel_whole, submit_or_cancel
from callgate.runtime.jobs.jobs import JobHandle
from callgate.runtime.jobs.records import never_began
from callgate.runtime.pipeline.failure import error_info
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import Outcome, ToolCall, ToolResult
from callgate.tools.definition import Effect
from callgate.tools.limits import fault_of_seconds
from callgate.tools.record import Place, ToolRecord

RunOn: TypeAlias = Place | Callable[[ToolCall], Place]
"""The place of all calls, or a rule that returns the place of each call."""

SLACK = 2.0
"""Seconds after a deadline in which a worker may still store the result of a call."""


class Placement:
    """A gate that runs calls where *run_on* says, or else where the tool declares: here, or in a worker."""

    def __init__(self, gate: Any, run_on: RunOn | None) -> None:
        self.gate, self.run_on = gate, run_on
        self.runs_in_parallel = gate.runs_in_parallel

    async def call(self, call: ToolCall | HydrationResult, *, user: User, **options: Any) -> ToolResult:
        """See ``Gate.call``. A call in a worker has no ``trace``. A repaired call runs here: a job has no record of it."""
        asked, may_run = (call.call, call.trusted) if isinstance(call, HydrationResult) else (call, True)
        known = may_run and isinstance(asked.name, str) and asked.name in self.gate.registry
        record: ToolRecord | None = self.gate.registry.get(asked.name) if known else None
        late, idle = options.get("deadline"), options.get("idle")
        refused = fault_of_seconds(late, least=0.0) or fault_of_seconds(idle)  # the gate says so in the result
        if record is None or refused or self._place(record, asked) == "caller":
            here: ToolResult = await self.gate.call(call, user=user, **options)
            return here
        return await _in_a_worker(self.gate, call, asked, user, options, reads=record.definition.effect is Effect.READ)

    def _place(self, record: ToolRecord, call: ToolCall) -> Place:
        rule = self.run_on
        place = record.run_on if rule is None else rule(call) if callable(rule) else rule
        if place not in ("caller", "worker"):
            raise ValueError(f"run_on is {place!r}; write 'caller' or 'worker'")
        return place


async def _in_a_worker(
    gate: Any, given: ToolCall | HydrationResult, call: ToolCall, user: User, options: dict[str, Any], *, reads: bool
) -> ToolResult:
    """Submit a call as a job and await it. Without a response the outcome is ``unknown``, unless the tool only reads."""
    deadline = options.get("deadline")
    known = {name: options.get(name) for name in ("session_id", "request_id", "task", "deadline", "idle")}
    try:
        submission = gate.submit(given, user=user, key=options.get("idempotency_key"), **known)
        job: JobHandle = await submit_or_cancel(submission)
        try:
            async with asyncio.timeout(None if deadline is None else deadline + SLACK):
                return await job.settled()
        except TimeoutError:  # no worker took it, or the worker is late
            await job.cancel()
            never_ran = reads or never_began(await job.status())
            return _failed(call, DeadlineExceeded if never_ran else OutcomeUnknown)
        except asyncio.CancelledError:
            await cancel_whole(job)
            raise
    except Conflict:
        return _failed(call, Conflict)
    except Exception as error:  # of a store, of any type: the job may be stored, although the store reported an error
        if isinstance(error, CallgateError) and not isinstance(error, StoreError):
            raise
        emit(LogEvent.JOB_STORE_FAILED, error=error)
        return _failed(call, NotRecorded if reads else OutcomeUnknown)


def _failed(call: ToolCall, error: type[CallgateError]) -> ToolResult:
    outcome = {"outcome_unknown": Outcome.UNKNOWN, "conflict": Outcome.CONFLICT}.get(error.code, Outcome.ERROR)
    return ToolResult(call.id, call.name, outcome, error=error_info(error()))
