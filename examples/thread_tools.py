"""Tools by thread: what a planner may be told, what its plan may run, and what is recorded of it.

Run it with ``python -m examples.thread_tools``.
"""

import asyncio
from typing import Any

from callgate import (
    CalculatorTool,
    Gate,
    InMemoryObservations,
    InMemoryState,
    ToolSystem,
    ToolSystemFault,
    User,
    tool,
)

STOCK = {"lamp": 3}


@tool(effect="read")
async def stock(item: str) -> int:
    """How many of an item there are."""
    return STOCK[item]


def complain(fault: ToolSystemFault) -> None:
    print("fault:", fault.to_log())


async def main() -> None:
    state = InMemoryState({"sums": ["CalculatorTool"], "shop": ["CalculatorTool", "stock"]})
    observations = InMemoryObservations()
    plan: list[dict[str, Any]] = [
        {"callId": "c1", "toolName": "CalculatorTool", "arguments": '{"expression": "sqrt(16) + 2^3"}'},
        {"callId": "c2", "toolName": "stock", "arguments": {"item": "lamp"}},
        {"callId": "c3", "toolName": "stock", "arguments": {"item": 7}},
    ]
    async with Gate([CalculatorTool(), stock]) as gate:
        system = ToolSystem(gate, state=state, observations=observations, on_fault=complain)
        for thread in ("shop", "sums", "unheard-of"):
            told = [schema.name for schema in await system.available_tools(thread)]
            print(f"{thread}: a planner is told of {told}")
            for result in await system.execute_tools(plan, thread, f"trace-of-{thread}", user=User("ann")):
                shown = result.to_status()
                print(f"  {shown['callId']} {shown['status']}: {shown.get('output', shown.get('error'))}")
    print(f"{len(observations.of())} calls, {len(observations.of('shop'))} of them for the shop")


if __name__ == "__main__":
    asyncio.run(main())
