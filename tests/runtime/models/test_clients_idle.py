"""How long a client waits for an answer: a whole one, and the pieces of a stream; mostly on virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.errors import ModelError, StreamCut
from callgate.runtime.models.wire.framing import ContentWatch
from callgate.runtime.models.wire.retry_policy import Timeouts
from tests.runtime.models.providers import (
    CHAT,
    KEY,
    WIRES,
    Piece,
    Wire,
    chunk,
    each_wire,
    failure,
    head,
    quick,
    read,
    served,
)
from tests.runtime.models.test_clients_retries import Provider, after, asks, hangs, virtually

KEEP_ALIVES = {
    "comment": b": keep-alive\n\n",
    "empty comment": b":\n\n",
    "comment of a proxy": b": OPENROUTER PROCESSING\r\n\r\n",
    "long comment": b":" + b" " * 5000 + b"\n\n",
    "blank line": b"\n",
    "ping": b'event: ping\ndata: {"type": "ping"}\n\n',
    "ping with a number": b'event: keepalive\ndata: {"type":"keepalive","sequence_number":3}\n\n',
    "ping alone": b'{"type":"ping"}\n',
    "event without data": b"event: heartbeat\nid: 7\nretry: 3000\ndata:\n\n",
}
SPACES = {"spaces": b" " * 16}
"""Spaces without an end of line, which servers send before a whole answer; before an event they would change its meaning."""


def every(seconds: float, piece: bytes) -> Iterator[Piece]:
    """A piece every so many seconds, for ever."""
    for one in itertools.repeat(piece):
        yield lambda: asyncio.sleep(seconds)
        yield one


def cut(wire: Wire, pieces: Callable[[], Any], **options: Any) -> tuple[StreamCut, float]:
    """The error of a stream that is cut, and the virtual seconds until then."""

    async def scenario() -> Any:
        return await failure(read(wire.make(Provider(lambda: wire.flowing(pieces())), **options).stream("go")))

    error, took = virtually(scenario)
    assert isinstance(error, StreamCut)
    return error, took


# ---------------------------------------------------------------------- a whole answer


@each_wire
def test_a_whole_answer_may_take_five_minutes(wire: Wire) -> None:
    provider = Provider(after(299, lambda: wire.whole("at last")))
    found, took = asks(provider, wire)
    assert (found.text, len(provider.asked), took >= 299) == ("at last", 1, True)


@each_wire
@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_whose_response_did_not_begin_in_time_is_sent_once(wire: Wire, streamed: bool) -> None:
    provider = Provider(httpx.ReadTimeout("late"))

    async def scenario() -> ModelError:
        client = wire.make(provider, retries=quick(9))
        return await failure(read(client.stream("go")) if streamed else client.reply("go"))

    error, _ = virtually(scenario)
    assert len(provider.asked) == 1
    assert str(error).endswith("ReadTimeout; the request was not repeated, because the provider may have run it")


async def test_a_silent_server_gets_one_request_over_a_socket() -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""

    async with (
        served(silent) as server,
        CHAT.client(server.url, model="m", api_key=KEY, timeout=Timeouts(30, 0.05, 60), retries=quick(9)) as client,
    ):
        assert "ReadTimeout" in str(await failure(client.reply("go")))
        assert "ReadTimeout" in str(await failure(read(client.stream("go"))))
        assert len(server.requests) == 2


def test_a_response_that_failed_before_it_began_is_still_retried() -> None:
    """A control: only the timeout is not."""
    provider = Provider(httpx.ConnectTimeout("late"), httpx.ConnectError("no"), lambda: CHAT.whole("yes"))
    found, _ = asks(provider)
    assert (found.text, len(provider.asked)) == ("yes", 3)


# ---------------------------------------------------------------------- a stream


@pytest.mark.parametrize("kind", KEEP_ALIVES | SPACES)
@each_wire
def test_what_only_keeps_the_connection_open_does_not_extend_a_stream(wire: Wire, kind: str) -> None:
    def pieces() -> Iterator[Piece]:
        yield from wire.chunks("Hm", [])[:2]
        yield from every(10, (KEEP_ALIVES | SPACES)[kind])

    error, took = cut(wire, pieces)
    assert "the response timed out" in str(error)
    assert 300 <= took < 311
    error, took = cut(wire, pieces, timeout=Timeouts(idle=25))
    assert 25 <= took < 36


def test_the_control_if_pings_were_content_the_stream_would_last_to_the_limit_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ContentWatch, "feed", lambda *_: True)
    _, took = cut(CHAT, lambda: every(10, KEEP_ALIVES["comment"]), timeout=Timeouts(idle=25, total=120))
    assert took >= 120


@each_wire
def test_a_stream_that_never_begins_ends_although_it_is_kept_open(wire: Wire) -> None:
    _, took = cut(wire, lambda: every(10, KEEP_ALIVES["comment"]))
    assert 300 <= took < 311


@each_wire
@pytest.mark.parametrize("timeout", [40, Timeouts(read=40), Timeouts(idle=40), Timeouts(read=40, idle=90)])
def test_silence_is_limited_with_each_way_to_set_it(wire: Wire, timeout: Any) -> None:
    _, took = cut(wire, lambda: [*wire.chunks("Hmmmm", [])[:3], hangs], timeout=timeout)
    assert 40 <= took < 41


AMONG = [(wire, kind) for wire in WIRES for kind in KEEP_ALIVES if wire is not WIRES[-1] or kind == "blank line"]
"""Ollama's lines are JSON, and have no comments."""


@pytest.mark.parametrize(("wire", "kind"), AMONG, ids=[f"{wire.name}-{kind}" for wire, kind in AMONG])
def test_content_extends_a_stream_also_among_pings(wire: Wire, kind: str) -> None:
    """A control: the same pings, and a piece of content every 20 seconds."""

    def pieces() -> Iterator[Piece]:
        for content in wire.chunks("abcdefgh", []):
            for one in (KEEP_ALIVES[kind], content):
                yield lambda: asyncio.sleep(10)
                yield one

    async def scenario() -> Any:
        return await read(wire.make(Provider(lambda: wire.flowing(pieces())), timeout=Timeouts(idle=25)).stream("go"))

    events, took = virtually(scenario)
    assert events[-1].reply.text == "abcdefgh"
    assert took >= 160


def test_the_time_that_the_reader_takes_is_not_idle() -> None:
    async def scenario() -> int:
        seen = 0
        pieces = [piece for content in CHAT.chunks("abcd", []) for piece in (KEEP_ALIVES["comment"], content)]
        async for _ in CHAT.make(Provider(CHAT.flowing(pieces)), timeout=Timeouts(idle=5)).stream("go"):
            await asyncio.sleep(100)
            seen += 1
        return seen

    assert virtually(scenario)[0] == 5


def test_pings_after_the_end_mark_are_not_waited_for() -> None:
    def pieces() -> Iterator[Piece]:
        yield from CHAT.chunks("Hm", [])
        yield from every(1, KEEP_ALIVES["ping"])

    async def scenario() -> Any:
        return await read(CHAT.make(Provider(lambda: CHAT.flowing(pieces())), timeout=None).stream("go"))

    events, took = virtually(scenario)
    assert events[-1].reply.text == "Hm"
    assert took < 7


async def test_a_server_that_only_pings_is_left_in_time_over_a_socket() -> None:
    async def pinging(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(CHAT.media) + chunk(CHAT.chunks("H", [])[0]))
        while not writer.is_closing():
            writer.write(chunk(KEEP_ALIVES["comment"]))
            await writer.drain()
            await asyncio.sleep(0.01)

    async with (
        served(pinging) as server,
        CHAT.client(server.url, model="m", api_key=KEY, timeout=Timeouts(idle=0.2), retries=0) as client,
    ):
        error = await failure(read(client.stream("go")))
        assert isinstance(error, StreamCut)
        assert error.reply.text == "H"
        await asyncio.wait_for(server.gone.wait(), 30)


# ---------------------------------------------------------------------- what is content


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(place, len(data)) for place in cuts})
    return [data[start:end] for start, end in itertools.pairwise([0, *places, len(data)])]


cuts = st.lists(st.integers(0, 300), max_size=12)
contents = [piece for wire in WIRES for piece in wire.chunks("a:b", [("get_weather", {"type": "ping"})])]


@given(st.lists(st.sampled_from(list(KEEP_ALIVES.values())), max_size=6).map(b"".join), cuts)
def test_no_cut_makes_content_of_pings(data: bytes, cuts: list[int]) -> None:
    watch = ContentWatch()
    assert not any(watch.feed(piece) for piece in pieces_of(data, cuts))


@given(
    st.lists(st.sampled_from(list(KEEP_ALIVES.values())), max_size=3).map(b"".join),
    st.sampled_from(contents),
    cuts,
)
def test_no_cut_and_no_pings_hide_content(pings: bytes, content: bytes, cuts: list[int]) -> None:
    watch = ContentWatch()
    assert any([watch.feed(piece) for piece in pieces_of(pings + content + pings, cuts)])  # noqa: C419 - feed them all


def test_a_long_line_of_content_counts_before_its_end() -> None:
    watch = ContentWatch()
    assert [watch.feed(piece) for piece in (b"data: {", b"x" * 300, b"x", b"}\n", b"\n")] == [
        False,
        True,
        True,
        True,
        False,
    ]
