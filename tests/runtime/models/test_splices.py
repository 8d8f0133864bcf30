"""A proxy that asks again in mid-stream: nothing of an answer that a second one follows is handed on."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import pytest

from callgate.runtime.models.wire import decoder as decoding
from callgate.runtime.models.wire.reply import CallReady
from callgate.runtime.testing.model.requests import ModelRequest
from callgate.runtime.testing.model.script import Call, Part, Say, Think, Turn
from tests.runtime.models.streaming import decode, reply_of
from tests.runtime.models.wires import CODEC_OF, WIRES, streams, wire_of

PLACES = 8
PIECE = 61
"""Bytes of a small piece."""
_IDS = re.compile(rb'"(?:id|\w+_id|\w+Id)"\s*:\s*"([^"]{4,})"')
_EVENT_END = re.compile(rb"\r?\n\r?\n")


def rotated(data: bytes) -> bytes:
    """The same answer, asked for again: every id is another one."""
    for known in sorted(set(_IDS.findall(data)), key=len, reverse=True):
        data = data.replace(b'"' + known + b'"', b'"' + known[:-3] + known[-3:][::-1] + b'x9"')
    return data


def handed_on(wire: str, data: bytes, size: int | None = None) -> list[Any]:
    """The calls that a stream hands on, and those of its reply that may run; it comes whole or in pieces of a size."""
    events = decode(wire, [data] if size is None else (data[at : at + size] for at in range(0, len(data), size)))
    ready = [event.call for event in events if isinstance(event, CallReady)]
    return ready + [call for call in reply_of(events).calls if not call.truncated]


def places(data: bytes) -> list[int]:
    return [len(data) * number // (PLACES + 1) for number in range(1, PLACES + 1)]


def ends(data: bytes) -> list[int]:
    """The last ends of events before the eight places."""
    found = [end.end() for end in _EVENT_END.finditer(data)]
    return sorted({max((end for end in found if end <= place), default=place) for place in places(data)})


STREAMS = [(name, data) for name, data, recorded in streams() if recorded["expect_calls"]] or [("none", b"")]


@pytest.mark.needs_data
@pytest.mark.parametrize("again", [lambda data: data, rotated], ids=["plain", "rotated"])
@pytest.mark.parametrize(("name", "data"), STREAMS, ids=[name for name, _ in STREAMS])
def test_a_recorded_stream_that_begins_again_hands_no_call_on(name: str, data: bytes, again: Any) -> None:
    """Between two events, a server may repeat one that is the same in each byte: then its calls count once."""
    wire = CODEC_OF[wire_of(name)]
    for place in {*places(data), *ends(data)}:
        spliced = data[:place] + again(data)
        calls = handed_on(wire, spliced)
        assert calls == handed_on(wire, spliced, PIECE)
        assert calls == [] or (place not in places(data) and again(data) == data and calls == handed_on(wire, data))


@pytest.mark.needs_data
@pytest.mark.parametrize(("name", "data"), STREAMS, ids=[name for name, _ in STREAMS])
def test_a_recorded_stream_that_is_whole_loses_no_call(name: str, data: bytes) -> None:
    """The control; ``test_streams`` compares the calls."""
    wire = CODEC_OF[wire_of(name)]
    calls, other = handed_on(wire, data), handed_on(wire, rotated(data))
    assert calls == handed_on(wire, data, PIECE)
    assert [(call.name, call.arguments) for call in calls] == [(call.name, call.arguments) for call in other]
    assert calls or b'"stop_reason":"max_tokens"' in data
    assert rotated(data) != data or not _IDS.search(data)


@pytest.mark.needs_data
def test_a_decoder_that_ignores_a_second_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(decoding.Decoder, "ended", property(lambda self: self._fold.ended))
    found = [
        name
        for name, data in STREAMS
        if any(handed_on(CODEC_OF[wire_of(name)], data[:place] + rotated(data)) for place in places(data))
    ]
    assert len(found) > 10


# ---------------------------------------------------------------------- made streams, for which no sample data is needed

TURNS: dict[str, list[Part]] = {
    "text and calls": [Say("Let me see what it costs."), Call("pay", {"n": 1}), Call("note", {"text": "two"})],
    "a call": [Call("pay", {"n": 1})],
    "thoughts": [Think("It wants to pay, so I pay."), Call("pay", {})],
    "two equal calls": [Say("Twice."), Call("pay", {"n": 1}), Call("pay", {"n": 1})],
}


def made(wire: str, turn: str, number: int, path: str = "/?alt=sse") -> list[bytes]:
    """The events with which the scripted model answers a request; *number* is in all of its ids."""
    format = import_module(f"callgate.runtime.testing.model.{wire}").FORMAT
    parts = Turn.of(TURNS[turn], number, format.call_prefix)
    events = format.events(parts, ModelRequest(number, wire, path, {}, False, {"model": "m", "stream": True}))
    return [
        event.replace(b":20.0", f":{20 + number}.{at:02}".encode()) for at, event in enumerate(events)
    ]  # Ollama's time


@pytest.mark.parametrize("number", [1, 2], ids=["plain", "rotated"])
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("wire", WIRES)
def test_a_made_stream_that_begins_again_hands_no_call_on(wire: str, turn: str, number: int) -> None:
    """Ollama has no ids: between two lines, an answer whose time goes on cannot be told from more of the first one.

    A line, or a first chunk, that is the same in each byte may be a repeated one: then its calls count once.
    """
    for path in ("/?alt=sse", "/") if wire == "gemini" else ("/",):
        first, second = made(wire, turn, 1, path), b"".join(made(wire, turn, number, path))
        assert len(handed_on(wire, second)) == 2 * sum(isinstance(part, Call) for part in TURNS[turn]), "the control"
        between = [sum(map(len, first[:count])) for count in range(1, len(first) + 1)]
        data = b"".join(first)
        for place in {*between, *range(data.index(b"{") + 1, len(data), 23)}:
            if wire == "ollama" and number == 2 and {place, place + 1} & {*between}:
                continue
            spliced = data[:place] + second
            calls = handed_on(wire, spliced)
            assert calls == handed_on(wire, spliced, PIECE)
            assert calls == [] or (data == second and place in between[:1] and calls == handed_on(wire, second)), place


@pytest.mark.parametrize("wire", WIRES)
def test_a_decoder_that_ignores_a_second_answer_pays_twice_in_a_made_stream(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(decoding.Decoder, "ended", property(lambda self: self._fold.ended))
    first, second = made(wire, "a call", 1), made(wire, "a call", 2)
    assert [call.name for call in handed_on(wire, b"".join([*first, *second]))] == ["pay"] * 4


@pytest.mark.parametrize("wire", [one for one in WIRES if one != "ollama"])
def test_a_stream_that_is_cut_inside_the_name_of_a_field_hands_no_call_on(wire: str) -> None:
    whole = b"".join(made(wire, "a call", 1))
    for cut in (b"da", b"data:", b"data: "):
        assert handed_on(wire, cut + whole) == [], cut
        assert handed_on(wire, cut + b"event: x\n" + whole) == [], cut
