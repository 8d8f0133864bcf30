"""Streams of versions up to 2025-11-25 that a client takes up again after its connection was lost, with ``Last-Event-ID``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TypeAlias
from uuid import uuid4
from weakref import WeakValueDictionary

from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http import GET_STREAM_KEY, EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse, jsonrpc_message_adapter

from callgate.runtime.hosts.mcp.user_memory import Owner, UserMemory

LONGEST = 300.0
"""Maximum time of one resumed request, in seconds: a session that breaks off gives no notice of its end."""
LONGEST_NUMBER = 12
"""Maximum length of the number of a message in its id."""

_closing: set[asyncio.Future[None]] = set()
_session: ContextVar[SessionStreams | None] = ContextVar("mcp_session", default=None)


class _Stream:
    """The stream of one request. It exists while the request has no response, and while a message of it is held."""

    __slots__ = ("__weakref__", "changed", "ended", "last", "name", "reader")

    def __init__(self, name: str) -> None:
        self.name, self.last, self.ended = name, 0, False
        self.reader: object | None = None
        self.changed = asyncio.Event()

    def wake(self) -> None:
        """Let the reader look."""
        self.changed.set()
        self.changed = asyncio.Event()

    def end(self) -> None:
        """Let the reader end, once it has sent what there is."""
        self.ended = True
        self.wake()


Held: TypeAlias = UserMemory[tuple[_Stream, bytes]]


class SessionStreams:
    """The messages of one session, which its client may have missed. No other session has their ids.

    *note_response* is called with the id of each request that has its response.
    """

    def __init__(
        self, held: Held, owner: Owner, note_response: Callable[[str], None] | None = None, longest: float = LONGEST
    ) -> None:
        self._held, self._owner, self._longest = held, owner, longest
        self._note_response = note_response
        self._id, self._count = uuid4().hex, 0
        self._streams: WeakValueDictionary[str, _Stream] = WeakValueDictionary()
        self._open: dict[str, _Stream] = {}  # by the id of the client's request
        self._begin(GET_STREAM_KEY)

    @contextlib.contextmanager
    def entered(self) -> Generator[None]:
        """Handle a request of the session. The tasks that it starts stay in the session, such as those of a new one."""
        token = _session.set(self)
        try:
            yield
        finally:
            _session.reset(token)

    def add(self, request: str, message: JSONRPCMessage | None) -> str:
        """Hold a message of a request's stream, and return its id. None begins the stream; a message outside has no id.

        The streams of clients before version 2025-11-25 have no beginning.
        """
        if message is None:
            self._begin(request)
        ends = isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None
        if ends and self._note_response is not None:
            self._note_response(request)
        stream = self._open.get(request)
        if stream is None:
            return ""
        stream.last += 1
        id = f"{stream.name}-{stream.last}"
        if message is not None:
            text = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            self._held.put(self._owner, id, (stream, text), len(text))
            if ends:
                del self._open[request]
                stream.ended = True
            stream.wake()
        return id

    def _begin(self, request: str) -> None:
        if request in self._open:  # the client uses the id of a request that goes on
            self._open[request].end()
        self._count += 1
        name = f"{self._id}-{self._count}"
        self._open[request] = self._streams[name] = _Stream(name)

    async def replay(self, last: str, send: EventCallback) -> None:
        """Send what came after a message, and what comes, until the response. A later reader of the stream ends this one.

        The SDK could send what comes itself, but loses a message between the last one of the store and the first of its own.
        """
        name, _, number = last.rpartition("-")
        stream = self._streams.get(name)
        if stream is None or not number.isdecimal() or len(number) > LONGEST_NUMBER:
            return
        reader = stream.reader = object()
        stream.wake()
        with contextlib.suppress(TimeoutError):  # the client comes back
            async with asyncio.timeout(self._longest):
                await self._follow(stream, int(number), reader, send)

    async def _follow(self, stream: _Stream, seen: int, reader: object, send: EventCallback) -> None:
        while stream.reader is reader:
            seen = max(seen, stream.last - self._held.max_count)  # no earlier one is held
            while seen < stream.last and stream.reader is reader:
                seen += 1
                id = f"{stream.name}-{seen}"
                if (held := self._held.get(self._owner, id)) is not None:
                    await send(EventMessage(jsonrpc_message_adapter.validate_json(held[1]), id))
            if stream.ended:
                return
            await stream.changed.wait()

    def close(self) -> None:
        """Forget the messages, and end the readers: the session has ended."""
        self._open.clear()
        for stream in list(self._streams.values()):
            for number in range(max(1, stream.last - self._held.max_count), stream.last + 1):
                self._held.remove(f"{stream.name}-{number}")
            stream.end()


class StreamStore(EventStore):
    """The messages of all sessions, for the SDK, whose interface does not name the session: the context does.

    Outside of a session nothing is held, and nothing is replayed.
    """

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Hold a message."""
        session = _session.get()
        return "" if session is None else session.add(stream_id, message)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> None:
        """Send the messages of this session's stream after one. None: the SDK has nothing to add."""
        session = _session.get()
        if session is not None:
            await session.replay(last_event_id, send_callback)


def close_later(ctx: ServerRequestContext, after: float) -> asyncio.TimerHandle | None:
    """Close the stream of a call that takes longer than *after* seconds; None if its client could not take it up."""
    close = ctx.close_sse_stream
    if close is None:
        return None

    def begin() -> None:
        task = asyncio.ensure_future(close())  # asyncio: after a timer, so that a call that ends in time starts no task
        _closing.add(task)  # the loop keeps no task alive
        task.add_done_callback(_closing.discard)

    return asyncio.get_running_loop().call_later(after, begin)
