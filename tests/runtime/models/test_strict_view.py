"""OpenAI's strict view: what it says, and what it cannot say (contract 12, 60; schemas 6)."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.runtime.models.wire.reverse import canonical_arguments
from callgate.runtime.models.wire.schema_views import Dropped
from tests.runtime.models.strict import assert_spoken, of, view


def said(inner: dict[str, Any], *, needed: bool = True, beside: Any = None) -> Any:
    """The view of one property."""
    made = of(inner, needed=needed, beside=beside)
    assert made.strict, made.fallback
    return made.schema["properties"]["p"]


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
    assert (made.strict, made.nullable, made.dropped) == (True, frozenset({"/properties/a"}), ())


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
    assert said(inner, needed=False) == expected
    assert of(inner, needed=False).nullable == {"/properties/p"}
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
    made = of(inner, needed=False, beside={"$defs": {"n": {"type": ["integer", "null"]}}})
    assert (made.strict, made.ambiguous, made.nullable) == (True, frozenset({"/properties/p"}), frozenset())
    assert canonical_arguments({"p": None}, {}, made.nullable) == {"p": None}


@pytest.mark.parametrize(
    "inner",
    [
        {"type": ["string", "null"], "enum": ["a"]},
        {"type": ["string", "null"], "const": "a"},
        {"type": ["string", "null"], "not": {"type": "null"}},
        {"type": "string", "anyOf": [{"minLength": 1}]},
        {"oneOf": [{"type": ["string", "null"]}, {"type": ["integer", "null"]}]},
    ],
)
def test_a_null_that_the_schema_refuses_after_all_is_dropped(inner: dict[str, Any]) -> None:
    assert of(inner, needed=False).nullable == {"/properties/p"}


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
    made = of({"$ref": "#/definitions/a%20b", "description": "D", "default": 1}, beside=shared)
    assert made.schema["properties"]["p"] == {"anyOf": [{"$ref": "#/$defs/a_b"}], "description": "D (default: 1)"}
    assert made.schema["$defs"] == {"a_b": {"type": "integer"}}


def test_definitions_of_the_same_last_name_stay_apart_and_unused_ones_are_left_out() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/x"},
            "b": {"$ref": "#/definitions/x"},
            "c": {"$ref": "#/$defs/x"},
            "d": {"$ref": "#/$defs/more/x"},
        },
        "required": ["a", "b", "c", "d"],
        "$defs": {"x": {"type": "string"}, "unused": {"type": "object"}, "more": {"x": {"type": "null"}}},
        "definitions": {"x": {"type": "integer"}},
    }
    made = view(schema).schema
    assert made["$defs"] == {"x": {"type": "string"}, "x_2": {"type": "integer"}, "x_3": {"type": "null"}}
    assert [made["properties"][name]["$ref"][8:] for name in "abcd"] == ["x", "x_2", "x", "x_3"]


def test_recursion_stays_recursion() -> None:
    made = of({"$ref": "#/$defs/t"}, beside={"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}})
    assert made.schema["$defs"]["t"] == {"type": "array", "items": {"$ref": "#/$defs/t"}}
    assert said({"$ref": "#"}, needed=False) == {"anyOf": [{"$ref": "#"}, {"type": "null"}]}


def test_a_list_of_types_with_objects_becomes_a_union() -> None:
    inner = {"type": ["object", "null"], "properties": {"a": {"type": "string"}}, "required": ["a"]}
    assert [branch["type"] for branch in said(inner)["anyOf"]] == ["object", "null"]


def test_a_tool_without_parameters_takes_none() -> None:
    assert view({"type": "object"}).schema["additionalProperties"] is False


def test_a_reference_may_lead_anywhere_in_the_schema() -> None:
    beside = {"$defs": {"u": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]}}}
    odd = of({"$ref": "#/$defs/a~1b~0c"}, beside={"$defs": {"a/b~c": {"type": "string"}}})
    assert odd.schema["$defs"] == {"a_1b_0c": {"type": "string"}}
    assert of({"$ref": "#/$defs/u/anyOf/1"}, beside=beside).schema["$defs"] == {"1": {"type": "integer", "minimum": 3}}


def test_a_dropped_composition_is_heeded_when_null_is_judged() -> None:
    assert of({"type": ["string", "null"], "allOf": [True]}, needed=False).ambiguous == {"/properties/p"}
    assert of({"type": ["string", "null"], "allOf": [False]}, needed=False).nullable == {"/properties/p"}
