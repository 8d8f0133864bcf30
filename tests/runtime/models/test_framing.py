"""Bytes to payloads: the rules of server-sent events, NDJSON and JSON, at any cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callgate.runtime.models.wire.framing import Framing, JsonLines, JsonObjects, ServerEvents, Sniffed


def frames(framing: Framing, *pieces: bytes) -> list[bytes]:
    return [payload for piece in pieces for payload in framing.feed(piece)] + framing.end()


@pytest.mark.parametrize(
    ("stream", "payloads"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a \n\n", [b" a "]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\n\n", [b""]),
        (b"data: a\ndata\n\n", [b"a\n"]),
        (b"event: x\ndata: a\n\n", [b"a"]),
        (b"data: a\nevent: x\n\n", [b"a"]),
        (b"id: 1\nevent: x\nretry: 5\ndata: a\nodd: y\n\n", [b"a"]),
        (b": comment\n\ndata: a\n\n:\n\n", [b"a"]),
        (b": comment\ndata: a\n\n", [b"a"]),
        (b"event: x\n\n", []),
        (b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\n\ndata: b", [b"a", b"b"]),
        (b"data: a\n\ndata: b\n", [b"a", b"b"]),
        (b"datax: a\n\n", []),
        (b" data: a\n\n", []),
        (b"", []),
    ],
    ids=(
        *("two", "no_space", "one_space_only", "two_lines", "bare_field", "bare_second", "event_first", "event_last"),
        *("all_fields", "comments", "comment_inside", "no_data", "blank_lines", "crlf", "cr", "mixed", "bom"),
        *("no_end", "half_an_end", "other_field", "indented", "empty"),
    ),
)
def test_server_sent_events_are_read_by_the_rules_at_any_cut(stream: bytes, payloads: list[bytes]) -> None:
    assert frames(ServerEvents(), stream) == payloads
    assert frames(ServerEvents(), *(stream[at : at + 1] for at in range(len(stream)))) == payloads
    for at in range(len(stream)):
        assert frames(ServerEvents(), stream[:at], stream[at:]) == payloads
        assert frames(ServerEvents(), stream[:at], b"", stream[at:]) == payloads


def test_an_event_is_given_out_as_soon_as_its_blank_line_is_there() -> None:
    for end in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        assert ServerEvents().feed(b"data: a" + end) == [b"a"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
json_objects = st.lists(st.dictionaries(st.text(max_size=5), json_values, max_size=4), max_size=5)
cuts = st.lists(st.integers(0, 400), max_size=12).map(sorted)


@given(json_objects, cuts, st.sampled_from([None, 1]), st.booleans())
@example([{'"': '{}[]\\"\\\\'}, {"a": {"b": {}}}], list(range(100)), None, False)
def test_the_objects_of_an_array_are_found_at_any_cut(
    objects: list[dict[str, object]], at: list[int], indent: int | None, escaped: bool
) -> None:
    """Gemini without ``alt=sse`` sends one array, laid out over many lines."""
    text = json.dumps(objects, indent=indent, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    pieces = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
    assert [json.loads(found) for found in frames(JsonObjects(), *pieces)] == objects
    assert [json.loads(found) for found in frames(Sniffed(), *pieces)] == objects
    rows = "\r\n".join(json.dumps(each) for each in objects).encode()
    pieces = [rows[a:b] for a, b in zip([0, *at], [*at, len(rows)], strict=True)]
    assert [json.loads(found) for found in frames(JsonLines(), *pieces)] == objects
    assert [json.loads(found) for found in frames(JsonObjects(), *pieces)] == objects


def test_what_is_left_of_a_broken_object_comes_at_the_end() -> None:
    assert frames(JsonObjects(), b'[{"a": 1}, {"b": "}') == [b'{"a": 1}', b'{"b": "}']
    assert frames(JsonLines(), b'{"a": 1}\n{"b": ') == [b'{"a": 1}', b'{"b": ']
    assert frames(JsonLines(), b"\n \n") == []
    assert frames(JsonObjects(), b"}}]]{}") == [b"{}"]


@pytest.mark.parametrize(
    ("stream", "payloads"),
    [
        (b'\xef\xbb\xbf {"a": 1}', [b'{"a": 1}']),
        (b'\xef\xbb\xbf\n[{"a": 1}]', [b'{"a": 1}']),
        (b'\n\ndata: {"a": 1}\n\n', [b'{"a": 1}']),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b" \r\n", []),
    ],
    ids=["object", "array", "events", "events_after_a_mark", "nothing"],
)
def test_the_first_byte_says_whether_it_is_json_or_events(stream: bytes, payloads: list[bytes]) -> None:
    assert frames(Sniffed(), stream) == payloads
    assert frames(Sniffed(), *(stream[at : at + 1] for at in range(len(stream)))) == payloads


def test_framing_takes_time_in_proportion_to_what_it_is_fed() -> None:
    """A long event in many pieces: each piece is looked at once, and joined once."""
    for framing in (ServerEvents(), JsonLines(), JsonObjects()):
        pieces = framing._pieces
        for _ in range(1000):
            assert framing.feed(b'{"x": "' if pieces is framing._pieces and not pieces else b"y" * 10) == []
        assert len(framing._pieces) == 1000
