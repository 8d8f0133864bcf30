"""An HTTP client whose answers are bounded: the SDK reads whatever an agent sends (threat B5). Loaded with a first call."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

MAX_ANSWER = 32 * 1024 * 1024
"""Bytes of one answer of a remote agent, a stream of events included."""


def bounded_client(patience: float) -> httpx.AsyncClient:
    """A client for one call. *patience* is in seconds of silence; answers come unpacked, so that they are what they weigh."""
    return httpx.AsyncClient(
        transport=_Bounded(),
        timeout=httpx.Timeout(patience, connect=10.0),
        headers={"accept-encoding": "identity"},
    )


class _Bounded(httpx.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Counted(response.stream)
        return response


class _Counted(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_ANSWER
        async for part in self._stream:
            left -= len(part)
            if left < 0:
                raise httpx.ReadError("the answer is too long")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
