"""Streams as recorded from real providers: the same calls, however the bytes are cut (contract 46, 50, 61)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.runtime.models import codec
from callgate.runtime.models.wire.reply import CallReady, Done, ReplyEvent
from tests.runtime.models.streaming import brief, decode, reply_of, shown_calls, texts
from tests.runtime.models.wires import CODEC_OF, streams, wire_of

pytestmark = pytest.mark.needs_data
STREAMS = list(streams()) or [("none", b"", {})]
each_stream = pytest.mark.parametrize(("name", "data", "recorded"), STREAMS, ids=[name for name, _, _ in STREAMS])


def wire(name: str) -> str:
    return CODEC_OF[wire_of(name)]


@each_stream
def test_every_recorded_stream_gives_exactly_the_expected_calls(
    name: str, data: bytes, recorded: dict[str, Any]
) -> None:
    """Contract 46, 50, 61."""
    events = decode(wire(name), [data])
    reply = reply_of(events)
    assert brief(reply) == [(call["name"], call["arguments"], call["id"]) for call in recorded["expect_calls"]]
    assert texts(events) == (reply.text, reply.reasoning)
    assert [tool for tool, _ in shown_calls(events)] == [call.name for call in reply.calls]
    assert bool(reply.error) == ("error" in recorded["tags"])
    assert reply.truncated == ("stop_max_tokens" in recorded["tags"] or "error" in recorded["tags"])
    decoder = codec(wire(name)).decoder()
    decoder.feed(data)
    decoder.end()
    assert decoder.ended


@each_stream
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_a_recorded_stream_decodes_the_same_when_cut_at_any_byte(
    name: str, data: bytes, recorded: dict[str, Any], step: int
) -> None:
    """Two pieces at every seventh boundary (the soak: at every one), and byte by byte: the same events, and the same reply."""
    whole = decode(wire(name), [data])
    for at in range(1, len(data), step):
        assert decode(wire(name), [data[:at], data[at:]]) == whole, at
    assert decode(wire(name), (data[at : at + 1] for at in range(len(data)))) == whole


@each_stream
def test_a_recorded_stream_that_breaks_off_never_gives_a_call_that_is_not_whole(
    name: str, data: bytes, recorded: dict[str, Any]
) -> None:
    """A prefix gives ready calls only if it holds them all: then they are the calls of the whole stream."""
    whole = ready(decode(wire(name), [data]))
    for at in range(0, len(data), 7):
        events = decode(wire(name), [data[:at]])
        if ready(events):
            assert ready(events) == whole, at
        elif whole:
            assert reply_of(events).truncated, at
            assert all(call.truncated for call in reply_of(events).calls), at


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STREAMS), st.data())
def test_a_recorded_stream_decodes_the_same_when_cut_in_many_pieces(
    stream: tuple[str, bytes, dict[str, Any]], drawn: st.DataObject
) -> None:
    name, data, _ = stream
    cuts = sorted(drawn.draw(st.lists(st.integers(0, len(data)), max_size=40)))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert decode(wire(name), pieces) == decode(wire(name), [data])


@each_stream
def test_a_recorded_stream_reads_the_same_with_other_line_ends_comments_and_an_order_mark(
    name: str, data: bytes, recorded: dict[str, Any]
) -> None:
    whole = decode(wire(name), [data])
    plain = data.replace(b"\r\n", b"\n")
    for end in (b"\n", b"\r", b"\r\n"):
        odd = b"\xef\xbb\xbf: hello\n\n" + plain.replace(b"\n\n", b"\nid: 1\n\n: keep-alive\n\n") + b"\n\n"
        odd = odd.replace(b"\n", end)
        assert decode(wire(name), [odd]) == whole
        assert decode(wire(name), (odd[at : at + 1] for at in range(len(odd)))) == whole


def test_enough_streams_were_recorded_to_mean_something() -> None:
    by_wire = {found: sum(wire_of(name) == found for name, _, _ in STREAMS) for found in CODEC_OF}
    print(f"streams: {by_wire}")
    assert len(STREAMS) >= 30
    assert all(by_wire[found] >= 3 for found in CODEC_OF if found != "ollama"), "Ollama's are made: test_streams_ollama"


def ready(events: list[ReplyEvent]) -> list[Any]:
    assert isinstance(events[-1], Done)
    return [event.call for event in events if isinstance(event, CallReady)]
