"""A schema that OpenAI's strict mode cannot express is sent plain, and the reason is recorded (contract 12; schemas 6)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.models.strict import view


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
        ({"$ref": "https://a.example/s"}, "a reference that is not a local pointer"),
        ({"$ref": "#/$defs/none"}, "a reference that is not a local pointer"),
        ({"$ref": "#/properties/p"}, "a reference without a target"),
        ({"$dynamicRef": "#n"}, "an untyped node"),
        ({"type": "object", "enum": [{}]}, "a list of objects or arrays"),
        ({"type": "string", "anyOf": [{"type": "integer"}]}, "a union beside a type"),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"properties": {"b": {}}}]},
            "anyOf mentions other properties",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "allOf": [{"$ref": "#/$defs/x"}]},
            "allOf mentions other properties",
        ),
    ],
)
def test_what_strict_mode_would_narrow_falls_back_with_the_reason(inner: dict[str, Any], reason: str) -> None:
    schema = {"type": "object", "properties": {"p": inner}}
    made = view(schema)
    assert (made.strict, made.schema, made.nullable, made.dropped) == (False, schema, frozenset(), ())
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


@pytest.mark.parametrize(
    "schema", [{}, {"$schema": "http://json-schema.org/draft-07/schema#"}, {"title": "T"}], ids=str
)
def test_a_schema_that_says_nothing_is_not_closed_to_nothing(schema: dict[str, Any]) -> None:
    """Contract 12: some servers send such a schema by mistake; their tools take arguments all the same."""
    made = view(schema)
    assert (made.strict, made.fallback) == (False, "the tool has no schema")
    assert made.schema == {**schema, "type": "object", "properties": {}}
