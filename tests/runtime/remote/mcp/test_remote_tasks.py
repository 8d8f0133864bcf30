"""Tasks of a remote server: polled until they end, with their messages as progress; cancelled with the call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types
from mcp.shared.exceptions import MCPError

import callgate.mcp
from callgate import Gate, Outcome, Respond, ToolContext, User, tool
from callgate.jobs import EmbeddedJobs
from callgate.mcp import McpServer
from callgate.runtime.remote.mcp import tasks
from callgate.runtime.remote.mcp.transports import TASKS_EXTENSION
from tests.runtime.hosts.serving import served, until
from tests.runtime.remote.mcp.test_mounted import ANN, at, gate_with
from tests.runtime.remote.mcp.toy import NAME, Toy, text

pytestmark = pytest.mark.timeout(120)
DONE = {"status": "completed", "result": text("done").model_dump(by_alias=True, mode="json", exclude_none=True)}
WORKING: dict[str, Any] = {"status": "working", "pollIntervalMs": 1}


def asks(key: str) -> dict[str, Any]:
    form = types.ElicitRequest(params=types.ElicitRequestFormParams(message=f"Name {key}?", requested_schema=NAME))
    shown = form.model_dump(by_alias=True, mode="json", exclude_none=True)
    return {"status": "input_required", "pollIntervalMs": 1, "inputRequests": {key: shown}}


class TaskToy(Toy):
    """Each poll gets the next of *states*, and the last again and again; one that is an exception is raised."""

    def __init__(self, *states: dict[str, Any] | MCPError) -> None:
        super().__init__()
        self.states = list(states)
        self.requests: list[tuple[str, Any]] = []
        self.names: list[str | None] = []
        self.offered: list[Any] = []
        self.server.extensions[TASKS_EXTENSION] = {}
        # a task is no result that the SDK's own handler of calls lets pass
        self.server.add_request_handler("tools/call", types.CallToolRequestParams, self._make)
        for method, params in (
            ("tasks/get", tasks.RemoteTaskParams),
            ("tasks/update", tasks.AnswerParams),
            ("tasks/cancel", tasks.RemoteTaskParams),
        ):
            self.server.add_request_handler(method, params, self._noting(method))

    async def _make(self, ctx: Any, _params: types.CallToolRequestParams) -> dict[str, Any]:
        self.offered.append(ctx.session.client_capabilities.extensions)
        if not self.offered[-1]:
            return DONE["result"]  # type: ignore[return-value]
        return {"resultType": "task", "taskId": "t1", **WORKING, "createdAt": "", "lastUpdatedAt": "", "ttlMs": None}

    def _noting(self, method: str) -> Any:
        async def handle(ctx: Any, params: Any) -> dict[str, Any]:
            assert params.task_id == "t1"
            self.names.append(ctx.request.headers.get("mcp-name"))
            if method != "tasks/get":
                given = getattr(params, "input_responses", {})
                self.requests.append((method, {key: one.content for key, one in given.items()}))
                return {"resultType": "complete"}
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            if isinstance(state, MCPError):
                raise state
            return {"resultType": "complete", "taskId": "t1", **state}

        return handle


@contextlib.asynccontextmanager
async def mounted(toy: Toy, gate: Gate | None = None, **options: Any) -> AsyncGenerator[Gate]:
    async with (
        served(toy.server.streamable_http_app(), timeout_graceful_shutdown=1) as running,
        gate or gate_with() as it,
    ):
        await it.mount(at(running, **options))
        yield it


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "LEAST_POLL", 0.0)


async def test_a_task_is_polled_until_it_has_a_result() -> None:
    """Its messages are progress, each once, and cleaned like all texts of a server."""
    said = [{**WORKING, "statusMessage": one} for one in ("one", "one", "t\u202ewo")]
    toy = TaskToy(*said, DONE)
    async with mounted(toy) as gate:
        events = [one async for one in gate.stream("toy_say", {}, user=ANN)]
        assert [(one.progress, one.message) for one in events[:-1]] == [(1, "one"), (2, "t wo")]  # type: ignore[union-attr]
        assert events[-1].result.output == "done"  # type: ignore[union-attr]
    assert toy.offered == [{TASKS_EXTENSION: {}}]
    assert set(toy.names) == {"t1"}
    assert toy.requests == []


async def test_a_server_of_an_older_version_hears_of_no_tasks() -> None:
    """The extension belongs to version 2026-07-28."""
    toy = TaskToy(DONE)
    async with mounted(toy, legacy=True) as gate:
        assert (await gate.call("toy_say", {}, user=ANN)).output == "done"
    assert toy.offered == [None]


GONE = MCPError(types.INVALID_PARAMS, "Unknown task")
ENDS: dict[str, tuple[dict[str, Any] | MCPError, str]] = {
    "failed": ({"status": "failed", "error": {"code": -32603, "message": "secret"}}, "tool_failed"),
    "cancelled there": ({"status": "cancelled"}, "remote_cancelled"),
    "gone": (GONE, "tool_failed"),
    "without a result": ({"status": "completed"}, "tool_failed"),
    "of another state": ({"status": "resting"}, "tool_failed"),
    "a failure of the tool": ({**DONE, "result": {**DONE["result"], "isError": True}}, "remote_error"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("how", ENDS)
async def test_a_task_that_ends_otherwise_fails_the_call(how: str) -> None:
    """The tool may have run: an effect is not repeated, and the model reads no internals."""
    state, code = ENDS[how]
    async with mounted(TaskToy(WORKING, state)) as gate:
        result = await gate.call("toy_say", {}, user=ANN, idempotency_key="k")
        assert result.error is not None
        assert result.error.code == code
        assert "secret" not in str(result)
        again = await gate.call("toy_say", {}, user=ANN, idempotency_key="k")
        assert again.replayed or again.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("how", ["the caller", "the deadline", "the timeout"])
async def test_a_call_that_ends_cancels_its_task(how: str) -> None:
    """At the server, too; the control is the task that ended by itself."""
    toy = TaskToy(WORKING)
    async with mounted(toy, timeout=0.2 if how == "the timeout" else 60.0) as gate:
        limits: dict[str, Any] = {"deadline": 0.2} if how == "the deadline" else {}
        calling = asyncio.ensure_future(gate.call("toy_say", {}, user=ANN, **limits))
        if how == "the caller":
            await until(lambda: len(toy.names) > 1)
            calling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await calling
        else:
            result = await calling
            assert not result.ok
        await until(lambda: toy.requests != [])
        assert toy.requests == [("tasks/cancel", {})]


async def test_questions_of_a_task_suspend_the_call(tmp_path: Any) -> None:
    """Another process answers and takes the task up. A question that the server still shows is not asked again."""
    toy, store = (
        TaskToy(WORKING, asks("a"), asks("a"), asks("b"), asks("b"), WORKING, DONE),
        f"sqlite:///{tmp_path}/g.db",
    )
    async with mounted(toy, gate_with(store=store)) as gate, mounted(toy, gate_with(store=store)) as other:
        result = await gate.call("toy_say", {}, user=ANN)
        for key in "ab":
            assert result.outcome is Outcome.SUSPENDED
            assert result.pending.prompt == f"The server toy asks: Name {key}?"
            result = await other.resume(result.pending.handle, Respond({"name": key}), approver=ANN)
        assert result.output == "done"
    assert toy.requests == [("tasks/update", {key: {"name": key}}) for key in "ab"]
    assert len(toy.offered) == 1


async def test_a_job_of_a_gate_is_a_task_of_the_gate_before_it() -> None:
    """It asks, gets its answer, and ends in a worker."""

    @tool(effect="read", run_on="worker", resumable=True)
    async def greet(*, ctx: ToolContext) -> str:
        """Ask for a name."""
        answer: Any = ctx.suspend("input", "Who?", schema=NAME)
        return f"hello {answer['name']}"

    behind = gate_with(tools=[greet], jobs=EmbeddedJobs(1))
    app = callgate.mcp.server(behind, authenticate=lambda _: User("desk")).asgi()
    async with behind, served(app) as running, gate_with() as gate:
        await gate.mount(McpServer(name="up", url=f"http://127.0.0.1:{running.port}/mcp"))
        result = await gate.call("up_greet", {}, user=ANN)
        result = await gate.resume(result.pending.handle, Respond({"name": "Ann"}), approver=ANN)
        assert result.output == "hello Ann"


@pytest.mark.parametrize("support", [None, "forbidden", "optional", "required"])
@pytest.mark.parametrize("legacy", [False, True])
async def test_a_tool_that_needs_a_task_of_version_2025_11_25_is_left_out(support: Any, legacy: bool) -> None:
    """Such a server refuses a call without a task. Others, and those of later versions, are called as usual."""
    toy = Toy()
    execution = types.ToolExecution(task_support=support)
    toy.tools["say"] = toy.tools["say"].model_copy(update={"execution": execution})
    async with served(toy.server.streamable_http_app(), timeout_graceful_shutdown=1) as running, gate_with() as gate:
        found = await gate.mount(at(running, legacy=legacy))
        assert "toy_double" in found.tools
        if legacy and support == "required":
            assert "toy_say" not in found.tools
            assert "as a task of version 2025-11-25 only" in found.refused["say"]
        else:
            assert (await gate.call("toy_say", {}, user=ANN)).ok
