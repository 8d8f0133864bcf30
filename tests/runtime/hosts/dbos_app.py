"""A process with DBOS workflows, for the tests: ``python -m tests.runtime.hosts.dbos_app ID=TOOL:WHO ...``.

It starts or continues the workflows, and prints their results as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from dbos import DBOS, SetWorkflowID

from callgate import ToolCall
from callgate.jobs import call_as_step
from tests.providers.stores.backends import POSTGRES
from tests.runtime.hosts.durable_app import ANN, Faulty, make_gate, schema_name, told


class Process:
    """What the workflows of this process use."""

    gate: Any


@DBOS.workflow()
async def workflow(case: str) -> dict[str, Any]:
    name, who = case.split(":")
    if name == "twice":
        name = "pay"
        await call_as_step(Process.gate, ToolCall(name="pay", arguments={"who": who}), user=ANN)
    return told(await call_as_step(Process.gate, ToolCall(name=name, arguments={"who": who}), user=ANN, poll=0.2))


async def main(cases: list[str]) -> None:
    async with make_gate() as gate:
        Process.gate = Faulty(gate)
        DBOS(
            config={
                "name": "callgate-tests",
                "system_database_url": POSTGRES,
                "dbos_system_schema": schema_name(),
                "log_level": "CRITICAL",
            }
        )
        DBOS.launch()
        handles = {}
        for case in cases:
            id, _, rest = case.partition("=")
            with SetWorkflowID(id):
                handles[id] = await DBOS.start_workflow_async(workflow, rest)
        print(json.dumps({id: await result_of(handle) for id, handle in handles.items()}), flush=True)
        DBOS.destroy(workflow_completion_timeout_sec=0)


async def result_of(handle: Any) -> Any:
    try:
        return await handle.get_result()
    except Exception:  # noqa: BLE001  (a cancelled workflow raises an error that DBOS does not export)
        return (await handle.get_status()).status


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
