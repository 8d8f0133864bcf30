"""A client that cancels or goes away ends its call, and the tool cleans up; the server and its gate go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import anyio
import anyio.lowlevel

from callgate import tool
from callgate.runtime.hosts.mcp import call
from callgate.runtime.pipeline import scopes
from callgate.runtime.pipeline.deadlines import expire_all
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

            async def hang() -> None:
                await client.call_tool("hangs", {}, progress_callback=note if progress else None)

            group.start_soon(hang)
            await asyncio.wait_for(desk.started.wait(), 20)
            group.cancel_scope.cancel()
        await until(lambda: desk.cleaned == ["hangs"], 20)
        await until(lambda: not gate._services.under_way, 20)
        assert text_of(await client.call_tool("add", {"a": 1})) == "2"


@BOTH_ERAS
@pytest.mark.parametrize("transport", ["memory", "http"])
@pytest.mark.parametrize("sabotaged", [False, True])
async def test_a_client_that_cancels_while_a_tool_cleans_up_interrupts_one_wait(
    transport: str, era: str, sabotaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clean-up follows a deadline; without the gate's own scope the SDK's cuts off each wait (the control)."""
    noted: list[str] = []
    begun, ended = asyncio.Event(), asyncio.Event()

    @tool(effect="read", deadline=3600)
    async def tidies() -> int:
        """Note each interruption, and go on."""
        begun.set()
        waits: list[Callable[[], Awaitable[object]]] = [asyncio.Event().wait, asyncio.Event().wait]
        waits += [anyio.lowlevel.checkpoint] * 5
        for wait in waits:
            try:
                await wait()
            except asyncio.CancelledError:
                noted.append("interrupted")
                begun.set()
        ended.set()
        return 1

    desk = Desk()
    if sabotaged:
        monkeypatch.setattr(scopes, "is_inside", lambda: False)
    async with desk.gate() as gate, client_of(server_of(gate, transport), transport, era) as client:
        gate.add(tidies)
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "tidies", {})
            await asyncio.wait_for(begun.wait(), 20)
            begun.clear()
            expire_all(asyncio.get_running_loop())
            await asyncio.wait_for(begun.wait(), 20)
            group.cancel_scope.cancel()
        await asyncio.wait_for(ended.wait(), 20)
        await until(lambda: not gate._services.under_way, 20)
        assert text_of(await client.call_tool("add", {"a": 1})) == "2"
    assert (len(noted) > 2) is sabotaged


@BOTH_ERAS
@pytest.mark.parametrize("sabotaged", [False, True])
async def test_a_client_that_cancels_during_a_look_up_lets_the_store_clean_up(
    era: str, sabotaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store gives its connection back with some waits; the SDK's scope would cut off each of them (the control)."""
    begun, ended = asyncio.Event(), asyncio.Event()
    given_back: list[str] = []

    async def looks_up(*_: object, **__: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await anyio.lowlevel.checkpoint()
                await asyncio.sleep(0.001)
                given_back.append("connection")
            finally:
                ended.set()

    desk = Desk()
    monkeypatch.setattr(call, "find_repeated", looks_up)
    if sabotaged:
        monkeypatch.setattr(call, "once", lambda work: work)
    async with desk.gate() as gate, client_of(server_of(gate, "memory"), "memory", era) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "count", {})
            await asyncio.wait_for(begun.wait(), 20)
            group.cancel_scope.cancel()
        await asyncio.wait_for(ended.wait(), 20)
        assert given_back == ([] if sabotaged else ["connection"])
        assert desk.ran == []
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
                calling = asyncio.ensure_future(client.call_tool("hangs", {}))
                await asyncio.wait_for(desk.started.wait(), 20)
                await running.stop()
                await calling
    assert not gate.is_open
    assert desk.cleaned == ["hangs"]
