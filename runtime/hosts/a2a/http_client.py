"""HTTP clients with limits for replies: the SDK itself has none. Imported at the first call."""

from __future__ import annotations

import json
from typing import Any

import httpx

from callgate.providers.http.bounded import MAX_MEMORY, BodyRefused, longest
from callgate.providers.http.bounded_replies import MeasuredBody, MeasuredEvents, Parts, bounded_transport
from callgate.runtime.hosts.a2a.texts import has_more_text

MAX_VALUES = 10_000
"""Maximum number of JSON values in one reply, or in one event: the SDK parses them in one step of the event loop."""
MAX_CARD_VALUES = 20_000
"""Maximum number of JSON values in an agent card: 256 skills with schemas have 16,000."""
_MEMORY_OF_TEXT = 32
"""Bytes of ``max_memory`` for one character of text: 1,000,000 characters by default."""
_OWN = {"user-agent", "connection", "host", "content-length"}
"""Headers that every client sets for itself."""


def limited_client(
    patience: float, given: object = None, *, max_values: int = MAX_VALUES, max_memory: int = MAX_MEMORY
) -> httpx.AsyncClient:
    """Return a client for one call, which sends with *given* if there is one.

    *patience* is the default timeout in seconds, of a connection's silence and of a whole reply. Replies are not
    compressed. A reply, or one event of a stream, has at most *max_values* JSON values and takes at most *max_memory*.
    """

    def reader(events: bool) -> Parts:
        return _Event(max_memory, max_values) if events else _Reply(max_memory)

    inner = httpx.AsyncHTTPTransport() if given is None else _Sending(given)
    return httpx.AsyncClient(
        transport=bounded_transport(httpx, inner, longest(max_memory), max_values=max_values, reader=reader),
        timeout=httpx.Timeout(patience, connect=10.0),
        headers={"accept-encoding": "identity"},
    )


class _Reply(MeasuredBody):
    def __init__(self, max_memory: int) -> None:
        super().__init__(max_memory)
        self._max_text = max_memory // _MEMORY_OF_TEXT

    def body(self, data: bytes) -> bytes:
        _check_texts(data := super().body(data), self._max_text)
        return data


class _Event(MeasuredEvents):
    def __init__(self, max_memory: int, max_values: int) -> None:
        super().__init__(max_memory, max_values)
        self._max_text = max_memory // _MEMORY_OF_TEXT

    def event(self, event: bytes) -> bytes:
        measured = super().event(event)
        _check_texts(b"\n".join(one[5:] for one in measured.split(b"\n") if one[:5] == b"data:"), self._max_text)
        return measured


def _check_texts(data: bytes, limit: int) -> None:
    """Limit the texts of a reply.

    Raises:
        BodyRefused: they have more characters.
    """
    if len(data) <= limit:
        return
    try:
        reply = json.loads(data)  # as the SDK parses it: another parser may refuse what this one takes
    except ValueError:
        return
    if has_more_text(reply, limit):
        raise BodyRefused("has too much text")


class _Sending(httpx.AsyncBaseTransport):
    """Sends with a client of the application, which adds its credentials and applies its limits. It stays open."""

    def __init__(self, given: Any) -> None:
        self._given = given

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send, and return the reply unread."""
        given = self._given
        if given.is_closed:
            raise httpx.ConnectError("the client is closed")
        own = given.build_request(
            request.method,
            str(request.url),
            headers=[(name, value) for name, value in request.headers.items() if name not in _OWN],
            content=await request.aread(),
            extensions=dict(request.extensions),
        )
        try:
            reply = await given.send(own, stream=True)
        except Exception as error:
            kind = getattr(httpx, type(error).__name__, None)  # an error of httpx2, for the SDK, which knows httpx
            if isinstance(error, httpx.HTTPError) or not (isinstance(kind, type) and issubclass(kind, httpx.HTTPError)):
                raise
            raise kind(str(error)) from None
        if not reply.is_stream_consumed:
            return httpx.Response(reply.status_code, headers=reply.headers.multi_items(), stream=_Unread(reply))
        headers = [(name, value) for name, value in reply.headers.multi_items() if name != "content-encoding"]
        return httpx.Response(reply.status_code, headers=headers, stream=httpx.ByteStream(reply.content))


class _Unread(httpx.AsyncByteStream):
    def __init__(self, reply: Any) -> None:
        self._reply = reply

    def __aiter__(self) -> Any:
        return aiter(self._reply.stream)  # not aiter_raw: a cancellation at its end leaves the reply half closed

    async def aclose(self) -> None:
        await self._reply.aclose()
