"""The floors are fair: they do what the gate does, and refuse what it refuses."""

from __future__ import annotations

import pytest

from benchmarks.floors import PRINCIPAL, floor1, floor2, floor2s, floor2s_invoke
from benchmarks.timing import EXPECTED, Call
from benchmarks.twelve import USER, make_tool
from callgate import Gate, Invalid

DIGITS = "9" * 401
REFUSED = {
    "two of one key": '{"a": 1, "a": 1, "b": 2}',
    "not a number": '{"a": NaN, "b": 2}',
    "infinity": '{"a": 1e999, "b": 2}',
    "a long infinity": '{"a": 1' + "0" * 390 + '.0, "b": 2}',
    "no object": "[1, 2]",
    "null": "null",
    "cut off": '{"a": 1, "b": 2',
    "a NUL character": '{"a": 1, "b": 2, "note": "\\u0000"}',
    "half a surrogate pair": '{"a": 1, "b": 2, "note": "\\ud800"}',
    "half a surrogate pair as such": '{"a": 1, "b": 2, "note": "\ud800"}',
    "too many digits": f'{{"a": {DIGITS}, "b": 2}}',
    "too deep": '{"a": 1, "b": ' + "[" * 65 + "]" * 65 + "}",
    "too many values": '{"a": 1, "b": [' + "1," * 50_000 + "1]}",
    "too long": '{"a": 1, "b": 2, "note": "' + "x" * 262_144 + '"}',
    "breaks the schema": '{"a": 1, "b": "2"}',
    "a field too many": '{"a": 1, "b": 2, "c": 3}',
}
ACCEPTED = {
    "plain": '{"a": 1, "b": 2}',
    "an escaped backslash before u0000": '{"a": 1, "b": 2, "note": "\\\\u0000"}',
    "long text": '{"a": 1, "b": 2, "note": "' + "x" * 10_000 + '"}',
    "many digits": f'{{"a": {DIGITS[1:]}, "b": -{int(DIGITS[1:]) - 3}}}',
}


@pytest.mark.parametrize("floor", [floor1(), floor2(), floor2s()])
async def test_each_floor_does_the_work(floor: Call) -> None:
    assert await floor() == EXPECTED


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED)
async def test_the_strict_floor_and_the_gate_refuse_the_same(raw: str) -> None:
    with pytest.raises(Exception):  # noqa: B017  (the floor names no errors)
        await floor2s_invoke()("add", raw, PRINCIPAL)
    async with Gate([make_tool()]) as gate:
        with pytest.raises(Invalid):
            await gate.invoke("add", raw.encode() if "\ud800" not in raw else raw, user=USER)


@pytest.mark.parametrize("raw", ACCEPTED.values(), ids=ACCEPTED)
async def test_the_strict_floor_and_the_gate_accept_the_same(raw: str) -> None:
    async with Gate([make_tool()]) as gate:
        assert await floor2s_invoke()("add", raw, PRINCIPAL) == await gate.invoke("add", raw, user=USER)
