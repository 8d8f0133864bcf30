"""Connections to a remote server with limits: the SDK's own read a line or a response of any size."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from callgate.runtime.remote.mcp.credentials import PerUser
from callgate.runtime.remote.mcp.face import McpServer

MAX_MESSAGE = 32 * 1024 * 1024
"""Maximum size of one message of a server, in bytes."""
MAX_SILENCE = 600.0
"""Seconds that the response to a call may send nothing. The deadline of the call ends it earlier; in the handshake era the
connection of a call that was given up stays open until the server answers, or for this time."""
GRACE = 2.0
"""Seconds that a process has to end after its input is closed, and again after it was asked to terminate."""

Streams: TypeAlias = tuple[Any, Any]
"""What is read and what is written. The SDK's own types of these are private."""


@asynccontextmanager
async def stdio(server: McpServer, on_lost: Callable[[], None]) -> AsyncGenerator[Streams]:
    """Start the process of a server, and end it with the context; *on_lost* is called when it closes its output."""
    assert server.command is not None
    process = await asyncio.create_subprocess_exec(
        *server.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**get_default_environment(), **server.env},
        cwd=server.cwd,
        limit=MAX_MESSAGE,
        start_new_session=True,  # Ctrl-C is for this process; the server ends with its connection
    )
    received, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as group, received, read, write, to_send:
            group.start_soon(_read_lines, process, received, on_lost)
            group.start_soon(_write_lines, process, to_send)
            yield read, write
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _read_lines(
    process: asyncio.subprocess.Process,
    received: MemoryObjectSendStream[SessionMessage | Exception],
    on_lost: Callable[[], None],
) -> None:
    """Pass the messages on. A line that is too long ends the connection: what follows it cannot be read."""
    assert process.stdout is not None
    try:
        async with received:
            while True:
                line = await process.stdout.readuntil(b"\n")
                try:
                    await received.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))
                except ValueError as error:
                    await received.send(error)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, anyio.BrokenResourceError):
        on_lost()


async def _write_lines(process: asyncio.subprocess.Process, to_send: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError, RuntimeError):  # the reader finds out that the process has ended
        async for message in to_send:
            process.stdin.write(message.message.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n")
            await process.stdin.drain()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process that this one has started: close its input, then terminate it, then kill it."""
    assert process.stdin is not None
    process.stdin.close()
    for stop in (process.terminate, process.kill, None):
        try:
            async with asyncio.timeout(GRACE):
                await _drained(process)
                return
        except TimeoutError:
            if stop is not None:
                with contextlib.suppress(ProcessLookupError):
                    stop()


async def _drained(process: asyncio.subprocess.Process) -> None:
    """Wait for the end; a process that still writes must not wait for a reader."""
    assert process.stdout is not None
    while await process.stdout.read(65_536):
        pass
    await process.wait()


# ---------------------------------------------------------------------- HTTP


@asynccontextmanager
async def http(server: McpServer) -> AsyncGenerator[Streams]:
    """Connect to the endpoint of a server."""
    assert server.url is not None
    client = httpx2.AsyncClient(
        auth=PerUser(server.auth) if server.credential is not None else server.auth,
        headers={"accept-encoding": "identity", **server.headers},  # the limit holds for what is read
        timeout=httpx2.Timeout(server.timeout, connect=server.connect_timeout),
        transport=_LimitedTransport(),
        trust_env=False,
    )
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_MESSAGE) as streams,
    ):
        yield streams[0], streams[1]


class _LimitedTransport(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # A handshake server sees the method of a request in its body only; there, every POST is taken for a call.
        if request.method == "POST" and request.headers.get("mcp-method", "tools/call") == "tools/call":
            limits = request.extensions["timeout"]
            request.extensions["timeout"] = limits | {"read": max(limits["read"], MAX_SILENCE)}
        response = await super().handle_async_request(request)
        if "content-encoding" in response.headers:
            await response.aclose()
            raise httpx2.ReadError("the response is compressed, although this was not accepted")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):  # the SDK limits each event
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _LimitedStream(response.stream)
        return response


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE
        async for part in self._stream:
            left -= len(part)
            if left < 0:
                raise httpx2.ReadError("the response is too large")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
