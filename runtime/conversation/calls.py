"""The calls of one answer in a conversation: each gets exactly one result, even if it does not run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from callgate.errors import UnknownTool
from callgate.providers.content_json import BINARY
from callgate.runtime.conversation.events import Ending
from callgate.runtime.gate.invoker import Invoker
from callgate.runtime.gate.placement import Placement, RunOn
from callgate.runtime.models.wire.result_content import joined_texts, text_and_blocks
from callgate.runtime.models.wire.shapes import is_mapping
from callgate.runtime.pipeline import batch
from callgate.runtime.pipeline.options import CallOptions
from callgate.tools.arguments.hydration import HydrationProvenance, HydrationResult, Repairer, unknown
from callgate.tools.calls import ErrorInfo, Outcome, ToolCall, ToolResult, User

_WHY = {
    Ending.MAX_CALLS: "the conversation has reached its limit of calls",
    Ending.TOKENS: "the conversation has used up its tokens",
    Ending.DEADLINE: "the conversation's time is over",
    Ending.REFUSED: "the answer with the call was refused",
}


def not_run(call: ToolCall, limit: Ending) -> ToolResult:
    """Return the result of a call that a limit stops."""
    error = ErrorInfo(limit.value, f"The call was not run: {_WHY[limit]}.")
    return ToolResult(call.id, call.name, Outcome.CANCELLED, error=error)


def limit_of(result: ToolResult) -> Ending | None:
    """Return the limit for which ``not_run`` made a result; None for any other result."""
    if result.outcome is not Outcome.CANCELLED or result.error is None:
        return None
    return next((limit for limit in _WHY if limit.value == result.error.code), None)


def failures_after(failures: int, results: Sequence[ToolResult]) -> int:
    """Return the number of failed calls in a row after these results."""
    for result in results:
        failures = 0 if result.ok else failures + 1
    return failures


def shown(call: ToolCall, result: ToolResult, most: int) -> ToolResult:
    """Return the result for the model: an output longer than *most* bytes as text is cut, with a note.

    Its provenance has the call as the provider sent it, even if the call was not hydrated.
    """
    seen = result.provenance if is_mapping(result.provenance) else {}
    if seen.get("hydration") is None:
        made = HydrationProvenance(call.name, call.id, call.synthetic_id, None, call.chunk)
        result = replace(result, provenance={**seen, "hydration": made})
    if not result.ok:
        return result  # an error text is short
    whole, blocks = text_and_blocks(replace(result, ran_with=None))
    data = [block for block in blocks or () if block["type"] in BINARY]
    if blocks is not None:
        whole = joined_texts(block for block in blocks if block not in data)
    text = whole.encode(errors="replace")
    if len(text) <= most:
        return result
    cut = f"{text[:most].decode(errors='ignore')}\n[cut: the first {most} of {len(text)} bytes]"
    return replace(result, output=[cut, *data] if data else cut)


@dataclass(frozen=True, slots=True)
class Calls:
    """Runs calls through a gate as ``call_many`` does, and reports each result as it comes.

    ``offered`` are the tools in the request to the model; any other tool is unknown. ``until`` is the deadline by the
    loop's clock; an earlier deadline of the tool counts.
    """

    gate: Invoker
    user: User
    offered: frozenset[str]
    wire: str
    options: CallOptions
    until: float | None
    report: Callable[[ToolResult], Awaitable[None]]
    run_on: RunOn | None = None
    repair: Repairer | None = None

    async def run(self, calls: Sequence[ToolCall], at_once: int) -> list[ToolResult]:
        """Return one result for each call, in order, also for unknown tools and invalid arguments.

        Raises:
            GateClosed: the gate was closed meanwhile.
        """
        asked = [await self._hydrated(call) if call.name in self.offered else call for call in calls]
        return await batch.call_many(self, asked, self.user, at_once, self.options)

    async def call(self, call: ToolCall | HydrationResult, *, user: User, **options: object) -> ToolResult:
        """Run one call, for ``call_many``."""
        if self._is_over():
            result = not_run(call.call if isinstance(call, HydrationResult) else call, Ending.DEADLINE)
        elif isinstance(call, HydrationResult):
            placed = Placement(self.gate, self.run_on)
            result = await placed.call(call, user=user, **self._limited(call.call.name, options))
        else:
            result = await self._unknown(call, options)
        await self.report(result)
        return result

    async def _hydrated(self, call: ToolCall) -> HydrationResult:
        found = self.gate.hydrate(call, wire=self.wire)
        if self.repair is not None and not self._is_over():
            with suppress(TimeoutError):  # the deadline stops the repairer, and the call
                async with asyncio.timeout_at(self.until):
                    return await self.gate.repair(found, self.repair)
        return found

    def runs_in_parallel(self, call: ToolCall | HydrationResult) -> bool:
        """Return whether a call may run beside others, for ``call_many``."""
        return self.gate.runs_in_parallel(call)

    def _is_over(self) -> bool:
        return self.until is not None and self.until <= asyncio.get_running_loop().time()

    def _limited(self, tool: str, options: Mapping[str, object]) -> dict[str, object]:
        if self.until is None:
            return dict(options)
        left = max(0.0, self.until - asyncio.get_running_loop().time())
        own = self.gate.deadline_of(tool)
        return {**options, "deadline": left if own is None else min(left, own)}

    async def _unknown(self, call: ToolCall, options: Mapping[str, Any]) -> ToolResult:
        """Refuse and record a call of a tool that the request did not offer."""
        self.gate.keep_hydration(unknown(call, self.wire))
        error = UnknownTool(f"the request did not offer the tool {call.name!r}")
        ids: CallOptions = {"session_id": options.get("session_id"), "task": options.get("task")}
        return await self.gate.refuse(call, error, user=self.user, **ids)
