"""Placement of calls: in this process, or in a worker as a job. The result has the same form for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from callgate.errors import Invalid
from callgate.providers.principal import User
from callgate.runtime.pipeline.options import IDS, BadCall, check_limits, checked_ids
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.definition import Effect
from callgate.tools.record import Place, ToolRecord

RunOn: TypeAlias = Place | Callable[[ToolCall], Place]
"""The place of all calls, or a rule that returns the place of each call."""


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
        if record is None or self._place(record, asked) == "caller" or _is_refused(options):
            here: ToolResult = await self.gate.call(call, user=user, **options)
            return here
        from callgate.runtime.jobs.in_worker import run_in_worker  # few tools run in workers

        return await run_in_worker(self.gate, call, asked, user, options, reads=record.definition.effect is Effect.READ)

    def _place(self, record: ToolRecord, call: ToolCall) -> Place:
        rule = self.run_on
        place = record.run_on if rule is None else rule(call) if callable(rule) else rule
        if place not in ("caller", "worker"):
            raise ValueError(f"run_on is {place!r}; write 'caller' or 'worker'")
        return place


def _is_refused(options: Mapping[str, Any]) -> bool:
    """Return whether a call with these options is refused before it begins: the gate says so in its result."""
    try:
        check_limits(options.get("deadline"), options.get("idle"))
        checked_ids(**{name: options.get(name) for name in IDS})
    except (BadCall, Invalid):
        return True
    return False
