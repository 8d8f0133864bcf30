"""Schemas from outside are admitted within limits, and every value is checked within a budget (invariants B2)."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from callgate.errors import SchemaRefused
from callgate.tools.calls import Issue
from callgate.tools.schemas.admission import Guard, admit, guarded
from callgate.tools.schemas.engines.base import Rejected, guard_depth, guard_json
from callgate.tools.schemas.engines.budget import Budget
from callgate.tools.schemas.engines.document import read
from callgate.tools.schemas.engines.raw import AUTHOR_LIMITS, INPUT_LIMITS, OUTPUT_LIMITS, SchemaLimits
from callgate.tools.schemas.validation import compile_schema, from_validate
from tests.harness.cpu import cpu_seconds
from tests.tools.schemas.test_engines_samples import mcp_schemas

TINY = SchemaLimits(
    max_bytes=400, max_depth=8, max_subschemas=12, max_properties=5, max_enum=4, max_name=10,
    max_pattern=20, max_patterns=3, max_expansion=10, budget=100,
    value_characters=1_000, value_depth=6, value_nodes=50,
)  # fmt: skip


def chain(length: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(length):
        schema = {"items": schema}
    return schema


JUST: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("too_large", {"description": "x" * 380}, {"description": "x" * 390}),
    ("too_deep", chain(7), chain(8)),
    ("too_many_subschemas", {"allOf": [{}] * 9}, {"allOf": [{}] * 12}),
    ("too_many_properties", {"properties": {c: {} for c in "abcde"}}, {"properties": {c: {} for c in "abcdef"}}),
    ("enum_too_large", {"enum": [1, 2, 3, 4]}, {"enum": [1, 2, 3, 4, 5]}),
    ("bad_name", {"properties": {"x" * 10: {}}}, {"properties": {"x" * 11: {}}}),
    ("pattern_too_long", {"pattern": "x" * 20}, {"pattern": "x" * 21}),
    ("pattern_too_long", {"patternProperties": {"x" * 10: {}}}, {"propertyNames": {"pattern": "x" * 21}}),
    ("too_many_patterns", {"allOf": [{"pattern": "x"}] * 3}, {"allOf": [{"pattern": "x"}] * 4}),
    ("expansion", {"allOf": [{}] * 9}, {"allOf": [{}] * 10}),
]


@pytest.mark.parametrize(("reason", "within", "beyond"), JUST)
def test_each_limit_is_exact(reason: str, within: dict[str, Any], beyond: dict[str, Any]) -> None:
    admit(within, TINY)
    with pytest.raises(SchemaRefused) as refused:
        admit(beyond, TINY)
    assert refused.value.reason == reason


FROM_OUTSIDE: list[tuple[str, dict[str, Any]]] = [
    ("keyword_refused", {"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}}),
    ("keyword_refused", {"$schema": "https://json-schema.org/draft/2019-09/schema", "items": {"$recursiveRef": "#"}}),
    ("keyword_refused", {"$vocabulary": {"https://example.org/v": True}}),
    ("keyword_refused", {"$defs": {"a": {"$anchor": "a"}}, "properties": {"b": {"$ref": "#a"}}}),
    ("keyword_refused", {"properties": {"a": {"$id": "urn:a"}}}),
    ("keyword_refused", {"items": {"$schema": "https://json-schema.org/draft/2020-12/schema"}}),
    ("bad_name", {"properties": {"a\u0000b": {}}}),
    ("bad_name", {"$defs": {"a\nb": {}}}),
    ("bad_name", {"properties": {"\u202eabc": {}}}),
    ("invalid_schema", {"pattern": "(?=a)a"}),
    ("invalid_schema", {"pattern": r"(a)\1"}),
]


@pytest.mark.parametrize(("reason", "schema"), FROM_OUTSIDE)
def test_what_authors_may_write_is_not_always_taken_from_outside(reason: str, schema: dict[str, Any]) -> None:
    compile_schema(schema)
    with pytest.raises(SchemaRefused) as refused:
        compile_schema(schema, trusted=False)
    assert refused.value.reason == reason


BACKTRACKING = {
    "lookahead": ["(?=a)a", "^(?!a)b", r"\\(?=a)a", "[(](?=a)a", r"[\]](?=a)a"],
    "lookbehind": ["(?<=a)b", "(?<!a)b"],
    "a reference to a group": [r"(a)\1"],
}


@pytest.mark.parametrize(("feature", "pattern"), [(name, one) for name, all_ in BACKTRACKING.items() for one in all_])
@pytest.mark.parametrize("key", ["pattern", "patternProperties"])
def test_a_pattern_that_needs_backtracking_is_refused_for_that_reason(key: str, feature: str, pattern: str) -> None:
    schema = {key: pattern if key == "pattern" else {pattern: {}}}
    compile_schema(schema)
    with pytest.raises(SchemaRefused, match=f"{feature} is not accepted from outside") as refused:
        compile_schema(schema, trusted=False)
    assert refused.value.pointer == f"/{key}"


@pytest.mark.parametrize(
    "pattern", [r"\(?=a", "[(?=]a", "[^](?!]a", r"[\](?=]", r"\\1", "[]a(?=]b", "(?:a)", "(?P<n>a)"]
)
def test_marks_of_lookaround_that_are_plain_text_are_taken_from_outside(pattern: str) -> None:
    compile_schema({"pattern": pattern}, trusted=False)


NOT_JSON: list[Any] = [
    {"const": {1, 2}},
    {"const": b"x"},
    {"title": object()},
    {1: {}},
    {"properties": {None: {}}},
    {"minimum": float("inf")},
    {"const": "\ud800"},
    {"properties": {"\udfff": {}}},
]


@pytest.mark.parametrize("schema", NOT_JSON)
@pytest.mark.parametrize("trusted", [True, False])
def test_what_is_not_json_is_refused(schema: Any, trusted: bool) -> None:
    with pytest.raises(SchemaRefused) as refused:
        compile_schema(schema, trusted=trusted)
    assert refused.value.reason == "not_json"


@pytest.mark.parametrize("schema", [None, True, 5, "{}", [{}]])
def test_what_is_not_an_object_is_refused(schema: Any) -> None:
    for trusted in (True, False):
        with pytest.raises(SchemaRefused, match="must be a JSON object"):
            compile_schema(schema, trusted=trusted)


def test_a_schema_that_contains_itself_is_refused() -> None:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"a": schema}
    for trusted in (True, False):
        with pytest.raises(SchemaRefused, match="nests deeper"):
            compile_schema(schema, trusted=trusted)


def test_integers_of_over_1024_bits_are_refused() -> None:
    compile_schema({"maximum": 2**1024 - 1}, trusted=False)
    with pytest.raises(SchemaRefused) as refused:
        compile_schema({"maximum": 2**1024}, trusted=False)
    assert refused.value.reason == "number_too_large"


def test_the_size_is_looked_at_before_anything_else() -> None:
    huge = {"enum": [f"value{n}" for n in range(50_000)], "$ref": "http://127.0.0.1:1/"}

    def refuse() -> None:
        with pytest.raises(SchemaRefused) as refused:
            admit(huge)
        assert refused.value.reason == "too_large"

    assert cpu_seconds(refuse, 0.05) < 0.05


def test_real_schemas_from_outside_are_all_admitted(shared_data: Path) -> None:
    for name, role, schema in mcp_schemas(shared_data):
        document, budget = admit(schema, OUTPUT_LIMITS if role == "output" else INPUT_LIMITS)
        assert document.nodes, name
        assert budget.quick(10, 100) < INPUT_LIMITS.budget or budget.has_refs, name


LINKED = {
    "$defs": {"n": {"type": "object", "properties": {"v": {}, "next": {"$ref": "#/$defs/n"}}}},
    "$ref": "#/$defs/n",
}


def test_legitimate_recursion_is_checked_to_the_depth_that_values_may_have() -> None:
    for trusted in (True, False):
        validator = compile_schema(LINKED, trusted=trusted)
        value: dict[str, Any] = {}
        for _ in range(63):
            value = {"v": 1, "next": value}
        validator.check(value)
        with pytest.raises(Rejected, match="deeper than 64"):
            validator.check({"next": {"next": value}})
        assert validator.issues({"next": {"next": value}})[0].keyword == "limits"
        assert validator.issues({"next": {"next": 5}})[0].pointer == "/next/next"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_the_count_is_an_upper_bound_on_what_the_engine_does() -> None:
    twice = {
        "anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "array", "items": {"$ref": "#"}, "title": "z"}]
    }
    budget = Budget(read(twice), INPUT_LIMITS)
    costs = [budget.cost(nested(depth)) for depth in range(1, 14)]
    assert all(later > 1.9 * earlier for earlier, later in pairwise(costs))
    with pytest.raises(Rejected, match="too costly"):
        budget.cost(nested(40))
    native = jsonschema_rs.validator_for(twice, offline=True)
    assert native.is_valid(nested(3)) is False


def test_the_count_takes_each_pair_of_schema_and_value_once() -> None:
    names = [f"d{n}" for n in range(30)]
    definitions: dict[str, Any] = {
        name: {"properties": {"a": {"$ref": f"#/$defs/{after}"}, "b": {"$ref": f"#/$defs/{after}"}}}
        for name, after in pairwise(names)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": definitions | {"d29": {}}}
    value: Any = {}
    for _ in range(29):
        value = {"a": value, "b": value}

    def count() -> None:
        with pytest.raises(Rejected):
            Budget(read(schema), INPUT_LIMITS).cost(value)

    assert cpu_seconds(count, 0.05) < 0.05


GUARDED_VALUES = [
    ("deeper than 6", nested(7)),
    ("more than 50 values", list(range(60))),
    ("more than 1000 characters", {"a": "x" * 1001}),
    ("more than 1000 characters", {"x" * 1001: 1}),
    ("finite", [float("nan")]),
    ("finite", float("-inf")),
    ("400 digits", 10**401),
    ("property names", {"a": {1: 2}}),
    ("must be JSON", [{1, 2}]),
    ("must be JSON", b"x"),
    ("too costly", list(range(49))),
]


@pytest.mark.parametrize(("says", "value"), GUARDED_VALUES)
def test_values_beyond_the_limits_are_refused_before_the_engine(says: str, value: Any) -> None:
    schema = {"items": {"allOf": [{}, {"type": "integer"}]}}
    called: list[Any] = []

    def validate(seen: Any) -> list[Issue]:
        called.append(seen)
        return []

    inner = from_validate(validate, engine="x", version="1", schema=schema)
    validator = guarded(inner, Guard(admit(schema, TINY)[1], TINY))
    with pytest.raises(Rejected, match=says):
        validator.check(value)
    assert called == []
    (issue,) = validator.issues(value)
    assert says in issue.expected
    validator.check(nested(6))
    assert called


def test_guards_measure_what_passes() -> None:
    assert guard_json({"ab": [1, None, True, "xyz", 2.5, -(2**60)], "c": {}}) == (9, 6)
    assert guard_depth({"ab": [1, None], "c": {}}) == 5
    assert guard_depth(5) == 1
    guard_json(nested(64))
    guard_depth(nested(64))
    with pytest.raises(Rejected):
        guard_json(nested(65))
    with pytest.raises(Rejected):
        guard_depth(nested(65))


def test_limits_can_be_set_and_are_part_of_the_validators_id() -> None:
    loose = replace(INPUT_LIMITS, max_enum=5_000)
    schema = {"enum": [str(n) for n in range(2_000)]}
    with pytest.raises(SchemaRefused):
        compile_schema(schema, trusted=False)
    assert compile_schema(schema, trusted=False, limits=loose).id != compile_schema({"enum": ["0"]}, trusted=False).id
    ids = {compile_schema({"enum": ["0"]}, trusted=False, limits=limits).id for limits in (None, loose, TINY)}
    assert len(ids) == 3


def test_authors_have_more_room_but_not_endless_room() -> None:
    many = {"properties": {f"p{n}": {"type": "string"} for n in range(700)}}
    compile_schema(many)
    with pytest.raises(SchemaRefused):
        compile_schema(many, trusted=False)
    with pytest.raises(SchemaRefused):
        compile_schema({"properties": {f"p{n}": {} for n in range(AUTHOR_LIMITS.max_properties + 1)}})


def test_one_validator_serves_many_threads() -> None:
    validator = compile_schema(LINKED, trusted=False)
    wrong: list[Any] = []

    def work(number: int) -> None:
        for turn in range(200):
            value: Any = {"v": turn, "next": {"v": number, "next": {} if turn % 2 else 5}}
            try:
                validator.check(value)
                ok = True
            except Rejected:
                ok = False
            if ok != bool(turn % 2):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
