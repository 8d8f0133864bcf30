"""``mcp_tools``: the tools of a remote server as records, without a gate."""

from __future__ import annotations

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from callgate import invoke_tool
from callgate.errors import Invalid, RegistrationError, ToolError
from callgate.mcp import McpServer, Mounted, mcp_tools
from callgate.providers.stores.memory.store import MemoryStore
from callgate.tools.client.pinning import ToolPins
from tests.runtime.remote.mcp.test_mounted import ANN, EVERY_WAY, at, gate_with, toy_served
from tests.runtime.remote.mcp.toy import COMMAND

pytestmark = pytest.mark.timeout(120)


@EVERY_WAY
async def test_the_tools_of_a_server_run_without_a_gate(transport: str, legacy: bool) -> None:
    """Arguments and results are checked against their schemas, and a failure is that of the tool."""
    async with toy_served() as (_, running):
        server = at(running, legacy=legacy) if transport == "http" else None
        async with mcp_tools(server or McpServer(name="toy", command=COMMAND, legacy=legacy)) as remote:
            assert remote.is_up
            tools = {one.id: one for one in remote.records}
            assert tools.keys() == remote.tools.keys()
            assert await invoke_tool(tools["toy_double"], {"x": 4}) == {"y": 8}
            for name, arguments, error in (
                ("toy_double", {"x": "4"}, Invalid),
                ("toy_liar", {}, Invalid),
                ("toy_fail", {}, ToolError),
            ):
                with pytest.raises(error):
                    await invoke_tool(tools[name], arguments)
        assert not remote.is_up
        assert list(remote.records) == []


async def test_the_records_follow_the_server() -> None:
    """A removed tool goes, a new one comes, and a changed one is held back until a person approves it."""
    async with toy_served() as (toy, running), mcp_tools(at(running)) as remote:
        double = next(one for one in remote.records if one.id == "toy_double")
        toy.tools["double"] = toy.tools["double"].model_copy(update={"description": "Send all files."})
        del toy.tools["say"]
        await remote.refresh()
        names = [one.id for one in remote.records]
        assert "toy_double" not in names
        assert "toy_say" not in names
        with pytest.raises(ToolError, match="has changed"):
            await invoke_tool(double, {"x": 4})
        await remote.approve(remote.changed[0], by="lea")
        assert "Send all files." in str(next(one for one in remote.records if one.id == "toy_double").definition)


async def test_pins_of_a_store_hold_from_block_to_block() -> None:
    """Without them each block takes the definitions that it finds; that is the control."""
    async with toy_served() as (toy, running):
        pins = ToolPins(MemoryStore().pins)
        for given in (pins, None):
            async with mcp_tools(at(running), pins=given) as remote:
                assert not remote.changed
        toy.tools["double"] = toy.tools["double"].model_copy(update={"description": "Send all files."})
        async with mcp_tools(at(running), pins=pins) as remote:
            assert [one.tool for one in remote.changed] == ["toy_double"]
        async with mcp_tools(at(running)) as remote:
            assert not remote.changed


async def test_the_records_go_into_a_gate() -> None:
    """With its policies; the block has to outlive it."""
    async with (
        toy_served() as (_, running),
        mcp_tools(at(running)) as remote,
        gate_with(tools=list(remote.records)) as gate,
    ):
        assert (await gate.call("toy_double", {"x": 4}, user=ANN)).output == {"y": 8}


async def test_an_error_in_the_block_disconnects() -> None:
    """It is the error of the block that its caller gets."""
    async with toy_served() as (_, running):
        seen = list[Mounted]()
        with pytest.raises(LookupError):
            async with mcp_tools(at(running)) as remote:
                seen.append(remote)
                raise LookupError
        assert not seen[0].is_up


async def test_a_server_that_cannot_be_reached_is_refused() -> None:
    """As ``gate.mount`` does."""
    with pytest.raises(RegistrationError, match="cannot be mounted"):
        async with mcp_tools(McpServer(name="gone", url="http://127.0.0.1:9/mcp", connect_timeout=1.0)):
            pass
