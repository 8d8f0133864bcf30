"""Connections to a remote server with limits: the SDK's own read a line or a response of any size."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Self, TypeAlias

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import CLIENT_CAPABILITIES_META_KEY, jsonrpc_message_adapter

from callgate.providers.http.bounded import PIECE, BodyRefused, longest
from callgate.providers.http.bounded_replies import bounded_transport
from callgate.runtime.models.wire.message_memory import parse_bounded
from callgate.runtime.remote.mcp.credentials import PerUser
from callgate.runtime.remote.mcp.face import McpServer
from callgate.runtime.remote.mcp.held_messages import HeldMessages
from callgate.runtime.remote.mcp.under_way import CALL

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
"""The identifier of the extension for tasks, which client and server declare."""
MAX_SILENCE = 600.0
"""Seconds that the response to a call may send nothing. The deadline of the call ends it earlier; in the handshake era the
connection of a call that was given up stays open until the server answers, or for this time."""
GRACE = 2.0
"""Seconds that a process has to end after its input is closed, and again after it was asked to terminate."""

Streams: TypeAlias = tuple[Any, Any]
"""What is read and what is written. The SDK's own types of these are private."""


class _Wrapped:
    """A stream of the SDK with another one around it, which closes with it."""

    def __init__(self, beneath: Any) -> None:
        self._beneath = beneath

    async def aclose(self) -> None:
        """Close the stream."""
        await self._beneath.aclose()

    async def __aenter__(self) -> Self:
        await self._beneath.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> bool | None:
        left: bool | None = await self._beneath.__aexit__(*error)
        return left


class _Announcing(_Wrapped):
    """The stream to a server, which makes the capabilities that the SDK announces those of a gate.

    The SDK would announce pages to open and changes of roots, and no tasks: it has no part of its own for them.
    """

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""
        params = getattr(item.message, "params", None) or {}
        offered = (params.get("_meta") or {}).get(CLIENT_CAPABILITIES_META_KEY)
        if offered is not None:  # each request since version 2026-07-28
            offered.setdefault("extensions", {})[TASKS_EXTENSION] = {}
        elif getattr(item.message, "method", None) == "initialize":
            offered = params["capabilities"]
        if offered is not None:
            offered["elicitation"] = {"form": {}}
            if "roots" in offered:
                offered["roots"] = {}
        await self._beneath.send(item)


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
        limit=PIECE,
        start_new_session=True,  # Ctrl-C is for this process; the server ends with its connection
    )
    received, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as group, received, read, write, to_send:
            group.start_soon(_read_lines, process, received, on_lost, server.max_memory)
            group.start_soon(_write_lines, process, to_send)
            yield read, _Announcing(write)
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _read_lines(
    process: asyncio.subprocess.Process,
    received: MemoryObjectSendStream[SessionMessage | Exception],
    on_lost: Callable[[], None],
    max_memory: int,
) -> None:
    """Pass the messages on. A line that is too long, or takes too much memory, ends the connection."""
    assert process.stdout is not None
    line: list[bytes] = []
    size = 0
    try:
        async with received:
            while size <= longest(max_memory) and (part := await process.stdout.read(PIECE)):
                *ended, rest = part.split(b"\n")
                for end in ended:
                    line.append(end)
                    message = _message(line, max_memory)
                    await received.send(message)
                    del message  # nothing is held while the reader waits
                    size = 0
                line.append(rest)
                size += len(rest)
    except (BodyRefused, ConnectionError, anyio.BrokenResourceError):
        pass
    on_lost()


def _message(line: list[bytes], max_memory: int) -> SessionMessage | ValueError:
    """Take the parts of a line, and parse them; a line that is no message is an error of its own."""
    data = b"".join(line)
    line.clear()
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_python(parse_bounded(data, max_memory), by_name=False))
    except ValueError as error:
        return error


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
    held = HeldMessages(server.max_memory)
    timeout = httpx2.Timeout(server.timeout, connect=server.connect_timeout)
    client = httpx2.AsyncClient(
        auth=PerUser(server.auth) if server.credential is not None else server.auth,
        cookies=_cookies(server),
        headers={"accept-encoding": "identity", **server.headers},  # the limit holds for what is read
        timeout=timeout,
        transport=bounded_transport(httpx2, httpx2.AsyncHTTPTransport(), held.max_bytes, reader=held.reader),
        event_hooks={"request": [_limit_waits(timeout), _watch_first]},
        trust_env=False,
    )
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=held.max_bytes) as streams,
    ):
        yield _Swapping(streams[0], held), _Announcing(streams[1])


class _Swapping(_Wrapped):
    """The stream from a server: each stub on it becomes its message."""

    def __init__(self, beneath: Any, held: HeldMessages) -> None:
        super().__init__(beneath)
        self._held = held

    @property
    def last_context(self) -> Any:
        """The context of the sender, which the SDK restores."""
        return self._beneath.last_context

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        return self._held.swapped(await self._beneath.receive())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._held.swapped(await anext(self._beneath))


def _cookies(server: McpServer) -> CookieJar | None:
    """Return the jar of a connection: users that share it must not get the cookies of each other, so it keeps none."""
    return None if server.credential is None else CookieJar(DefaultCookiePolicy(allowed_domains=[]))


def _limit_waits(limits: httpx2.Timeout) -> Callable[[httpx2.Request], Awaitable[None]]:
    """Return the hook that gives the reply to a call its time; all other requests have the timeout of the server."""

    async def limit(request: httpx2.Request) -> None:
        given = request.extensions.get("timeout")
        if given is None:  # an OAuth client makes its requests without the HTTP client, and they would wait forever
            request.extensions["timeout"] = limits.as_dict()
        # A handshake server sees the method of a request in its body only; there, every POST is taken for a call.
        elif request.method == "POST" and request.headers.get("mcp-method", "tools/call") == "tools/call":
            request.extensions["timeout"] = given | {"read": max(given["read"], MAX_SILENCE)}

    return limit


async def _watch_first(request: httpx2.Request) -> None:
    """Note whether a call was sent: the SDK ends the session for every failure, its own or that of another request."""
    call = CALL.get()
    if request.method != "POST" or call is None or not call.posts():
        return

    async def trace(event: str, _: object) -> None:
        if event == "connection.connect_tcp.started":
            call.unsent = True
        elif event.endswith(".send_request_headers.started"):
            call.unsent = False

    request.extensions["trace"] = trace
