"""Anthropic's strict tools: what is said, what is not, and the budget of a request (contract 12, 60, 61; schemas 6)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from callgate.runtime.models import codec
from callgate.runtime.models.anthropic import AnthropicCodec
from callgate.runtime.models.wire.anthropic_view import OPTIONAL, TOOLS, UNIONS, strict_views
from callgate.runtime.models.wire.schema_views import Dropped, View
from callgate.tools.definition import ToolDefinition
from tests.runtime.models.catalogs import FORMS
from tests.runtime.models.making import random_schema
from tests.runtime.models.provider_rules import anthropic_strict
from tests.runtime.models.trips import trips
from tests.runtime.models.wires import RICH, tool

TEXT = {"type": "string"}
RULES = {
    "anthropic_strict": {
        "supported": [
            *("type", "properties", "required", "items", "enum", "const", "anyOf", "allOf", "$defs", "$ref", "title"),
            *("description", "minItems", "pattern"),
            "format:[date-time,time,date,duration,email,hostname,uri,ipv4,ipv6,uuid]",
        ]
    }
}


def of(inner: Any, **beside: Any) -> View:
    """The strict view of an object with this one property."""
    return strict_views()(tool({"type": "object", "properties": {"p": inner}, **beside}, strict=True))


def said(inner: Any, **beside: Any) -> Any:
    """The view of one property."""
    made = of(inner, **beside)
    assert made.strict, made.fallback
    assert list(anthropic_strict(made.schema, RULES)) == []
    return made.schema["properties"]["p"]


def test_contract_12_strict_mode_is_not_sent_unless_it_is_asked_for_twice() -> None:
    """Contract 12: the codec never does; these views do it for definitions that ask."""
    (sent,) = codec("anthropic").translate([tool(RICH, strict=True)]).request["tools"]
    assert "strict" not in sent
    for strict in (None, False):
        made = strict_views()(tool(RICH, strict=strict))
        assert (made.schema, made.strict, made.fallback) == (RICH, None, None)


def test_optional_properties_stay_optional_and_every_object_is_closed() -> None:
    made = strict_views()(
        tool({"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["b"]}, strict=True)
    )
    assert made.schema == {
        "type": "object",
        "properties": {"a": TEXT, "b": TEXT},
        "required": ["b"],
        "additionalProperties": False,
    }
    assert (made.strict, made.nullable, made.dropped) == (True, frozenset(), ())


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        pytest.param({"type": ["string", "null"]}, {"anyOf": [TEXT, {"type": "null"}]}, id="several types"),
        pytest.param({**TEXT, "enum": ["a"]}, {"enum": ["a"]}, id="enum"),
        pytest.param({"type": ["string", "null"], "enum": ["a", None, 1]}, {"enum": ["a", None]}, id="enum or null"),
        pytest.param({"type": ["string", "null"], "const": "a"}, {"const": "a"}, id="const"),
        pytest.param({**TEXT, "format": "uri", "title": "T"}, {**TEXT, "format": "uri", "title": "T"}, id="format"),
        pytest.param({**TEXT, "pattern": r"^\w+$"}, {**TEXT, "pattern": r"^\w+$"}, id="pattern"),
        pytest.param(
            {"type": "array", "items": TEXT, "minItems": 1}, {"type": "array", "items": TEXT, "minItems": 1}, id="one"
        ),
        pytest.param(
            {"$ref": "#/$defs/d", "description": "D"}, {"allOf": [{"$ref": "#/$defs/d"}], "description": "D"}, id="ref"
        ),
    ],
)
def test_a_node_is_spelled_without_loss(inner: Any, expected: Any) -> None:
    assert said(inner, **{"$defs": {"d": TEXT}}) == expected
    assert of(inner, **{"$defs": {"d": TEXT}}).dropped == ()


@pytest.mark.parametrize(
    ("inner", "word", "told"),
    [
        pytest.param({"type": "integer", "minimum": 1}, "minimum", "minimum: 1", id="a bound"),
        pytest.param({**TEXT, "maxLength": 9, "description": "D"}, "maxLength", "D (maxLength: 9)", id="a length"),
        pytest.param({**TEXT, "default": "a"}, "default", 'default: "a"', id="default"),
        pytest.param({**TEXT, "format": "iri"}, "format", 'format: "iri"', id="format"),
        pytest.param({"type": "array", "items": TEXT, "minItems": 2}, "minItems", "minItems: 2", id="two"),
        pytest.param({"type": "array", "items": TEXT, "maxItems": 1}, "maxItems", "maxItems: 1", id="at most"),
        pytest.param({**TEXT, "pattern": r"a\b"}, "pattern", r'pattern: "a\\b"', id="boundary"),
        pytest.param({**TEXT, "pattern": r"(a)\1"}, "pattern", r'pattern: "(a)\\1"', id="backreference"),
        pytest.param({**TEXT, "pattern": "(?!a)"}, "pattern", 'pattern: "(?!a)"', id="lookaround"),
    ],
)
def test_a_keyword_that_strict_mode_lacks_is_told_in_the_description(inner: Any, word: str, told: str) -> None:
    assert said(inner)["description"] == told
    assert of(inner).dropped == (Dropped("/properties/p", word),)


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        pytest.param({}, "an untyped node", id="untyped"),
        pytest.param({"type": "object"}, "an open object", id="free"),
        pytest.param({"type": "object", "additionalProperties": TEXT}, "an open object", id="map"),
        pytest.param({"$ref": "#"}, "a schema that refers to itself", id="the root"),
        pytest.param({"$ref": "#/$defs/a"}, "a schema that refers to itself", id="by a detour"),
        pytest.param({**TEXT, "enum": [1]}, "an empty choice", id="nothing to choose"),
        pytest.param({"type": "object", "enum": [{}]}, "a list of objects", id="objects to choose"),
    ],
)
def test_what_strict_mode_would_narrow_is_sent_without_it(inner: Any, reason: str) -> None:
    definitions = {
        "a": {"type": "array", "items": {"$ref": "#/$defs/b"}},
        "b": {"anyOf": [{"$ref": "#/$defs/a"}, TEXT]},
    }
    made = of(inner, **{"$defs": definitions})
    assert (made.strict, made.dropped) == (None, ())
    assert made.schema == {"type": "object", "properties": {"p": inner}, "$defs": definitions}
    assert reason in (made.fallback or "")


def test_contract_14_without_a_schema_there_is_nothing_to_be_strict_about() -> None:
    """Contract 14."""
    loose = ToolDefinition(name="loose", allow_no_schema=True, no_schema_mode="full", strict=True)  # type: ignore[arg-type]
    for definition in (loose, tool({"description": "says nothing"}, strict=True)):
        made = strict_views()(definition)
        assert (made.strict, made.fallback) == (None, "the tool has no schema")
        assert made.schema["type"] == "object"


def optional(number: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{each}": TEXT for each in range(number)}}


def either(number: int) -> dict[str, Any]:
    names = [f"p{each}" for each in range(number)]
    choice = {"anyOf": [TEXT, {"type": "integer"}]}
    return {"type": "object", "properties": dict.fromkeys(names, choice), "required": names}


@pytest.mark.parametrize(
    ("schemas", "reason"),
    [
        pytest.param([optional(0)] * (TOOLS + 1), "more than 20 strict tools in a request", id="tools"),
        pytest.param([optional(OPTIONAL), optional(1)], "more than 24 optional properties", id="optional"),
        pytest.param([either(UNIONS), either(1)], "more than 16 unions", id="choices"),
        pytest.param(
            [{**optional(0), "properties": {"o": optional(OPTIONAL)}, "required": ["o"]}, optional(1)],
            "more than 24 optional",
            id="nested",
        ),
    ],
)
def test_contract_12_a_tool_beyond_the_budget_of_a_request_is_sent_without_strict_mode(
    schemas: list[Any], reason: str
) -> None:
    """Contract 12: the tools before it, and those after it that still fit, stay strict."""
    view = strict_views()
    made = [view(tool(schema, strict=True)) for schema in schemas]
    assert [each.strict for each in made] == [True] * (len(schemas) - 1) + [None]
    assert reason in (made[-1].fallback or "")
    assert made[-1].schema == schemas[-1]
    fits = view(tool({"type": "object", "properties": {}}, strict=True))
    assert fits.strict is (None if len(schemas) > TOOLS else True)
    assert strict_views()(tool(schemas[-1], strict=True)).strict


def test_contract_61_the_round_trip_holds_on_random_schemas() -> None:
    """Contract 61: a strict view needs no way back, and refuses no canonical value."""
    rng = random.Random(13)
    seen = strict = 0
    for _ in range(200):
        schema = random_schema(rng)
        made = FORMS["anthropic strict"].view(tool(schema, strict=True))
        strict += made.strict is True
        assert not made.strict or list(anthropic_strict(made.schema, RULES)) == []
        seen += trips("anthropic strict", schema, made, rng, 3).count("equal")
    assert seen >= 400
    assert strict >= 50


def test_contract_12_a_codec_made_for_strict_mode_sends_it_for_definitions_that_ask() -> None:
    """Contract 12: every request has a budget of its own."""
    strict = AnthropicCodec(strict=True)
    definitions = [tool(name=f"t{number}", strict=True) for number in range(TOOLS + 1)]
    for _ in range(2):
        sent = strict.translate([*definitions, tool(name="other")]).request["tools"]
        assert [each.get("strict") for each in sent] == [True] * TOOLS + [None, None]
    assert "strict tools" in (strict.translate(definitions).tools[f"t{TOOLS}"].fallback or "")
