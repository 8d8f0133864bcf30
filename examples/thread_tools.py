"""Tools by thread: the tools that a planner sees, the calls that its plan may run, and the recorded observations.

Run it with ``python -m examples.thread_tools``.
"""

import asyncio
from typing import Any

from callgate import Gate, User, tool
from callgate.threads import InMemoryObservations, InMemoryState, ToolSystem, ToolSystemFault
from callgate.tools import CalculatorTool

STOCK = {"lamp": 3}


@tool(effect="read")
async def stock(item: str) -> int:
    """Count an item in stock."""
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
