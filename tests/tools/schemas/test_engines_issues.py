"""What a model is told: contract 34's words, contract 35's order, pointers, never a value (contract 49, C7, I9)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callgate.tools.calls import Issue
from callgate.tools.schemas.engines import rust
from callgate.tools.schemas.engines.base import MAX_TEXT, NO_MATCH, fit
from callgate.tools.schemas.engines.texts import basic_issues
from callgate.tools.schemas.validation import AuthorSchema, Validator, compile_schema, explain

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "ratio": {"type": "number"},
        "units": {"enum": ["metric", "imperial"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


@pytest.fixture(params=["fastjsonschema", "jsonschema-rs", "without jsonschema-rs"])
def weather(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Validator:
    """The same schema on each engine."""
    if request.param == "without jsonschema-rs":
        monkeypatch.setattr(rust, "_library", lambda: None)
        monkeypatch.setattr("callgate.tools.schemas.validation._cache.get", lambda _key: None)
    return compile_schema(AuthorSchema(WEATHER), trusted=request.param != "jsonschema-rs")


def texts(validator: Validator, value: Any) -> list[str]:
    return [issue.expected for issue in validator.issues(value)]


def test_the_four_basic_messages_keep_their_words(weather: Validator) -> None:
    assert texts(weather, {"days": 1}) == ["Missing required parameter: city"]
    assert texts(weather, {"city": "x", "days": 1, "abc": 2}) == ["Unknown parameter: abc"]
    assert texts(weather, {"city": 5, "days": 1}) == ["Parameter city has wrong type: expected string, got number"]
    assert texts(weather, {"city": "x", "days": 2.5}) == ["Parameter days must be an integer"]


def test_type_names_are_jsons(weather: Validator) -> None:
    got: dict[str, Any] = {"null": None, "boolean": True, "number": 1.5, "object": {}, "array": []}
    for name, value in got.items():
        assert texts(weather, {"city": value, "days": 1}) == [
            f"Parameter city has wrong type: expected string, got {name}"
        ]
    assert texts(weather, {"city": "x", "days": "3"}) == ["Parameter days has wrong type: expected integer, got string"]
    assert texts(weather, {"city": "x", "days": True}) == [
        "Parameter days has wrong type: expected integer, got boolean"
    ]
    assert texts(weather, []) == ["expected object, got array"]


def test_all_problems_are_told_missing_then_unknown_then_types(weather: Validator) -> None:
    issues = weather.issues({"ratio": "high", "zzz": 1, "days": None})
    assert [(issue.pointer, issue.keyword) for issue in issues][:4] == [
        ("/city", "required"),
        ("/zzz", "additionalProperties"),
        ("/ratio", "type"),
        ("/days", "type"),
    ] or {issue.pointer for issue in issues[2:4]} == {"/ratio", "/days"}
    assert [issue.keyword for issue in issues] == ["required", "additionalProperties", "type", "type"]


def test_a_close_name_is_suggested_and_a_far_one_is_not(weather: Validator) -> None:
    assert texts(weather, {"citty": "x", "days": 1})[1] == "Unknown parameter: citty (did you mean city?)"
    assert texts(weather, {"city": "x", "days": 1, "qqqq": 1}) == ["Unknown parameter: qqqq"]


def test_a_foreign_name_is_escaped_and_cut(weather: Validator) -> None:
    (issue,) = weather.issues({"city": "x", "days": 1, "\x1b[31m\n" + "y" * 5_000: 1})
    assert issue.expected.startswith(r"Unknown parameter: \x1b[31m\n")
    assert len(issue.expected) < 120
    assert len(issue.pointer) <= 200
    assert issue.pointer.isprintable()


def test_a_valid_value_has_no_issues(weather: Validator) -> None:
    weather.check({"city": "x", "days": 2.0, "units": "metric"})
    assert weather.issues({"city": "x", "days": 2.0, "units": "metric"}) == []


NESTED: list[tuple[dict[str, Any], Any, str, str, str]] = [
    ({"minimum": 1}, 0, "", "minimum", "must be >= 1"),
    ({"maximum": 1.5}, 2, "", "maximum", "must be <= 1.5"),
    ({"exclusiveMinimum": 1}, 1, "", "exclusiveMinimum", "must be > 1"),
    ({"exclusiveMaximum": 1}, 1, "", "exclusiveMaximum", "must be < 1"),
    ({"multipleOf": 0.5}, 0.3, "", "multipleOf", "must be a multiple of 0.5"),
    ({"minLength": 1}, "", "", "minLength", "must have at least 1 character"),
    ({"maxLength": 2}, "abc", "", "maxLength", "must have at most 2 characters"),
    ({"minItems": 2}, [], "", "minItems", "must have at least 2 items"),
    ({"maxItems": 1}, [1, 2], "", "maxItems", "must have at most 1 item"),
    ({"minProperties": 1}, {}, "", "minProperties", "must have at least 1 property"),
    ({"maxProperties": 2}, {"a": 1, "b": 1, "c": 1}, "", "maxProperties", "must have at most 2 properties"),
    ({"uniqueItems": True}, [1, 1], "", "uniqueItems", "must not repeat an item"),
    ({"enum": ["a", "b"]}, "c", "", "enum", 'must be one of: "a", "b"'),
    ({"const": {"z": 1}}, 2, "", "const", 'must be {"z": 1}'),
    ({"pattern": "^[a-z]+$"}, "A", "", "pattern", "must match the pattern ^[a-z]+$"),
    ({"format": "uuid"}, "x", "", "format", "must be a valid uuid"),
    ({"contains": {"const": 1}}, [2], "", "contains", "must contain an item of the required form"),
    (
        {"contains": {"const": 1}, "minContains": 2},
        [1],
        "",
        "minContains",
        "must contain more items of the required form",
    ),
    (
        {"contains": {"const": 1}, "maxContains": 1},
        [1, 1],
        "",
        "maxContains",
        "must contain fewer items of the required form",
    ),
    ({"not": {"type": "null"}}, None, "", "not", "is of a form that is not allowed"),
    ({"properties": {"j": False}}, {"j": 1}, "/j", "false", "is not allowed here"),
    (
        {"propertyNames": {"maxLength": 2}},
        {"aaa": 1},
        "",
        "propertyNames",
        "has a property name that must have at most 2 characters",
    ),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "", "dependentRequired", 'also needs the property "b"'),
    ({"dependencies": {"a": ["b"]}}, {"a": 1}, "", "dependencies", 'also needs the property "b"'),
    ({"prefixItems": [{}], "items": False}, [1, 2], "/1", "false", "is not allowed here"),
    (
        {"prefixItems": [{}], "unevaluatedItems": False},
        [1, 2],
        "",
        "unevaluatedItems",
        "has items that are not allowed",
    ),
    ({"required": ["q"]}, {}, "/q", "required", "Missing required property: q"),
    ({"additionalProperties": False}, {"q": 1}, "/q", "additionalProperties", "Unknown property: q"),
    ({"unevaluatedProperties": False}, {"q": 1}, "/q", "unevaluatedProperties", "Unknown property: q"),
    ({"type": ["integer", "null"]}, "x", "", "type", "expected integer or null, got string"),
    ({"items": {"type": "string"}}, ["a", 1], "/1", "type", "expected string, got number"),
    ({"if": {"type": "string"}, "then": {"maxLength": 1}}, "ab", "", "maxLength", "must have at most 1 character"),
    (
        {"oneOf": [{"type": "number"}, {"type": "integer"}]},
        1,
        "",
        "oneOf",
        "must match exactly one of the allowed forms",
    ),
]


@pytest.mark.parametrize(("inner", "value", "below", "keyword", "expected"), NESTED)
@pytest.mark.parametrize("trusted", [True, False], ids=["ours", "outside"])
def test_every_keyword_is_told_by_its_place(
    inner: dict[str, Any], value: Any, below: str, keyword: str, expected: str, trusted: bool
) -> None:
    schema = {"type": "object", "properties": {"a/b~c": {"type": "array", "items": inner}}}
    validator = compile_schema(schema, trusted=trusted, formats="assert")
    assert validator.issues({"a/b~c": [value]}) == [Issue(f"/a~1b~0c/0{below}", keyword, expected)]


def test_a_number_as_a_name_is_not_mistaken_for_an_index() -> None:
    schema = {"properties": {name: {"type": "string"} for name in ("0", "007")}}
    for trusted in (True, False):
        issues = compile_schema(schema, trusted=trusted).issues({"0": 1, "007": 2})
        assert {issue.pointer for issue in issues} == {"/0", "/007"}
        assert all("got number" in issue.expected for issue in issues)


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"minimum": 0}},
    "required": ["name", "age"],
}
UNIONS: list[tuple[dict[str, Any], Any, list[str]]] = [
    (
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "x",
        ["Parameter v has wrong type: expected integer or null, got string"],
    ),
    ({"anyOf": [PERSON, {"type": "null"}]}, {"name": "x", "age": -1}, ["must be >= 0"]),
    (
        {"anyOf": [PERSON, {"type": "object", "required": ["a", "b", "c"]}]},
        {"name": 1, "age": 1},
        ["expected string, got number"],
    ),
    ({"oneOf": [{"type": "string", "maxLength": 2}, {"type": "array"}]}, "abc", ["must have at most 2 characters"]),
    ({"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, "b", ['must be one of: "a"']),
    (
        {"anyOf": [{"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "integer"}]},
        [],
        ["matches none of the allowed forms"],
    ),
]


@pytest.mark.parametrize(("union", "value", "expected"), UNIONS)
def test_of_a_union_only_the_closest_branch_is_told(union: dict[str, Any], value: Any, expected: list[str]) -> None:
    validator = compile_schema({"type": "object", "properties": {"v": union}})
    found = texts(validator, {"v": value})
    if "anyOf" in union["anyOf" if "anyOf" in union else "oneOf"][0]:
        assert len(found) == 1
    else:
        assert found == expected


CANARY = "CANARY-7f3a"


def test_no_value_is_ever_told() -> None:
    schema = {
        "type": "object",
        "properties": {
            "t": {"type": "integer"}, "e": {"enum": ["a"]}, "c": {"const": 1}, "p": {"pattern": "^a$"},
            "f": {"format": "uri"}, "l": {"maxLength": 2}, "n": {"not": {"type": "string"}}, "x": False,
            "o": {"oneOf": [{"type": "integer"}, {"maxLength": 3}]}, "u": {"uniqueItems": True},
            "i": {"items": {"type": "integer"}}, "k": {"properties": {"z": {"type": "null"}}},
        },
    }  # fmt: skip
    value: dict[str, Any] = dict.fromkeys(schema["properties"], CANARY)
    value |= {"u": [CANARY, CANARY], "i": [CANARY], "k": {"z": CANARY}}
    for trusted in (True, False):
        validator = compile_schema(schema, trusted=trusted, formats="assert")
        assert len(validator.issues(value)) == 12
        assert CANARY not in str(validator.issues(value))
        with pytest.raises(Exception) as raised:
            validator.check(value)
        assert CANARY not in str(raised.value)


def test_a_thousand_problems_become_a_short_list() -> None:
    schema = {
        "type": "object",
        "properties": {f"p{n}": {"type": "string"} for n in range(300)},
        "additionalProperties": False,
    }
    value = {f"p{n}": n for n in range(300)} | {f"{'long' * 30}{n}": n for n in range(300)}
    for trusted in (True, False):
        validator = compile_schema(schema, trusted=trusted)
        issues = validator.issues(value)
        assert 5 <= len(issues) <= 16
        assert len(json.dumps([issue.expected + issue.pointer for issue in issues])) < MAX_TEXT + 500
        assert len(validator.issues(value, 3)) == 3


def test_of_a_large_value_the_first_problem_is_told() -> None:
    schema = {
        "type": "object",
        "properties": {"rows": {"type": "array", "items": {"properties": {"a": {"type": "string"}}}}},
    }
    rows: list[Any] = [{"a": "x"} for _ in range(2_000)]
    rows[1_500] = {"a": 1}
    for trusted in (True, False):
        (issue,) = compile_schema(schema, trusted=trusted).issues({"rows": rows})
        assert issue == Issue("/rows/1500/a", "type", "expected string, got number")


def test_explain_never_is_empty_and_never_raises() -> None:
    class Broken:
        id = engine = version = "x"

        def __init__(self, result: Any) -> None:
            self.result = result

        def check(self, value: Any) -> None:
            raise ValueError

        def issues(self, value: Any, limit: int = 16) -> list[Issue]:
            if isinstance(self.result, BaseException):
                raise self.result
            return self.result  # type: ignore[no-any-return]

    class Panic(BaseException):
        """As pyo3's, which is not an ``Exception``."""

    for result in ([], ValueError(CANARY), RecursionError(), Panic(CANARY), None, 5, ["text"]):
        assert explain(Broken(result), {"a": 1}) == (NO_MATCH,)
    long = Issue("/" + "p" * 900, "keyword" * 90, "\x1b" + "e" * 9_000)
    (shown,) = explain(Broken([long]), 1)
    assert len(shown.pointer + shown.keyword + shown.expected) < 500
    assert "\x1b" not in shown.expected
    with pytest.raises(KeyboardInterrupt):
        explain(Broken(KeyboardInterrupt()), 1)


def test_fit_keeps_the_first_of_a_kind() -> None:
    one, two = Issue("", "a", "b"), Issue("/x", "a", "b")
    assert fit([one, one, two, one]) == [one, two]
    assert fit([one, two], 1) == [one]
    assert fit([]) == []


def test_basic_issues_say_only_what_is_certain() -> None:
    assert basic_issues({"$ref": "#/$defs/a", "required": ["x"]}, {}) == []
    assert basic_issues({"additionalProperties": False, "patternProperties": {"^x": {}}}, {"xy": 1}) == []
    assert basic_issues({"properties": {"a": {"$ref": "#", "type": "string"}, "b": True}}, {"a": 1, "b": 1}) == []
    assert basic_issues({}, 5) == []


def test_without_jsonschema_rs_the_first_error_still_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rust, "_library", lambda: None)
    monkeypatch.setattr("callgate.tools.schemas.validation._cache.get", lambda _key: None)
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "object", "properties": {"b": {"minimum": 3}}, "required": ["c"]}},
            "x.y": {"properties": {"z": {"maxLength": 1}}},
        },
    }
    validator = compile_schema(AuthorSchema(schema))
    assert validator.issues({"a": [{"b": 5, "c": 1}, {"b": 1, "c": 1}]}) == [Issue("/a/1/b", "minimum", "must be >= 3")]
    assert validator.issues({"a": [{}]}) == [Issue("/a/0/c", "required", "Missing required property: c")]
    assert validator.issues({"a": [5]}) == [Issue("/a/0", "type", "expected object, got number")]
    assert validator.issues({"x.y": {"z": "long"}}) == [Issue("", "maxLength", "must have at most 1 character")]
    assert validator.issues({"a": []}) == []
