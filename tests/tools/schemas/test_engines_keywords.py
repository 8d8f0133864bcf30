"""No keyword is ever silently unenforced (design 6, contract C7): enforced, or registration is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from callgate.errors import SchemaRefused
from callgate.tools.schemas.engines import rust
from callgate.tools.schemas.engines.dialect import VALIDATION, dialect_of
from callgate.tools.schemas.validation import AuthorSchema, FastEngine, RustEngine, compile_schema

D4 = "http://json-schema.org/draft-04/schema#"
D6 = "http://json-schema.org/draft-06/schema#"
D7 = "http://json-schema.org/draft-07/schema#"
D19 = "https://json-schema.org/draft/2019-09/schema"
D20 = "https://json-schema.org/draft/2020-12/schema"

# keyword: (schema, a value that breaks it)
SINCE_DRAFT4: dict[str, tuple[dict[str, Any], Any]] = {
    "type": ({"type": "integer"}, True),
    "enum": ({"enum": ["a", 1, None]}, True),
    "multipleOf": ({"multipleOf": 3}, 7),
    "maximum": ({"maximum": 3}, 3.5),
    "minimum": ({"minimum": 3}, 2),
    "maxLength": ({"maxLength": 2}, "ééé"),
    "minLength": ({"minLength": 2}, "é"),
    "pattern": ({"pattern": "^a$"}, "a\n"),
    "maxItems": ({"maxItems": 1}, [1, 2]),
    "minItems": ({"minItems": 1}, []),
    "uniqueItems": ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1.0}]),
    "items": ({"items": {"type": "string"}}, ["a", 1]),
    "maxProperties": ({"maxProperties": 1}, {"a": 1, "b": 2}),
    "minProperties": ({"minProperties": 1}, {}),
    "required": ({"required": ["a"]}, {"b": 1}),
    "properties": ({"properties": {"a": {"type": "string"}}}, {"a": 1}),
    "patternProperties": ({"patternProperties": {"^a": {"type": "string"}}}, {"ab": 1}),
    "additionalProperties": ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}),
    "dependencies": ({"dependencies": {"a": ["b"]}}, {"a": 1}),
    "allOf": ({"allOf": [{"type": "string"}, {"maxLength": 1}]}, "ab"),
    "anyOf": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, 3),
    "not": ({"not": {"type": "null"}}, None),
    "format": ({"format": "ipv4"}, "1.2.3"),
    "$ref": ({"properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": {"type": "string"}}}, {"a": 1}),
}
TUPLES: dict[str, tuple[dict[str, Any], Any]] = {
    "items": ({"items": [{"type": "string"}]}, [1]),
    "additionalItems": ({"items": [{}], "additionalItems": False}, [1, 2]),
}
DRAFT4_ONLY: dict[str, tuple[dict[str, Any], Any]] = {
    "exclusiveMaximum": ({"maximum": 3, "exclusiveMaximum": True}, 3),
    "exclusiveMinimum": ({"minimum": 3, "exclusiveMinimum": True}, 3),
}
SINCE_DRAFT6: dict[str, tuple[dict[str, Any], Any]] = {
    "exclusiveMaximum": ({"exclusiveMaximum": 3}, 3),
    "exclusiveMinimum": ({"exclusiveMinimum": 3}, 3.0),
    "const": ({"const": {"a": [1]}}, {"a": [True]}),
    "contains": ({"contains": {"type": "string"}}, [1, 2]),
    "propertyNames": ({"propertyNames": {"maxLength": 1}}, {"ab": 1}),
}
SINCE_DRAFT7: dict[str, tuple[dict[str, Any], Any]] = {
    "if": ({"if": {"type": "string"}, "then": {"maxLength": 1}}, "ab"),
    "then": ({"if": True, "then": {"type": "null"}}, 1),
    "else": ({"if": {"type": "string"}, "else": {"type": "null"}}, 1),
}
CONTENT: dict[str, tuple[dict[str, Any], Any]] = {
    "contentEncoding": ({"contentEncoding": "base64"}, "~not base64~"),
    "contentMediaType": ({"contentMediaType": "application/json"}, "{"),
}
SINCE_2019: dict[str, tuple[dict[str, Any], Any]] = {
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, {"a": 1}),
    "dependentSchemas": ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}),
    "unevaluatedItems": ({"allOf": [{"contains": {"const": 1}}], "items": False, "unevaluatedItems": False}, [1, 2]),
    "unevaluatedProperties": ({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, {"b": 1}),
    "minContains": ({"contains": {"const": 1}, "minContains": 2}, [1]),
    "maxContains": ({"contains": {"const": 1}, "maxContains": 1}, [1, 1]),
    "$ref": (
        {"properties": {"a": {"$ref": "#/$defs/x", "maxLength": 1}}, "$defs": {"x": {"type": "string"}}},
        {"a": "ab"},
    ),
    "$anchor": ({"properties": {"a": {"$ref": "#x"}}, "$defs": {"x": {"$anchor": "x", "type": "string"}}}, {"a": 1}),
}
ONLY_2019: dict[str, tuple[dict[str, Any], Any]] = {
    "$recursiveRef": ({"properties": {"a": {"$recursiveRef": "#"}}, "additionalProperties": False}, {"a": {"b": 1}}),
}
ONLY_2020: dict[str, tuple[dict[str, Any], Any]] = {
    "prefixItems": ({"prefixItems": [{"type": "string"}]}, [1]),
    "items after prefixItems": ({"prefixItems": [{}], "items": {"type": "string"}}, ["a", 1]),
    "unevaluatedItems after prefixItems": ({"prefixItems": [{}], "unevaluatedItems": False}, [1, 2]),
    "$dynamicRef": (
        {"properties": {"a": {"$dynamicRef": "#n"}}, "$defs": {"n": {"$dynamicAnchor": "n", "type": "string"}}},
        {"a": 1},
    ),
}
TABLES = {
    D4: [SINCE_DRAFT4, TUPLES, DRAFT4_ONLY],
    D6: [SINCE_DRAFT4, TUPLES, SINCE_DRAFT6],
    D7: [SINCE_DRAFT4, TUPLES, SINCE_DRAFT6, SINCE_DRAFT7, CONTENT],
    D19: [SINCE_DRAFT4, TUPLES, SINCE_DRAFT6, SINCE_DRAFT7, SINCE_2019, ONLY_2019],
    D20: [SINCE_DRAFT4, SINCE_DRAFT6, SINCE_DRAFT7, SINCE_2019, ONLY_2020],
    None: [SINCE_DRAFT4, SINCE_DRAFT6, SINCE_DRAFT7, SINCE_2019, ONLY_2020],
}
CASES = [
    pytest.param(schema if draft is None else schema | {"$schema": draft}, value, id=f"{str(draft)[-14:]}-{keyword}")
    for draft, tables in TABLES.items()
    for table in tables
    for keyword, (schema, value) in table.items()
]


def enforced_or_refused(schema: Mapping[str, Any], value: Any, **options: Any) -> str:
    try:
        validator = compile_schema(schema, **options)
    except SchemaRefused as refused:
        return f"refused: {refused.reason}"
    with pytest.raises(Exception):  # noqa: B017 - any exception says that the value is not valid
        validator.check(value)
    assert validator.issues(value), "the value is invalid, but nothing says why"
    return validator.engine


@pytest.mark.parametrize(("schema", "value"), CASES)
def test_every_keyword_of_every_dialect_is_enforced(schema: dict[str, Any], value: Any) -> None:
    assert not enforced_or_refused(schema, value).startswith("refused")
    nested = {"type": "object", "properties": {"p": {"items": {k: v for k, v in schema.items() if k != "$schema"}}}}
    if "$schema" in schema:
        nested["$schema"] = schema["$schema"]
    if "$ref" not in str(schema) and "$recursiveRef" not in str(schema) and "$dynamicRef" not in str(schema):
        assert not enforced_or_refused(nested, {"p": [value]}).startswith("refused")


@pytest.mark.parametrize(("schema", "value"), CASES)
def test_every_keyword_from_outside_is_enforced_or_refused(schema: dict[str, Any], value: Any) -> None:
    verdict = enforced_or_refused(schema, value, trusted=False, formats="assert")
    special = {"$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor"}
    if not any(word in str(schema) for word in special):
        assert verdict == "jsonschema-rs"


@pytest.mark.parametrize(("schema", "value"), CASES)
@pytest.mark.parametrize("engine", [FastEngine(), RustEngine()], ids=["fast", "rust"])
def test_an_engine_chosen_by_hand_enforces_every_keyword_or_refuses(
    schema: dict[str, Any], value: Any, engine: Any
) -> None:
    enforced_or_refused(AuthorSchema(schema), value, engine=engine)


@pytest.mark.parametrize(("schema", "value"), CASES)
def test_without_jsonschema_rs_every_keyword_is_enforced_or_refused_by_name(
    schema: dict[str, Any], value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rust, "_library", lambda: None)
    monkeypatch.setattr("callgate.tools.schemas.validation._cache.get", lambda _key: None)
    words = [*VALIDATION, "$schema", "$anchor", "contentEncoding", "contentMediaType"]
    try:
        validator = compile_schema(AuthorSchema(schema))
    except SchemaRefused as refused:
        named = any(word in str(refused) for word in words)
        assert named, refused  # noqa: PT017 - either outcome is right
        return
    assert validator.engine == "fastjsonschema"
    with pytest.raises(Exception):  # noqa: B017
        validator.check(value)
    assert validator.issues(value)


@pytest.mark.parametrize("draft", [D4, D6, D7, D19, D20])
def test_the_table_misses_no_keyword(draft: str) -> None:
    dialect = dialect_of(draft)
    assert dialect is not None
    covered = {keyword for table in TABLES[draft] for keyword in table}
    assert dialect.keywords - covered - ({"additionalItems"} if draft == D20 else set()) == set()


@pytest.mark.parametrize("draft", [None, D4, D6, D7, D19, D20])
def test_a_keyword_of_another_dialect_is_refused_because_nothing_would_enforce_it(draft: str | None) -> None:
    dialect = dialect_of(draft)
    assert dialect is not None
    strangers = VALIDATION - dialect.keywords
    assert strangers
    for keyword in strangers:
        schema: dict[str, Any] = {"properties": {"a": {keyword: {}}}} | ({"$schema": draft} if draft else {})
        for trusted in (True, False):
            with pytest.raises(SchemaRefused, match=keyword.replace("$", r"\$")) as refused:
                compile_schema(schema, trusted=trusted)
            assert refused.value.reason == "keyword_dialect"
            assert refused.value.pointer == f"/properties/a/{keyword}"


@pytest.mark.parametrize("draft", [D4, D6, D7])
def test_a_keyword_beside_a_ref_that_the_dialect_ignores_is_refused(draft: str) -> None:
    schema = {"$schema": draft, "$ref": "#/definitions/x", "required": ["a"], "definitions": {"x": {"type": "object"}}}
    with pytest.raises(SchemaRefused, match="ignores required beside") as refused:
        compile_schema(schema)
    assert refused.value.reason == "ref_siblings"


NUMBERS: list[tuple[dict[str, Any], Any, bool]] = [
    ({"type": "integer"}, 2.0, True),
    ({"type": "integer"}, 2.5, False),
    ({"type": "integer"}, True, False),
    ({"type": "number"}, True, False),
    ({"type": "number"}, False, False),
    ({"type": "integer"}, "2", False),
    ({"type": "string"}, 2, False),
    ({"type": "boolean"}, 1, False),
    ({"type": "boolean"}, 0, False),
    ({"type": "null"}, False, False),
    ({"type": "integer"}, 10**100, True),
    ({"enum": [1]}, True, False),
    ({"enum": [True]}, 1, False),
    ({"enum": [1]}, 1.0, True),
    ({"const": [0]}, [False], False),
    ({"minimum": 2**53 + 1}, 2**53, False),
    ({"exclusiveMinimum": 10**25}, 1e25, False),
    ({"type": ["string", "integer"]}, True, False),
    ({"type": ["boolean", "integer"]}, True, True),
]


@pytest.mark.parametrize(("schema", "value", "valid"), NUMBERS)
@pytest.mark.parametrize("trusted", [True, False], ids=["ours", "outside"])
def test_numbers_mean_what_json_schema_says_and_nothing_is_coerced(
    schema: dict[str, Any], value: Any, valid: bool, trusted: bool
) -> None:
    validator = compile_schema(schema, trusted=trusted)
    if valid:
        validator.check(value)
        assert validator.issues(value) == []
    else:
        with pytest.raises(Exception):  # noqa: B017
            validator.check(value)


def test_validation_never_changes_the_value_nor_the_schema() -> None:
    schema = {"type": "object", "$id": "urn:x", "properties": {"a": {"type": "integer", "default": 1}, "b": {}}}
    before = repr(schema)
    value: dict[str, Any] = {"b": {}}
    for trusted in (True, False):
        compile_schema(schema, trusted=trusted).check(value)
    assert value == {"b": {}}
    assert repr(schema) == before
