"""Schemas and values, both of the largest allowed size, that cost an engine as much as possible; by family."""

from __future__ import annotations

from typing import Any

BIG = 190_000


def objects(n: int, k: int) -> list[dict[str, int]]:
    """*n* objects with *k* members each."""
    return [{f"k{j}": i * 10 + j for j in range(k)} for i in range(n)]


def under_x(p: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": p}}


FAMILIES: dict[str, tuple[Any, Any]] = {}
FAMILIES["enum objects"] = (
    under_x({"type": "array", "items": {"enum": objects(200, 6)}}),
    {"x": [dict(last) for last in objects(200, 6)[-1:] * 3500]},
)
FAMILIES["enum objects 5000"] = (
    under_x({"type": "array", "items": {"enum": objects(1000, 6)}}),
    {"x": [{f"k{j}": 9990 + j for j in range(6)} for _ in range(3000)]},
)
FAMILIES["enum strings"] = (
    under_x({"type": "array", "items": {"enum": [f"s{i}" for i in range(5000)]}}),
    {"x": ["s4999"] * 20000},
)
FAMILIES["enum mixed"] = (
    under_x({"type": "array", "items": {"enum": [f"s{i}" for i in range(4000)] + [{"a": 1}]}}),
    {"x": ["s3999"] * 20000},
)
FAMILIES["enum numbers"] = (
    under_x({"type": "array", "items": {"enum": [i + 0.5 for i in range(5000)]}}),
    {"x": [4999.5] * 25000},
)
FAMILIES["const object"] = (
    under_x({"type": "array", "items": {"const": {f"k{i}": i for i in range(250)}}}),
    {"x": [{f"k{i}": i for i in range(250)}] * 80},
)
FAMILIES["uniqueItems objects"] = (
    under_x({"type": "array", "uniqueItems": True}),
    {"x": [{"a": i} for i in range(15000)]},
)
FAMILIES["uniqueItems mixed"] = (under_x({"type": "array", "uniqueItems": True}), {"x": [[i] for i in range(20000)]})
FAMILIES["uniqueItems floats"] = (
    under_x({"type": "array", "uniqueItems": True}),
    {"x": [i + 0.5 for i in range(20000)]},
)
FAMILIES["uniqueItems nested last differs"] = (
    under_x({"type": "array", "uniqueItems": True}),
    {"x": [{"a": [0] * 20 + [i]} for i in range(3000)]},
)
FAMILIES["anyOf"] = (
    under_x({"type": "array", "items": {"anyOf": [{"type": "object", "required": [f"r{i}"]} for i in range(1000)]}}),
    {"x": [{"a": 1}] * 20000},
)
FAMILIES["oneOf objects"] = (
    under_x(
        {
            "type": "array",
            "items": {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {"k": {"const": i}, "d": {"type": "array", "items": {"type": "integer"}}},
                    }
                    for i in range(400)
                ]
            },
        }
    ),
    {"x": [{"k": 1, "d": [1] * 10}] * 5000},
)
FAMILIES["patternProperties"] = (
    {"type": "object", "patternProperties": {f"^(a|b)*{i}$": {"type": "integer"} for i in range(500)}},
    {("ab" * 20) + str(i): 1 for i in range(3800)},
)
FAMILIES["additionalProperties pattern"] = (
    under_x({"type": "object", "propertyNames": {"pattern": "^[a-z]{1,60}x?$"}}),
    {"x": {("ab" * 20) + chr(97 + i % 26) + chr(97 + i // 26 % 26) + chr(97 + i // 676): 1 for i in range(4000)}},
)
FAMILIES["pattern"] = (under_x({"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}), {"x": "a" * BIG})
FAMILIES["pattern backref"] = (under_x({"type": "string", "pattern": "(a+)+(?=b)\\1c"}), {"x": "a" * BIG})
FAMILIES["pattern unanchored"] = (under_x({"type": "string", "pattern": "a*a*a*a*b"}), {"x": "a" * BIG})
FAMILIES["format"] = (
    under_x(
        {
            "allOf": [
                {"type": "string", "format": f}
                for f in ("date-time", "email", "uri", "ipv6", "hostname", "uuid", "regex", "json-pointer", "idn-email")
            ]
        }
    ),
    {"x": "a." * (BIG // 2)},
)
FAMILIES["format regex"] = (under_x({"type": "string", "format": "regex"}), {"x": "(a{1,1000}){1,1000}" * 8000})
FAMILIES["format regex 2"] = (
    under_x({"type": "array", "items": {"type": "string", "format": "regex"}}),
    {"x": ["[\\p{L}]{0,900}"] * 9000},
)
FAMILIES["format email"] = (
    under_x({"type": "array", "items": {"type": "string", "format": "email"}}),
    {"x": ["a" * 60 + "@" + "b." * 60 + "c"] * 1000},
)
FAMILIES["idn-hostname"] = (
    under_x({"type": "array", "items": {"type": "string", "format": "idn-hostname"}}),
    {"x": ["ü" * 60 + "." + "ß" * 60] * 700},
)
FAMILIES["multipleOf"] = (under_x({"type": "array", "items": {"multipleOf": 0.0000001}}), {"x": [int("9" * 390)] * 480})
FAMILIES["multipleOf float"] = (under_x({"type": "array", "items": {"multipleOf": 1e-300}}), {"x": [1e300] * 30000})
FAMILIES["multipleOf huge"] = (
    under_x({"type": "array", "items": {"multipleOf": 10**300 + 1}}),
    {"x": [10**390 + 7] * 480},
)
FAMILIES["contains"] = (
    under_x(
        {
            "type": "array",
            "items": {"type": "array", "contains": {"type": "array", "contains": {"const": 1}}, "minContains": 2},
        }
    ),
    {"x": [[[0] * 20] * 10] * 400},
)
part: Any = {"type": "integer"}
for _ in range(100):
    part = {"not": part}
FAMILIES["nested not"] = (under_x({"type": "array", "items": part}), {"x": [1] * 45000})
part = {"type": "integer"}
for _ in range(60):
    part = {"if": {"type": "string"}, "then": {"maxLength": 1}, "else": part}
FAMILIES["nested if"] = (under_x({"type": "array", "items": part}), {"x": [1] * 45000})
part = {"unevaluatedProperties": False}
for i in range(6):
    part = {"allOf": [part, {"properties": {f"p{i}": {}}}], "unevaluatedProperties": {"type": "integer"}}
FAMILIES["unevaluatedProperties"] = (part, {f"q{i}": 1 for i in range(20000)})
part = {
    "unevaluatedProperties": {"type": "integer"},
    "allOf": [{"properties": {f"p{i}": {"type": "integer"}}} for i in range(300)],
}
FAMILIES["unevaluated wide"] = (part, {f"q{i}": 1 for i in range(20000)})
part = {
    "unevaluatedProperties": {"type": "integer"},
    "anyOf": [{"patternProperties": {f"^p{i}": {"type": "integer"}}} for i in range(300)],
}
FAMILIES["unevaluated patterns"] = (part, {f"q{i}": 1 for i in range(20000)})
FAMILIES["unevaluatedItems"] = (
    under_x({"unevaluatedItems": {"type": "integer"}, "allOf": [{"contains": {"const": i}} for i in range(100)]}),
    {"x": list(range(30000))},
)
FAMILIES["dependentSchemas"] = (
    {
        "type": "object",
        "dependentSchemas": {
            f"k{i}": {"minProperties": 1, "required": [f"k{j}" for j in range(20)]} for i in range(500)
        },
    },
    {f"k{i}": 1 for i in range(15000)},
)
FAMILIES["dependentRequired"] = (
    {"type": "object", "dependentRequired": {f"k{i}": [f"k{j}" for j in range(40)] for i in range(500)}},
    {f"k{i}": 1 for i in range(15000)},
)
FAMILIES["required many"] = (
    under_x({"type": "array", "items": {"required": [f"a{i}" for i in range(2000)]}}),
    {"x": [{f"a{i}": 1 for i in range(2000)}] * 13},
)
recursive = {
    "type": "object",
    "$defs": {
        "n": {
            "anyOf": [
                {"type": "integer"},
                {"type": "array", "items": {"$ref": "#/$defs/n"}},
                {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1},
            ]
        }
    },
    "properties": {"x": {"$ref": "#/$defs/n"}},
}
deep: Any = "z"
for _ in range(20):
    deep = [deep, "q"]
FAMILIES["ref recursive"] = (recursive, {"x": deep})
FAMILIES["properties many"] = (
    under_x(
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {f"p{i}": {"type": "integer", "minimum": 0} for i in range(500)},
                "additionalProperties": False,
            },
        }
    ),
    {"x": [{f"p{i}": 1 for i in range(500)}] * 40},
)
FAMILIES["minLength"] = (
    under_x({"allOf": [{"minLength": 1, "maxLength": 10**6 + i} for i in range(400)]}),
    {"x": "é" * 90000},
)
FAMILIES["allOf wide"] = (
    under_x({"type": "array", "items": {"allOf": [{"minimum": -i} for i in range(1900)]}}),
    {"x": [1] * 49000},
)
FAMILIES["oneOf nested"] = (
    under_x(
        {
            "type": "array",
            "items": {
                "oneOf": [
                    {"oneOf": [{"minimum": i * 50 + j, "maximum": i * 50 + j} for j in range(40)]} for i in range(40)
                ]
            },
        }
    ),
    {"x": [1e9] * 40000},
)
FAMILIES["items objects check"] = (
    under_x({"type": "array", "items": {"type": "object", "additionalProperties": {"type": "string"}}}),
    {"x": [{"a": "b"}] * 15000},
)
FAMILIES["uniqueItems large"] = (under_x({"uniqueItems": True}), {"x": [2**80 + i for i in range(600)]})
FAMILIES["uniqueItems large objects"] = (under_x({"uniqueItems": True}), {"x": [{"a": 2**80 + i} for i in range(500)]})
FAMILIES["uniqueItems of one float"] = (under_x({"uniqueItems": True}), {"x": [2**60 + i for i in range(9_000)]})
FAMILIES["uniqueItems few floats"] = (
    under_x({"items": {"uniqueItems": True}}),
    {"x": [[1e300 + j * 1e290 for j in range(15)] for _ in range(600)]},
)

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
TEXTS: dict[str, tuple[Any, Any]] = {
    "contentMediaType": (
        {"$schema": DRAFT_7, **under_x({"allOf": [{"contentMediaType": "application/json"}] * 20})},
        {"x": f"[{'0,' * 100_000}0]"},
    ),
    "formats": ({"$schema": DRAFT_7, **under_x({"allOf": [{"format": "uri"}] * 500})}, {"x": f"a:/{'a' * 500_000}"}),
}
"""The same, where a text is read many times."""

COPIED: dict[str, tuple[Any, Any]] = {
    "a text": (under_x({"allOf": [{"const": str(i)} for i in range(400)]}), {"x": "x" * 300_000}),
    "a key": (under_x({"allOf": [{"const": str(i)} for i in range(400)]}), {"x": {"x" * 300_000: 0}}),
    "a key of propertyNames": (
        under_x({"propertyNames": {"allOf": [{"const": str(i)} for i in range(400)]}}),
        {"x": {"x" * 300_000: 0}},
    ),
    "branches": (under_x({"anyOf": [{"const": str(i)} for i in range(400)]}), {"x": "x" * 300_000}),
    "the object of a missing key": (under_x({"required": [str(i) for i in range(300)]}), {"x": {"x" * 300_000: 0}}),
    "a constant": (under_x({"items": {"const": "x" * 60_000}}), {"x": ["x"] * 1_900}),
    "an enum": (under_x({"items": {"enum": [f"{'x' * 60}{i}" for i in range(900)]}}), {"x": ["x"] * 1_900}),
    "a negation": (under_x({"items": {"not": {"const": 0, "title": "x" * 60_000}}}), {"x": [0] * 1_900}),
}
"""Invalid values for which jsonschema-rs copies much text into its errors."""
