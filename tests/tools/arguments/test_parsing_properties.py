"""Properties of reading arguments, against an oracle made of the standard library (contract 44-47, invariants I2)."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.tools.arguments.objects import parse_value
from callgate.tools.arguments.parse_errors import ParseError
from callgate.tools.arguments.parsing import Parsed, parse_arguments, parse_strict
from callgate.tools.limits import Limits

CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TEXT = st.text(CHARACTERS, max_size=20) | st.sampled_from(
    [
        "it's",
        '"',
        "\\",
        "\\/",
        "a\nb",
        "\x7f\x85\xa0\u2028",
        "😀",
        "True",
        ",}",
        "```",
        "<|x|>",
        "{[",
        "1e999",
        "\\u0000",
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400) + 1, 10**400 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=5)
QUICK = settings(deadline=None, max_examples=100)


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types: True is not 1, 1 is not 1.0."""
    return repr(left) == repr(right)


def spellings(value: dict[str, Any], style: int) -> str:
    return json.dumps(value, ensure_ascii=style % 2 == 0, indent=style // 2 or None)


@QUICK
@given(OBJECTS, st.integers(0, 5))
def test_a_valid_object_is_read_as_it_is(value: dict[str, Any], style: int) -> None:
    """contract 45."""
    text = spellings(value, style)
    assert same(parse_strict(text), value)
    assert same(parse_strict(text.encode()), value)
    assert parse_arguments(text) == (value, (), None, None)


@QUICK
@given(OBJECTS)
def test_an_object_is_copied_as_it_is(value: dict[str, Any]) -> None:
    """contract 45."""
    before = repr(value)
    copied = parse_value(value)
    assert same(copied, value)
    for item in copied.values():
        if isinstance(item, (dict, list)):
            item.clear()  # pyright: ignore[reportUnknownMemberType]
    copied.clear()
    assert repr(value) == before


@QUICK
@given(OBJECTS)
def test_what_python_prints_is_read_as_what_it_printed(value: dict[str, Any]) -> None:
    """C10d: single quotes and literals, losslessly."""
    value = {"plain": 1} | value  # a sign of Python: at least one string in single quotes
    parsed = parse_arguments(repr(value))
    assert same(parsed.value, value)
    assert parsed.rules == ("python-literal",)


# The oracle


class Refused(Exception):
    """The oracle says no."""


def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(items)
    if len(made) != len(items):
        raise Refused
    return made


def constant(_name: str) -> Any:
    raise Refused


def number(text: str) -> Any:
    if sum(character.isdigit() for character in text) > 400:
        raise Refused
    value = float(text) if set(text) & set(".eE") else int(text)
    if isinstance(value, float) and math.isinf(value):
        raise Refused
    return value


def speakable(value: Any) -> bool:
    """No lone surrogate and no NUL in any string."""
    if isinstance(value, str):
        return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return all(speakable(key) and speakable(item) for key, item in value.items())  # pyright: ignore[reportUnknownVariableType]
    return all(map(speakable, value)) if isinstance(value, list) else True  # pyright: ignore[reportUnknownArgumentType]


def oracle(text: str) -> dict[str, Any] | None:
    """What the text is, by the standard library made strict; None where it is refused."""
    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_int=number, parse_float=number)
    except (Refused, ValueError):
        return None
    return value if isinstance(value, dict) and speakable(value) and speakable(text) else None


def read(text: str) -> dict[str, Any] | None:
    try:
        return parse_strict(text)
    except ParseError:
        return None


NUMBERS = "1e999 -1E+400 1e-999 1e308 2e308 1.5E5 -0 -0.0 007 +1 .5 1. 0x1 NaN Infinity -Infinity".split()
LONG_NUMBERS = ["9" * 308 + ".0", "9" * 309 + ".0", "9" * 400, "9" * 401, "0." + "1" * 400]
STRINGS = ['"\\ud83d"', '"\\ud83d\\ude00"', '"\\u0000"', '"\\\\u0000"', '"\\q"', '"a\nb"', "''"]
LITERALS = st.sampled_from([*NUMBERS, *LONG_NUMBERS, *STRINGS, "true", "null", "True", "[]", "{}", "[1,]"])
KEYS = st.sampled_from(['"a"', '"\\u0061"', '"b"', '"e"', '"é"', '""'])


def joined(parts: list[str], brackets: str) -> str:
    return brackets[0] + ", ".join(parts) + brackets[1]


JSON_LIKE = st.recursive(
    LITERALS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: joined(parts, "[]"))
        | st.lists(st.tuples(KEYS, inner).map(": ".join), max_size=3).map(lambda parts: joined(parts, "{}"))
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=400)
@given(st.lists(st.tuples(KEYS, JSON_LIKE).map(":".join), max_size=3).map(lambda parts: joined(parts, "{}")))
def test_strict_parsing_agrees_with_the_oracle(text: str) -> None:
    """invariants I2: duplicates, infinities, digits, surrogates, escapes: the same text refused, the same value read."""
    assert same(read(text), oracle(text))


@QUICK
@given(st.text(max_size=40) | JSON_LIKE)
def test_any_text_is_read_as_by_the_oracle(text: str) -> None:
    """invariants I2."""
    assert same(read(text), oracle(text))


@QUICK
@given(st.binary(max_size=60) | st.text(max_size=60) | VALUES, st.booleans())
def test_nothing_but_a_parse_error_is_raised(raw: Any, tolerant: bool) -> None:
    """invariants I2."""
    try:
        value = parse_arguments(raw, tolerant=tolerant).value
    except ParseError:
        return
    assert type(value) is dict


# Cuts and mutations: too many for hypothesis. The seed is fixed, and a failure shows the text.


ALPHABET = "{}[]:,\"'\\`<|>tfnTNe+-.0159 \n\t\0\ufeff/éx\ud83d"
WORDS = [
    "",
    "a",
    "CANARY",
    "it's",
    'say "hi"',
    "a\nb",
    "C:\\new",
    "é😀",
    "True",
    "1e999",
    "```",
    "<|im_end|>",
    "{}",
    "\x7f",
]


def some(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return dice.choice(WORDS)
    if kind < 5:
        return dice.choice([None, True, False, 0, -7, 12.5, 1e300, 10**20])
    items = [some(dice, depth + 1) for _ in range(dice.randrange(4))]
    return items if kind == 5 else dict(zip(dice.sample(WORDS, len(items)), items, strict=True))


def forms(dice: random.Random) -> list[str]:
    """One object, as models and servers write it."""
    value = {"plain": "CANARY"} | {word: some(dice, 1) for word in dice.sample(WORDS, 2)}
    text = json.dumps(value, ensure_ascii=dice.random() < 0.5)
    return [text, repr(value), f"```json\n{text}\n```", json.dumps(text), text + "<|im_end|>", "\ufeff" + text]


def mutate(text: str, dice: random.Random) -> str:
    for _ in range(dice.randint(1, 4)):
        at, kind = dice.randrange(len(text) + 1), dice.randrange(4)
        if kind == 0:
            text = text[:at] + text[at + dice.randint(1, 4) :]
        elif kind == 1:
            text = text[:at] + text[at : at + 8] + text[at:]
        else:
            text = text[:at] + dice.choice(ALPHABET) + text[at + kind - 2 :]
    return text


@pytest.mark.parametrize("count", [40, pytest.param(5_000, marks=pytest.mark.soak)])
def test_no_part_of_a_text_is_taken_for_the_whole(count: int) -> None:
    """schemas §7 (5): a cut text is refused at every place, unless nothing that matters was cut."""
    dice = random.Random(7)
    for _ in range(count):
        for text in forms(dice):
            whole = parse_arguments(text).value
            for end in range(1, len(text)):
                try:
                    parsed = parse_arguments(text[:end])
                except ParseError:
                    continue
                assert same(parsed.value, whole) or parsed.rules == ("bom", "empty"), text[:end]


@pytest.mark.parametrize("count", [10_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_mutated_arguments_are_read_as_by_the_oracle_or_refused(count: int) -> None:
    """invariants I2, I9: 0 silently accepted, 0 uncaught, 0 quoted. What tolerance reads is what it says it read."""
    dice = random.Random(11)
    accepted = tolerated = 0
    while count > 0:
        for form in forms(dice):
            count -= 1
            text = mutate(form, dice)
            expected = oracle(text)
            parsed, quoted = attempt(text)
            assert "CANARY" not in quoted, text
            assert same(parsed.value if parsed and not parsed.rules else None, expected), text
            accepted += parsed is not None
            if parsed and parsed.rules:
                tolerated += 1
                assert same(parsed.value, oracle(parsed.effective or "")), text
    assert accepted > tolerated > 0


def attempt(text: str) -> tuple[Parsed | None, str]:
    try:
        return parse_arguments(text), ""
    except ParseError as error:
        return None, f"{error} {error!r} {error.public} {error.args} {error.__context__} {error.__cause__}"


# Limits


def measure(value: Any) -> tuple[int, int, int]:
    """Depth, values, and digits of the longest number, as printed by json."""
    if isinstance(value, (dict, list)):
        items: list[Any] = list(value.values()) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        inner = [measure(item) for item in items]
        depth = 1 + max((entry[0] for entry in inner), default=0)
        return depth, 1 + sum(entry[1] for entry in inner), max((entry[2] for entry in inner), default=0)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return 0, 1, sum(character.isdigit() for character in json.dumps(value)) if is_number else 0


def code(text: str, **limits: int) -> str | None:
    try:
        parse_strict(text, Limits(**limits))
    except ParseError as error:
        return error.code
    return None


@QUICK
@given(OBJECTS, st.integers(0, 5))
def test_limits_are_exact_for_text(value: dict[str, Any], style: int) -> None:
    """design §10.9: read at the limit, refused one below it."""
    text = spellings(value, style)
    depth, nodes, digits = measure(value)
    size = len(text.encode())
    for name, exact, refusal in (
        ("max_depth", depth, "too_deep"),
        ("max_nodes", nodes, "too_many_values"),
        ("max_digits", digits, "number_too_long"),
        ("max_bytes", size, "too_large"),
    ):
        assert code(text, **{name: max(exact, 1)}) is None
        if exact > 1:
            assert code(text, **{name: exact - 1}) == refusal


@QUICK
@given(OBJECTS)
def test_limits_are_exact_for_objects(value: dict[str, Any]) -> None:
    """design §10.9: text and object are measured alike; the size of an object never exceeds that of its text."""
    depth, nodes, _digits = measure(value)
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    assert parse_value(value, Limits(max_depth=depth, max_nodes=nodes, max_bytes=size)) == value
    for name, exact in (("max_depth", depth), ("max_nodes", nodes)):
        if exact > 1:
            with pytest.raises(ParseError):
                parse_value(value, Limits(**{name: exact - 1}))
