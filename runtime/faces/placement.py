"""Where each of several calls runs: in this process, or in a worker. To whoever asked, a model too, both look alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from callgate.errors import DeadlineExceeded, InvocationError, NotRecorded, OutcomeUnknown, StoreError
from callgate.providers.principal import User
from callgate.runtime.call.failure import error_info
from callgate.runtime.call.leases import RELEASE_LIMIT, Carried
from callgate.runtime.jobs.jobs import JobHandle
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import Outcome, ToolCall, ToolResult
from callgate.tools.definition import Effect
from callgate.tools.record import Place

RunOn: TypeAlias = Place | Callable[[ToolCall], Place]
"""Where calls run: all of them, or what a rule says of each."""

SLACK = 2.0
"""Seconds beyond a deadline in which a worker may still write down how a call ended."""


class Placed:
    """A gate some of whose calls run in workers: those of tools that say so, or, if it is given, as *run_on* says."""

    def __init__(self, gate: Any, run_on: RunOn | None) -> None:
        self.gate = gate
        self.run_on = run_on

    def runs_in_parallel(self, call: ToolCall | HydrationResult) -> bool:
        """See ``Gate``."""
        return bool(self.gate.runs_in_parallel(call))

    async def call(self, call: ToolCall | HydrationResult, *, user: User, **options: Any) -> ToolResult:
        """See ``Gate.call``. What a worker runs has no ``trace``."""
        asked, may_run = (call.call, call.success) if isinstance(call, HydrationResult) else (call, True)
        record = self.gate._record_of(asked.tool) if may_run and isinstance(asked.tool, str) else None
        if record is None or self._place(record, asked) == "caller":
            here: ToolResult = await self.gate.call(call, user=user, **options)
            return here
        return await _in_a_worker(self.gate, asked, user, options, reads=record.definition.effect is Effect.READ)

    def _place(self, record: Any, call: ToolCall) -> Place:
        rule = self.run_on
        place = record.run_on if rule is None else rule(call) if callable(rule) else rule
        if place not in ("caller", "worker"):
            raise ValueError(f"run_on is 'caller' or 'worker', and not {place!r}")
        return place


async def _in_a_worker(gate: Any, call: ToolCall, user: User, options: dict[str, Any], *, reads: bool) -> ToolResult:
    """Submit a call and await it. What may have run although nobody could say so is ``unknown``, unless its tool *reads*."""
    deadline = options.get("deadline")
    try:
        job: JobHandle = await gate.submit(
            call,
            user=user,
            key=options.get("idempotency_key"),
            session_id=options.get("session_id"),
            request_id=options.get("request_id"),
            deadline=deadline,
        )
        try:
            async with asyncio.timeout(None if deadline is None else deadline + SLACK):
                return await job
        except TimeoutError:  # no worker came, or it is late
            await job.cancel()
            never_ran = (await job.status()).attempts == 0
            return _failed(call, DeadlineExceeded) if reads or never_ran else _failed(call, OutcomeUnknown)
        except asyncio.CancelledError:
            await _give_up(job)
            raise
    except StoreError:  # also one that has kept what it could not say that it keeps
        return _failed(call, NotRecorded if reads else OutcomeUnknown)


async def _give_up(job: JobHandle) -> None:
    """Cancel it, however often whoever waits for it is cancelled meanwhile; a store that fails leaves it to run."""
    with suppress(StoreError, TimeoutError):
        await Carried(job.cancel(), limit=RELEASE_LIMIT).run()


def _failed(call: ToolCall, error: type[InvocationError]) -> ToolResult:
    outcome = Outcome.UNKNOWN if error is OutcomeUnknown else Outcome.ERROR
    return ToolResult(call.id, call.tool, outcome, error=error_info(error()))
