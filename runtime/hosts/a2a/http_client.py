"""An HTTP client with a maximum response size: the SDK itself has no limit. Imported at the first call."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

MAX_RESPONSE = 32 * 1024 * 1024
"""Maximum size of one response of a remote agent, in bytes; also of a stream of events."""


def limited_client(patience: float) -> httpx.AsyncClient:
    """Return a client for one call. *patience* is the read timeout in seconds. Responses are not compressed, so the size limit holds."""
    return httpx.AsyncClient(
        transport=_LimitedTransport(),
        timeout=httpx.Timeout(patience, connect=10.0),
        headers={"accept-encoding": "identity"},
    )


class _LimitedTransport(httpx.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _LimitedStream(response.stream)
        return response


class _LimitedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_RESPONSE
        async for part in self._stream:
            left -= len(part)
            if left < 0:
                raise httpx.ReadError("the response is too large")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
