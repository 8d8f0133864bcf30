"""The limits of one user: HTTP sessions, and streams of changes.

The least recently used idle session ends when a further one begins. A further stream is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeAlias

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST, SubscriptionsListenRequestParams, SubscriptionsListenResult
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.authentication import UnauthenticatedUser
from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from callgate.runtime.hosts.mcp.access import App, Message, Receive, Send
from callgate.runtime.hosts.mcp.request_ids import RequestIds, read_request_id
from callgate.runtime.hosts.mcp.resumed_streams import SessionStreams
from callgate.runtime.hosts.mcp.user_memory import Owner
from callgate.tools.calls import User

SESSION = "mcp-session-id"
_NO_SESSION = {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": "Session not found"}}
"""The answer of the SDK to an unknown session."""
_TAKEN_TEXT = "A request with this id has no response yet. Give each request of a session an id of its own."
_TAKEN = {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": _TAKEN_TEXT}}
Listen: TypeAlias = Callable[
    [ServerRequestContext, SubscriptionsListenRequestParams], Awaitable[SubscriptionsListenResult]
]


NewStreams: TypeAlias = Callable[[Owner, Callable[[str], None]], SessionStreams]
"""Makes the streams of a session of an owner; they call the function with the id of each request that has its response."""


class _Session:
    __slots__ = ("ids", "requests", "streams")

    def __init__(self, owner: Owner, new_streams: NewStreams | None) -> None:
        self.requests = 1  # the number of requests under way
        self.ids = RequestIds(is_told=new_streams is not None)
        self.streams = None if new_streams is None else new_streams(owner, self.ids.note_response)

    async def serve(self, app: App, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a request, whose id has to be free."""
        id = None
        if scope["method"] == "POST":
            id, receive = await read_request_id(receive)
        if id is not None and not self.ids.take(id):
            await JSONResponse(_TAKEN, 409)(scope, receive, send)
            return
        refused, lost = False, True

        async def noted(message: Message) -> None:
            nonlocal refused, lost
            refused = refused or message.get("status", 0) >= 400
            await send(message)
            lost = message["type"] == "http.response.start" or message.get("more_body", False)

        try:
            with nullcontext() if self.streams is None else self.streams.entered():
                await app(scope, receive, noted)
        finally:
            if id is not None:
                self.ids.note_end(id, refused=refused, lost=lost)


class UserSessions:
    """Wraps the endpoint of the SDK, whose requests have a user already. Clients of newer versions have no sessions.

    *new_streams* makes the streams of a session, for the store that the SDK has; None without one.
    """

    def __init__(
        self,
        app: App,
        user_of: Callable[[Message], User | None],
        limit: int,
        total: int,
        new_streams: NewStreams | None,
    ) -> None:
        self._app, self._user_of, self._limit, self._total = app, user_of, limit, total
        self._new_streams = new_streams
        self._owners: dict[str, Owner] = {}  # of all sessions, the least recently used one first
        self._sessions: dict[Owner, dict[str, _Session]] = {}  # the least recently used one first
        self._opening = Counter[Owner]()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        user = self._user_of(scope)
        if user is None:  # its token is missing, or has no user: the SDK answers 401
            await self._app({**scope, "user": UnauthenticatedUser()}, receive, send)
            return
        owner, headers = (user.tenant, user.id), Headers(scope=scope)
        version, session = headers.get("mcp-protocol-version"), headers.get(SESSION)
        if session is not None and self._owners.get(session, owner) != owner:
            # The SDK compares client, issuer and subject of tokens, and the users of one client may have no subject.
            await JSONResponse(_NO_SESSION, 404)(scope, receive, send)
        elif session is not None:
            await self._use(owner, session, scope, receive, send)
        elif scope["method"] == "POST" and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS):
            await self._open(owner, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _use(self, owner: Owner, id: str, scope: Message, receive: Receive, send: Send) -> None:
        sessions = self._sessions.get(owner, {})
        if id not in sessions:
            await self._app(scope, receive, send)
            return
        session = sessions[id] = sessions.pop(id)
        session.requests += 1
        self._owners[id] = self._owners.pop(id)
        ended = False

        async def noted(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start":
                ended = message["status"] == 404 or (scope["method"] == "DELETE" and message["status"] < 400)
            await send(message)

        try:
            await session.serve(self._app, scope, receive, noted)
        finally:
            session.requests -= 1
            if ended and sessions.get(id) is session:
                self._forget(owner, id)

    async def _open(self, owner: Owner, scope: Message, receive: Receive, send: Send) -> None:
        sessions = self._sessions.get(owner, {})
        if sum(1 for session in sessions.values() if session.requests) + self._opening[owner] >= self._limit:
            text = f"You have {self._limit} sessions in use, the maximum. End one of them first."
            await JSONResponse({"detail": text}, 429, {"retry-after": "10"})(scope, receive, send)
            return
        self._opening[owner] += 1
        session = _Session(owner, self._new_streams)
        opened: str | None = None

        async def noted(message: Message) -> None:
            nonlocal opened
            if message["type"] == "http.response.start" and message["status"] < 400:
                opened = Headers(raw=list(message["headers"])).get(SESSION)
                if opened is not None:
                    self._sessions.setdefault(owner, {})[opened] = session
                    self._owners[opened] = owner
                    if len(self._owners) > self._total:  # the SDK has no more: it has ended some that were long unused
                        oldest = next(iter(self._owners))
                        self._forget(self._owners[oldest], oldest)
                    await self._end_idle(owner, scope)
            await send(message)

        try:
            await session.serve(self._app, scope, receive, noted)
        finally:
            session.requests -= 1
            self._opening[owner] -= 1
            if not self._opening[owner]:
                del self._opening[owner]

    async def _end_idle(self, owner: Owner, scope: Message) -> None:
        """End the least recently used idle sessions above the limit, as their client would."""
        sessions = self._sessions[owner]
        for id in [one for one, session in sessions.items() if not session.requests]:
            if len(sessions) <= self._limit:
                return
            self._forget(owner, id)
            kept = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
            headers = [*kept, (SESSION.encode(), id.encode())]
            await self._app({**scope, "method": "DELETE", "headers": headers}, _nothing, _dropped)

    def _forget(self, owner: Owner, id: str) -> None:
        sessions = self._sessions.get(owner, {})
        session = sessions.pop(id, None)
        if session is not None and session.streams is not None:
            session.streams.close()
        self._owners.pop(id, None)
        if not sessions:
            self._sessions.pop(owner, None)


class UserStreams:
    """Wraps the SDK's handler of ``subscriptions/listen``: a stream is open as long as its request.

    The SDK limits the streams of all users together, so one user could take them all.
    """

    def __init__(self, handler: Listen, user_of: Callable[[ServerRequestContext], User], limit: int) -> None:
        self._handler, self._user_of, self._limit = handler, user_of, limit
        self._open = Counter[Owner]()

    async def __call__(
        self, ctx: ServerRequestContext, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Handle ``subscriptions/listen``.

        Raises:
            MCPError: the user has as many streams as one may have.
        """
        user = self._user_of(ctx)
        owner = user.tenant, user.id
        if self._open[owner] >= self._limit:
            text = f"You have {self._limit} streams of changes open, the maximum. Close one of them first."
            raise MCPError(INVALID_REQUEST, text)
        self._open[owner] += 1
        try:
            return await self._handler(ctx, params)
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _dropped(_: Message) -> None:
    """The caller of the request is this module, which needs no response."""
