"""Tasks: a tool of workers is a job, and any process with the same store answers for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

pytest.importorskip("mcp", reason="tasks need the extra mcp")

import mcp_types as types
from mcp import Client, MCPError
from mcp.client.extension import advertise
from mcp.client.streamable_http import streamable_http_client
from pydantic import ConfigDict

from callgate import Approval, Approve, Gate, Jobs, ToolContext, ToolError, tool
from callgate.hooks import Authorize, permit
from callgate.jobs import EmbeddedJobs
from callgate.runtime.hosts.mcp.capabilities import TASKS
from tests.harness.gate_options import gate_options
from tests.runtime.hosts.mcp.world import PEOPLE, server_of
from tests.runtime.hosts.serving import served

LIMIT = 20
"""Seconds for one step of a task."""
SCHEMA = {"type": "object", "properties": {"day": {"type": "string", "minLength": 3}}, "required": ["day"]}


class Works:
    """Tools that run in workers; ``ran`` lists what took place."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.free = asyncio.Event()

    def tools(self) -> list[Any]:
        @tool(effect="read", run_on="worker")
        async def double(n: int) -> int:
            """Double a number."""
            self.ran.append("double")
            return 2 * n

        @tool(effect="irreversible", run_on="worker", key=("order",))
        async def ship(order: str) -> str:
            """Ship an order."""
            self.ran.append(order)
            return f"shipped {order}"

        @tool(effect="read", run_on="worker", metadata={"mcp_requires": ["tasks"]})
        async def refuses() -> int:
            """Refuse."""
            raise ToolError("The till is closed.", code="closed")

        @tool(effect="read", run_on="worker")
        async def crashes() -> int:
            """Crash."""
            raise RuntimeError("password=hunter2")

        @tool(effect="read", run_on="worker")
        async def hangs(*, ctx: ToolContext) -> int:
            """Report, then wait until it is set free."""
            ctx.progress(1, 2, "half way")
            await self.free.wait()
            return 1

        @tool(effect="read", run_on="worker", resumable=True)
        async def flight(*, ctx: ToolContext) -> str:
            """Ask twice."""
            one: Any = ctx.suspend("input", "Which day?", schema=SCHEMA)
            two: Any = ctx.suspend("input", "Which day back?", schema=SCHEMA)
            return f"{one['day']} to {two['day']}"

        @tool(
            effect="irreversible",
            run_on="worker",
            key=("order",),
            requires_approval=Approval(roles={"lead"}, reason="A lead decides."),
        )
        async def payout(order: str) -> str:
            """Pay, after the approval of a lead."""
            self.ran.append(f"payout {order}")
            return f"paid {order}"

        @tool(effect="read", run_on="worker", allowed_roles={"lead"})
        async def ledger() -> str:
            """A tool for leads."""
            return "42"

        @tool(effect="read")
        async def at_once() -> int:
            """Return at once."""
            return 1

        return [double, ship, refuses, crashes, hangs, flight, payout, ledger, at_once]

    def gate(self, workers: int = 2, store: str = "memory://") -> Gate:
        return Gate(
            self.tools(),
            [Authorize(permit("staff", roles={"clerk", "lead"}))],
            **gate_options(
                signing_keys=["k" * 32],
                durable=False,
                store=store,
                jobs=EmbeddedJobs(workers),
                job_options=Jobs(keep=60.0),
            ),
        )


@contextlib.asynccontextmanager
async def works_at(transport: str = "memory", **options: Any) -> AsyncGenerator[tuple[Works, Gate, Peer]]:
    """A gate with works, served, and a client with tasks in Ann's name."""
    works = Works()
    gate = works.gate(**options)
    server = server_of(gate, transport)
    async with contextlib.AsyncExitStack() as stack:
        target: Any = server.sdk
        if transport == "http":
            running = await stack.enter_async_context(served(server.asgi()))
            target = await stack.enter_async_context(person(running.port, "ann"))
        client = await stack.enter_async_context(connect(target))
        yield works, gate, Peer(client)


def connect(target: Any, *, tasks: bool = True, mode: Any = "auto") -> Client:
    """A client, with or without tasks, that can show forms."""

    async def never(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        raise AssertionError("a task asks in tasks/get")

    extensions = [advertise(TASKS)] if tasks else []
    return Client(target, mode=mode, extensions=extensions, elicitation_callback=never, read_timeout_seconds=LIMIT)


@contextlib.asynccontextmanager
async def person(port: int, user: str) -> AsyncGenerator[Any]:
    """The transport of a user to a server on this machine."""
    headers = {"authorization": f"Bearer {user}"}
    async with httpx2.AsyncClient(headers=headers, timeout=LIMIT, trust_env=False) as http:
        yield streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)


class Reply(types.Result):
    """A result of any form."""

    model_config = ConfigDict(extra="allow")


class Peer:
    """Sends the requests of tasks, which the client of the SDK does not know."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        request = types.Request[dict[str, Any], str](method=method, params=params)
        reply = await self._client.session.send_request(request, Reply)
        return reply.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta"})

    async def call(self, name: str, key: str | None = None, **arguments: Any) -> dict[str, Any]:
        meta = {} if key is None else {"_meta": {"callgate/idempotencyKey": key}}
        return await self.send("tools/call", name=name, arguments=arguments, **meta)

    async def get(self, id: str) -> dict[str, Any]:
        return await self.send("tasks/get", taskId=id)

    async def until(self, id: str, *states: str, met: Callable[[dict[str, Any]], bool] | None = None) -> dict[str, Any]:
        """Poll until the task is in one of *states*, or *met* holds."""
        async with asyncio.timeout(LIMIT):
            while True:
                task = await self.get(id)
                if task["status"] in states if met is None else met(task):
                    return task
                await asyncio.sleep(0.01)

    async def ended(self, id: str) -> dict[str, Any]:
        return await self.until(id, "completed", "failed", "cancelled")

    async def answer(self, task: dict[str, Any], action: str = "accept", **content: Any) -> dict[str, Any]:
        answers = {key: {"action": action, "content": content} for key in task["inputRequests"]}
        return await self.send("tasks/update", taskId=task["taskId"], inputResponses=answers)


@pytest.mark.parametrize("transport", ["memory", "http"])
async def test_a_tool_of_workers_is_a_task(transport: str) -> None:
    async with works_at(transport) as (_, _, peer):
        task = await peer.call("double", n=21)
        assert task["resultType"] == "task"
        assert task["status"] == "working"
        assert task["ttlMs"] == 60_000
        ended = await peer.ended(task["taskId"])
        assert ended["status"] == "completed"
        assert ended["result"]["structuredContent"] == 42
        assert ended["createdAt"] == task["createdAt"] <= ended["lastUpdatedAt"]
        assert (await peer.call("at_once"))["structuredContent"] == 1, "other tools answer at once"


@pytest.mark.parametrize(("name", "status"), [("refuses", "completed"), ("crashes", "failed"), ("double", "completed")])
async def test_a_failure_is_a_result_and_a_crash_fails_the_task(name: str, status: str) -> None:
    async with works_at() as (_, _, peer):
        arguments = {"n": "no number"} if name == "double" else {}
        ended = await peer.ended((await peer.call(name, **arguments))["taskId"])
        assert ended["status"] == status
        assert "hunter2" not in str(ended)
        if status == "completed":
            assert ended["result"]["isError"] is True
        else:
            assert ended["error"]["code"] == types.INTERNAL_ERROR


async def test_a_key_of_the_caller_makes_one_task_and_one_effect() -> None:
    async with works_at() as (works, _, peer):
        tasks = [await peer.call("ship", key="k1", order="A1") for _ in range(3)]
        assert len({task["taskId"] for task in tasks}) == 1
        await peer.ended(tasks[0]["taskId"])
        assert works.ran == ["A1"]
        other = await peer.call("ship", key="k1", order="A2")
        assert other["isError"] is True
        assert works.ran == ["A1"]


async def test_a_task_shows_its_progress_and_is_cancelled() -> None:
    async with works_at() as (works, gate, peer):
        id = (await peer.call("hangs"))["taskId"]
        await peer.until(id, met=lambda task: task["status"] == "working")
        async with asyncio.timeout(LIMIT):
            await gate.jobs.poll()  # the embedded engine does so each second
            await peer.until(id, met=lambda task: task.get("statusMessage") == "half way")
        assert await peer.send("tasks/cancel", taskId=id) == {"resultType": "complete"}
        assert (await peer.ended(id))["status"] == "cancelled"
        assert await peer.send("tasks/cancel", taskId=id) == {"resultType": "complete"}, "an ended task stays"
        assert (await peer.get(id))["status"] == "cancelled"
        assert not works.free.is_set()


async def test_a_task_asks_its_questions_one_after_another() -> None:
    async with works_at() as (_, _, peer):
        id = (await peer.call("flight"))["taskId"]
        first = await peer.until(id, "input_required")
        asked = first["inputRequests"]
        with pytest.raises(MCPError):
            await peer.answer(first, day="x")
        assert (await peer.get(id))["inputRequests"] == first["inputRequests"], "a wrong answer leaves it open"
        assert await peer.answer(first, day="Monday") == {"resultType": "complete"}
        second = await peer.until(id, met=lambda task: task.get("inputRequests", asked) != asked)
        await peer.answer(first, day="Sunday")  # replayed: another question is open now
        assert (await peer.get(id))["inputRequests"] == second["inputRequests"]
        await peer.answer(second, day="Friday")
        assert (await peer.ended(id))["result"]["structuredContent"] == "Monday to Friday"
        assert await peer.answer(second, day="Tuesday") == {"resultType": "complete"}, "too late, and without effect"
        assert (await peer.get(id))["result"]["structuredContent"] == "Monday to Friday"


async def test_a_declined_question_ends_the_task() -> None:
    async with works_at() as (_, _, peer):
        id = (await peer.call("flight"))["taskId"]
        await peer.answer(await peer.until(id, "input_required"), action="decline")
        assert (await peer.ended(id))["result"]["isError"] is True


async def test_a_task_that_another_person_approves_works_meanwhile() -> None:
    async with works_at() as (works, gate, peer):
        id = (await peer.call("payout", order="A1"))["taskId"]
        task = await peer.until(id, met=lambda task: "statusMessage" in task)
        assert task["status"] == "working"
        assert "A lead decides." in task["statusMessage"]
        (waiting,) = await gate.waits.pending(PEOPLE["lea"])
        await gate.resume(waiting.handle, Approve(), approver=PEOPLE["lea"])
        assert (await peer.ended(id))["result"]["structuredContent"] == "paid A1"
        assert works.ran == ["payout A1"]


async def test_a_task_survives_a_restart_and_a_worker_elsewhere_runs_it(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with works_at(workers=0, store=store) as (works, _, peer):
        id = (await peer.call("ship", order="A1"))["taskId"]
        assert (await peer.get(id))["status"] == "working"
        assert works.ran == []
    elsewhere = Works()
    async with elsewhere.gate(0, store) as worker:
        assert await worker.jobs.run_invocation() is not None
        assert elsewhere.ran == ["A1"]
    async with works_at(workers=0, store=store) as (works, _, peer):
        assert (await peer.get(id))["result"]["structuredContent"] == "shipped A1"
        assert works.ran == []


async def _of_eve(method: str, *, sabotaged: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, dict[str, Any]]:
    """Send a request for Ann's task in Eve's name: whether it is refused as an unknown task, and what Ann sees then."""
    works = Works()
    gate = works.gate()
    server = server_of(gate, "http")
    async with (
        served(server.asgi()) as running,
        person(running.port, "ann") as of_ann,
        person(running.port, "eve") as of_eve,
        connect(of_ann) as ann,
        connect(of_eve) as eve,
    ):
        id = (await Peer(ann).call("flight"))["taskId"]
        task = await Peer(ann).until(id, "input_required")
        if sabotaged:  # a server that looks every task up in its owner's name
            make = gate.job
            monkeypatch.setattr(gate, "job", lambda id, user: make(id, user=PEOPLE["ann"]))
        answers = {key: {"action": "accept", "content": {"day": "never"}} for key in task["inputRequests"]}
        more = {"inputResponses": answers} if method == "tasks/update" else {}
        said: list[str] = []
        for known in (id, "0" * 32, "\x00" * 10_000):
            with contextlib.suppress(MCPError):
                await Peer(eve).send(method, taskId=known, **more)
                said.append("answered")
                continue
            said.append("unknown")
        assert said[1:] == ["unknown", "unknown"]
        refused = said[0] == "unknown"
        return refused, await Peer(ann).get(id)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
@pytest.mark.parametrize("sabotaged", [False, True])
async def test_a_task_of_another_user_is_unknown(method: str, sabotaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, task = await _of_eve(method, sabotaged=sabotaged, monkeypatch=monkeypatch)
    assert refused is not sabotaged
    if not sabotaged:
        assert task["status"] == "input_required"


async def test_a_client_without_tasks_gets_no_task() -> None:
    works = Works()
    server = server_of(works.gate(), "memory")
    for mode in ("auto", "legacy"):
        async with connect(server.sdk, tasks=False, mode=mode) as client:
            result = await client.call_tool("double", {"n": 2})
            assert result.is_error is not True, "it waits for the result"
            with pytest.raises(MCPError) as caught:
                await client.call_tool("refuses", {})
            assert caught.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY
            with pytest.raises(MCPError):
                await Peer(client).get("0" * 32)


async def test_a_hidden_tool_makes_no_task() -> None:
    async with works_at() as (_, gate, peer):
        said = []
        for name in ("ledger", "nosuch"):
            with pytest.raises(MCPError) as caught:
                await peer.call(name)
            said.append((caught.value.code, str(caught.value).replace(name, "NAME")))
        assert said[0] == said[1]
        assert await gate.jobs.run_invocation() is None
