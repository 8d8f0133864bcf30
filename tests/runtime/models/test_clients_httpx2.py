"""A client sends with httpx2 as it does with httpx, and never loads httpx2 by itself."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from contextlib import aclosing
from types import ModuleType
from typing import Any

import httpx
import httpx2
import pytest

from callgate import RegistrationError
from callgate.errors import StreamCut
from callgate.runtime.models.wire.retry_policy import Timeouts
from tests.runtime.models.providers import (
    CHAT,
    KEY,
    WEATHER,
    Wire,
    call,
    chain,
    chunk,
    each_wire,
    failure,
    head,
    read,
    served,
    whole,
)
from tests.runtime.models.test_clients_sockets import LAST, Reader, Writer, answer, asking, streamed

each_library = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
ERRORS = {
    "ConnectError": True,
    "ConnectTimeout": True,
    "ReadError": True,
    "WriteError": True,
    "WriteTimeout": True,
    "CloseError": True,
    "RemoteProtocolError": True,
    "ProxyError": True,
    "ReadTimeout": False,
    "PoolTimeout": False,
    "LocalProtocolError": False,
    "UnsupportedProtocol": False,
    "DecodingError": False,
    "TooManyRedirects": False,
}
"""Whether a request is sent again after each error."""


def client(wire: Wire, library: ModuleType, handler: Any, **options: Any) -> Any:
    return wire.make(http=library.AsyncClient(transport=library.MockTransport(handler)), **options)


def body_of(library: ModuleType, pieces: list[Any]) -> Any:
    class Body(library.AsyncByteStream):  # type: ignore[name-defined, misc] # the class of either library
        async def __aiter__(self) -> Any:
            for piece in pieces:
                if isinstance(piece, Exception):
                    raise piece
                yield piece

    return Body()


@pytest.mark.parametrize("name", ERRORS)
@each_library
async def test_each_error_means_the_same(library: ModuleType, name: str) -> None:
    sent = 0

    def provider(request: Any) -> Any:
        nonlocal sent
        sent += 1
        raise getattr(library, name)(f"the key {KEY}", request=request)

    for asked in (lambda made: made.reply("go"), lambda made: read(made.stream("go"))):
        sent = 0
        error = await failure(asked(client(CHAT, library, provider)))
        assert str(error).startswith(f"openai_chat: no response: {name}")
        assert sent == (3 if ERRORS[name] else 1)
        assert chain(error) == [error]
        assert KEY not in str(error)


@each_wire
@each_library
async def test_an_answer_that_breaks_off_is_cut(library: ModuleType, wire: Wire) -> None:
    def provider(request: Any) -> Any:
        is_stream = "event-stream" in request.headers["accept"]
        pieces = wire.chunks("Hm", [])[:2] if is_stream else [b"{"]
        gone = library.ReadError("gone", request=request)
        media = wire.media if is_stream else "application/json"
        return library.Response(200, headers={"content-type": media}, stream=body_of(library, [*pieces, gone]))

    for asked in (client(wire, library, provider).reply("go"), read(client(wire, library, provider).stream("go"))):
        error = await failure(asked)
        assert isinstance(error, StreamCut)
        assert "ReadError" in str(error)
        assert chain(error) == [error]


@each_wire
@each_library
async def test_calls_and_streams_over_a_socket(library: ModuleType, wire: Wire) -> None:
    async def serve(_: Reader, writer: Writer) -> None:
        if len(server.requests) == 1:
            writer.write(whole(b"{}", "application/json", "503 Busy", "Retry-After: 0"))
            return
        is_stream = b"event-stream" in server.requests[-1]
        writer.write(streamed(wire, "Hm", call()) + LAST if is_stream else answer(wire, "Hm", call()))

    async with served(serve) as server, library.AsyncClient() as http, asking(wire, server, http=http) as made:
        (result,) = await made.tool_call("go", [WEATHER])
        assert result.arguments == {"city": "Porto"}
        events = await read(made.stream("go", [WEATHER]))
        assert events[-1].reply.text == "Hm"
        assert (len(server.requests), server.connections) == (3, 1)


@pytest.mark.parametrize("way", ["cancel", "close"])
@each_library
async def test_leaving_a_stream_closes_the_socket_and_leaves_nothing_behind(library: ModuleType, way: str) -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        writer.write(head(CHAT.media) + b"".join(map(chunk, CHAT.chunks("Hmmmm", [])[:4])))
        assert await reader.read() == b""

    async with served(serve) as server, library.AsyncClient() as http, asking(CHAT, server, http=http) as made:
        begun = asyncio.Event()

        async def reading() -> None:
            async with aclosing(made.stream("go")) as events:
                async for _ in events:
                    begun.set()
                    if way == "close":
                        return

        task = asyncio.create_task(reading())
        await begun.wait()
        if way == "cancel":
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(server.gone.wait(), 30)
        gc.collect()  # a generator of the library that was left open would warn here


@each_library
async def test_silence_and_pings_are_limited(library: ModuleType) -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        if b"event-stream" in server.requests[-1]:
            writer.write(head(CHAT.media))
            while not writer.is_closing():
                writer.write(chunk(b": keep-alive\n\n"))
                await writer.drain()
                await asyncio.sleep(0.01)
        assert await reader.read() == b""

    limits = Timeouts(30, 0.1, 60, 0.2)
    async with (
        served(serve) as server,
        library.AsyncClient() as http,
        asking(CHAT, server, http=http, timeout=limits) as made,
    ):
        assert "ReadTimeout" in str(await failure(made.reply("go")))
        assert "timed out" in str(await failure(read(made.stream("go"))))
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    "http",
    [httpx2.Client(), httpx.Client(), object(), httpx2, 0],
    ids=["httpx2 client", "httpx client", "object", "module", "number"],
)
def test_an_object_of_another_kind_is_refused(http: Any) -> None:
    with pytest.raises(RegistrationError, match=r"an httpx\.AsyncClient or httpx2\.AsyncClient, not"):
        CHAT.make(http=http)


def test_httpx2_is_not_loaded_and_not_needed() -> None:
    code = """
import sys
sys.modules["httpx2"] = None  # its import fails, as where it is not installed
import httpx, callgate
http = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(400)))
for made in (callgate.models.Ollama(model="m"), callgate.models.Ollama(model="m", http=http)):
    pass
try:
    callgate.models.Ollama(model="m", http=object())
except callgate.RegistrationError:
    del sys.modules["httpx2"]
    callgate.models.Ollama(model="m")
    print("httpx2" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.split() == ["False"]
