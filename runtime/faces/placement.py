"""Placement of calls: in this process, or in a worker as a job. The result has the same form for both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from callgate.errors import Conflict, DeadlineExceeded, InvocationError, NotRecorded, OutcomeUnknown, StoreError
from callgate.providers.principal import User
from callgate.runtime.call.failure import error_info
from callgate.runtime.call.leases import RELEASE_LIMIT, Carried
from callgate.runtime.jobs.jobs import JobHandle
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import Outcome, ToolCall, ToolResult
from callgate.tools.definition import Effect
from callgate.tools.limits import fault_of_seconds
from callgate.tools.record import Place
from callgate.tools.registry import ToolRegistry

RunOn: TypeAlias = Place | Callable[[ToolCall], Place]
"""The place of all calls, or a rule that returns the place of each call."""

SLACK = 2.0
"""Seconds after a deadline in which a worker may still store the result of a call."""


class Placement:
    """A gate that runs calls where *run_on* says, or else where the tool declares: here, or in a worker."""

    def __init__(self, gate: Any, run_on: RunOn | None) -> None:
        self.gate = gate
        self.run_on = run_on

    def runs_in_parallel(self, call: ToolCall | HydrationResult) -> bool:
        """See ``Gate``."""
        return bool(self.gate.runs_in_parallel(call))

    async def call(self, call: ToolCall | HydrationResult, *, user: User, **options: Any) -> ToolResult:
        """See ``Gate.call``. A call in a worker has no ``trace``. A repaired call runs here: a job has no record of it."""
        asked, may_run = (call.call, call.trusted) if isinstance(call, HydrationResult) else (call, True)
        registry: ToolRegistry = self.gate.registry
        known = may_run and isinstance(asked.name, str) and asked.name in registry
        record = registry.get(asked.name) if known else None
        refused = fault_of_seconds(options.get("deadline"), least=0.0) is not None  # the gate says so in the result
        if record is None or refused or self._place(record, asked) == "caller":
            here: ToolResult = await self.gate.call(call, user=user, **options)
            return here
        return await _in_a_worker(self.gate, asked, user, options, reads=record.definition.effect is Effect.READ)

    def _place(self, record: Any, call: ToolCall) -> Place:
        rule = self.run_on
        place = record.run_on if rule is None else rule(call) if callable(rule) else rule
        if place not in ("caller", "worker"):
            raise ValueError(f"run_on is {place!r}; write 'caller' or 'worker'")
        return place


async def _in_a_worker(gate: Any, call: ToolCall, user: User, options: dict[str, Any], *, reads: bool) -> ToolResult:
    """Submit a call as a job and await it. Without a response the outcome is ``unknown``, unless the tool only reads."""
    deadline = options.get("deadline")
    try:
        job: JobHandle = await gate.submit(
            call,
            user=user,
            key=options.get("idempotency_key"),
            session_id=options.get("session_id"),
            request_id=options.get("request_id"),
            task=options.get("task"),
            deadline=deadline,
        )
        try:
            async with asyncio.timeout(None if deadline is None else deadline + SLACK):
                return await job.settled()
        except TimeoutError:  # no worker took it, or the worker is late
            await job.cancel()
            never_ran = (await job.status()).attempts == 0
            return _failed(call, DeadlineExceeded) if reads or never_ran else _failed(call, OutcomeUnknown)
        except asyncio.CancelledError:
            await _abandon(job)
            raise
    except Conflict:
        return _failed(call, Conflict)
    except StoreError:  # the job may be stored, although the store reported an error
        return _failed(call, NotRecorded if reads else OutcomeUnknown)


async def _abandon(job: JobHandle) -> None:
    """Cancel a job under a shield. If the store fails, the job runs."""
    with suppress(StoreError, TimeoutError):
        await Carried(job.cancel(), limit=RELEASE_LIMIT).run()


def _failed(call: ToolCall, error: type[InvocationError]) -> ToolResult:
    outcomes: dict[type[InvocationError], Outcome] = {
        OutcomeUnknown: Outcome.UNKNOWN,
        Conflict: Outcome.CONFLICT,
    }
    return ToolResult(call.id, call.name, outcomes.get(error, Outcome.ERROR), error=error_info(error()))
