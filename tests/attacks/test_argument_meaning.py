"""A careless or hostile model that spells arguments in other ways: a strict tool runs with the same values, or not at all.

Issue 38. ``make soak`` tries a hundred thousand spellings. Free text is left out: no parser knows which text was meant.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from callgate import Effects, Gate, ToolCall, User, tool
from callgate.runtime.hosts.a2a import access as a2a_access
from callgate.runtime.hosts.mcp import access as mcp_access
from callgate.runtime.hosts.mcp import standard_input
from callgate.runtime.hosts.mcp.standard_input import NO_MESSAGE, bounded_lines
from callgate.runtime.models import codec
from callgate.runtime.models.wire.provider_errors import parse_json
from callgate.runtime.models.wire.reply import CallReady
from callgate.runtime.models.wire.shapes import mapping
from callgate.runtime.pipeline import builtin
from callgate.tools.arguments import exact_json, parsing
from callgate.tools.arguments.exact_json import what_is_lost
from tests.attacks import fuzz_hosts
from tests.runtime.models.wires import calling

ANN = User("ann")
EACH = 50
"""Mutations of each valid text."""
CODE = r"^[a-z]{2}-[0-9]{1,6}$"
INVISIBLE = "\u200b\u200d\u2060\ufe0f\u3164\u2800\u00ad\ufeff\u00a0"
ALIKE = str.maketrans(
    {"a": "\u0430", "c": "\u0441", "e": "\u0435", "i": "\u0456", "o": "\u043e", "s": "\u0455", "0": "\uff10"}
)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_KEY = re.compile(r'"([^"\\]+)"(?=\s*:)')
_NUMBER = re.compile(r"(?<![\w.\"-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.\"])")


class Item(BaseModel):
    """A line of an order."""

    model_config = ConfigDict(extra="forbid")
    sku: Annotated[str, Field(pattern=CODE)]
    count: int


CODES = st.builds("{}-{}".format, st.sampled_from(["ab", "so", "zz"]), st.integers(0, 999_999))
INTEGERS = st.integers(-100, 100) | st.integers(-(10**40), 10**40) | st.integers(2**53, 2**53 + 99)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALID = st.fixed_dictionaries(
    {
        "order": CODES,
        "cents": INTEGERS,
        "kind": st.sampled_from(["charge", "refund"]),
        "rate": FLOATS,
        "urgent": st.booleans(),
        "items": st.lists(st.fixed_dictionaries({"sku": CODES, "count": INTEGERS}), max_size=3),
    },
    optional={"parent": st.none() | CODES},
)


def spelled(number: str, dice: random.Random) -> str:
    """Another spelling of a number, which may lose digits, or be none of JSON."""
    plain = "." not in number and "e" not in number
    if dice.random() < 0.4:  # as a float prints it, which loses digits
        return f"{float(number)!r}"
    others = [f"{number}.0" if plain else number, f"{number}e0" if "e" not in number else number, f"{float(number)!r}"]
    others += [f'"{number}"', f"+{number}", f"0{number}", f"{number}_0", f"[{number}]", f"{number}.", f"{number}n"]
    others += (
        [hex(int(number)), f"{number}00e-2", f"{number}.000000000000000000001", f"{number}.5", "1e-400"]
        if plain
        else [f"{number}0" if "e" not in number else f"{number}.0"]
    )
    return dice.choice(others)


def replaced(pattern: re.Pattern[str], text: str, dice: random.Random, other: Callable[[str], str]) -> str:
    """Replace one match of a pattern."""
    found = list(pattern.finditer(text))
    if not found:
        return text
    at = dice.choice(found)
    return text[: at.start()] + other(at[0]) + text[at.end() :]


def inserted(text: str, part: str, dice: random.Random) -> str:
    """Insert a part at any place."""
    at = dice.randrange(len(text) + 1)
    return text[:at] + part + text[at:]


def mutated(text: str, dice: random.Random) -> tuple[str, str]:
    """The kind of a mutation, and the text with it."""
    ways = {
        "number": lambda: replaced(_NUMBER, text, dice, lambda one: spelled(one, dice)),
        "duplicate key": lambda: text[:-1] + f", {dice.choice(_KEY.findall(text))!r}: 1}}".replace("'", '"'),
        "twice": lambda: text + dice.choice(["", " ", ","]) + text,
        "look-alike": lambda: replaced(_STRING, text, dice, lambda one: one.translate(ALIKE)),
        "escaped": lambda: replaced(_STRING, text, dice, lambda one: "".join(f"\\u{ord(c):04x}" if c.isalnum() else c for c in one)),
        "invisible": lambda: inserted(text, dice.choice(INVISIBLE), dice),
        "case": lambda: replaced(_STRING, text, dice, dice.choice([str.upper, str.title])),
        "cut": lambda: text[: dice.randrange(len(text))],
        "key": lambda: replaced(_KEY, text, dice, lambda one: f'"{one[1:-1]} "'),
        "type": lambda: replaced(re.compile("true|false|null"), text, dice, lambda _: dice.choice(["1", "0", '"true"', "True", '""'])),
        "python": lambda: text.replace('"', "'"),
        "around": lambda: dice.choice(["```json\n{}\n```", "[{}]", "{} // ok", "\ufeff{}", '{{"arguments": {}}}', "{}\n\n", "{},"]).format(text),
        "text": lambda: json.dumps(text),
        "comma": lambda: inserted(text, ",", dice),
    }  # fmt: skip
    kind = dice.choice(list(ways))
    return kind, ways[kind]()


def is_sent(integers: list[int], text: str, way: str) -> bool:
    """Return True if these are the numbers in the text, to the last digit; also for a text that only tolerance reads.

    An object has numbers of its own, which are floats.
    """
    try:
        sent = json.loads(text, parse_float=float if way == "object" else Decimal)
    except ValueError:
        return True
    return isinstance(sent, dict) and integers == [sent["cents"], *(item["count"] for item in sent["items"])]


WIRES = ("gemini", "ollama", "anthropic")
"""Providers that send arguments as an object."""


def carried(way: str, text: str) -> ToolCall | None:
    """The call as it comes in that way; None for a text that is no object of JSON, where the way carries only those."""
    if way == "text":
        return ToolCall(name="pay", arguments=text)
    try:
        value = json.loads(text)
        if not isinstance(value, dict) or (way == "object" and what_is_lost(text.encode())):
            return None  # what the parser of the caller has lost, no object shows
    except ValueError:
        return None
    if way == "object":
        return ToolCall(name="pay", arguments=value)
    body = json.dumps(calling(way, ("pay", "@", "c"))).replace('"@"', text).encode()
    if way == "gemini":
        decoder = codec(way).decoder()
        event = b"".join(b"data: %s\n" % line for line in body.split(b"\n"))
        events = (*decoder.feed(event + b"\n"), *decoder.end())
        return next(one.call for one in events if isinstance(one, CallReady))
    return codec(way).reply(mapping(parse_json(body))).calls[0]


def try_spellings(
    count: int, effect: Literal["irreversible", "read"], way: str = "text"
) -> tuple[list[str], Counter[str]]:
    """Call a tool with mutated texts. Return those whose meaning changed, and how many of each kind were accepted."""
    seen: list[str] = []
    numbers: list[list[int]] = []
    changed: list[str] = []
    counts: Counter[str] = Counter()

    @tool(effect=effect)
    async def pay(
        order: Annotated[str, Field(pattern=CODE)],
        cents: int,
        kind: Literal["charge", "refund"],
        rate: float,
        urgent: bool,
        items: list[Item],
        parent: Annotated[str, Field(pattern=CODE)] | None = None,
    ) -> None:
        """Pay."""
        seen.append(repr((order, cents, kind, rate, urgent, items, parent)))
        numbers.append([cents, *(item.count for item in items)])

    async def ran_with(text: str) -> str | None:
        seen.clear()
        numbers.clear()
        if (call := carried(way, text)) is None:
            return None
        result = await gate.call(call, user=ANN)
        assert result.ok == bool(seen)
        return seen[0] if seen else None

    async def each(text: str, dice: random.Random) -> None:
        meant = await ran_with(text)
        assert meant is not None, text
        for _ in range(EACH):
            kind, other = mutated(text, dice)
            if other == text:
                continue
            counts["tried"] += 1
            if (ran := await ran_with(other)) is not None:
                counts[kind] += 1
                if ran != meant or not is_sent(numbers[0], other, way):
                    changed.append(f"{kind}: {other} for {text}")

    @settings(
        max_examples=count // EACH,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(VALID, st.integers(0, 2**32))
    def search(value: dict[str, Any], seed: int) -> None:
        runner.run(each(json.dumps(value), random.Random(seed)))

    gate = Gate([pay], allow_unguarded=True, effects=Effects(durable=False))
    with asyncio.Runner() as runner:
        runner.run(gate.open())
        try:
            search()
        finally:
            runner.run(gate.close())
    return changed, counts


@pytest.mark.parametrize("way", ["text", "object", *WIRES])
@pytest.mark.parametrize("count", [250, pytest.param(25_000, marks=pytest.mark.soak)])
def test_no_spelling_that_changes_the_meaning_is_accepted(way: str, count: int) -> None:
    """The value that the tool gets is equal in type and value to the one that was meant, and to the one that was sent."""
    changed, counts = try_spellings(count, "irreversible", way)
    print(dict(counts))
    assert changed == []
    assert counts["tried"] >= count * 0.8
    assert counts["number"]


@pytest.mark.parametrize("sabotaged", [False, True], ids=["a tolerant tool", "a strict tool that rounds"])
def test_control_a_tool_that_is_not_strict_runs_with_another_value(
    sabotaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tolerance reads ``True``; a float in the place of an integer has lost digits."""
    monkeypatch.setattr(builtin, "exact_integers", lambda validator, _: validator)
    changed, _ = try_spellings(2_000, "irreversible" if sabotaged else "read")
    assert any(one.startswith("number" if sabotaged else "type") for one in changed)


class BeforeValidation:
    """A hook between parsing and validation."""

    async def will_validate_input(self, ctx: Any) -> None:
        """Do nothing."""


class Order(BaseModel):
    """A model in a model."""

    item: Item | None = None
    n: int


LOST = ("0.99999999999999999999", "5.0000000000000000001", "4503599627370497.5", "1e-400", "1.5e-99999999999999999999")
SHAPES: dict[str, tuple[Any, str]] = {
    "an integer": (int, "{}"),
    "an integer or a text": (int | str, "{}"),
    "an optional integer": (int | None, "{}"),
    "constants": (Literal[0, 1, 5, 4503599627370498], "{}"),
    "a list": (list[int], "[1, {}]"),
    "an object": (dict[str, int], '{{"a": {}}}'),
    "a model": (Order, '{{"n": {}}}'),
    "a union of models": (Order | Item, '{{"n": {}}}'),
}


SHORT = '{"order": "ab-1", "cents": %s, "kind": "charge", "rate": 1, "urgent": true, "items": []}'


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "control that keeps no digits"])
@pytest.mark.parametrize("number", LOST)
@pytest.mark.parametrize("way", WIRES)
def test_a_provider_that_sends_an_object_has_its_digits_read(
    way: str, number: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is the arguments, for the call is to be refused or repaired as any other text."""
    if not exact:
        monkeypatch.setattr(exact_json, "_may_lose", lambda _: False)
    call = carried(way, text := SHORT % number)
    assert call is not None
    assert (call.arguments == text) is exact


HOSTS: dict[str, tuple[Any, Any, str]] = {
    "A2A": (fuzz_hosts.over_a2a, fuzz_hosts.a2a_seeds, '"cents": 1'),
    "MCP": (fuzz_hosts.over_mcp, fuzz_hosts.mcp_seeds, '"a": 1'),
}


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "control that keeps no digits"])
@pytest.mark.parametrize("host", HOSTS)
async def test_a_host_whose_sdk_parses_requests_refuses_what_a_float_loses(
    host: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exact:
        for module in (a2a_access, mcp_access, standard_input):
            monkeypatch.setattr(module, "what_is_lost", lambda _: None)
    opened, seeds_of, place = HOSTS[host]
    async with opened() as take:
        seeds = [one for one in seeds_of() if place.encode() in one]
        for wrong in (*LOST, f"6, {place[:-3]}: 5"):
            sent = [seeds[0].replace(place.encode(), f"{place[:-1]}{text}".encode()) for text in ("5.0", wrong)]
            assert [await take(one) for one in sent] == [True, not exact]
    lines = "".join([f'{{"a": {number}}}\n' for number in ("5.0", *LOST)]).encode()
    reads, writes = os.pipe()
    os.write(writes, lines)
    os.close(writes)
    read = [line async for line in bounded_lines(reads)]
    os.close(reads)
    assert read[1:] == [NO_MESSAGE] * len(LOST) if exact else NO_MESSAGE not in read


@pytest.mark.parametrize("hooked", [False, True], ids=["without hooks", "with a hook before validation"])
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "control that reads no text again"])
def test_a_fraction_that_a_float_loses_is_refused(checked: bool, hooked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each place that takes integers. A whole number that is written as a float is one, and a fraction stays one."""
    if not checked:
        monkeypatch.setattr(parsing, "loses_fraction", lambda _: False)
    ran: list[object] = []
    tools = list[Any]()
    for number, (kind, _) in enumerate(SHAPES.values()):

        async def take(value: object, rate: float = 0.5) -> None:
            """Take a value."""
            ran.append(value)

        take.__annotations__["value"] = kind
        tools.append(tool(effect="irreversible", name=f"take_{number}")(take))

    async def accepted() -> set[tuple[str, str]]:
        found = set[tuple[str, str]]()
        hooks = [BeforeValidation()] if hooked else []
        async with Gate(tools, hooks, allow_unguarded=True, effects=Effects(durable=False)) as gate:
            for number, (shape, (_, text)) in enumerate(SHAPES.items()):
                for sent in (*LOST, "5.0"):
                    arguments = f'{{"value": {text.format(sent)}, "rate": 0.25}}'
                    if (await gate.call(f"take_{number}", arguments, user=ANN)).ok:
                        found.add((shape, sent))
        return found

    found = asyncio.run(accepted())
    assert {shape for shape, sent in found if sent == "5.0"} == set(SHAPES)
    lost = {(shape, sent) for shape, sent in found if sent != "5.0"}
    assert lost == set() if checked else {shape for shape, _ in lost} == set(SHAPES)
