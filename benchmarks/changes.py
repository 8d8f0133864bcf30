"""What a change of tools or hooks costs an open gate with 2,000 tools: the time that the event loop stands still."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, process_time_ns
from typing import Any

from benchmarks.timing import Effort
from callgate import Gate, Hook, InvokeContext, ToolRecord
from callgate.hooks import Authorize, permit

TOOLS = 2_000
MANY = 500


class Passes(Hook):
    """A policy that lets every call pass."""

    async def will_authorize(self, ctx: InvokeContext) -> None:
        """Permit."""


def tool(number: int) -> ToolRecord:
    """A tool with a schema of its own."""

    async def work(_arguments: Any, _ctx: Any) -> int:
        return number

    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": number + 1},
            "count": {"type": "integer"},
            "nested": {"type": "object", "properties": {"parts": {"type": "array", "items": {"type": "number"}}}},
        },
        "required": ["text"],
        "additionalProperties": False,
    }
    return ToolRecord(id=f"tool_{number}", description="A tool.", input_schema=schema, execute=work, effect="read")


def milliseconds(change: Callable[[], Any]) -> tuple[float, Any]:
    """Return the time of a change, and its result."""
    began = perf_counter_ns()
    result = change()
    return (perf_counter_ns() - began) / 1e6, result


async def _many() -> dict[str, float]:
    """Measure the processor time of 500 changes, one after another, of a gate that is open and empty."""
    found: dict[str, float] = {}
    async with Gate([], [Authorize(permit("all"))]) as gate:
        tools = [tool(number) for number in range(MANY)]
        for name, change in (("add", gate.add), ("remove", gate.remove)):
            began = process_time_ns()
            for one in tools:
                change(one)
            found[f"change_{name}_{MANY}_cpu_ms"] = (process_time_ns() - began) / 1e6
    return found


async def measure(_effort: Effort) -> dict[str, float]:
    """Measure each change once; the first call and the first list of definitions after it count as well."""
    async with Gate([tool(number) for number in range(TOOLS)], [Passes()]) as gate:
        found: dict[str, float] = {}
        found["change_use_ms"], undo = milliseconds(lambda: gate.use(Passes()))
        found["change_definitions_ms"], _ = milliseconds(gate.definitions)
        began = perf_counter_ns()
        await gate.invoke("tool_7", {"text": "x"})
        found["change_first_call_ms"] = (perf_counter_ns() - began) / 1e6
        found["change_undo_ms"], _ = milliseconds(undo)
        found["change_add_ms"], _ = milliseconds(lambda: gate.add(tool(TOOLS)))
        found["change_remove_ms"], _ = milliseconds(lambda: gate.remove("tool_7"))
    return {**found, "change_longest_ms": max(found.values()), **await _many()}
