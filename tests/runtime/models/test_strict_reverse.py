"""The way back from the strict view: a tool call carries canonical arguments (design 10.11; schemas 6)."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from callgate.runtime.models import codec
from callgate.runtime.models.wire.reverse import canonical_arguments
from callgate.tools.values import digest
from tests.runtime.models.making import random_schema
from tests.runtime.models.strict import assert_spoken, view
from tests.runtime.models.trips import trips
from tests.runtime.models.wires import chat, function, message, tool, tool_use

OPENAI, ANTHROPIC = codec("openai_chat"), codec("anthropic")

NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}},
        "kind": {
            "anyOf": [
                {"type": "object", "properties": {"t": {"const": "a"}, "o": {"type": "string"}}, "required": ["t"]},
                {"type": "object", "properties": {"t": {"const": "b"}, "o": {"type": ["string", "null"]}}},
            ]
        },
        "tree": {"$ref": "#/$defs/tree"},
    },
    "$defs": {"tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}}},
}


@pytest.mark.parametrize(
    ("strict", "canonical"),
    [
        ({"list": None, "kind": None, "tree": None}, {}),
        ({"list": [{"x": None}, {"x": 1}]}, {"list": [{}, {"x": 1}]}),
        ({"kind": {"t": "a", "o": None}}, {"kind": {"t": "a"}}),
        ({"kind": {"t": "b", "o": None}}, {"kind": {"t": "b", "o": None}}),
        ({"tree": {"next": {"next": None}}}, {"tree": {"next": {}}}),
        ({"unknown": None, "list": [None, 5]}, {"unknown": None, "list": [None, 5]}),
        ({"list": "wrong", "kind": 5, "tree": [None]}, {"list": "wrong", "kind": 5, "tree": [None]}),
    ],
)
def test_added_nulls_are_dropped_and_nothing_else_is_touched(strict: dict[str, Any], canonical: Any) -> None:
    nullable = view(NESTED).nullable
    kept = copy.deepcopy(strict)
    assert canonical_arguments(strict, NESTED, nullable) == canonical
    assert strict == kept
    text = json.dumps(strict)
    bare = canonical_arguments(text, NESTED, nullable)
    assert isinstance(bare, str)
    assert json.loads(bare) == canonical
    assert (bare is text) == (strict == canonical)


def test_text_keeps_big_numbers_and_all_characters() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}, "required": ["n"]}
    text = '{"n": 123456789012345678901234567890, "s": "é\\u0000\\ud83d\\ude00", "a": null}'
    bare = canonical_arguments(text, schema, view(schema).nullable)
    assert json.loads(bare) == {"n": 123456789012345678901234567890, "s": "é\x00😀"}


def test_a_value_deeper_than_the_stack_is_left_alone() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"next": deep}
    given = {"tree": deep}
    assert canonical_arguments(given, NESTED, view(NESTED).nullable) is given


def test_nested_unions_that_all_fit_are_not_explored_twice() -> None:
    twice = {"anyOf": [{"$ref": "#/$defs/l"}, {"$ref": "#/$defs/l"}, {"type": "integer"}]}
    leaf = {"type": "object", "properties": {"l": twice, "o": {"type": "integer"}}, "required": ["l"]}
    schema = {"type": "object", "properties": {"p": {"$ref": "#/$defs/l"}}, "$defs": {"l": leaf}}
    for innermost, dropped in ((1, True), ("no branch fits", False)):
        value: Any = innermost
        for _ in range(60):
            value = {"l": value, "o": None}
        bare = canonical_arguments(json.dumps({"p": value}), schema, view(schema).nullable)
        assert ("null" not in bare) is dropped


INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


def either(*branches: dict[str, Any]) -> dict[str, Any]:
    objects = [{"type": "object", **branch} for branch in branches]
    return {"type": "object", "properties": {"p": {"anyOf": objects}}, "required": ["p"]}


@pytest.mark.parametrize(
    ("schema", "told", "canonical"),
    [
        pytest.param(
            either(
                {"properties": {"x": {"type": "integer", "minimum": 9}, "y": {"type": ["string", "null"]}, "z": TEXT}},
                {"properties": {"x": INTEGER, "y": TEXT}},
            ),
            {"x": 1, "y": None},
            {"x": 1},
            id="the branch that has exactly these properties goes first",
        ),
        pytest.param(
            either({"properties": {"y": TEXT, "z": TEXT}}, {"properties": {"x": TEXT}}),
            {"y": None},
            {},
            id="a server that leaves a property out is understood all the same",
        ),
        pytest.param(
            either(
                {"properties": {"t": {"const": 1}, "y": {"type": ["string", "null"]}}},
                {"properties": {"t": {"enum": [True]}, "y": TEXT}},
            ),
            {"t": True, "y": None},
            {"t": True},
            id="true is not 1",
        ),
        pytest.param(
            either({"properties": {"x": INTEGER, "y": TEXT}}, {"properties": {"x": {"type": "number"}, "y": TEXT}}),
            {"x": 2.0, "y": None},
            {"x": 2.0},
            id="2.0 is an integer",
        ),
        pytest.param(
            either({"properties": {"x": {"type": "dict"}, "y": TEXT}}, {"properties": {"x": {"enum": [2]}, "y": TEXT}}),
            {"x": 1, "y": None},
            {"x": 1, "y": None},
            id="neither a type that there is none of nor another choice fits",
        ),
        pytest.param(
            either({"properties": {"x": INTEGER, "y": TEXT}}, {"properties": {"z": TEXT}}),
            {"x": "no branch", "y": None},
            {"x": "no branch", "y": None},
            id="what no branch was written for is left alone",
        ),
    ],
)
def test_the_branch_of_a_union_is_found_by_shape(schema: dict[str, Any], told: Any, canonical: Any) -> None:
    assert canonical_arguments({"p": told}, schema, view(schema).nullable) == {"p": canonical}


def test_a_strict_answer_comes_back_as_the_canonical_arguments_and_the_chunk_as_it_was() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}
    translation = OPENAI.translate([tool(schema, name="f", strict=True)])
    text = '{"a": "x", "b": null}'
    (call,) = OPENAI.calls(chat(function("f", text)), translation)
    assert json.loads(call.arguments) == {"a": "x"}
    assert call.chunk["function"]["arguments"] == text
    (call,) = OPENAI.calls(chat(function("f", {"a": "x", "b": None})), translation)
    assert call.arguments == {"a": "x"}
    assert call.chunk["function"]["arguments"] == {"a": "x", "b": None}


@pytest.mark.parametrize(
    "text",
    [
        '{"b": null, "b": null}',
        '{"b": null, "c": NaN}',
        '{"b": null, "c": 1e999}',
        '{"b": NaN}',
        '{"b": null',
        "",
        "null",
        '{"b": 1e999}',
        "'",
    ],
)
def test_text_that_is_not_strict_json_is_left_for_hydration(text: str) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "number"}}}
    translation = OPENAI.translate([tool(schema, name="f", strict=True)])
    assert OPENAI.calls(chat(function("f", text)), translation)[0].arguments is text


def test_nulls_are_kept_where_no_strict_view_was_sent() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "number"}}}
    for wire, strict in ((OPENAI, None), (OPENAI, False)):
        translation = wire.translate([tool(schema, name="f", strict=strict)])
        assert wire.calls(chat(function("f", {"b": None})), translation)[0].arguments == {"b": None}
    translation = ANTHROPIC.translate([tool(schema, name="f", strict=True)])
    assert ANTHROPIC.calls(message(tool_use("f", {"b": None})), translation)[0].arguments == {"b": None}


# ---------------------------------------------------------------------------------------------------------- round trip


@pytest.mark.needs_data
def test_the_round_trip_holds_on_every_real_schema(shared_data: Path) -> None:
    lines = (shared_data / "mcp_tool_schemas.jsonl").read_text("utf-8").splitlines()
    schemas = [json.loads(line)["inputSchema"] for line in lines]
    rng = random.Random(20261122)
    counts: Counter[str] = Counter(schemas=len(schemas))
    covered = 0
    for schema in schemas:
        before = digest(schema)
        made = view(schema)
        assert digest(schema) == before
        if not made.strict:
            counts["fallback"] += 1
            continue
        assert_spoken(made.schema)
        counts["strict"] += 1
        words = trips("openai strict", schema, made, rng, 8)
        counts.update(words)
        covered += any(word != "no value" for word in words)
    print(f"round trip on real schemas: {dict(counts)}, strict schemas with values: {covered}")
    assert counts["schemas"] >= 600
    assert counts["strict"] >= 0.9 * counts["schemas"]
    assert covered >= 0.95 * counts["strict"]
    assert counts["equal"] >= 3500
    assert counts["wrong without the way back"] >= 1000


def test_the_round_trip_holds_on_random_schemas() -> None:
    rng = random.Random(7)
    counts: Counter[str] = Counter()
    for _ in range(300):
        schema = random_schema(rng)
        made = view(schema)
        assert made.strict, (made.fallback, schema)
        assert_spoken(made.schema)
        counts.update(trips("openai strict", schema, made, rng, 5))
    print(f"round trip on random schemas: {dict(counts)}")
    assert counts["equal"] >= 900
