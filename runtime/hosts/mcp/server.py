"""A gate as a server of the MCP SDK, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp_types import CallToolRequestParams, ListToolsResult, PaginatedRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Router

from callgate.runtime.gate import Gate
from callgate.runtime.hosts.http_requests import answered
from callgate.runtime.hosts.mcp.access import Access, App, Message, Receive, Send
from callgate.runtime.hosts.mcp.call import CallHandler
from callgate.runtime.hosts.mcp.held_results import HeldResults
from callgate.runtime.hosts.mcp.listing import Listing
from callgate.runtime.hosts.mcp.resumed_streams import LONGEST, Held, SessionStreams, StreamStore
from callgate.runtime.hosts.mcp.standard_input import bounded_lines, standard_input
from callgate.runtime.hosts.mcp.tasks import Tasks
from callgate.runtime.hosts.mcp.user_memory import UserMemory
from callgate.runtime.hosts.mcp.user_sessions import UserSessions, UserStreams
from callgate.runtime.hosts.not_open import NotOpen
from callgate.runtime.pipeline.waiting import cancel_and_wait
from callgate.tools.values import thaw

SETTLES = 0.05
"""Seconds after a change of the tools in which further ones are announced with it."""


class GateServer:
    """A gate as an MCP server; ``callgate.mcp.server`` makes it. ``sdk`` is the low-level server of the SDK."""

    def __init__(
        self,
        gate: Gate,
        access: Access,
        name: str,
        shown: Mapping[str, Any],
        approvals_url: str | None,
        page: int,
        max_sessions: int,
        per_user: int,
        streams: int,
        large: Any,  # ``LargeResults`` or None: pyright reads the module of ``server`` under two names
        resumption: Any,  # ``Resumption`` or None, as above
    ) -> None:
        self._gate, self._access, self._max_sessions, self._per_user = gate, access, max_sessions, per_user
        self._listing = Listing(gate, page)
        held = None if large is None else HeldResults(large, access, gate.waits.now)
        tasks = Tasks(gate, access, self._listing, approvals_url, held)
        self._bus = InMemorySubscriptionBus()
        self._listeners: dict[int, ServerSession] = {}  # up to version 2025-11-25, by connection
        self.sdk: Server[dict[str, Any]] = Server(
            name,
            **shown,
            lifespan=self._lifespan,
            on_list_tools=self._list_tools,
            on_list_resources=None if held is None else held.list,
            on_read_resource=None if held is None else held.read,
            on_subscriptions_listen=UserStreams(ListenHandler(self._bus), access.user_of, streams),
            get_tool_input_schema=self._input_schema,
        )
        self._resumption = resumption
        close_after = None if resumption is None else resumption.close_after
        calls = CallHandler(gate, access, self._listing, approvals_url, tasks, held, close_after)
        self.sdk.add_request_handler("tools/call", CallToolRequestParams, calls.call_tool)  # tasks are results, too
        tasks.install(self.sdk)

    async def run_stdio(self) -> None:
        """Serve one client over standard input and output, until it closes them. Opens and closes the gate.

        What tools print goes to standard error meanwhile.
        """
        with standard_input() as descriptor:
            lines: Any = bounded_lines(descriptor)  # the SDK iterates over it only
            async with contextlib.aclosing(lines), stdio_server(stdin=lines) as (read, write):
                options = self.sdk.create_initialization_options(NotificationOptions(tools_changed=True))
                await self.sdk.run(read, write, options)

    def asgi(self, path: str = "/mcp") -> HttpApp:
        """Return an ASGI application that serves the gate over HTTP at *path*.

        Served by itself, it opens and closes the gate. An application that mounts it has to enter its ``lifespan``.
        """
        options, new_streams = self._access.sdk_options(), None
        if (resumption := self._resumption) is not None:
            options |= {"event_store": StreamStore(), "retry_interval": int(resumption.retry * 1_000)}
            held: Held = UserMemory(resumption.max_bytes, resumption.max_count, resumption.ttl, self._gate.waits.now)
            new_streams = partial(SessionStreams, held, longest=resumption.close_after or LONGEST)
        per_user = self._max_sessions if self._access.is_local else self._per_user
        limits = {"limit": per_user, "total": self._max_sessions}
        sessions = Middleware(UserSessions, user_of=self._access.user_in, new_streams=new_streams, **limits)

        def make() -> Starlette:
            app = self.sdk.streamable_http_app(streamable_http_path=path, max_sessions=self._max_sessions, **options)
            app.user_middleware.append(sessions)  # the innermost one: the SDK has found the user of a token before
            return app

        make()  # to refuse a wrong path here
        return HttpApp(make, self._access)

    async def tools_changed(self) -> None:
        """Tell the clients that listen that the list of tools has changed."""
        await self._bus.publish(ToolsListChanged())
        for session in list(self._listeners.values()):
            await session.send_tool_list_changed()  # to a client that has gone it does nothing

    @asynccontextmanager
    async def _lifespan(self, _: Server[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
        async with contextlib.AsyncExitStack() as stack:
            if not self._gate.is_open:
                await stack.enter_async_context(self._gate)
            changed, loop = asyncio.Event(), asyncio.get_running_loop()
            stack.callback(self._gate.on_tools_changed(lambda: loop.call_soon_threadsafe(changed.set)))
            # asyncio: it announces until the server ends
            announcing = asyncio.ensure_future(self._announce(changed))
            stack.push_async_callback(cancel_and_wait, announcing)
            yield {}

    async def _announce(self, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            await asyncio.sleep(SETTLES)
            changed.clear()
            await self.tools_changed()

    async def _list_tools(self, ctx: ServerRequestContext, params: PaginatedRequestParams | None) -> ListToolsResult:
        user, modern = self._access.user_of(ctx), ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        if not modern:
            self._listen(ctx)
        return self._listing.page(user, None if params is None else params.cursor, modern=modern)

    def _listen(self, ctx: ServerRequestContext) -> None:
        """Keep a session whose client has listed the tools, to notify it of changes, until its connection closes."""
        session = ctx.session
        # The SDK has no public way to learn that a session has ended; a kept one holds 19 KB for good.
        connection = session._connection  # pyright: ignore[reportPrivateUsage]
        if id(connection) not in self._listeners:
            connection.exit_stack.callback(self._listeners.pop, id(connection), None)
        self._listeners[id(connection)] = session

    def _input_schema(self, name: str) -> Mapping[str, object] | None:
        registry = self._gate.registry
        parameters = registry.get(name).definition.parameters if name in registry else None
        return None if parameters is None else thaw(parameters)


class HttpApp:
    """The ASGI application of a server. It serves while it is in its lifespan, also in one lifespan after another."""

    def __init__(self, make: Callable[[], Starlette], access: Access) -> None:
        self._make, self._access = make, access
        self._serve: App | None = None
        self._not_open = NotOpen("mcp.server", "write FastAPI(lifespan=mounted.lifespan), or enter it in yours")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] == "lifespan":
            await Router(lifespan=self.lifespan).lifespan(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
        elif self._serve is None or not self._access.gate.is_open:
            self._not_open.log()
            await JSONResponse({"detail": "The service is not available."}, 503)(scope, receive, send)
        else:
            await answered(self._serve, scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncGenerator[None]:
        """Serve requests until the context ends: for the lifespan of an application that mounts this one."""
        app = self._make()  # the SDK's application serves once
        async with app.router.lifespan_context(app):
            self._serve = self._access.guarded(app)
            try:
                yield
            finally:
                self._serve = None
