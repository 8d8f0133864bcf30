"""Cancelled at any point, closed at any event: the answer is closed, nothing is left behind, nothing is sent after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from callgate.runtime.models.wire.client import Client
from callgate.runtime.models.wire.reply import ReplyEvent
from callgate.runtime.models.wire.retry_policy import Retries, Timeouts
from callgate.testing import LeaseLedger, SweepFailed, every_cancel_point, run_virtual
from tests.harness.sweeps import swept
from tests.runtime.models.providers import CHAT, KEY, WEATHER, Pieces, Wire, call, each_wire


class Counted(httpx.AsyncByteStream):
    """An answer that is open in the ledger until it is closed, and takes its time for every piece."""

    def __init__(self, ledger: LeaseLedger, pieces: list[bytes]) -> None:
        self.ledger, self.pieces, self.open = ledger, pieces, True
        ledger.acquired("answer")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            await asyncio.sleep(0.01)
            yield piece

    async def aclose(self) -> None:
        await asyncio.sleep(0.01)  # closing takes its time, too
        if self.open:
            self.open = False
            self.ledger.released("answer")


class Stepping(httpx.AsyncBaseTransport):
    """A provider on no socket: waits at each step of connecting, sending and answering."""

    def __init__(self, ledger: LeaseLedger, statuses: list[int], media: str, pieces: list[bytes]) -> None:
        self.ledger, self.statuses, self.media, self.pieces = ledger, statuses, media, pieces

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        body = Counted(self.ledger, self.pieces)
        return httpx.Response(self.statuses.pop(0), headers={"content-type": self.media}, stream=body)


def coarse(chunks: list[bytes]) -> list[bytes]:
    """The same bytes in six pieces or so: there are as many cancel points in a piece as in a hundred."""
    size = -(-len(chunks) // 6)
    return [b"".join(chunks[start : start + size]) for start in range(0, len(chunks), size)]


class Careless(Client):
    """The control: forgets to close what it streams."""

    codec, default_url = CHAT.client.codec, CHAT.client.default_url

    async def stream(self, *args: Any, **options: Any) -> AsyncGenerator[ReplyEvent, None]:
        sent = await self._build_request("go", None, None, None, streamed=True)
        http = self._sender.client()
        request = http.build_request("POST", sent.url, content=sent.body)
        response = await http.send(request, stream=True)
        async for part in response.aiter_raw():
            for event in self.codec.decoder().feed(part):
                yield event
        await response.aclose()


def client(
    wire: Wire, ledger: LeaseLedger, pieces: list[bytes], media: str, kind: type[Client] | None = None
) -> Client:
    transport = Stepping(ledger, [503, 200], media, pieces)
    retries = Retries(random=lambda: 1.0)
    options: dict[str, Any] = {"model": "m", "api_key": KEY, "retries": retries, "timeout": Timeouts(5, 5, 50)}
    http = httpx.AsyncClient(transport=transport)
    if kind is not None:
        transport.statuses = [200]
    return (kind or wire.client)("https://provider.example/v1", http=http, **options)


@swept
@each_wire
def test_a_whole_answer_leaves_nothing_wherever_it_is_cancelled(wire: Wire, sweep: dict[str, Any]) -> None:
    """Contract C1d, I1."""

    async def scenario(ledger: LeaseLedger) -> None:
        body = wire.whole("", call()).content
        asked = client(wire, ledger, [body[:9], body[9:]], "application/json")
        results = await asked.tool_call("go", [WEATHER])
        assert len(results) == 1

    report = every_cancel_point(scenario, **sweep)
    assert report.points >= 50
    assert report.leases == 2


@swept
@each_wire
def test_a_stream_leaves_nothing_wherever_it_is_cancelled(wire: Wire, sweep: dict[str, Any]) -> None:
    """Contract C1d, I1."""

    async def scenario(ledger: LeaseLedger) -> None:
        asked = client(wire, ledger, coarse(wire.chunks("Hm", [call()])), wire.media)
        async with aclosing(asked.stream("go", [WEATHER])) as events:
            async for _ in events:
                await asyncio.sleep(0)

    report = every_cancel_point(scenario, **sweep)
    assert report.points >= 2 * report.steps >= 80
    assert report.leases == 2


def test_the_control_a_client_that_forgets_to_close_is_found_out() -> None:
    async def scenario(ledger: LeaseLedger) -> None:
        asked = client(CHAT, ledger, CHAT.chunks("Hm", []), CHAT.media, Careless)
        async with aclosing(asked.stream("go")) as events:
            async for _ in events:
                await asyncio.sleep(0)

    with pytest.raises(SweepFailed, match="leak"):
        every_cancel_point(scenario, stop_after=3)


@each_wire
def test_a_stream_closed_after_any_event_closes_the_answer_at_once(wire: Wire) -> None:
    async def scenario() -> int:
        whole = len(
            [1 async for _ in client(wire, LeaseLedger(), wire.chunks("Hm", [call()]), wire.media).stream("go")]
        )
        for number in range(whole + 1):
            ledger = LeaseLedger()
            events = client(wire, ledger, wire.chunks("Hm", [call()]), wire.media).stream("go", [WEATHER])
            for _ in range(number):
                await anext(events)
            await events.aclose()
            assert ledger.held() == [], number
            assert ledger.problems == []
        return whole

    assert run_virtual(scenario()) >= 5


def test_an_error_in_the_consumer_of_a_stream_closes_the_answer() -> None:
    async def scenario() -> None:
        ledger = LeaseLedger()
        with pytest.raises(ZeroDivisionError):
            async with aclosing(client(CHAT, ledger, CHAT.chunks("Hm", []), CHAT.media).stream("go")) as events:
                async for _ in events:
                    raise ZeroDivisionError
        assert ledger.held() == []

    run_virtual(scenario())


@pytest.mark.parametrize("problem", [httpx.CloseError("gone"), OSError("gone")], ids=["httpx", "os"])
async def test_an_answer_that_cannot_even_be_closed_is_an_answer_all_the_same(problem: Exception) -> None:
    class Unclosable(Pieces):
        async def aclose(self) -> None:
            raise problem

    body = Unclosable([CHAT.whole("yes").content])
    assert (await CHAT.make(lambda _: httpx.Response(200, stream=body)).reply("go")).text == "yes"


async def test_a_cancellation_while_an_answer_is_being_closed_comes_after_it_is_closed() -> None:
    closing, closed = asyncio.Event(), asyncio.Event()

    class Slow(Pieces):
        async def aclose(self) -> None:
            closing.set()
            for _ in range(5):
                await asyncio.sleep(0)
            closed.set()

    body = Slow([CHAT.whole("yes").content])
    asked = asyncio.create_task(CHAT.make(lambda _: httpx.Response(200, stream=body)).reply("go"))
    await closing.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert closed.is_set()


async def test_a_wait_between_attempts_can_be_cancelled_and_nothing_is_sent_afterwards() -> None:
    asked: list[int] = []

    def provider(_: httpx.Request) -> httpx.Response:
        asked.append(1)
        return httpx.Response(503, headers={"retry-after": "50"})

    waiting = asyncio.create_task(CHAT.make(provider, retries=5).reply("go"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert asked == [1]
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asked == [1]


async def test_one_of_many_is_cancelled_and_the_others_get_their_answers() -> None:
    going = asyncio.Event()

    async def provider(_: httpx.Request) -> httpx.Response:
        await going.wait()
        return CHAT.whole("yes")

    asked = CHAT.make(provider)
    tasks = [asyncio.create_task(asked.reply("go")) for _ in range(50)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    going.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in found[::2])
    assert [getattr(one, "text", None) for one in found[1::2]] == ["yes"] * 25


async def test_a_time_limit_around_a_call_is_the_caller_s_own() -> None:
    async def provider(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await CHAT.make(provider).reply("go")
