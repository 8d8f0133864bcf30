"""One user takes neither all streams of a server, nor its memory with tools that come and go."""

from __future__ import annotations

import contextlib
import gc
from weakref import ref

import httpx
import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import callgate.mcp
from callgate import Gate, tool
from callgate.errors import RegistrationError
from callgate.hooks import Authorize, permit
from tests.runtime.hosts.mcp.test_hostile_clients import HEADERS, MODERN
from tests.runtime.hosts.mcp.world import ERAS, Desk, client_of, server_of, who
from tests.runtime.hosts.serving import served

pytestmark = pytest.mark.timeout(120)
LISTEN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "subscriptions/listen",
    "params": {
        "notifications": {"toolsListChanged": True},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
        },
    },
}


class Streams:
    """Opens streams of changes over HTTP, and keeps them open."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=None)
        self.http = httpx.AsyncClient(base_url=url, limits=limits, timeout=20, trust_env=False)
        self.open: list[contextlib.AsyncExitStack] = []
        self.kept: list[object] = []  # an iterator that is dropped closes its stream

    async def listen(self, user: str) -> bool:
        """Return True if the stream is open; its first event acknowledges it."""
        more = {"authorization": f"Bearer {user}", "mcp-protocol-version": MODERN, "mcp-method": "subscriptions/listen"}
        stack = contextlib.AsyncExitStack()
        sent = self.http.stream("POST", "/mcp", json=LISTEN, headers={**HEADERS, **more})
        response = await stack.enter_async_context(sent)
        lines = response.aiter_lines()
        async for line in lines:
            if "acknowledged" in line:
                self.open.append(stack)
                self.kept.append(lines)
                return True
            if "the maximum" in line:
                break
        await stack.aclose()
        return False

    async def close(self) -> None:
        for stack in self.open:
            await stack.aclose()
        await self.http.aclose()


@pytest.mark.parametrize("limit", [3, pytest.param(6, id="the control: a higher limit")])
async def test_one_user_does_not_take_the_streams_of_others(limit: int) -> None:
    """A further stream of the user is refused; one that ends makes room."""
    server = callgate.mcp.server(Desk().gate(), authenticate=who, max_user_streams=limit)
    async with served(server.asgi(), timeout_graceful_shutdown=1) as running:
        streams = Streams(f"http://127.0.0.1:{running.port}")
        try:
            opened = [await streams.listen("ann") for _ in range(5)]
            assert opened == [number < limit for number in range(5)]
            assert await streams.listen("lea"), "another user has streams of its own"
            assert await streams.listen("eve"), "and so has one of another tenant"
            if limit == 3:
                await streams.open.pop(0).aclose()
                for _ in range(200):  # the server notices it by and by
                    if await streams.listen("ann"):
                        break
                else:
                    pytest.fail("a stream that has ended still counts")
        finally:
            await streams.close()


def test_a_limit_is_a_positive_number() -> None:
    """A server without streams would refuse every client that listens."""
    with pytest.raises(RegistrationError, match="positive"):
        callgate.mcp.server(Desk().gate(), max_user_streams=0)


@pytest.mark.parametrize("era", ERAS)
async def test_a_listing_forgets_the_tools_that_have_gone(era: str) -> None:
    """Tools come and go at a mounted server: each definition was kept for good."""

    @tool(effect="read")
    async def stays() -> int:
        """Stay."""
        return 1

    gate = Gate([stays], [Authorize(permit("all"))])
    async with gate, client_of(server_of(gate, "memory"), "memory", era) as client:
        gone = []
        for number in range(5):

            @tool(name=f"t{number}", effect="read")
            async def goes() -> int:
                """Go."""
                return 1

            gone.append(ref(gate.add(goes).definition))
            assert len((await client.list_tools()).tools) == 2
            gate.remove(f"t{number}")
            del goes
        assert len((await client.list_tools()).tools) == 1
        gc.collect()
        assert [one() for one in gone] == [None] * 5
