"""A gate between: official clients reach official servers through it, with the gate's users, policies and records."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types
from mcp import Client

import callgate.mcp
from callgate import Approval, Approve, Gate, InvokeContext, ToolDefinition, User
from callgate.hooks import Audit
from callgate.mcp import McpServer
from tests.harness.gate_options import gate_options
from tests.runtime.remote.mcp.test_mounted import at, toy_served
from tests.runtime.remote.mcp.toy import COMMAND, Toy

ANN = User("ann", "acme", roles={"clerk"})
LEA = User("lea", "acme", roles={"lead"})
pytestmark = pytest.mark.timeout(120)


class Policy:
    """A clerk may use the remote server ``toy``; pictures need a lead."""

    def may_see(self, user: User, tool: ToolDefinition) -> bool:
        return tool.name != "far_token" or "lead" in user.roles

    def approval_for(self, ctx: InvokeContext) -> Approval | None:
        return Approval(roles={"lead"}, reason="A lead decides.") if ctx.tool_id == "toy_picture" else None

    def will_authorize(self, ctx: InvokeContext) -> None:
        if not self.may_see(ctx.user, ctx.tool):
            ctx.abort("for leads")


@contextlib.asynccontextmanager
async def proxied(*hooks: Any, **client: Any) -> AsyncGenerator[tuple[Toy, Gate, Client]]:
    """Two servers behind one gate, one over HTTP and one over stdio; a client of the gate in Ann's name."""
    options: dict[str, Any] = {"signing_keys": ["k" * 32], "durable": False}
    gate = Gate([], [*hooks, Policy()], **gate_options(**options))
    async with toy_served() as (toy, running), gate:
        await gate.mount(at(running))
        await gate.mount(McpServer(name="far", command=COMMAND))
        server: Any = callgate.mcp.server(gate, user=ANN)
        async with Client(server.sdk, read_timeout_seconds=60, **client) as connected:
            yield toy, gate, connected


async def test_one_endpoint_has_the_tools_of_many_servers() -> None:
    """Names are apart, each user sees their own, schemas and results keep their form."""
    async with proxied() as (_, _gate, client):
        tools = {one.name: one for one in (await client.list_tools()).tools}
        assert {"toy_double", "far_double"} <= set(tools)
        assert "far_token" not in tools
        assert tools["toy_double"].output_schema == {
            "type": "object",
            "properties": {"y": {"type": "integer"}},
            "required": ["y"],
        }
        for name in ("toy_double", "far_double"):
            assert (await client.call_tool(name, {"x": 4})).structured_content == {"y": 8}
        assert (await client.call_tool("toy_fail", {})).is_error
        drawn = await client.call_tool("far_picture", {})
        assert drawn.content == [types.ImageContent(data="iVBORw0KGgo=", mime_type="image/png")]


async def test_questions_progress_and_cancellation_pass_through() -> None:
    """From the remote server to the user of the client, and back."""

    async def answer(_: Any, params: Any) -> types.ElicitResult:
        assert params.message == "The server toy asks: Your name?"
        return types.ElicitResult(action="accept", content={"name": "Ann"})

    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with proxied(elicitation_callback=answer) as (toy, _, client):
        asked = await client.call_tool("toy_ask", {})
        assert asked.content == [types.TextContent(text="hello Ann in state 1")]
        await client.call_tool("toy_slow", {}, progress_callback=note)
        assert seen == [1, 2, 3]
        calling = asyncio.ensure_future(client.call_tool("toy_hang", {}))
        await asyncio.wait_for(toy.began.wait(), 20)
        calling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await calling
        await asyncio.wait_for(toy.cancelled.wait(), 20)


async def test_a_change_at_a_server_reaches_the_clients_of_the_gate() -> None:
    """As a notification; the new list has the tool."""
    async with proxied() as (toy, _, client), client.listen(tools_list_changed=True) as events:
        toy.tools["fresh"] = types.Tool(name="fresh", input_schema={"type": "object"})

        async def announce() -> None:
            while True:
                await toy.change()
                await asyncio.sleep(0.05)

        announcing = asyncio.ensure_future(announce())
        assert await asyncio.wait_for(anext(aiter(events)), 20)
        announcing.cancel()
        names = {one.name for one in (await client.list_tools(cache_mode="bypass")).tools}
        assert "toy_fresh" in names


async def test_policies_approvals_and_records_hold_for_remote_tools() -> None:
    """A call that a lead has to approve has not reached the server before; the audit names the user."""
    async with proxied(Audit()) as (toy, gate, client):
        waits = await client.call_tool("toy_picture", {})
        assert waits.is_error
        assert toy.calls == []
        handle = (waits.meta or {})["callgate/handle"]
        assert (await gate.resume(handle, Approve(), approver=LEA)).ok
        assert toy.calls == ["picture"]
        rows = [row async for row in gate.store.audit.read(None)]
        assert {(row.body["tool"], row.body["user"]) for row in rows} == {("toy_picture", "ann")}
