"""Nothing is bypassed through MCP: hooks leave the trace that they leave where the call is made in process (issue 35).

The cases are those of the stage matrix, ``tests/runtime/pipeline/lifecycle_cases.py``; ``matrix_app`` makes one gate of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from callgate import Gate, Outcome, Stage, ToolCall, ToolResult
from callgate.jobs import EmbeddedJobs
from tests.hooks.making import USER
from tests.runtime.hosts.mcp.world import ERAS, client_of, server_of
from tests.runtime.jobs.matrix_app import ALL, CELLS, LATE, UNTOUCHED, USUAL, Recorded

Traces = Mapping[str, Any]
ARGUMENTS = {"n": 2}
TRIED = tuple(name for name in USUAL if name != LATE)


class Watched(Recorded):
    """A gate that keeps the trace of each call, and the result that the caller gets, by tool."""

    def __init__(self, names: Collection[str], folder: Path, **options: Any) -> None:
        super().__init__(names, folder, jobs=EmbeddedJobs(0), lazy=True, **options)
        self.found: dict[str, list[Any]] = {}

    async def call(self, tool: Any, arguments: Any = None, **options: Any) -> ToolResult:
        """Run a call under the deadline of its cell: a client cannot state one."""
        given: dict[str, Any] = {**options, "request_id": tool, "deadline": CELLS[tool].deadline}
        return self.traced(tool, await Gate.call(self, ToolCall(id="c1", name=tool, arguments=arguments), **given))

    def traced(self, tool: str, result: ToolResult) -> ToolResult:
        """Keep the trace of a call that has ended."""
        trace = json.loads(json.dumps(self.trace_of(tool, result), default=repr))
        self.found.setdefault(tool, []).append(trace)
        return result


async def in_process(names: Collection[str], folder: Path) -> Traces:
    """The traces of the cells in process."""
    async with Watched(names, folder) as gate:
        for name in names:
            await gate.call(name, ARGUMENTS, user=USER)
        return gate.found


async def through_mcp(gate: Watched, names: Collection[str], era: str) -> dict[str, bool]:
    """Call the cells over MCP. Return for each whether the client got a result without an error."""
    async with gate, client_of(server_of(gate, "memory", user=USER), "memory", era) as client:
        return {name: not (await client.session.call_tool(name, ARGUMENTS)).is_error for name in names}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    return asyncio.run(in_process(TRIED, tmp_path_factory.mktemp("in-process")))


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_leaves_the_same_trace_through_mcp(era: str, expected: Traces, tmp_path: Path) -> None:
    gate = Watched(TRIED, tmp_path)
    answers = await through_mcp(gate, TRIED, era)
    assert {name for name in TRIED if gate.found.get(name) != expected[name]} == set()
    # An output that a hook has set, and that the schema of the tool does not allow, is an error for the client.
    assert answers == {name: isinstance(trace["output"], int) for name, (trace,) in expected.items()}
    assert {stage for name in UNTOUCHED for stage in expected[name][0]["trail"]} == set(Stage)


@pytest.mark.soak
@pytest.mark.parametrize("era", ERAS)
async def test_every_verb_in_every_stage_leaves_the_same_trace_through_mcp(era: str, tmp_path: Path) -> None:
    names = [name for name in ALL if name != LATE]
    gate = Watched(names, tmp_path)
    await through_mcp(gate, names, era)
    assert gate.found == await in_process(names, tmp_path)


# ---------------------------------------------------------------------- controls: servers that are sabotaged


@pytest.mark.parametrize("stage", Stage)
async def test_a_server_that_leaves_out_one_stage_is_noticed(stage: Stage, expected: Traces, tmp_path: Path) -> None:
    gate = Watched(UNTOUCHED, tmp_path, without=stage)
    await through_mcp(gate, UNTOUCHED, "modern")
    assert any(gate.found.get(name) != expected[name] for name in UNTOUCHED)


async def test_a_server_that_calls_the_function_of_the_tool_is_noticed(expected: Traces, tmp_path: Path) -> None:
    class Direct(Watched):
        async def call(self, tool: Any, arguments: Any = None, **options: Any) -> ToolResult:
            del options
            return ToolResult("", tool, Outcome.SUCCESS, 2 * arguments["n"])

    gate = Direct(UNTOUCHED, tmp_path)
    await through_mcp(gate, UNTOUCHED, "modern")
    assert gate.found == {}
    assert expected
