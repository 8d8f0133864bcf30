"""``callgate.asgi`` behind middleware of Starlette."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

import callgate
from tests.runtime.hosts.making import Desk, who
from tests.runtime.hosts.serving import request, served, until


async def pass_on(request: Request, call_next: Any) -> Response:
    return await call_next(request)  # type: ignore[no-any-return]


async def read_first(request: Request, call_next: Any) -> Response:
    await request.body()
    return await call_next(request)  # type: ignore[no-any-return]


PASSES, READS = (Middleware(BaseHTTPMiddleware, dispatch=one) for one in (pass_on, read_first))
SMALL = Middleware(GZipMiddleware, minimum_size=1)
CORS = Middleware(CORSMiddleware, allow_origins=["https://here.example"])
AROUND = pytest.mark.parametrize("around", [[], [PASSES], [READS], [SMALL], [CORS], [PASSES, SMALL, READS, CORS]])


class Errors:
    """Notes what an application raises: a server prints it, with a traceback."""

    def __init__(self, app: Any) -> None:
        self.app, self.found = app, list[BaseException]()
        self.ended = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.app(scope, receive, send)
        except Exception as error:
            self.found.append(error)
            raise
        finally:
            self.ended += scope["type"] == "http"


@AROUND
@pytest.mark.parametrize("path", ["/agent/tools/wait", "/agent/tools/wait/stream"])
async def test_a_client_that_leaves_cancels_its_call_and_is_no_error(path: str, around: list[Middleware]) -> None:
    """Contract I1. Middleware that finds no response raises, and the log would have a traceback for each such client."""
    desk = Desk()
    routes = [Mount("/agent", callgate.asgi(desk.gate, authenticate=who))]
    app = Errors(Starlette(routes=routes, middleware=around))
    async with desk.gate, served(app) as running:
        _, writer = await running.connect()
        writer.write(request(path, b"{}", "Content-Length: 2"))
        await asyncio.wait_for(desk.started.wait(), 20)
        writer.transport.abort()
        await until(lambda: desk.cancelled == 1)
        await until(lambda: app.ended == 1)
    assert (app.found, desk.places.held) == ([], 0)


@AROUND
@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
async def test_a_client_of_mcp_that_leaves_is_no_error(version: str, around: list[Middleware]) -> None:
    """Contract I1."""
    pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")
    from callgate.mcp import server
    from tests.runtime.hosts.mcp.world import http_client

    desk = Desk()
    mounted = server(desk.gate, authenticate=who).asgi("/mcp")
    app = Errors(Starlette(routes=[Mount("/", mounted)], middleware=around, lifespan=mounted.lifespan))
    mode = "auto" if version > "2026" else "legacy"
    async with (
        served(app, timeout_graceful_shutdown=1) as running,
        http_client(running.port, "ann", mode=mode) as client,
    ):
        calling = asyncio.ensure_future(client.call_tool("wait", {}))
        await asyncio.wait_for(desk.started.wait(), 20)
        calling.cancel()
        await until(lambda: desk.cancelled == 1)
    assert app.found == []


@AROUND
async def test_a_client_that_leaves_within_its_body_is_no_error(around: list[Middleware]) -> None:
    desk = Desk()
    routes = [Mount("/agent", callgate.asgi(desk.gate, authenticate=who))]
    reads = READS in around
    app = Errors(Starlette(routes=routes, middleware=around))
    async with desk.gate, served(app) as running:
        _, writer = await running.connect()
        writer.write(request("/agent/tools/add", b'{"a"', "Content-Length: 100"))
        await writer.drain()
        writer.write_eof()
        await until(lambda: app.ended == 1)
        writer.close()
    # a middleware that reads the body itself raises this itself
    assert [type(one).__name__ for one in app.found] == (["ClientDisconnect"] if reads else [])


@AROUND
async def test_a_call_is_answered(around: list[Middleware]) -> None:
    desk = Desk()
    routes = [Mount("/agent", callgate.asgi(desk.gate, authenticate=who))]
    app = Errors(Starlette(routes=routes, middleware=around))
    async with desk.gate, served(app) as running, running.client() as client:
        assert (await client.post("/agent/tools/add", json={"a": 1})).json() == 2
        assert (await client.post("/agent/tools/add", json={"a": "x"})).status_code == 422
        assert "event: result" in (await client.post("/agent/tools/add/stream", json={"a": 1})).text
    assert not app.found
