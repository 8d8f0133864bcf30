"""What fastjsonschema is trusted with (schemas.md 1), and the traps that the gate keeps it from."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest

from callgate.errors import SchemaRefused
from callgate.tools.schemas.engines import gate, rust
from callgate.tools.schemas.engines.base import AuthorSchema
from callgate.tools.schemas.engines.document import read
from callgate.tools.schemas.engines.fast import FastEngine
from callgate.tools.schemas.engines.patterns import pattern_weight, simple_pattern
from callgate.tools.schemas.validation import compile_schema
from tests.harness.cpu import cpu_seconds

ADMITTED: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"a": {"type": "string", "minLength": 1, "pattern": "^[a-z]+$"}},
        "required": ["a"],
    },
    {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}},
    {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Optional"},
    {"const": {"a": [1, None, True]}},
    {"enum": [1, "a"], "const": 1},
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    {"$schema": "http://json-schema.org/draft-07/schema#", "if": {"type": "string"}, "then": {"maxLength": 3}},
    {"type": "object", "x-order": 3, "description": "d", "properties": {"$ref": {"type": "string"}, "id": {}}},
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("format", {"format": "email"}),
    ("multipleOf", {"multipleOf": 2}),
    ("patternProperties", {"patternProperties": {"^a$": {}}}),
    ("prefixItems", {"prefixItems": [{}]}),
    ("nullable", {"type": "string", "nullable": True}),
    ("pattern", {"pattern": "^(a+)+$"}),
    ("pattern", {"pattern": r"^\d+$"}),
    ("$ref", {"$ref": "#/$defs/a", "$defs": {"a": {}}}),
    ("$ref", {"properties": {"x": {"$ref": "#/$defs/a", "maxLength": 1}}, "$defs": {"a": {}}}),
    ("$ref", {"properties": {"x": {"$ref": "#/properties/y"}, "y": {}}}),
    ("$schema", {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}),
    ("minimum", {"minimum": 1e300}),
    ("enum", {"enum": list(range(1000))}),
    ("enum", {"enum": [{"$ref": "#"}]}),
    ("const", {"const": {"id": "x"}}),
    ("uniqueItems", {"uniqueItems": True}),
    ("size", {"properties": {f"p{n}": {} for n in range(600)}}),
]


@pytest.mark.parametrize("schema", ADMITTED)
def test_plain_schemas_run_on_fastjsonschema(schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert gate.refusal(read(schema)) is None
    assert compile_schema(AuthorSchema(schema), engine=FastEngine()).engine == "fastjsonschema"
    monkeypatch.setattr(rust, "_library", lambda: None)
    monkeypatch.setattr("callgate.tools.schemas.validation._cache.get", lambda _key: None)
    assert compile_schema(AuthorSchema(schema)).engine == "fastjsonschema"


@pytest.mark.parametrize(("cause", "schema"), REFUSED)
def test_what_it_would_not_enforce_goes_to_jsonschema_rs_or_is_refused_by_name(
    cause: str, schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gate.refusal(read(schema))
    assert found is not None
    assert found[0] == cause
    assert compile_schema(schema).engine == "jsonschema-rs"
    with pytest.raises(SchemaRefused, match=re.escape(cause)):
        FastEngine().compile(AuthorSchema(schema), trusted=True)
    monkeypatch.setattr(rust, "_library", lambda: None)
    monkeypatch.setattr("callgate.tools.schemas.validation._cache.get", lambda _key: None)
    with pytest.raises(SchemaRefused, match=re.escape(cause)) as refused:
        compile_schema(AuthorSchema(schema))
    assert refused.value.reason == "not_enforced"


def test_fastjsonschema_takes_no_schema_from_outside() -> None:
    for schema, trusted in (({"type": "object"}, True), (AuthorSchema({"type": "object"}), False)):
        with pytest.raises(SchemaRefused, match="an AuthorSchema only"):
            FastEngine().compile(schema, trusted=trusted)
        with pytest.raises(SchemaRefused, match="an AuthorSchema only"):
            compile_schema(schema, trusted=trusted, engine=FastEngine())


COLLIDING = [("User", "user"), ("A-B", "A_B"), ("a.b", "a_b"), ("x", "X"), ("_", "-")]


@pytest.mark.parametrize("names", COLLIDING)
@pytest.mark.parametrize("order", [1, -1])
def test_definitions_whose_names_become_one_function_are_not_confused(names: tuple[str, str], order: int) -> None:
    strict, loose = names
    properties = {"x": {"$ref": f"#/$defs/{strict}"}, "y": {"$ref": f"#/$defs/{loose}"}}
    schema = {
        "type": "object",
        "properties": dict(list(properties.items())[::order]),
        "$defs": {strict: {"type": "integer"}, loose: {}},
    }
    validator = compile_schema(schema)
    assert validator.engine == "jsonschema-rs"
    with pytest.raises(Exception):  # noqa: B017
        validator.check({"x": "text", "y": "text"})


@pytest.mark.parametrize(
    "pattern",
    [
        "^[a-z]+$",
        "abc",
        r"^\.hidden$",
        "^[A-Za-z0-9_-]{3,10}$",
        "^a?b?c?$",
        "[0-9]",
        "^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
        "^a{999}$",
    ],
)
def test_simple_patterns_stay_with_pythons_re(pattern: str) -> None:
    assert simple_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "^(a+)+$",
            "a|b",
            r"\d",
            r"\w",
            "(a)",
            "(?=a)a",
            "[^a]",
            r"\bx",
            ".",
            "a$b",
            "[$]",
            "^a*b*$",
            "a+",
            "[a-z]*x",
        ),
        *(
            "a?" * 20 + "a" * 20,
            "^[0-9]{1,9}[0-9]{1,9}$",
            "a{999}b",
            "a" * 129,
            r"\p{L}",
            r"\u{61}",
            "é",
            "a++",
            "a{2}{3}",
        ),
    ],
)
def test_patterns_that_could_differ_or_backtrack_do_not(pattern: str) -> None:
    assert not simple_pattern(pattern)


@pytest.mark.parametrize("pattern", ["^[a-z]+$", "^[a-z]*b{0,15}$", "^a?a?a?a?aaaa$", "a{0,3}a{0,3}b", "[a-z]{40}:"])
@pytest.mark.parametrize("text", ["a" * 65_536, "a" * 65_535 + "!", "ab" * 32_768])
def test_a_pattern_that_is_called_simple_never_takes_long(pattern: str, text: str) -> None:
    assert simple_pattern(pattern)
    validator = compile_schema(AuthorSchema({"type": "string", "pattern": pattern}), engine=FastEngine())
    assert validator.engine == "fastjsonschema"

    def check() -> None:
        with suppress(ValueError):
            validator.check(text)

    assert cpu_seconds(check, 0.1) < 0.1


def test_the_weight_of_a_pattern_follows_its_counted_repeats() -> None:
    assert pattern_weight("abc") == 3
    assert pattern_weight("(a|b){100}") >= 200
    assert pattern_weight("((a{1,8}){1,30}){1,12}b") >= 2880
    assert pattern_weight("((((a{99}){99}){99}){99}){99}") == 65_536
    assert pattern_weight("a{,5}{]}))((") > 0


def test_annotations_never_reach_the_generated_code() -> None:
    fetched = {"$ref": "http://127.0.0.1:1/never"}
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "default": fetched, "examples": [fetched], "x-data": fetched}},
        "description": '"""\n{name} %s \\',
    }
    validator = compile_schema(AuthorSchema(schema), engine=FastEngine())
    assert validator.engine == "fastjsonschema"
    validator.check({"a": "b"})


@pytest.mark.parametrize(
    "name", ["", "a b", "地址", 'q"', "it's", "{x}", "%s", "\\", "\n", "a.b", "__class__", "data", "x" * 500]
)
def test_any_property_name_is_checked(name: str) -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}},
        "required": [name],
        "additionalProperties": False,
    }
    validator = compile_schema(AuthorSchema(schema), engine=FastEngine())
    assert validator.engine == "fastjsonschema"
    validator.check({name: {name: 1}})
    wrong: dict[str, Any]
    for wrong in ({}, {name: 1}, {name: {}}, {name: {name: "x"}}, {name: {name: 1}, name + "!": 1}):
        with pytest.raises(Exception):  # noqa: B017
            validator.check(wrong)
        assert validator.issues(wrong)
