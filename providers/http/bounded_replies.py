"""A transport whose replies have limits, for clients of httpx and httpx2 that an SDK reads without any."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from functools import cache
from types import ModuleType
from typing import Any

from callgate.providers.http.bounded import MAX_NESTING, BodyRefused, BoundedBody, longest, text_memory
from callgate.providers.http.pace import Pace

_EVENT_ENDS = re.compile(rb"\n(?:\n|\r\n?+)|\r\r\n?+")
"""Two ends of lines, from the last character of the first: a pattern that begins with one of two bytes is found fast."""
_OTHER_BREAKS = tuple((one.encode(), b"\\u%04x" % ord(one)) for one in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
"""What ends a line for ``str.splitlines``, and so for httpx, but not for server-sent events; and its escape in JSON."""


def bounded_transport(
    library: ModuleType,
    inner: Any,
    max_bytes: int,
    *,
    max_values: int = sys.maxsize,
    reader: Callable[[bool], Parts] | None = None,
) -> Any:
    """Return a transport of *library*, httpx or httpx2, over another one.

    A reply has at most *max_bytes*, is not compressed, and arrives whole within the read timeout of its request. Its JSON
    has at most *max_values* values. A stream of events may take longer, because the deadline of its call ends it. A
    *reader*, made for each body with True for events, decides what the client reads; then such a stream has no limit of
    size, because the reader limits each event.

    A reply that exceeds a limit raises ``ReadError`` of *library*, and a late one ``ReadTimeout``.
    """
    stream_of = _stream_class(library)

    class Transport(library.AsyncBaseTransport):  # type: ignore[misc, name-defined]  # the module is an argument
        async def handle_async_request(self, request: Any) -> object:
            seconds = request.extensions.get("timeout", {}).get("read")
            due = None if seconds is None else asyncio.get_running_loop().time() + seconds
            try:
                async with asyncio.timeout_at(due):
                    response = await inner.handle_async_request(request)
            except TimeoutError:
                raise library.ReadTimeout("the reply did not arrive in time") from None
            encoding = response.headers.get("content-encoding")
            events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
            limit = max_bytes if reader is None or not events else sys.maxsize
            try:
                body = BoundedBody(encoding, limit, max_depth=None if events else MAX_NESTING, max_values=max_values)
            except BodyRefused as refused:
                await response.aclose()
                raise library.ReadError(f"the reply {refused}") from None
            if events:
                response.headers["content-type"] = (
                    "text/event-stream"  # events are UTF-8: no reader uses another charset
                )
            read = Parts() if reader is None else reader(events)
            response.stream = stream_of(response.stream, body, None if events else due, read)
            return response

        async def aclose(self) -> None:
            await inner.aclose()

    return Transport()


class Parts:
    """Passes the parts of a body on as they come; other readers hold them back."""

    def feed(self, part: bytes) -> Iterable[bytes]:
        """Return what goes out after *part*.

        Raises:
            BodyRefused: the body exceeds a limit.
        """
        return (part,)

    def end(self) -> Iterable[bytes]:
        """Return what goes out after the last part."""
        return ()

    def close(self) -> None:
        """Let go of what is held: the client has closed the response."""


class EventStream(Parts):
    """Takes a stream of events apart; *max_bytes* is the maximum size of one event."""

    def __init__(self, max_bytes: int) -> None:
        self._buffer, self._max_bytes = bytearray(), max_bytes

    def feed(self, part: bytes) -> Iterable[bytes]:
        """Return the events that end in *part*."""
        begins = max(len(self._buffer) - 3, 0)  # the end of an event may be in two parts
        self._buffer += part
        while (found := _EVENT_ENDS.search(self._buffer, begins)) is not None:
            end, begins = found.end(), 0
            del found
            yield self.event(self._cut(end))
        if len(self._buffer) > self._max_bytes:
            self._buffer = bytearray()  # who keeps the error keeps this object
            raise BodyRefused("has an event that is too large")

    def end(self) -> Iterable[bytes]:
        """Return the last event, which has no empty line after it."""
        return (self.event(self._cut(len(self._buffer))),)

    def event(self, event: bytes) -> bytes:
        """Return what the client reads of one event.

        Raises:
            BodyRefused: the event exceeds a limit.
        """
        return event

    def _cut(self, end: int) -> bytes:
        with memoryview(self._buffer) as seen:
            event = bytes(seen[:end])
        if end == len(self._buffer):
            self._buffer = bytearray()  # a shortened one keeps its memory
        else:
            del self._buffer[:end]
        if len(event) > self._max_bytes:
            raise BodyRefused("has an event that is too large")
        return event


class WholeBody(Parts):
    """Holds a body until it is whole."""

    def __init__(self) -> None:
        self._parts = list[bytes]()

    def feed(self, part: bytes) -> Iterable[bytes]:
        """Take a part; nothing goes out yet."""
        self._parts.append(part)
        return ()

    def end(self) -> Iterable[bytes]:
        """Return the body."""
        data = b"".join(self._parts)
        self._parts.clear()
        return (self.body(data),)

    def body(self, data: bytes) -> bytes:
        """Return what the client reads of the whole body.

        Raises:
            BodyRefused: the body exceeds a limit.
        """
        return data


class MeasuredBody(WholeBody):
    """Limits the memory that the texts of a body take."""

    def __init__(self, max_memory: int) -> None:
        super().__init__()
        self._max_memory = max_memory

    def body(self, data: bytes) -> bytes:
        """Return the body, measured."""
        if text_memory(data) > self._max_memory:
            raise BodyRefused("is too large")
        return data


class MeasuredEvents(EventStream):
    """Limits each event: the memory of its texts, and the nesting and the values of its JSON.

    The client reads an event made of what was measured: otherwise a server could hide values where the client and this
    class differ about the end of a line.
    """

    def __init__(self, max_memory: int, max_values: int) -> None:
        memory = max_memory * 2 // 3  # the client has an event once more, as the lines that it is made of
        super().__init__(longest(memory))
        self._max_memory, self._max_values = memory, max_values

    def event(self, event: bytes) -> bytes:
        """Return the event, measured."""
        if text_memory(event) > self._max_memory:
            raise BodyRefused("has an event that is too large")
        for found, escape in _OTHER_BREAKS:
            event = event.replace(found, escape)
        kept = [line for line in event_lines(event) if line.startswith((b"data:", b"event:"))]
        del event  # it may have megabytes
        scan = BoundedBody(None, sys.maxsize, max_depth=MAX_NESTING, max_values=self._max_values)
        for line in kept:
            if line.startswith(b"data:"):
                scan.feed(line[5:] + b"\n")
        return b"\n".join([*kept, b"", b""])


def event_lines(event: bytes) -> list[bytes]:
    """Return the lines of an event."""
    return event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


@cache
def _stream_class(library: ModuleType) -> Callable[..., object]:
    class Stream(library.AsyncByteStream):  # type: ignore[misc, name-defined]  # the module is an argument
        def __init__(self, stream: Any, body: BoundedBody, due: float | None, read: Parts) -> None:
            self._stream, self._body, self._due, self._read = stream, body, due, read
            self._pace = Pace()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            parts = aiter(self._stream)
            try:
                while (part := await self._next(parts)) is not None:
                    for ready in self._read.feed(self._body.feed(part)):
                        yield ready
                        await asyncio.sleep(0)  # the client parses each event in one step of the loop
                for ready in self._read.end():
                    yield ready
            except BodyRefused as refused:
                raise library.ReadError(f"the reply {refused}") from None

        async def _next(self, parts: AsyncIterator[bytes]) -> bytes | None:
            try:
                async with asyncio.timeout_at(self._due):
                    await self._pace.turn()
                    return await anext(parts, None)
            except TimeoutError:
                raise library.ReadTimeout("the reply did not arrive in time") from None

        async def aclose(self) -> None:
            self._read.close()
            await self._stream.aclose()

    return Stream
