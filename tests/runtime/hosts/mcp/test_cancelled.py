"""A client that cancels or goes away ends its call, and the tool cleans up; the server and its gate go on."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import anyio

from tests.runtime.hosts.mcp.world import ERAS, Desk, client_of, http_client, server_of, text_of
from tests.runtime.hosts.serving import served, until

pytestmark = pytest.mark.timeout(120)
BOTH_ERAS = pytest.mark.parametrize("era", ERAS)


@BOTH_ERAS
@pytest.mark.parametrize("transport", ["memory", "http"])
@pytest.mark.parametrize("progress", [False, True])
async def test_a_cancelled_call_cleans_up(transport: str, era: str, progress: bool) -> None:
    """The tool is cancelled once and its asynchronous clean-up runs to the end, without burning a core."""

    async def note(progress: float, total: float | None, message: str | None) -> None:
        raise AssertionError("this tool reports none")

    desk = Desk()
    async with (
        desk.gate() as gate,
        client_of(server_of(gate, transport), transport, era) as client,
    ):
        async with anyio.create_task_group() as group:

            async def call() -> None:
                await client.call_tool("hangs", {}, progress_callback=note if progress else None)

            group.start_soon(call)
            await asyncio.wait_for(desk.started.wait(), 20)
            group.cancel_scope.cancel()
        await until(lambda: desk.cleaned == ["hangs"], 20)
        await until(lambda: not gate._engine.under_way, 20)
        assert text_of(await client.call_tool("add", {"a": 1})) == "2"


@BOTH_ERAS
async def test_a_client_that_goes_away_ends_its_calls(era: str) -> None:
    """Over HTTP, in the middle of a call; others are served on."""
    desk = Desk()
    async with desk.gate() as gate, served(server_of(gate, "http").asgi()) as running:

        async def leave() -> None:
            async with http_client(running.port, "ann", mode="auto" if era == "modern" else "legacy") as client:
                await client.call_tool("hangs", {})

        going = asyncio.ensure_future(leave())
        await asyncio.wait_for(desk.started.wait(), 20)
        going.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await going
        if era == "modern":  # a session of the older era may be taken up again: its calls go on until it ends
            await until(lambda: desk.cleaned == ["hangs"], 20)
        async with http_client(running.port, "ann") as other:
            assert text_of(await other.call_tool("add", {"a": 1})) == "2"
    assert desk.cleaned == ["hangs"]


@BOTH_ERAS
async def test_closing_the_server_ends_its_calls_before_the_gate_closes(era: str) -> None:
    """No call is left behind, and none finds a closed store."""
    desk = Desk()
    gate = desk.gate()
    async with served(server_of(gate, "http").asgi(), timeout_graceful_shutdown=1) as running:
        assert gate.is_open
        with contextlib.suppress(Exception):  # the client loses its connection
            async with http_client(running.port, "ann", mode="auto" if era == "modern" else "legacy") as client:
                call = asyncio.ensure_future(client.call_tool("hangs", {}))
                await asyncio.wait_for(desk.started.wait(), 20)
                await running.stop()
                await call
    assert not gate.is_open
    assert desk.cleaned == ["hangs"]
