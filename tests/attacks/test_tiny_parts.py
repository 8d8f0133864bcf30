"""A hostile server or client that sends its body in parts of a byte: the readers let other tasks run meanwhile.

One read of the network brings ten thousand such parts. They took up to 390 ms in one step of the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import httpx2
import pytest

from callgate.errors import ModelError, RegistrationError, StoreError
from callgate.models import OpenAIChat
from callgate.providers.http import pace
from callgate.providers.http.bounded_replies import MeasuredBody, MeasuredEvents, bounded_transport
from callgate.providers.http.post import post_bounded
from callgate.runtime.hosts.a2a import remote_tools
from callgate.runtime.hosts.http_requests import read_bounded

PARTS = 20_000
URL = "http://server.test/"


class Tiny(httpx.AsyncByteStream, httpx2.AsyncByteStream):
    """Parts without a pause."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(PARTS):
            yield b" "


def served(media: str) -> httpx.AsyncClient:
    """A client of a server that sends them."""
    headers = {"content-type": media}
    return httpx.AsyncClient(
        transport=httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=Tiny()))
    )


async def card() -> None:
    with pytest.raises(RegistrationError):
        await remote_tools(URL, httpx_client=served("application/json"))


async def answer() -> None:
    with pytest.raises(ModelError):
        await OpenAIChat(model="m", api_key="k", http=served("application/json")).reply(
            [{"role": "user", "content": "x"}]
        )


async def stream() -> None:
    with pytest.raises(ModelError):
        async for _ in OpenAIChat(model="m", api_key="k", http=served("text/event-stream")).stream(
            [{"role": "user", "content": "x"}]
        ):
            pass


async def anchor() -> None:
    assert (await post_bounded("The receiver", URL, b"", {}, 60.0, served("text/plain"))).status == 200
    with pytest.raises(StoreError):
        await post_bounded("The receiver", "http://127.0.0.1:1", b"", {}, 60.0)


def of_mcp(media: str) -> Callable[[], Awaitable[None]]:
    """The transport of MCP servers."""

    async def read() -> None:
        headers = {"content-type": media}
        inner = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, stream=Tiny()))
        transport = bounded_transport(
            httpx2,
            inner,
            10**6,
            reader=lambda events: MeasuredEvents(10**6, 10**6) if events else MeasuredBody(10**6),
        )
        async with httpx2.AsyncClient(transport=transport) as client:
            assert (await client.get(URL)).status_code == 200

    return read


async def request() -> None:
    """A server that has all parts of a request at hand, of which many are empty."""
    left = itertools.count(PARTS, -1)

    async def receive() -> dict[str, object]:
        at = next(left)
        return {"type": "http.request", "body": b" " if at % 2 else b"", "more_body": at > 0}

    assert await read_bounded(receive, PARTS, 60.0) == b" " * (PARTS // 2)


READERS: dict[str, Callable[[], Awaitable[None]]] = {
    "a request": request,
    "a card of an agent": card,
    "an answer of a model": answer,
    "a stream of a model": stream,
    "an answer of an endpoint of the log": anchor,
    "a result of an MCP server": of_mcp("application/json"),
    "events of an MCP server": of_mcp("text/event-stream"),
}


@pytest.mark.parametrize("paced", [True, False], ids=["paced", "control without turns"])
@pytest.mark.parametrize("reader", READERS)
async def test_a_body_of_tiny_parts_leaves_turns_for_other_tasks(
    reader: str, paced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step of the loop reads more than some parts."""
    if not paced:
        monkeypatch.setattr(pace, "PARTS", PARTS + 1)
    turns = itertools.count()

    async def neighbour() -> None:
        while True:
            next(turns)
            await asyncio.sleep(0)

    other = asyncio.ensure_future(neighbour())
    try:
        await READERS[reader]()
    finally:
        other.cancel()
    assert (next(turns) > PARTS / 256) is paced
