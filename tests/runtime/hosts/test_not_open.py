"""A mounted application that nothing opens: a response of 503 does not say why, so the log does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")
pytest.importorskip("a2a", reason="NO A2A: the extra 'a2a' is not installed")

from starlette.applications import Starlette
from starlette.routing import Mount

import callgate
import callgate.mcp
from callgate import Gate
from callgate.runtime.hosts.a2a.agent import agent
from tests.runtime.hosts.making import Desk, who
from tests.runtime.hosts.mcp.test_access import HEADERS, INITIALIZE
from tests.runtime.hosts.serving import served

LISTING = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
HOSTS: dict[str, tuple[Callable[[Gate], Any], str, Any, str]] = {
    "asgi": (lambda gate: callgate.asgi(gate, authenticate=who), "/tools/add", {"a": 1}, "async with gate:"),
    "a2a": (
        lambda gate: agent(gate, authenticate=who, name="desk", description="A desk.", url="http://desk.test"),
        "/rpc",
        LISTING,
        "async with gate:",
    ),
    "mcp": (
        lambda gate: callgate.mcp.server(gate, authenticate=who).asgi("/mcp"),
        "/mcp",
        INITIALIZE,
        "FastAPI(lifespan=mounted.lifespan)",
    ),
}


@pytest.mark.parametrize("host", HOSTS)
async def test_the_log_says_once_how_to_open_it(host: str, caplog: pytest.LogCaptureFixture) -> None:
    """The control is opened as the log says, and is served without a line."""
    make, path, body, advice = HOSTS[host]
    desk = Desk(signing_keys=["k" * 32])
    mounted = make(desk.gate)
    app = Starlette(routes=[Mount("/mounted", mounted)])
    async with served(app) as running, running.client() as client:
        client.headers.update({**HEADERS, "A2A-Version": "1.0"})
        opened = mounted.lifespan() if host == "mcp" else desk.gate
        async with opened:
            assert (await client.post(f"/mounted{path}", json=body)).status_code == 200
        assert "provider.failed" not in caplog.text
        for _ in range(3):
            assert (await client.post(f"/mounted{path}", json=body)).status_code == 503
    assert caplog.text.count("provider.failed") == 1
    assert advice in caplog.text


async def test_an_open_gate_does_not_open_the_mounted_server_of_mcp(caplog: pytest.LogCaptureFixture) -> None:
    """It has sessions of its own. Without its lifespan each request was an error of the SDK."""
    desk = Desk()
    app = Starlette(routes=[Mount("/", callgate.mcp.server(desk.gate, authenticate=who).asgi("/mcp"))])
    async with desk.gate, served(app) as running, running.client() as client:
        assert (await client.post("/mcp", json=INITIALIZE, headers=HEADERS)).status_code == 503
    assert "FastAPI(lifespan=mounted.lifespan)" in caplog.text
