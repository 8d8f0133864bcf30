"""The calls of one answer in a conversation: each gets exactly one result, whether it may run or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from callgate.errors import UnknownTool
from callgate.runtime.call import batch
from callgate.runtime.call.calls import context_of_none
from callgate.runtime.call.results import run_to_result
from callgate.runtime.conversation.events import Ending
from callgate.runtime.engine import CallOptions
from callgate.runtime.faces.placement import Placed, RunOn
from callgate.runtime.gate import Gate
from callgate.runtime.models.wire.result_text import result_text
from callgate.runtime.models.wire.shapes import is_mapping
from callgate.tools.arguments.hydration import HydrationResult, Provenance
from callgate.tools.calls import ErrorInfo, Outcome, ToolCall, ToolResult, User

_WHY = {
    Ending.MAX_CALLS: "the conversation has reached its limit of calls",
    Ending.TOKENS: "the conversation has used up its tokens",
    Ending.DEADLINE: "the conversation's time is over",
}


def not_run(call: ToolCall, limit: Ending) -> ToolResult:
    """The answer to a call that a limit keeps from running."""
    error = ErrorInfo(limit.value, f"The call was not run: {_WHY[limit]}.")
    return ToolResult(call.id, call.tool, Outcome.CANCELLED, error=error)


def limit_of(result: ToolResult) -> Ending | None:
    """The limit for which ``not_run`` made a result; None for any other."""
    if result.outcome is not Outcome.CANCELLED or result.error is None:
        return None
    return next((limit for limit in _WHY if limit.value == result.error.code), None)


def failures_after(failures: int, results: Sequence[ToolResult]) -> int:
    """How many calls have failed in a row, now that these results have come."""
    for result in results:
        failures = 0 if result.ok else failures + 1
    return failures


def shown(call: ToolCall, result: ToolResult, most: int) -> ToolResult:
    """What a codec spells for the model: an output is, as text, at most *most* bytes long and a note of what is missing.

    Its provenance tells whether the provider gave the call's id, also where the call was not hydrated.
    """
    seen = result.provenance if is_mapping(result.provenance) else {}
    if seen.get("hydration") is None:
        made = Provenance(call.tool, call.id, call.synthetic_id, None)
        result = replace(result, provenance={**seen, "hydration": made})
    if not result.ok:
        return result  # bounded by itself
    text = result_text(result).encode(errors="replace")
    if len(text) <= most:
        return result
    first = text[:most].decode(errors="ignore")
    return replace(result, output=f"{first}\n[cut: the first {most} of {len(text)} bytes]")


@dataclass(frozen=True, slots=True)
class Calls:
    """Puts calls to a gate as ``call_many`` does, and tells of each result as it comes.

    ``offered`` are the tools that the model was told of: any other is to it a tool that does not exist. ``until`` is
    when time is over, by the loop's clock; a tool's own deadline counts if it is earlier.
    """

    gate: Gate
    user: User
    offered: frozenset[str]
    wire: str
    options: CallOptions
    until: float | None
    told: Callable[[ToolResult], Awaitable[None]]
    run_on: RunOn | None = None

    async def run(self, calls: Sequence[ToolCall], at_once: int) -> list[ToolResult]:
        """One result a call, in order; those of unknown tools and damaged arguments, too.

        Raises:
            GateClosed: the gate was closed meanwhile.
        """
        asked = [self.gate.hydrate(call, wire=self.wire) if call.tool in self.offered else call for call in calls]
        return await batch.call_many(self, asked, self.user, at_once, self.options)

    async def call(self, call: ToolCall | HydrationResult, *, user: User, **options: Any) -> ToolResult:
        """For ``call_many``: one call."""
        if self.until is not None and self.until <= asyncio.get_running_loop().time():
            result = not_run(call.call if isinstance(call, HydrationResult) else call, Ending.DEADLINE)
        elif isinstance(call, HydrationResult):
            placed = Placed(self.gate, self.run_on)
            result = await placed.call(call, user=user, **self._limited(call.call.tool, options))
        else:
            result = await self._unknown(call, options)
        await self.told(result)
        return result

    def runs_in_parallel(self, call: ToolCall | HydrationResult) -> bool:
        """For ``call_many``: whether the call may run beside others."""
        return self.gate.runs_in_parallel(call)

    def _limited(self, tool: str, options: Mapping[str, Any]) -> dict[str, Any]:
        if self.until is None:
            return dict(options)
        left = self.until - asyncio.get_running_loop().time()
        own = self.gate._open_plan(tool).limit
        return {**options, "deadline": left if own is None else min(left, own)}

    async def _unknown(self, call: ToolCall, options: Mapping[str, Any]) -> ToolResult:
        """A tool that the model was not told of: refused and recorded as one that does not exist."""
        error = UnknownTool(f"the model was not told of {call.tool!r}")
        kept: CallOptions = {"session_id": options.get("session_id")}
        ctx = context_of_none(self.gate._plans.of_none(), call, self.user, error, kept)
        return await run_to_result(ctx)
