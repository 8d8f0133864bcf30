"""A real server in the test's own loop, and clients of it: httpx, or bytes on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

import callgate
from tests.runtime.hosts.making import who


@dataclass
class Served:
    """A running server."""

    port: int
    server: uvicorn.Server
    serving: asyncio.Task[None]

    def client(self, token: str | None = "ann", **options: Any) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=300, trust_env=False, **options
        )

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def stop(self) -> None:
        self.server.should_exit = True
        await asyncio.wait_for(asyncio.shield(self.serving), 100)


@contextlib.asynccontextmanager
async def served(app: Any, **options: Any) -> AsyncGenerator[Served, None]:
    """Serve on a free port; stopped at the end."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio: no delay, if it is TCP
    listening.bind(("127.0.0.1", 0))
    known: dict[str, Any] = {"log_config": None, "ws": "none", "http": "h11", "timeout_graceful_shutdown": 5, **options}
    config = uvicorn.Config(app, **known)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    running = Served(listening.getsockname()[1], server, serving)
    try:
        await until(lambda: server.started or serving.done())
        yield running
    finally:
        await running.stop()
        listening.close()


@contextlib.asynccontextmanager
async def desk_served(desk: Any, **options: Any) -> AsyncGenerator[tuple[Served, httpx.AsyncClient], None]:
    """The application of a desk's gate as the main application, and a client in Ann's name."""
    settings: dict[str, Any] = {"authenticate": who, **options}
    async with (
        served(callgate.asgi(desk.gate, **settings)) as running,
        running.client() as client,
    ):
        yield running, client


async def until(true: Callable[[], Any], seconds: float = 100) -> None:
    """Wait until something is so; the loop goes on meanwhile."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110  (the condition has no event)
            await asyncio.sleep(0.002)


def request(path: str, body: bytes = b"", *headers: str, method: str = "POST", token: str = "ann") -> bytes:
    """A request as bytes; without a length unless *headers* say one."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}"]
    lines += ["Content-Type: application/json", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of one answer."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 100)).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await asyncio.wait_for(reader.readexactly(int(headers["content-length"])), 100)
    return int(first.split()[1]), headers, json.loads(body)


def events_of(text: str) -> list[tuple[str, Any]]:
    """The events of a stream; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found
