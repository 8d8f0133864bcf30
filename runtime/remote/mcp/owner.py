"""The connection to one server, in a task of its own: it connects again, and its end never cancels a caller."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from mcp import Client
from mcp.client.session import ClientSession, IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from callgate.providers.logs import LogEvent, emit
from callgate.runtime.pipeline.waiting import cancel_and_wait
from callgate.runtime.remote.mcp.face import McpServer
from callgate.runtime.remote.mcp.transports import http, stdio
from callgate.runtime.remote.mcp.under_way import ServerCalls

FIRST_PAUSE = 0.2
"""Seconds before the first attempt to connect again; each further one doubles it, with jitter."""
LONGEST_PAUSE = 30.0
"""Maximum number of seconds between two attempts."""


class Owner:
    """Enters the client of the SDK and leaves it in one task, as the SDK demands; callers only send requests.

    *on_connect* runs before callers may use a new connection; *on_change* is called when the server says that its tools
    have changed. ``failure`` is the reason of the last lost or failed connection; ``calls`` are those under way.
    """

    def __init__(
        self,
        server: McpServer,
        on_connect: Callable[[ClientSession], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        self._server, self._on_connect, self._on_change = server, on_connect, on_change
        self._up, self._lost, self._tried = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._session: ClientSession | None = None
        self._closing = False
        self.failure: BaseException | None = None
        self.calls = ServerCalls(server)

    @property
    def session(self) -> ClientSession | None:
        """The session, once the server is connected."""
        return self._session

    async def open(self) -> None:
        """Connect, and keep connected; return after the first attempt."""
        # asyncio: the task outlives its caller, and an anyio task group would cancel callers with it
        self._task = asyncio.ensure_future(self._run())
        await self._tried.wait()

    async def close(self) -> None:
        """Disconnect, and wait for it."""
        self._closing = True
        self.calls.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def wait_up(self, seconds: float) -> ClientSession | None:
        """Wait for the connection; None if there is none in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._up.wait()
        except TimeoutError:
            return None
        return self._session

    def lose(self, session: ClientSession) -> None:
        """Give up a connection on which a request has failed, unless it was replaced already."""
        if session is self._session:
            self._session = None
            self._up.clear()
            self._lost.set()

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._closing:
            try:
                await self._connected()
                pause = FIRST_PAUSE
            except BaseException as error:
                self.failure = error
                task = asyncio.current_task()
                # The SDK may wrap the request to end in a group, and its cancel scopes may take the request for their own.
                if self._closing or (task is not None and task.cancelling()):
                    raise asyncio.CancelledError from error
                emit(LogEvent.PROVIDER_FAILED, provider=f"mcp:{self._server.name}", phase="connect", error=error)
            finally:
                self._session = None
                self._up.clear()
                self._tried.set()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  (jitter)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _connected(self) -> None:
        """Stay connected until the connection is lost."""
        self._lost.clear()
        server, listening = self._server, None
        transport = http(server) if server.url is not None else stdio(server, self._lost.set)
        client = Client(
            transport,
            mode="legacy" if server.legacy else "auto",
            message_handler=self._hear,
            elicitation_callback=self.calls.elicit,
            sampling_callback=None if server.sampling is None else self.calls.sample,
            list_roots_callback=None if server.roots is None else self.calls.list_roots,
            read_timeout_seconds=server.connect_timeout,
        )
        async with asyncio.timeout(server.connect_timeout) as limit, client:
            try:
                await self._on_connect(client.session)
                limit.reschedule(None)
                self._session = client.session
                self._up.set()
                self._tried.set()
                if client.protocol_version in MODERN_PROTOCOL_VERSIONS and _tells_changes(client):
                    # asyncio: it ends before the client does, and its failure ends nothing else
                    listening = asyncio.ensure_future(self._listen(client))
                await self._lost.wait()
            finally:
                if listening is not None:  # before the client: it waits for its requests
                    await cancel_and_wait(listening)

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_change()

    async def _listen(self, client: Client) -> None:
        """Hear of changes of the tools."""
        try:
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._on_change()
        except Exception as error:  # noqa: BLE001  (its tools are read again after the next connection)
            if isinstance(error, MCPError) and error.code == METHOD_NOT_FOUND:
                return  # it does not offer what it declares
            emit(LogEvent.PROVIDER_FAILED, provider=f"mcp:{self._server.name}", phase="listen", error=error)


def _tells_changes(client: Client) -> bool:
    """Return True if the server says when its tools change."""
    offered = client.server_capabilities.tools
    return offered is not None and bool(offered.list_changed)
