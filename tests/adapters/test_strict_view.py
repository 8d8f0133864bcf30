"""OpenAI's strict view: what it says, what it cannot say, and the way back (contract 12, 60; schemas 6; design 10.11)."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.runtime.wire.reverse import canonical_arguments
from callgate.runtime.wire.schema_views import Dropped, View
from callgate.runtime.wire.strict_view import openai_view
from callgate.tools.values import digest
from tests.adapters.making import Maker, NoValueError, Strict, check, random_schema
from tests.adapters.wires import tool

SPOKEN = {"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$defs", "$ref"}
SPOKEN |= {"description", "pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum"}
SPOKEN |= {"exclusiveMaximum", "minItems", "maxItems"}


def view(schema: dict[str, Any]) -> View:
    return openai_view(tool(schema, strict=True))


def of(inner: dict[str, Any], *, required: bool = True, **root: Any) -> View:
    """The view of an object with this one property."""
    needed = {"required": ["p"]} if required else {}
    return view({"type": "object", "properties": {"p": inner}, **needed, **root})


def said(inner: dict[str, Any], *, required: bool = True, **root: Any) -> Any:
    made = of(inner, required=required, **root)
    assert made.strict, made.fallback
    return made.schema["properties"]["p"]


def assert_spoken(node: Any, at: str = "") -> None:
    """The rules of provider_schema_rules.json, openai_strict, for one node and all below."""
    assert set(node) <= SPOKEN, (at, set(node) - SPOKEN)
    if "$ref" in node:
        assert set(node) == {"$ref"}, at
        return
    assert node.get("type") or node.get("anyOf"), at
    if node.get("type") == "object":
        assert node["additionalProperties"] is False, at
        assert node["required"] == list(node["properties"]), at
    if node.get("type") == "array":
        assert_spoken(node["items"], f"{at}/items")
    for name, inner in {**node.get("properties", {}), **node.get("$defs", {})}.items():
        assert_spoken(inner, f"{at}/{name}")
    for index, inner in enumerate(node.get("anyOf", ())):
        assert_spoken(inner, f"{at}/{index}")


# ------------------------------------------------------------------------------------------------------ what it says


def test_every_object_is_closed_and_everything_is_required() -> None:
    made = view(
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]}
    )
    assert made.schema == {
        "type": "object",
        "properties": {"a": {"type": ["string", "null"]}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    assert (made.strict, made.nullable, made.dropped) == (True, {"/properties/a"}, ())


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ({"type": "string"}, {"type": ["string", "null"]}),
        ({"type": ["string", "integer"]}, {"type": ["string", "integer", "null"]}),
        ({"type": "string", "enum": ["a"]}, {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]}),
        ({"const": 1}, {"anyOf": [{"type": "integer", "const": 1}, {"type": "null"}]}),
        (
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
        ),
        (
            {"type": "array", "items": {"type": "string"}, "description": "D"},
            {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "description": "D"},
        ),
    ],
)
def test_an_optional_property_may_be_null(inner: dict[str, Any], expected: dict[str, Any]) -> None:
    assert said(inner, required=False) == expected
    assert of(inner, required=False).nullable == {"/properties/p"}
    assert of(inner).nullable == set()


@pytest.mark.parametrize(
    "inner",
    [
        {"type": ["string", "null"]},
        {"type": "null"},
        {"const": None},
        {"enum": ["a", None]},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"oneOf": [{"type": "string"}, {"type": "null"}]},
        {"$ref": "#/$defs/n"},
        {"allOf": [{"$ref": "#/$defs/n"}]},
    ],
)
def test_a_property_that_may_be_null_anyway_is_recorded_as_ambiguous_and_its_null_kept(inner: dict[str, Any]) -> None:
    made = of(inner, required=False, **{"$defs": {"n": {"type": ["integer", "null"]}}})
    assert (made.strict, made.ambiguous, made.nullable) == (True, {"/properties/p"}, set())
    assert canonical_arguments({"p": None}, {}, made.nullable) == {"p": None}


@pytest.mark.parametrize(
    "inner",
    [
        {"type": ["string", "null"], "enum": ["a"]},
        {"type": ["string", "null"], "const": "a"},
        {"type": ["string", "null"], "not": {"type": "null"}},
        {"type": "string", "anyOf": [{"minLength": 1}]},
    ],
)
def test_a_null_that_the_schema_refuses_after_all_is_dropped(inner: dict[str, Any]) -> None:
    assert of(inner, required=False).nullable == {"/properties/p"}


def test_a_keyword_that_strict_mode_lacks_is_dropped_and_told_in_the_description() -> None:
    made = of({"type": "string", "minLength": 2, "default": "é", "format": "uri", "description": "Where"})
    assert made.schema["properties"]["p"] == {
        "type": "string",
        "description": 'Where (minLength: 2; default: "é"; format: "uri")',
    }
    assert made.dropped == tuple(Dropped("/properties/p", word) for word in ("minLength", "default", "format"))
    assert said({"type": "string", "minLength": 2})["description"] == "minLength: 2"


@pytest.mark.parametrize(
    "kept",
    [
        {"type": "string", "pattern": "^a+$"},
        {"type": "string", "format": "uuid"},
        {"type": "integer", "minimum": 1, "exclusiveMaximum": 9},
        {"type": "number", "multipleOf": 2},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
    ],
)
def test_a_keyword_that_strict_mode_knows_is_kept(kept: dict[str, Any]) -> None:
    assert said(kept) == kept


@pytest.mark.parametrize(
    ("lost", "word"),
    [
        ({"type": "string", "pattern": "(?=a)"}, "pattern"),
        ({"type": "string", "pattern": "(?<!a)b"}, "pattern"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "integer", "not": {"const": 1}}, "not"),
        ({"type": "integer", "exclusiveMinimum": True}, "exclusiveMinimum"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "minProperties": 1}, "minProperties"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"required": ["a"]}]}, "anyOf"),
        ({"type": "string", "x-secret": True}, "x-secret"),
    ],
)
def test_a_keyword_whose_loss_only_widens_is_dropped(lost: dict[str, Any], word: str) -> None:
    assert Dropped("/properties/p", word) in of(lost).dropped
    assert_spoken(of(lost).schema)


def test_a_keyword_without_effect_on_the_type_is_left_out() -> None:
    assert of({"type": "string", "minimum": 3, "required": ["a"]}).dropped == ()
    assert said({"type": "string", "minimum": 3}) == {"type": "string"}


def test_one_of_becomes_any_of() -> None:
    made = of({"oneOf": [{"type": "string"}, {"type": "integer"}]})
    assert made.schema["properties"]["p"] == {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    assert made.dropped == (Dropped("/properties/p", "oneOf"),)


def test_a_type_beside_a_union_goes_into_its_branches() -> None:
    tagged = {"properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
    expected = {"anyOf": [{"type": "object", **tagged}, {"type": "object", **tagged}]}
    assert said({"type": "object", "anyOf": [tagged, {"type": "object", **tagged}]}) == expected


def test_a_lone_all_of_is_another_spelling_of_its_branch() -> None:
    assert said({"allOf": [{"type": "string", "minLength": 1}], "description": "D"}) == {
        "type": "string",
        "description": "D minLength: 1",
    }


def test_references_have_no_siblings_and_keep_their_descriptions() -> None:
    shared = {"definitions": {"a b": {"type": "integer"}}}
    made = of({"$ref": "#/definitions/a%20b", "description": "D", "default": 1}, **shared)
    assert made.schema["properties"]["p"] == {"anyOf": [{"$ref": "#/$defs/a_b"}], "description": "D (default: 1)"}
    assert made.schema["$defs"] == {"a_b": {"type": "integer"}}


def test_definitions_of_the_same_last_name_stay_apart_and_unused_ones_are_left_out() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#/definitions/x"}, "c": {"$ref": "#/$defs/x"}},
        "required": ["a", "b", "c"],
        "$defs": {"x": {"type": "string"}, "unused": {"type": "object"}},
        "definitions": {"x": {"type": "integer"}},
    }
    made = view(schema).schema
    assert made["$defs"] == {"x": {"type": "string"}, "x_2": {"type": "integer"}}
    assert [made["properties"][name]["$ref"][8:] for name in "abc"] == ["x", "x_2", "x"]


def test_recursion_stays_recursion() -> None:
    made = of({"$ref": "#/$defs/t"}, **{"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}})
    assert made.schema["$defs"]["t"] == {"type": "array", "items": {"$ref": "#/$defs/t"}}
    assert said({"$ref": "#"}, required=False) == {"anyOf": [{"$ref": "#"}, {"type": "null"}]}


def test_a_list_of_types_with_objects_becomes_a_union() -> None:
    inner = {"type": ["object", "null"], "properties": {"a": {"type": "string"}}, "required": ["a"]}
    assert [branch["type"] for branch in said(inner)["anyOf"]] == ["object", "null"]


def test_a_tool_without_parameters_takes_none() -> None:
    assert view({"type": "object"}).schema["additionalProperties"] is False


# ------------------------------------------------------------------------------------------------- what it cannot say


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        ({}, "an untyped node at /properties/p"),
        ({"description": "any"}, "an untyped node at /properties/p"),
        ({"type": "object"}, "an open object at /properties/p"),
        ({"type": "object", "additionalProperties": True, "properties": {"a": {"type": "string"}}}, "an open object"),
        ({"type": "object", "additionalProperties": {}, "properties": {"a": {"type": "string"}}}, "an open object"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "an open object at /properties/p"),
        ({"type": "object", "properties": {}, "patternProperties": {"a": {}}}, "an open object"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}, "is not declared"),
        ({"type": "array"}, "an array of untyped items at /properties/p"),
        ({"type": "array", "items": [{"type": "string"}]}, "an array of untyped items"),
        ({"type": "array", "items": {}}, "an untyped node at /properties/p/items"),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}}, "untyped items"),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "an untyped node"),
        ({"$ref": "https://a.example/s"}, "a reference that is no local pointer"),
        ({"$ref": "#/$defs/none"}, "a reference that is no local pointer"),
        ({"$dynamicRef": "#n"}, "an untyped node"),
        ({"type": "object", "enum": [{}]}, "a list of objects or arrays"),
        ({"type": "string", "anyOf": [{"type": "integer"}]}, "a union beside a type"),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"properties": {"b": {}}}]},
            "anyOf speaks of other properties",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "allOf": [{"$ref": "#/$defs/x"}]},
            "allOf speaks of other properties",
        ),
    ],
)
def test_what_strict_mode_would_narrow_falls_back_with_the_reason(inner: dict[str, Any], reason: str) -> None:
    schema = {"type": "object", "properties": {"p": inner}}
    made = view(schema)
    assert (made.strict, made.schema, made.nullable, made.dropped) == (False, schema, set(), ())
    assert reason in (made.fallback or "")


@pytest.mark.parametrize(
    "root",
    [
        {"anyOf": [{"type": "object", "properties": {}}]},
        {"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "properties": {}}}},
        {"type": ["object", "null"], "properties": {}},
    ],
)
def test_the_root_must_be_one_object(root: dict[str, Any]) -> None:
    assert "the root is not one object" in (view(root).fallback or "")


def nest(levels: int) -> dict[str, Any]:
    node: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        node = {"type": "object", "properties": {"p": node}, "required": ["p"]}
    return node


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (nest(11), "more than 10 levels"),
        ({"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(5001)}}, "5000 properties"),
        ({"type": "object", "properties": {"p": {"enum": list(range(1001))}}}, "1000 enum values"),
        (
            {"type": "object", "properties": {"p": {"enum": ["x" * 60 + str(n) for n in range(251)]}}},
            "15000 characters",
        ),
        ({"type": "object", "properties": {"p" * 120_001: {"type": "null"}}}, "120000 characters"),
    ],
)
def test_a_schema_over_a_limit_falls_back(schema: dict[str, Any], reason: str) -> None:
    assert reason in (view(schema).fallback or "")


def test_a_schema_just_within_the_limits_is_strict() -> None:
    assert view(nest(10)).strict
    assert view({"type": "object", "properties": {"p": {"enum": list(range(1000))}}}).strict


# ------------------------------------------------------------------------------------------------------- the way back


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
    value: Any = 1
    for _ in range(60):
        value = {"l": value, "o": None}
    bare = canonical_arguments(json.dumps({"p": value}), schema, view(schema).nullable)
    assert "null" not in bare


# ---------------------------------------------------------------------------------------------------------- round trip


def trips(schema: dict[str, Any], made: View, rng: random.Random, times: int) -> Iterator[str]:
    """Say canonical values in the strict view, take them back, compare; one word for each."""
    canonical, strict = check(schema), check(made.schema)
    for _ in range(times):
        try:
            value = Maker(schema, rng).value({"type": "object", **schema})
        except NoValueError:
            yield "no value made"
            continue
        if not canonical.is_valid(value):
            yield "no value made"
            continue
        speaker = Strict(schema)
        told = speaker.say(value, schema)
        assert strict.is_valid(told), (schema, told)
        if not canonical.is_valid(told):
            yield "rejected without the way back"
        back = json.loads(canonical_arguments(json.dumps(told), schema, made.nullable))
        assert canonical_arguments(told, schema, made.nullable) == back
        assert canonical.is_valid(back), (schema, value, told, back)
        assert back == value or speaker.ambiguous, (schema, value, told, back)
        yield "equal" if back == value else "accepted, ambiguous null kept"


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
        words = list(trips(schema, made, rng, 8))
        counts.update(words)
        covered += any(word != "no value made" for word in words)
    print(f"round trip on real schemas: {dict(counts)}, strict schemas with values: {covered}")
    assert counts["schemas"] >= 600
    assert counts["strict"] >= 0.9 * counts["schemas"]
    assert covered >= 0.95 * counts["strict"]
    assert counts["equal"] >= 3500
    assert counts["rejected without the way back"] >= 1000


def test_the_round_trip_holds_on_random_schemas() -> None:
    rng = random.Random(7)
    counts: Counter[str] = Counter()
    for _ in range(300):
        schema = random_schema(rng)
        made = view(schema)
        assert made.strict, (made.fallback, schema)
        assert_spoken(made.schema)
        counts.update(trips(schema, made, rng, 5))
    print(f"round trip on random schemas: {dict(counts)}")
    assert counts["equal"] >= 900
