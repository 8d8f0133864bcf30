"""Requests that are too large, too slow, cut short or given up: each is bounded, and leaves nothing held."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import callgate
from callgate import Limits
from callgate.runtime.hosts.asgi.problem_details import Problem
from callgate.runtime.hosts.asgi.request import Headers, read_body
from tests.runtime.gate.making import gate_of
from tests.runtime.hosts.making import Desk, who
from tests.runtime.hosts.serving import answer, desk_served, request, served, until

SMALL = Limits(max_bytes=1000)


async def test_a_body_beyond_the_limit_is_refused_by_its_length_before_it_is_read() -> None:
    """Boundary B1 of the invariants."""
    async with desk_served(Desk(limits=SMALL)) as (running, _):
        reader, writer = await running.connect()
        writer.write(request("/tools/add", b"", "Content-Length: 1001"))  # nothing of it is ever sent
        status, headers, told = await answer(reader)
        assert (status, told["code"], headers["connection"]) == (413, "too_large", "close")
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("length", ["9" * 400, "18446744073709551617"])
async def test_a_length_beyond_all_numbers_is_refused(length: str) -> None:
    """Boundary B1 of the invariants: by the server or by the application, and never with 500."""
    async with desk_served(Desk(limits=SMALL)) as (running, _):
        reader, writer = await running.connect()
        writer.write(request("/tools/add", b"", f"Content-Length: {length}"))
        first = await asyncio.wait_for(reader.readline(), 20)
        assert int(first.split()[1]) in {400, 413}
        writer.close()


async def test_a_body_without_a_length_is_counted_as_it_comes() -> None:
    """Boundary B1 of the invariants: chunks end at the limit, however many more there would be."""
    desk = Desk(limits=SMALL)
    async with desk_served(desk) as (running, _):
        reader, writer = await running.connect()
        writer.write(request("/tools/add", b"", "Transfer-Encoding: chunked"))
        writer.write((b"64\r\n" + b" " * 100 + b"\r\n") * 11)  # and no end of it
        status, _, told = await answer(reader)
        assert (status, told["code"]) == (413, "too_large")
        writer.close()
    assert desk.places.taken == 0


async def test_a_client_that_never_stops_sending_is_cut_off() -> None:
    """Boundary B1 of the invariants: what it sends past the limit is not kept."""
    desk = Desk(limits=SMALL)
    async with desk_served(desk) as (running, _):
        _, writer = await running.connect()
        writer.write(request("/tools/add", b"", "Transfer-Encoding: chunked"))
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(20):
                while True:
                    writer.write(b"2710\r\n" + b" " * 10_000 + b"\r\n")
                    await writer.drain()
        writer.transport.abort()
    assert desk.places.taken == 0


async def test_a_body_at_the_limit_passes_with_a_length_and_in_chunks() -> None:
    """The greatest size still allowed."""
    body = b'{"a": 1' + b" " * 992 + b"}"
    assert len(body) == 1000

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, 1000, 100):
            yield body[start : start + 100]

    async with desk_served(Desk(limits=SMALL)) as (_, client):
        contents: list[bytes | AsyncIterator[bytes]] = [body, chunks()]
        for content in contents:
            said = await client.post("/tools/add", content=content, headers={"content-type": "application/json"})
            assert (said.status_code, said.json()) == (200, 2)


async def test_a_tools_own_limit_holds_for_its_body() -> None:
    """Settable per tool."""
    gate = gate_of([])

    @callgate.tool(effect="read", limits=Limits(max_bytes=20))
    async def tiny(a: int) -> int:
        """Small."""
        return a

    gate.add(tiny)
    async with (
        served(callgate.asgi(gate, authenticate=lambda _: callgate.User("u"))) as running,
        running.client() as client,
    ):
        assert (await client.post("/tools/tiny", json={"a": 1})).status_code == 200
        assert (await client.post("/tools/tiny", json={"a": 10**20})).status_code == 413


async def test_a_body_that_does_not_come_is_given_up_in_time() -> None:
    """Boundary B1 of the invariants."""
    desk = Desk()
    async with desk_served(desk, read_timeout=0.2) as (running, _):
        reader, writer = await running.connect()
        writer.write(request("/tools/add", b"{", "Content-Length: 100"))
        started = time.monotonic()
        status, headers, told = await answer(reader)
        assert (status, told["code"], headers["connection"]) == (408, "slow_body", "close")
        assert 0.15 < time.monotonic() - started < 20
        writer.close()
    assert desk.places.taken == 0


async def test_a_byte_now_and_then_does_not_buy_more_time() -> None:
    """Boundary B1 of the invariants: the time is for the whole body."""

    async def receive() -> Any:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b" ", "more_body": True}

    with pytest.raises(Problem) as refused:
        async with asyncio.timeout(20):
            await read_body(receive, Headers([]), 10**9, 0.1)
    assert refused.value.status == 408


async def test_a_request_that_is_half_closed_before_its_end_is_over_at_once() -> None:
    """Boundary B1 of the invariants: no call is made of a part of its arguments."""
    desk = Desk()
    async with desk_served(desk, read_timeout=60) as (running, client):
        reader, writer = await running.connect()
        writer.write(request("/tools/add", b'{"a": 1}', "Content-Length: 9"))
        await writer.drain()
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 20)  # the server closes its half, too
        writer.close()
        assert (await client.get("/health")).status_code == 200
    assert desk.places.taken == 0


async def test_a_client_that_leaves_cancels_its_call_and_what_it_held_is_given_back() -> None:
    """Contract I1."""
    desk = Desk()
    async with desk_served(desk) as (running, client):
        for path in "/tools/wait", "/tools/wait/stream":
            for how in "closed", "reset", "half-closed":
                desk.started.clear()
                known = desk.cancelled
                _, writer = await running.connect()
                writer.write(request(path, b"{}", "Content-Length: 2"))
                await asyncio.wait_for(desk.started.wait(), 20)
                assert desk.places.held == 1
                leave(writer, how)
                await until(lambda known=known: desk.cancelled == known + 1)  # type: ignore[misc]
                await until(lambda: desk.places.held == 0)
                writer.close()
        assert (await client.post("/tools/add", json={"a": 1})).json() == 2
    assert (desk.cancelled, desk.places.held) == (6, 0)


def leave(writer: asyncio.StreamWriter, how: str) -> None:
    if how == "half-closed":
        writer.write_eof()
        return
    if how == "reset":
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_a_client_that_stays_is_not_cancelled() -> None:
    """The control to the test above: without a disconnect the call goes on."""
    desk = Desk()
    async with desk_served(desk) as (running, _):
        reader, writer = await running.connect()
        writer.write(request("/tools/wait", b"{}", "Content-Length: 2"))
        await asyncio.wait_for(desk.started.wait(), 20)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (desk.cancelled, desk.places.held) == (0, 1)
        desk.go.set()
        assert (await answer(reader))[2] == "done"
        writer.close()


async def test_a_server_that_cancels_its_request_waits_until_the_call_is_over() -> None:
    """Contract I1: also if the server cancels the application."""
    desk = Desk()
    app = callgate.asgi(desk.gate, authenticate=who)
    messages = [{"type": "http.request", "body": b"{}", "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        return None

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/tools/wait",
        "headers": [(b"authorization", b"Bearer ann"), (b"content-type", b"application/json")],
    }
    async with desk.gate:
        for path in "/tools/wait", "/tools/wait/stream":
            messages[:] = [{"type": "http.request", "body": b"{}", "more_body": False}]
            desk.started.clear()
            serving = asyncio.ensure_future(app({**scope, "path": path}, receive, send))
            await asyncio.wait_for(desk.started.wait(), 20)
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            assert desk.places.held == 0
    assert (desk.cancelled, sent) == (2, [])


async def test_a_reader_that_takes_nothing_is_given_up() -> None:
    """Boundary B1 of the invariants: what a client does not read does not pile up, nor hold a call for ever."""
    produced = 0

    @callgate.tool(effect="read", deadline=60)
    async def flood(ctx: callgate.ToolContext) -> int:
        """Sends more than any buffer takes."""
        nonlocal produced
        while True:
            await ctx.send("x" * 100_000)
            produced += 1

    desk = Desk()
    desk.gate.add(flood)
    async with desk_served(desk, write_timeout=0.2) as (running, _):
        _, writer = await running.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request("/tools/flood/stream", b"{}", "Content-Length: 2"))
        await until(lambda: produced > 0)
        await until(lambda: desk.places.held == 0)
        assert produced < 2_000
        writer.close()


async def test_many_slow_requests_do_not_keep_others_waiting() -> None:
    """Boundary B1 of the invariants."""
    async with desk_served(Desk(), read_timeout=60) as (running, client):
        slow = [await running.connect() for _ in range(100)]
        for _, writer in slow:
            writer.write(request("/tools/add", b"{", "Content-Length: 100"))
        assert (await client.post("/tools/add", json={"a": 1})).json() == 2
        for _, writer in slow:
            writer.transport.abort()


async def test_reading_stops_at_the_limit_whatever_the_server_hands_over() -> None:
    """Boundary B1 of the invariants: an application cannot rely on the declared length."""
    reads = 0

    async def receive() -> Any:
        nonlocal reads
        reads += 1
        return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    with pytest.raises(Problem) as refused:
        await read_body(receive, Headers([(b"content-length", b"5")]), 1000, 10)
    assert (refused.value.status, reads) == (413, 11)
