"""The face of validation: which engine, what is refused at registration, ids, cache, lazy mode, plug-ins."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from callgate.errors import DefinitionError, SchemaRefused
from callgate.tools.calls import Issue
from callgate.tools.schemas import validation
from callgate.tools.schemas.engines import rust
from callgate.tools.schemas.validation import (
    AuthorSchema,
    Engine,
    FastEngine,
    LazyValidator,
    RustEngine,
    Validator,
    compile_schema,
    explain,
    from_validate,
    lint_schema,
    verify_schema,
    wrap_properties,
)
from callgate.tools.values import freeze

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "format": "uri"}}}


@pytest.fixture
def no_rust(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a platform that jsonschema-rs has no wheel for."""
    monkeypatch.setattr(rust, "_library", lambda: None)
    monkeypatch.setattr(validation, "_cache", validation._Cache(8))


def test_every_schema_runs_on_jsonschema_rs_unless_another_engine_is_chosen() -> None:
    assert compile_schema(SCHEMA).engine == "jsonschema-rs"
    assert compile_schema(FORMAT).engine == "jsonschema-rs"
    assert compile_schema(SCHEMA, trusted=False).engine == "jsonschema-rs"
    assert compile_schema(SCHEMA, engine=RustEngine()).engine == "jsonschema-rs"
    assert compile_schema(AuthorSchema(SCHEMA), engine=FastEngine()).engine == "fastjsonschema"


def test_fastjsonschema_checks_with_its_generated_function_itself() -> None:
    check = compile_schema(AuthorSchema(SCHEMA), engine=FastEngine()).check
    assert type(check).__name__ == "function"
    assert check.__name__ == "validate"


class Measure(float):
    """A number of a library's own type, like ``numpy.float64``."""


class Name(str):
    __slots__ = ()


class Pair(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize("engine", [None, FastEngine()], ids=["default", "fast"])
def test_subclasses_of_json_types_count_as_those_types(engine: Engine | None) -> None:
    properties = {
        "ratio": {"type": "number", "maximum": 1},
        "name": {"type": "string", "maxLength": 3},
        "pair": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
    }
    validator = compile_schema(AuthorSchema(wrap_properties(properties)), engine=engine)
    good = {"ratio": Measure(0.5), "name": Name("abc"), "pair": Pair(1, 2)}
    validator.check(good)
    assert validator.issues(good) == []
    for wrong in ({"ratio": Measure(2)}, {"name": Name("abcd")}, {"pair": Pair(1, "a")}, {"name": Measure(1)}):  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            validator.check(wrong)
        assert len(validator.issues(wrong)) == 1


def test_a_validator_tells_engine_version_policies_and_schema() -> None:
    fast = compile_schema(AuthorSchema(SCHEMA), engine=FastEngine())
    ours, outside = compile_schema(FORMAT), compile_schema(FORMAT, trusted=False)
    assert isinstance(fast, Validator)
    for validator in (fast, ours, outside):
        assert validator.id.startswith(f"{validator.engine}/{validator.version};")
    assert "formats=off" in fast.id
    assert "offline,formats=on,fancy-regex=10000" in ours.id
    assert "offline,formats=off,linear-regex=262144,limits=" in outside.id
    assert ours.id.rsplit(";", 1)[1] == outside.id.rsplit(";", 1)[1]
    assert len({fast.id, ours.id, outside.id, compile_schema({"type": "object"}).id}) == 4


def test_the_id_follows_the_schema_and_not_its_spelling() -> None:
    other = {"required": ["a"], "properties": {"a": {"type": "integer"}}, "type": "object"}
    assert compile_schema(other).id == compile_schema(SCHEMA).id
    assert compile_schema(SCHEMA | {"description": "x"}).id != compile_schema(SCHEMA).id


def test_a_frozen_schema_is_as_good_as_a_plain_one() -> None:
    frozen = freeze(SCHEMA | {"title": "frozen"})
    for trusted in (True, False):
        validator = compile_schema(frozen, trusted=trusted)
        validator.check(freeze({"a": 1}))
        with pytest.raises(Exception):  # noqa: B017
            validator.check(freeze({"a": "x"}))
    verify_schema(frozen)


def test_the_same_schema_is_compiled_once_per_trust_engine_and_limits() -> None:
    engine = RustEngine()
    first = compile_schema(SCHEMA)
    assert compile_schema(dict(reversed(SCHEMA.items()))) is first
    assert compile_schema(SCHEMA, engine=engine) is compile_schema(SCHEMA, engine=engine)
    assert compile_schema(SCHEMA, trusted=False) is not first


def test_a_schema_from_outside_does_not_stay_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = validation._Cache(8)
    monkeypatch.setattr(validation, "_cache", cache)
    compile_schema(SCHEMA, trusted=False)
    verify_schema(SCHEMA, trusted=False)
    assert not cache._kept
    compile_schema(SCHEMA)
    assert len(cache._kept) == 1


def test_the_cache_is_bounded_in_bytes_of_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_cache", validation._Cache(1_000, 10_000))
    large = [{"minimum": turn, "description": "x" * 3_000} for turn in range(8)]
    first, *_, last = [compile_schema(schema) for schema in large]
    assert compile_schema(large[-1]) is last
    assert compile_schema(large[0]) is not first


def test_the_cache_forgets_what_was_used_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_cache", validation._Cache(2))
    first, second = compile_schema({"minimum": 1}), compile_schema({"minimum": 2})
    assert compile_schema({"minimum": 1}) is first
    compile_schema({"minimum": 3})
    assert compile_schema({"minimum": 1}) is first
    assert compile_schema({"minimum": 2}) is not second


def test_the_cache_is_safe_to_share_between_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_cache", validation._Cache(3))
    failures: list[Exception] = []

    def work() -> None:
        try:
            for turn in range(60):
                compile_schema({"minimum": turn % 7}).check(10)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.usefixtures("no_rust")
def test_without_jsonschema_rs_schemas_from_outside_are_refused() -> None:
    assert compile_schema(AuthorSchema(SCHEMA)).engine == "fastjsonschema"
    verify_schema(AuthorSchema(SCHEMA))
    for act in (compile_schema, verify_schema):
        with pytest.raises(SchemaRefused, match="jsonschema-rs, which is not installed") as refused:
            act(SCHEMA, trusted=False)
        assert refused.value.reason == "no_engine"
        with pytest.raises(SchemaRefused, match="jsonschema-rs, which is not installed"):
            act(SCHEMA)
    with pytest.raises(SchemaRefused, match="not installed"):
        compile_schema(SCHEMA, engine=RustEngine())


@pytest.mark.usefixtures("no_rust")
def test_without_jsonschema_rs_the_refusal_names_the_keyword() -> None:
    for act in (compile_schema, verify_schema):
        with pytest.raises(SchemaRefused, match="format") as refused:
            act(AuthorSchema(FORMAT))
        assert refused.value.pointer == "/properties/a/format"
    assert lint_schema(SCHEMA | {"default": 1})


def test_lazy_compiles_at_first_use_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    original = validation.compile_schema

    def counting(*arguments: Any, **options: Any) -> Validator:
        compiled.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(validation, "compile_schema", counting)
    lazy = LazyValidator(SCHEMA)
    early = lazy.check
    assert compiled == []
    early({"a": 1})
    lazy.check({"a": 1})
    early({"a": 2})
    assert len(compiled) == 1
    assert lazy.check is compile_schema(SCHEMA).check
    assert isinstance(lazy, Validator)
    assert (lazy.engine, lazy.version, lazy.id) == (
        compile_schema(SCHEMA).engine,
        compile_schema(SCHEMA).version,
        compile_schema(SCHEMA).id,
    )
    assert lazy.issues({})[0].expected == "Missing required parameter: a"


def test_lazy_is_safe_to_share_between_threads() -> None:
    lazy, failures = LazyValidator({"maximum": 77}), []
    barrier = threading.Barrier(6)

    def work() -> None:
        barrier.wait()
        try:
            lazy.check(1)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_lazy_schema_that_is_refused_lets_no_value_pass() -> None:
    lazy = LazyValidator({"$ref": "#"})
    for _ in range(2):
        with pytest.raises(SchemaRefused):
            lazy.check({})
    assert explain(lazy, {}) == (Issue("", "schema", "does not match the schema"),)


class Words:
    """A user's engine: it knows one keyword."""

    name, version = "words", "0.1"

    def compile(self, schema: Mapping[str, Any], *, trusted: bool) -> Validator:
        if set(schema) - {"type", "required"}:
            raise SchemaRefused("not_enforced", "knows required only")
        wanted = list(schema.get("required", ()))

        def validate(value: Any) -> list[Issue]:
            return [Issue(f"/{name}", "required", f"needs {name}") for name in wanted if name not in value]

        return from_validate(validate, engine=self.name, version=self.version, schema=schema, policy="strict")


@pytest.mark.parametrize("trusted", [True, False])
def test_another_engine_plugs_in(trusted: bool) -> None:
    engine: Engine = Words()
    validator = compile_schema({"type": "object", "required": ["a", "b"]}, engine=engine, trusted=trusted)
    assert validator.engine == "words"
    assert validator.id.startswith("words/0.1;strict;sha256:")
    validator.check({"a": 1, "b": 2})
    with pytest.raises(ValueError, match="does not match"):
        validator.check({"a": 1})
    assert validator.issues({}) == [Issue("/a", "required", "needs a"), Issue("/b", "required", "needs b")]
    assert validator.issues({}, 1) == [Issue("/a", "required", "needs a")]
    with pytest.raises(SchemaRefused):
        compile_schema({"type": "object", "minProperties": 1}, engine=engine, trusted=trusted)


def test_another_engine_never_sees_what_is_refused_for_all() -> None:
    with pytest.raises(SchemaRefused, match="outside this document"):
        compile_schema({"$ref": "http://127.0.0.1:1/x"}, engine=Words())


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("root_type", "/type", {"type": "array"}),
    ("root_type", "/type", {"type": ["object", "null"]}),
    ("not_json", "/const", {"const": float("nan")}),
    ("number_too_large", "/maximum", {"maximum": 2**2000}),
    ("dialect", "/$schema", {"$schema": "http://json-schema.org/draft-03/schema#"}),
    ("dialect", "/$schema", {"$schema": "nonsense"}),
    ("dialect", "/$schema", {"$schema": 5}),
    ("invalid_schema", "/minLength", {"minLength": -1}),
    ("invalid_schema", "/properties/a/required", {"properties": {"a": {"required": True}}}),
    ("invalid_schema", "/properties/a/pattern", {"properties": {"a": {"pattern": "("}}}),
    ("invalid_schema", "/enum", {"enum": "a"}),
    ("invalid_schema", "/required", {"required": ["a", 5]}),
    ("invalid_schema", "/type", {"type": 5}),
    ("invalid_schema", "/items/type", {"items": {"type": []}}),
    ("invalid_schema", "/dependentRequired", {"dependentRequired": {"a": "b"}}),
    ("bad_subschema", "/properties", {"properties": []}),
    ("bad_subschema", "/allOf", {"allOf": {}}),
    ("bad_subschema", "/additionalProperties", {"additionalProperties": "no"}),
    ("bad_pattern", "/pattern", {"pattern": 5}),
    ("external_ref", "/properties/a/$ref", {"properties": {"a": {"$ref": "other.json#/x"}}}),
    ("external_ref", "/$ref", {"$ref": 5}),
    ("unresolved_ref", "/$ref", {"$ref": "#/$defs/a", "$defs": {"b": {}}}),
    ("unresolved_ref", "/$ref", {"$ref": "#anchor"}),
    ("unresolved_ref", "/items/$ref", {"items": {"$ref": "#/x/y"}, "x": {"y": {}}}),
    ("ref_cycle", "", {"$ref": "#"}),
    ("ref_cycle", "/$defs/a", {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {}]}}}),
    ("nested_id", "/items/$id", {"items": {"$id": "urn:b"}, "properties": {"a": {"$ref": "#/items"}}}),
    ("nested_id", "/$ref", {"$ref": "b.json", "$defs": {"b": {"$id": "b.json"}}}),
    ("nested_id", "/$ref", {"$id": "urn:a", "$ref": "urn:b", "$defs": {"b": {"$id": "urn:b"}}}),
    (
        "nested_id",
        "/items/items/$ref",
        {"$id": "https://a/b/", "items": {"$id": "c/", "items": {"$ref": "d#/x"}}, "$defs": {"d": {"$id": "/b/c/d"}}},
    ),
    ("external_ref", "/items/$ref", {"items": {"$ref": "b.json", "$id": "c/"}, "$defs": {"b": {"$id": "b.json"}}}),
    ("external_ref", "/$ref", {"$ref": "http://[", "$defs": {"b": {"$id": "b.json"}}}),
    (
        "keyword_dialect",
        "/dependentRequired",
        {"$schema": "http://json-schema.org/draft-07/schema#", "dependentRequired": {}},
    ),
]


@pytest.mark.parametrize(("reason", "pointer", "schema"), REFUSED)
def test_registration_refuses_and_says_where(reason: str, pointer: str, schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaRefused) as refused:
        verify_schema(schema)
    assert isinstance(refused.value, DefinitionError)
    assert (refused.value.reason, refused.value.pointer) == (reason, pointer)


def test_a_reference_that_an_inner_id_resolves_is_not_said_to_be_outside() -> None:
    inner = {"$id": "b.json", "$defs": {"c": {"type": "string"}}}
    with pytest.raises(SchemaRefused) as refused:
        verify_schema({"$ref": "b.json#/$defs/c", "$defs": {"b": inner}})
    assert "outside" not in str(refused.value)
    assert "#/$defs/b/$defs/c" in str(refused.value)


def test_a_parameters_root_must_be_an_object_and_an_output_root_may_be_anything() -> None:
    verify_schema({"properties": {}})
    verify_schema({})
    schema: dict[str, Any]
    for schema in (
        {"type": "array", "items": {}},
        {"type": "string"},
        {"type": ["object", "null"]},
        {"anyOf": [{}, {}]},
    ):
        verify_schema(schema, "output")
        compile_schema(schema).check("x" if schema.get("type") == "string" else [] if "items" in schema else {})


def test_outside_outputs_may_be_larger_than_outside_inputs() -> None:
    schema = {"type": "object", "description": "x" * 100_000}
    verify_schema(schema, "output", trusted=False)
    with pytest.raises(SchemaRefused, match="over 65536 bytes"):
        verify_schema(schema, "parameters", trusted=False)


def test_every_bfcl_function_is_refused_with_the_right_type_and_never_mapped(shared_data: Path) -> None:
    count = 0
    with gzip.open(shared_data / "bfcl_v4_functions.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            parameters = json.loads(line)["parameters"]
            for trusted in (True, False):
                with pytest.raises(
                    SchemaRefused, match=r'is not a JSON Schema type: (write "|leave "type" out|the types)'
                ) as refused:
                    verify_schema(parameters, trusted=trusted)
                assert refused.value.reason == "type_name"
            count += 1
    assert count == 3469


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("dict", 'write "object"'), ("float", 'write "number"'), ("String", 'write "string"'), ("OBJECT", 'write "object"'),
        ("ArrayList", 'write "array"'), ("tuple", 'write "array"'), ("long", 'write "integer"'), ("bool", 'write "boolean"'),
        ("HashMap", 'write "object"'), ("any", 'leave "type" out'), ("", "the types are"), ("Foo", "the types are"),
    ],
)  # fmt: skip
def test_a_wrong_type_name_is_answered_with_the_right_one(name: str, advice: str) -> None:
    for wrong in (name, [name, "null"]):
        with pytest.raises(SchemaRefused, match=advice) as refused:
            verify_schema({"type": "object", "properties": {"a": {"type": wrong}}})
        assert refused.value.pointer == "/properties/a/type"


WEATHER_TOOL = {
    "location": {"type": "string", "description": "The city"},
    "format": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    "required": ["location", "format"],
}


@pytest.mark.parametrize(
    "bare",
    [
        WEATHER_TOOL,
        {"format": {"type": "string"}},
        {"type": {"type": "string"}, "id": {"type": "integer"}},
        {"type": "object", "city": {"type": "string"}},
        {"city": {"enum": ["a"]}},
        {"city": {"anyOf": [{"type": "string"}]}},
    ],
)
def test_a_bare_map_of_parameters_is_refused_with_a_hint(bare: dict[str, Any]) -> None:
    for trusted in (True, False):
        with pytest.raises(
            SchemaRefused, match=r'wrap the parameters in \{"type": "object", "properties": …\}'
        ) as refused:
            verify_schema(bare, trusted=trusted)
        assert refused.value.reason == "bare_properties"


def test_a_parameter_may_be_called_like_a_keyword() -> None:
    names = ["type", "format", "required", "properties", "$ref", "items", "enum", "title", "description", "id", "$id"]
    schema = wrap_properties({name: {"type": "string"} for name in names}, required=names)
    for trusted in (True, False):
        validator = compile_schema(schema, trusted=trusted)
        validator.check(dict.fromkeys(names, "x"))
        for name in names:
            with pytest.raises(Exception):  # noqa: B017
                validator.check(dict.fromkeys(names, "x") | {name: 1})


def test_wrapping_makes_the_schema_that_was_meant() -> None:
    properties = {key: item for key, item in WEATHER_TOOL.items() if key != "required"}
    wrapped = wrap_properties(properties, required=["location"])
    assert wrapped == {"type": "object", "properties": properties, "required": ["location"]}
    assert wrap_properties({}) == {"type": "object", "properties": {}}
    verify_schema(wrapped)
    with pytest.raises(SchemaRefused, match="pass required= by itself"):
        wrap_properties(WEATHER_TOOL)
    with pytest.raises(SchemaRefused, match="not among the properties"):
        wrap_properties(properties, required=["locaton"])


def test_lint_tells_what_is_probably_a_mistake() -> None:
    schema = {
        "properties": {
            "a": {"type": "integer", "default": "x", "nullable": True},
            "b": {"type": "array"},
            "c": {"type": "string", "format": "phone"},
            "d": {"type": "string", "enum": [1]},
            "e": {"enum": []},
            "f": {"contentEncoding": "base64"},
            "g": {"then": {}, "minContains": 1},
            "h": {"type": "string", "default": "fine", "x-anything": 1},
        },
        "required": ["zz"],
        "requred": ["a"],
    }
    assert sorted(lint_schema(schema)) == sorted(
        [
            '/: no "type"; taken as "object" for parameters',
            '/: no "additionalProperties": false, so invented argument names are accepted',
            "/: requred is not a keyword and is not enforced; did you mean required?",
            '/: required names "zz", which properties does not define',
            "/properties/a: nullable is not a keyword and is not enforced",
            '/properties/a: default "x" is not valid here',
            "/properties/b: an array without items: any item is valid",
            "/properties/c: format phone is not asserted in 2020-12",
            "/properties/d: enum lists 1, which is not of its type",
            "/properties/e: enum is empty: no value is valid",
            "/properties/f: content keywords are not asserted in 2020-12",
            "/properties/g: then does nothing without if",
            "/properties/g: minContains does nothing without contains",
        ]
    )
    verify_schema(schema)


def test_lint_finds_nothing_in_a_sound_schema() -> None:
    assert lint_schema(SCHEMA | {"additionalProperties": False}) == []
    assert (
        lint_schema(
            {"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"type": "string", "default": "x"}}}
        )
        == []
    )


def test_lint_says_which_formats_are_asserted_and_is_right() -> None:
    wrong = {"uuid": "x", "email": "x", "uri": "x", "date": "x", "ipv4": "x", "duration": "x", "regex": "("}
    for draft in ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"):
        for name, value in wrong.items():
            schema = {"$schema": draft, "type": "string", "format": name}
            told = any("not asserted" in line for line in lint_schema(schema))
            try:
                compile_schema(schema).check(value)
                asserted = False
            except Exception:  # noqa: BLE001
                asserted = True
            assert told != asserted, (draft, name)


def test_importing_validation_loads_no_engine() -> None:
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}\nimport callgate.errors, callgate.tools.calls\n"
        "before = set(sys.modules)\nimport callgate.tools.schemas.validation\n"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} & {'fastjsonschema', 'jsonschema_rs', 'pydantic'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr[-500:]
