"""Clients on real sockets: what a server sees when a client leaves, and a client when a server does."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import aclosing
from typing import Any, TypeAlias

import pytest

from callgate import ModelError
from callgate.errors import StreamCut
from callgate.runtime.models.wire.client import Client
from callgate.runtime.models.wire.reply import Done
from callgate.runtime.models.wire.retry_policy import Timeouts
from callgate.testing import Call, Fault, Say, ScriptedModel
from tests.runtime.models.providers import (
    CHAT,
    KEY,
    WEATHER,
    Served,
    Wire,
    call,
    chunk,
    each_wire,
    failure,
    head,
    quick,
    read,
    served,
    whole,
)

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter
LAST = b"0\r\n\r\n"


def asking(wire: Wire, server: Served | ScriptedModel, **options: Any) -> Client:
    known: dict[str, Any] = {"model": "m", "api_key": KEY, "retries": quick(), **options}
    return wire.client(server.url, **known)


def answer(wire: Wire, text: str = "", *calls: tuple[str, Any]) -> bytes:
    return whole(json.dumps(wire.body(text, calls)).encode())


def streamed(wire: Wire, text: str = "", *calls: tuple[str, Any]) -> bytes:
    return head(wire.media) + b"".join(map(chunk, wire.chunks(text, calls)))


@each_wire
async def test_calls_and_streams_share_one_connection(wire: Wire) -> None:
    """Contract 57."""

    async def serve(_: Reader, writer: Writer) -> None:
        is_stream = b"event-stream" in server.requests[-1]
        writer.write(streamed(wire, "Hm", call()) + LAST if is_stream else answer(wire, "Hm", call()))

    async with served(serve) as server, asking(wire, server) as client:
        for _ in range(2):
            (result,) = await client.tool_call("go", [WEATHER])
            assert result.arguments == {"city": "Porto"}
            events = await read(client.stream("go", [WEATHER]))
            assert isinstance(events[-1], Done)
        assert server.connections == 1
        assert len(server.requests) == 4
        assert wire.key_value.encode() in server.requests[0]


@pytest.mark.parametrize("way", ["cancel", "close", "error"])
@each_wire
async def test_leaving_a_stream_closes_the_socket_at_once(wire: Wire, way: str) -> None:
    """Contract C1d."""

    async def serve(reader: Reader, writer: Writer) -> None:
        writer.write(head(wire.media) + b"".join(map(chunk, wire.chunks("Hmmmm", [])[:4])))
        assert await reader.read() == b""  # nothing more is sent, and the client closes

    async with served(serve) as server, asking(wire, server) as client:
        begun = asyncio.Event()

        async def reading() -> None:
            async with aclosing(client.stream("go")) as events:
                async for _ in events:
                    begun.set()
                    if way == "close":
                        return
                    if way == "error":
                        raise ZeroDivisionError

        task = asyncio.create_task(reading())
        await begun.wait()
        if way == "cancel":
            task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert (
            type(ended).__name__ == {"cancel": "CancelledError", "close": "NoneType", "error": "ZeroDivisionError"}[way]
        )
        await asyncio.wait_for(server.gone.wait(), 30)


@each_wire
async def test_cancelling_a_call_that_waits_for_its_answer_closes_the_socket(wire: Wire) -> None:
    async def serve(reader: Reader, _: Writer) -> None:
        begun.set()
        assert await reader.read() == b""

    begun = asyncio.Event()
    async with served(serve) as server, asking(wire, server) as client:
        task = asyncio.create_task(client.reply("go"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.gone.wait(), 30)
        assert len(server.requests) == 1


@each_wire
async def test_a_stream_cut_anywhere_raises_and_no_call_of_it_is_ready(wire: Wire) -> None:
    """Contract 47, C10."""
    sent = streamed(wire, "Hm", call())
    last = len(chunk(wire.chunks("Hm", [call()])[-1]))
    cuts = list(range(len(head(wire.media)), len(sent) - last, (len(sent) - last) // 10))

    async def serve(_: Reader, writer: Writer) -> None:
        writer.write(sent[: cuts[len(server.requests) - 1]])
        await writer.drain()
        writer.close()

    async with served(serve) as server, asking(wire, server) as client:
        for _ in cuts:
            with pytest.raises(StreamCut) as raised:
                await read(client.stream("go", [WEATHER]))
            assert all(one.truncated for one in raised.value.reply.calls)
        assert len(server.requests) == len(cuts)


@each_wire
async def test_a_connection_that_closes_before_any_answer_is_tried_again(wire: Wire) -> None:
    async def serve(_: Reader, writer: Writer) -> None:
        if len(server.requests) < 3:
            writer.close()
        else:
            writer.write(answer(wire, "yes"))

    async with served(serve) as server, asking(wire, server) as client:
        assert (await client.reply("go")).text == "yes"
        assert (len(server.requests), server.connections) == (3, 3)


async def test_a_server_that_closes_idle_connections_is_asked_on_a_new_one() -> None:
    async def serve(_: Reader, writer: Writer) -> None:
        writer.write(answer(CHAT, "yes"))
        await writer.drain()
        writer.close()  # without having said `Connection: close`

    async with served(serve) as server, asking(CHAT, server) as client:
        for _ in range(5):
            assert (await client.reply("go")).text == "yes"


async def test_nobody_listens() -> None:
    async with served(_never) as server:
        pass
    async with asking(CHAT, server) as client:
        error = await failure(client.reply("go"))
    assert "no response: ConnectError" in str(error)
    assert error.status is None


async def _never(reader: Reader, _: Writer) -> None:
    assert await reader.read() == b""


async def test_a_server_that_says_nothing_is_left_in_time() -> None:
    async with served(_never) as server:
        async with asking(CHAT, server, timeout=Timeouts(30, 0.05, 60), retries=0) as client:
            assert "ReadTimeout" in str(await failure(client.reply("go")))
        async with asking(CHAT, server, timeout=Timeouts(total=0.05)) as client:
            assert "timed out" in str(await failure(client.reply("go")))
        await asyncio.wait_for(server.gone.wait(), 30)


async def test_a_server_that_stops_in_the_middle_is_left_in_time() -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        writer.write(answer(CHAT, "yes")[:-5])
        await _never(reader, writer)

    async with served(serve) as server, asking(CHAT, server, timeout=Timeouts(30, 0.05, 60)) as client:
        assert "the response timed out" in str(await failure(client.reply("go")))
        await asyncio.wait_for(server.gone.wait(), 30)


async def test_a_body_shorter_than_it_says_is_no_answer() -> None:
    async def serve(_: Reader, writer: Writer) -> None:
        writer.write(answer(CHAT, "yes")[:-5])
        await writer.drain()
        writer.close()

    async with served(serve) as server, asking(CHAT, server) as client:
        assert "RemoteProtocolError" in str(await failure(client.reply("go")))
        assert len(server.requests) == 1


async def test_a_server_that_closes_its_half_and_sends_no_end_mark_has_cut_the_stream() -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(b"".join(CHAT.chunks("Hm", [])[:2]))
        writer.write_eof()
        await _never(reader, writer)

    async with served(serve) as server, asking(CHAT, server) as client:
        with pytest.raises(StreamCut, match="before its end mark") as cut:
            await read(client.stream("go"))
        assert cut.value.reply.text == "Hm"
        await asyncio.wait_for(server.gone.wait(), 30)


async def test_a_body_without_end_is_left_when_it_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.runtime.models.wire.http.MAX_RESPONSE", 100_000)
    monkeypatch.setattr("callgate.runtime.models.wire.http.MAX_STREAM", 100_000)
    sent = 0

    async def serve(_: Reader, writer: Writer) -> None:
        nonlocal sent
        writer.write(head("application/x-ndjson") if sent < 0 else head())
        while not writer.is_closing():
            writer.write(chunk(b" " * 65_536))
            sent += 65_536
            await writer.drain()

    async with served(serve) as server, asking(CHAT, server) as client:
        for asked in (client.reply("go"), read(client.stream("go"))):
            sent = 0
            server.gone.clear()
            assert "too large" in str(await failure(asked))
            await asyncio.wait_for(server.gone.wait(), 30)
            assert sent < 64 * 1024 * 1024


async def test_an_error_body_without_end_is_read_as_far_as_it_is_told() -> None:
    async def serve(_: Reader, writer: Writer) -> None:
        writer.write(head("text/plain").replace(b"200 OK", b"400 Bad Request"))
        while not writer.is_closing():
            writer.write(chunk(b"no " * 1000))
            await writer.drain()

    async with served(serve) as server, asking(CHAT, server) as client:
        error = await failure(client.reply("go"))
        assert str(error).startswith("openai_chat: it answered 400: no no no")
        assert len(str(error)) < 600
        await asyncio.wait_for(server.gone.wait(), 30)


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
async def test_a_packed_answer_is_unpacked_however_it_is_cut(size: int) -> None:
    packed = gzip.compress(json.dumps(CHAT.body("é" * 1000, [call()])).encode())

    async def serve(_: Reader, writer: Writer) -> None:
        writer.write(head("application/json", "Content-Encoding: gzip"))
        for start in range(0, len(packed), size):
            writer.write(chunk(packed[start : start + size]))
            await writer.drain()
        writer.write(LAST)

    async with served(serve) as server, asking(CHAT, server) as client:
        assert (await client.reply("go")).text == "é" * 1000
        assert b"accept-encoding: gzip, deflate" in server.requests[0].lower()


async def test_a_packed_stream_is_unpacked_too() -> None:
    packed = gzip.compress(b"".join(CHAT.chunks("Hm", [call()])))

    async def serve(_: Reader, writer: Writer) -> None:
        writer.write(head(CHAT.media, "Content-Encoding: gzip") + chunk(packed[:40]) + chunk(packed[40:]) + LAST)

    async with served(serve) as server, asking(CHAT, server) as client:
        events = await read(client.stream("go", [WEATHER]))
        assert events[-1].reply.text == "Hm"
        assert b"accept-encoding: identity" in server.requests[0].lower()


@each_wire
async def test_events_come_when_they_are_sent_and_not_later(wire: Wire) -> None:
    """Each piece is held back until the one before it has been read."""
    turn: asyncio.Queue[None] = asyncio.Queue()

    async def serve(_: Reader, writer: Writer) -> None:
        writer.write(head(wire.media))
        for piece in wire.chunks("abc", []):
            writer.write(chunk(piece))
            if b'"a"' in piece or b'"b"' in piece or b'"c"' in piece:
                await turn.get()
        writer.write(LAST)

    async with served(serve) as server, asking(wire, server) as client:
        texts: list[str] = []
        async for event in client.stream("go"):
            if not isinstance(event, Done):
                texts.append(getattr(event, "text", ""))
                turn.put_nowait(None)
        assert texts == ["a", "b", "c"]


async def test_a_stream_with_a_page_in_place_of_events_is_no_answer() -> None:
    async def serve(_: Reader, writer: Writer) -> None:
        writer.write(whole(b"<html>Sign in</html>", "text/html; charset=utf-8"))

    async with served(serve) as server, asking(CHAT, server) as client:
        error = await failure(read(client.stream("go")))
        assert "text/html instead of a stream" in str(error)
        assert not isinstance(error, StreamCut)


async def test_a_hundred_calls_at_once_over_sockets_all_get_their_own_answer() -> None:
    async def serve(_: Reader, writer: Writer) -> None:
        number = server.requests[-1].split(b"number-")[1].split(b'"')[0].decode()
        writer.write(answer(CHAT, number))

    async with served(serve) as server, asking(CHAT, server) as client:
        found = await asyncio.gather(*(client.reply(f"number-{number}") for number in range(100)))
        assert [reply.text for reply in found] == [str(number) for number in range(100)]


@each_wire
async def test_a_scripted_model_is_understood_on_every_wire(wire: Wire) -> None:
    """Contract 57: the scripted model spells the wires without the adapters' help."""
    turn = [Say("Look: "), Call("get_weather", {"city": "Porto"}), Call("get_weather", {"town": 1})]
    script: list[Any] = [
        turn,
        turn,
        Fault.http(503, retry_after=0),
        Fault.reset(),
        turn,
        [Say("Hm"), Fault.cut(events=1)],
    ]
    async with ScriptedModel(script) as model, asking(wire, model) as client:
        good, bad = await client.tool_call("go", [WEATHER])
        assert (good.arguments, bad.success) == ({"city": "Porto"}, False)
        *_, done = await read(client.stream("go", [WEATHER]))
        assert (done.reply.text, len(done.reply.calls)) == ("Look: ", 2)
        assert len((await client.reply("go", [WEATHER])).calls) == 2
        with pytest.raises(StreamCut):
            await read(client.stream("go"))
        assert (model.left, model.refusals) == (0, [])
        assert all(asked.key for asked in model.requests)


async def test_the_environment_s_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(_: Reader, writer: Writer) -> None:
        writer.write(answer(CHAT, "by proxy"))

    async with served(serve) as server:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
        for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        async with CHAT.client("http://provider.example/v1", model="m", retries=0, api_key=None) as client:
            assert (await client.reply("go")).text == "by proxy"
        assert server.requests[0].startswith(b"POST http://provider.example/v1/chat/completions ")


async def test_closing_a_client_closes_its_idle_connections() -> None:
    async def serve(_: Reader, writer: Writer) -> None:
        writer.write(answer(CHAT, "yes"))

    async with served(serve) as server:
        client = asking(CHAT, server)
        await client.reply("go")
        assert not server.gone.is_set()
        await client.aclose()
        await asyncio.wait_for(server.gone.wait(), 30)
        with pytest.raises(ModelError, match="closed"):
            await client.reply("go")
