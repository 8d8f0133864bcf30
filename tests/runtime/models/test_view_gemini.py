"""Gemini's two forms: JSON Schema, and the subset of OpenAPI (contract 20, 60, 61; schemas 6)."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from callgate.runtime.models.gemini import GeminiCodec
from callgate.runtime.models.wire.codec import Translation, translated
from callgate.runtime.models.wire.gemini_view import NODES, gemini_view, openapi_view
from callgate.runtime.models.wire.names import GEMINI_NAME
from callgate.runtime.models.wire.reverse import canonical_arguments
from callgate.runtime.models.wire.schema_views import Dropped, View
from callgate.tools.definition import ToolDefinition
from tests.runtime.models.catalogs import FORMS
from tests.runtime.models.making import random_schema
from tests.runtime.models.provider_rules import gemini_openapi
from tests.runtime.models.trips import trips
from tests.runtime.models.wires import RICH, tool

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


def of(inner: Any, **beside: Any) -> View:
    """The OpenAPI view of an object with this one property."""
    return openapi_view(tool({"type": "object", "properties": {"p": inner}, **beside}))


def said(inner: Any, **beside: Any) -> Any:
    """The view of one property."""
    made = of(inner, **beside)
    assert (made.fallback, made.key) == (None, "parameters")
    return made.schema["properties"]["p"]


# ------------------------------------------------------------------------------------------------------- JSON Schema


def test_contract_60_json_schema_goes_out_as_it_is() -> None:
    """Contract 60."""
    made = gemini_view(tool(RICH))
    assert (made.schema, made.key, made.strict, made.dropped) == (RICH, "parametersJsonSchema", None, ())
    assert list(made.schema) == list(RICH)


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        pytest.param({"const": 1}, {"enum": [1]}, id="const"),
        pytest.param({"const": None, "title": "T"}, {"enum": [None], "title": "T"}, id="const null"),
        pytest.param({"const": 1, "enum": [1]}, {"const": 1, "enum": [1]}, id="const beside enum"),
        pytest.param({"items": {"const": 1}}, {"items": {"enum": [1]}}, id="below items"),
        pytest.param(
            {"$ref": "#/$defs/d", "description": "D"},
            {"anyOf": [{"$ref": "#/$defs/d"}], "description": "D"},
            id="siblings",
        ),
        pytest.param({"$ref": "#/$defs/d"}, {"$ref": "#/$defs/d"}, id="a lone reference"),
        pytest.param(
            {"$ref": "#/$defs/d", "minimum": 1}, {"$ref": "#/$defs/d", "minimum": 1}, id="drafts differ on this"
        ),
        pytest.param({"enum": [{"const": 1}], "default": {"const": 1}}, None, id="data is left alone"),
        pytest.param({"properties": {"const": {"const": 1}}}, {"properties": {"const": {"enum": [1]}}}, id="a name"),
        pytest.param(True, True, id="a boolean schema"),
    ],
)
def test_what_gemini_does_not_read_is_said_in_words_that_it_reads(inner: Any, expected: Any) -> None:
    made = gemini_view(tool({"type": "object", "properties": {"p": inner}, "$defs": {"d": {}}}))
    assert made.schema["properties"]["p"] == (inner if expected is None else expected)
    assert (made.dropped, made.nullable, made.spelled) == ((), frozenset(), frozenset())


def test_contract_14_a_tool_without_a_schema_is_offered_with_an_open_object() -> None:
    """Contract 14."""
    loose = ToolDefinition(name="loose", allow_no_schema=True, no_schema_mode="full")  # type: ignore[arg-type]
    open_object = {"type": "object", "properties": {}, "additionalProperties": True}
    assert gemini_view(loose).schema == open_object
    assert openapi_view(loose).schema == {"type": "OBJECT", "properties": {}}


def test_contract_20_the_compact_schema_is_shown_where_there_is_one() -> None:
    """Contract 20."""
    compact = {"type": "object", "properties": {"city": TEXT}}
    definition = tool(RICH, provider_schema=compact)
    assert gemini_view(definition).schema == compact
    assert openapi_view(definition).schema == {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}}


# ----------------------------------------------------------------------------------------------------------- OpenAPI


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        pytest.param(TEXT, {"type": "STRING"}, id="text"),
        pytest.param({"type": ["string", "null"]}, {"type": "STRING", "nullable": True}, id="null"),
        pytest.param({"type": "null"}, {"type": "NULL"}, id="nothing but null"),
        pytest.param({"const": None}, {"type": "NULL"}, id="const null"),
        pytest.param(
            {"type": ["string", "integer", "null"], "minimum": 1},
            {"anyOf": [{"type": "STRING"}, {"type": "INTEGER", "minimum": 1}], "nullable": True},
            id="several types",
        ),
        pytest.param({"anyOf": [TEXT, {"type": "null"}]}, {"type": "STRING", "nullable": True}, id="or null"),
        pytest.param({"anyOf": [{"type": "null"}, {"type": "null"}]}, {"type": "NULL"}, id="null or null"),
        pytest.param({"anyOf": [TEXT, NUMBER]}, {"anyOf": [{"type": "STRING"}, {"type": "INTEGER"}]}, id="a choice"),
        pytest.param({"const": "a"}, {"type": "STRING", "enum": ["a"]}, id="const"),
        pytest.param({"enum": ["a", None]}, {"type": "STRING", "enum": ["a"], "nullable": True}, id="enum with null"),
        pytest.param({**TEXT, "enum": ["a", 1]}, {"type": "STRING", "enum": ["a"]}, id="what the type refuses"),
        pytest.param({"enum": [1, True]}, {"type": "STRING", "enum": ["1", "true"]}, id="enum of others"),
        pytest.param({**NUMBER, "exclusiveMinimum": 0}, {"type": "INTEGER", "minimum": 1}, id="above"),
        pytest.param(
            {"type": ["integer", "null"], "exclusiveMaximum": 9, "maximum": 3},
            {"type": "INTEGER", "maximum": 3, "nullable": True},
            id="below, the nearer bound",
        ),
        pytest.param(
            {"type": "array", "items": TEXT, "maxItems": 2},
            {"type": "ARRAY", "items": {"type": "STRING"}, "maxItems": 2},
            id="array",
        ),
        pytest.param({"type": "object"}, {"type": "OBJECT"}, id="a free object"),
        pytest.param({"type": "object", "additionalProperties": {}}, {"type": "OBJECT"}, id="a free object, said"),
        pytest.param({"$ref": "#/$defs/d"}, {"type": "INTEGER", "description": "inner"}, id="reference"),
        pytest.param(
            {"$ref": "#/$defs/d", "description": "outer"},
            {"type": "INTEGER", "description": "outer inner"},
            id="siblings",
        ),
        pytest.param(
            {**TEXT, "default": "a", "title": "T"}, {"type": "STRING", "default": "a", "title": "T"}, id="notes"
        ),
        pytest.param({**TEXT, "format": "date-time"}, {"type": "STRING", "format": "date-time"}, id="date-time"),
    ],
)
def test_a_node_is_spelled_without_loss(inner: Any, expected: Any) -> None:
    beside = {"$defs": {"d": {"type": "integer", "description": "inner"}}}
    assert said(inner, **beside) == expected
    assert of(inner, **beside).dropped == ()


@pytest.mark.parametrize(
    ("inner", "word", "told"),
    [
        pytest.param({**TEXT, "format": "uri"}, "format", 'format: "uri"', id="format"),
        pytest.param({**TEXT, "pattern": "(?=a)"}, "pattern", 'pattern: "(?=a)"', id="lookaround"),
        pytest.param({"type": "number", "exclusiveMinimum": 0}, "exclusiveMinimum", "exclusiveMinimum: 0", id="above"),
        pytest.param({**NUMBER, "multipleOf": 5}, "multipleOf", "multipleOf: 5", id="multiple"),
        pytest.param({"enum": ["", "a"]}, "enum", 'enum: ["", "a"]', id="an empty choice"),
        pytest.param({"const": ""}, "const", 'const: ""', id="nothing but an empty choice"),
        pytest.param({"enum": [1, 2], "default": 1}, "default", "default: 1", id="a default that is no text"),
        pytest.param({**TEXT, "default": 1}, "default", "default: 1", id="a default of another type"),
        pytest.param({"oneOf": [TEXT, NUMBER]}, "oneOf", "", id="exactly one"),
        pytest.param({"type": "object", "additionalProperties": False}, "additionalProperties", "", id="closed"),
        pytest.param(
            {"type": "object", "additionalProperties": TEXT},
            "additionalProperties",
            'additionalProperties: {"type": "string"}',
            id="a typed map",
        ),
        pytest.param({"type": "object", "properties": {"a": TEXT}, "required": ["b"]}, "required", "", id="undeclared"),
        pytest.param(
            {"type": "object", "properties": {"a": TEXT}, "not": {"required": ["b"]}},
            "not",
            'not: {"required": ["b"]}',
            id="a composition",
        ),
    ],
)
def test_a_keyword_that_it_lacks_is_dropped_and_told(inner: Any, word: str, told: str) -> None:
    made = of(inner)
    assert made.dropped == (Dropped("/properties/p", word),)
    assert made.schema["properties"]["p"].get("description", "") == told


LOOP = {"type": "object", "properties": {"next": {"$ref": "#/$defs/d"}}}
WIDE = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(20)}


@pytest.mark.parametrize(
    ("inner", "defs", "reason"),
    [
        pytest.param({}, {}, "an untyped node at /properties/p", id="untyped"),
        pytest.param({"type": "array"}, {}, "an array of untyped items", id="items"),
        pytest.param({"$ref": "#/$defs/d"}, {"d": LOOP}, "a schema that refers to itself", id="recursion"),
        pytest.param({"$ref": "#"}, {}, "a schema that refers to itself", id="the root in itself"),
        pytest.param({"$ref": "#/$defs/d0"}, {**WIDE, "d20": TEXT}, f"more than {NODES} nodes", id="written out"),
        pytest.param({"enum": [1, "1"]}, {}, "differ only in their types", id="the same text"),
        pytest.param({"enum": ["", 1]}, {}, "differ only in their types", id="an empty text among others"),
        pytest.param({**TEXT, "enum": [1]}, {}, "an empty choice", id="nothing fits"),
        pytest.param({"enum": [[1]]}, {}, "an untyped node", id="a list to choose"),
        pytest.param({"type": "object", "properties": {"a-b": TEXT}}, {}, "the property 'a-b' has a name", id="a name"),
        pytest.param({"type": "object", "properties": {"a" * 65: TEXT}}, {}, "has a name it does not take", id="long"),
    ],
)
def test_what_it_cannot_say_goes_out_as_json_schema_with_the_reason(inner: Any, defs: Any, reason: str) -> None:
    made = of(inner, **{"$defs": defs})
    assert made.key == "parametersJsonSchema"
    assert reason in (made.fallback or "")
    assert (made.dropped, made.spelled) == ((), frozenset())


# ---------------------------------------------------------------------------------------------------------- way back

CHOICES = {
    "type": "object",
    "properties": {
        "n": {"enum": [1, 2.5, None]},
        "b": {"type": "boolean", "const": True},
        "s": {"enum": ["1", "x"]},
        "list": {"type": "array", "items": {"$ref": "#/$defs/level"}},
        "odd": {"anyOf": [{"type": "object", "properties": {"e": {"enum": [n]}}} for n in (1, 2)]},
        "any": {"anyOf": [{"type": "object", "properties": {"k": {"const": 7}, "o": TEXT}}, {"const": 9}]},
    },
    "$defs": {"level": {"type": "integer", "enum": [1, 2]}},
}


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        pytest.param({"n": "1", "b": "true", "s": "1"}, {"n": 1, "b": True, "s": "1"}, id="choices"),
        pytest.param({"n": "2.5"}, {"n": 2.5}, id="a fraction"),
        pytest.param({"n": None}, {"n": None}, id="null"),
        pytest.param({"n": 1, "b": True}, {"n": 1, "b": True}, id="a model that says them as they are"),
        pytest.param({"n": "3", "b": "yes"}, {"n": "3", "b": "yes"}, id="what is no choice is left for validation"),
        pytest.param({"list": ["2", "1", "x"]}, {"list": [2, 1, "x"]}, id="in a list, by reference"),
        pytest.param({"any": {"k": "7", "o": "7"}}, {"any": {"k": 7, "o": "7"}}, id="in a branch"),
        pytest.param(
            {"any": {"k": "7", "more": 1}}, {"any": {"k": 7, "more": 1}}, id="in a branch, with more beside it"
        ),
        pytest.param({"any": "9"}, {"any": 9}, id="a branch that is a choice"),
        pytest.param({"any": "8"}, {"any": "8"}, id="no branch"),
        pytest.param({"odd": {"e": "2"}}, {"odd": {"e": 2}}, id="a branch told by its choice"),
    ],
)
def test_contract_61_choices_spelled_as_text_come_back_as_what_they_are(told: Any, meant: Any) -> None:
    """Contract 61."""
    made = openapi_view(tool(CHOICES))
    assert made.spelled == {
        *("/properties/n", "/properties/b", "/$defs/level"),
        *("/properties/any/anyOf/0/properties/k", "/properties/any/anyOf/1"),
        *("/properties/odd/anyOf/0/properties/e", "/properties/odd/anyOf/1/properties/e"),
    }
    back = canonical_arguments(told, CHOICES, made.nullable, made.spelled)
    assert repr(back) == repr(meant)
    assert (back is told) == (told == meant and repr(told) == repr(meant))


def shaped(definitions: list[ToolDefinition]) -> Translation:
    return translated(
        definitions, openapi_view, lambda tool, name, view: {"name": name, str(view.key): view.schema}, GEMINI_NAME
    )


def test_contract_50_the_record_keeps_what_the_way_back_needs() -> None:
    """Contract 50, C5: spelled choices, and names that start with a digit."""
    translation = shaped([tool(CHOICES, name="7up"), tool(name="a_b")])
    (first, second) = translation.request["tools"]
    assert GEMINI_NAME.fullmatch(first["name"])
    assert (translation.names.tool(first["name"]), second["name"]) == ("7up", "a_b")
    assert translation.tools["7up"].spelled == openapi_view(tool(CHOICES)).spelled


def test_contract_61_the_round_trip_holds_on_random_schemas() -> None:
    """Contract 61: in both forms."""
    rng = random.Random(11)
    seen = {form: Counter[str]() for form in ("gemini", "gemini openapi")}
    for _ in range(200):
        schema = random_schema(rng)
        for form, words in seen.items():
            made = FORMS[form].view(tool(schema))
            if made.key == "parameters":
                assert list(gemini_openapi(made.schema, RULES)) == []
            words.update(trips(form, schema, made, rng, 3))
    assert min(words["equal"] for words in seen.values()) >= 400
    assert [words["wrong without the way back"] > 0 for words in seen.values()] == [False, True]


RULES = {
    "gemini": {
        "openapi_subset_fields": [
            *("type", "format", "title", "description", "nullable", "enum", "default", "items", "minItems", "maxItems"),
            *("properties", "required", "minLength", "maxLength", "pattern", "minimum", "maximum", "anyOf"),
        ]
    }
}


def test_contract_61_a_codec_made_for_openapi_reads_its_spellings_back() -> None:
    """Contract 61: and says under which key each schema goes."""
    loop = {"type": "object", "properties": {"again": {"$ref": "#"}}}
    older = GeminiCodec(openapi=True)
    translation = older.translate([tool(CHOICES, name="choose"), tool(loop, name="loop")])
    (declared,) = translation.request["tools"]
    assert [sorted(set(each) - {"name"}) for each in declared["functionDeclarations"]] == [
        ["parameters"],
        ["parametersJsonSchema"],
    ]
    parts = [{"functionCall": {"name": "choose", "args": {"n": "1", "b": "true", "s": "1"}}}]
    body = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    (call,) = older.calls(body, translation)
    assert call.arguments == {"n": 1, "b": True, "s": "1"}
