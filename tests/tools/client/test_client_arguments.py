"""What is wrong with a client call's arguments: all of it, in order, in the documents' words."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate import ToolCall
from callgate.tools.client import arguments as client_arguments
from callgate.tools.client.arguments import MAX_ERRORS, MORE, as_tool_call
from callgate.tools.client.client import ClientToolProvider
from callgate.tools.client.definitions import safe_validate_tool_definitions
from callgate.tools.schemas.validation import compile_schema
from tests.tools.schemas.test_engines_samples import broken, mcp_schemas, random_schema, value_for

SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "xyz": {"type": "string", "minLength": 2, "pattern": "^[a-z]+$"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "price": {"type": "number"},
        "flag": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "nothing": {"type": "null"},
        "maybe": {"type": ["integer", "null"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "shared": {"$ref": "#/$defs/count"},
        "status": {"type": "string", "enum": ["active", "inactive"]},
        "email": {"type": "string", "format": "email"},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "integer"}},
            "required": ["street"],
            "additionalProperties": False,
        },
    },
    "required": ["xyz"],
    "additionalProperties": False,
    "$defs": {"count": {"type": "integer", "minimum": 0}},
}


def provider_of(schema: dict[str, Any], **options: Any) -> ClientToolProvider:
    tool = {"name": "search", "description": "Search.", "parameters": schema}
    return ClientToolProvider([tool], None, **options)


def call(arguments: Any, name: str = "search", id: str = "call-123") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def errors(schema: dict[str, Any], arguments: Any) -> list[str]:
    """The same whether the arguments are sent as text or as an object, in OpenAI's shape or as a ``ToolCall``."""
    provider, text = provider_of(schema), json.dumps(arguments)
    checks = [
        provider.validate_tool_arguments(sent)
        for sent in (
            call(text),
            call(arguments),
            ToolCall(id="c", name="search", arguments=text),
            ToolCall(id="c", name="search", arguments=arguments),
        )
    ]
    assert all(check == checks[0] for check in checks)
    if checks[0]["valid"]:
        assert checks[0] == {"valid": True}
        return []
    assert checks[0].get("errors")
    return checks[0].get("errors", [])


# ---------------------------------------------------------------------- to the letter

EXACT: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["Missing required parameter: xyz"]),
    ({"xyz": "ab", "abc": 1}, ["Unknown parameter: abc"]),
    ({"xyz": "ab", "limt": 1}, ["Unknown parameter: limt"]),
    ({"xyz": 1}, ["Parameter xyz has wrong type: expected string, got number"]),
    ({"xyz": True}, ["Parameter xyz has wrong type: expected string, got boolean"]),
    ({"xyz": None}, ["Parameter xyz has wrong type: expected string, got null"]),
    ({"xyz": []}, ["Parameter xyz has wrong type: expected string, got array"]),
    ({"xyz": {}}, ["Parameter xyz has wrong type: expected string, got object"]),
    ({"xyz": "ab", "limit": 2.5}, ["Parameter limit must be an integer, got: 2.5"]),
    ({"xyz": "ab", "limit": -0.001}, ["Parameter limit must be an integer, got: -0.001", "/limit: must be >= 1"]),
    ({"xyz": "ab", "limit": "5"}, ["Parameter limit has wrong type: expected integer, got string"]),
    ({"xyz": "ab", "limit": True}, ["Parameter limit has wrong type: expected integer, got boolean"]),
    ({"xyz": "ab", "price": False}, ["Parameter price has wrong type: expected number, got boolean"]),
    ({"xyz": "ab", "price": "1"}, ["Parameter price has wrong type: expected number, got string"]),
    ({"xyz": "ab", "flag": 0}, ["Parameter flag has wrong type: expected boolean, got number"]),
    ({"xyz": "ab", "flag": 0.0}, ["Parameter flag has wrong type: expected boolean, got number"]),
    ({"xyz": "ab", "tags": {}}, ["Parameter tags has wrong type: expected array, got object"]),
    ({"xyz": "ab", "address": []}, ["Parameter address has wrong type: expected object, got array"]),
    ({"xyz": "ab", "nothing": 0}, ["Parameter nothing has wrong type: expected null, got number"]),
    ({"xyz": "ab", "maybe": 2.5}, ["Parameter maybe has wrong type: expected integer or null, got number"]),
    ({"xyz": "ab", "either": 1}, ["Parameter either has wrong type: expected string or null, got number"]),
    ({"xyz": "ab", "shared": 2.5}, ["Parameter shared must be an integer, got: 2.5"]),
]


@pytest.mark.parametrize(("arguments", "said"), EXACT)
def test_what_is_wrong_at_the_top_is_said_in_the_documents_words(arguments: dict[str, Any], said: list[str]) -> None:
    """Contract 29, 33, 34, C7; design 10.10: JSON's names of types, true is no number, and only a number is shown."""
    assert errors(SEARCH, arguments) == said


@pytest.mark.parametrize("whole", [2, 2.0, -3e0, 1e2, 10**30, -(2**63)])
def test_a_whole_number_is_an_integer_however_it_is_written(whole: float) -> None:
    """Contract 33, C7."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert errors(schema, {"n": whole}) == []


@pytest.mark.parametrize("fraction", [2.5, -0.1, 1e-7, 123456.5, 5e-324])
def test_a_number_that_is_not_whole_is_shown_as_json_has_it(fraction: float) -> None:
    """Contract 33, 34."""
    (error,) = errors({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": fraction})
    said, _, shown = error.partition(", got: ")
    assert said == "Parameter n must be an integer"
    assert float(shown) == fraction


DEEPER: list[tuple[dict[str, Any], list[str]]] = [
    ({"limit": 0}, ["/limit: must be >= 1"]),
    ({"limit": 101}, ["/limit: must be <= 100"]),
    ({"tags": []}, ["/tags: must have at least 1 item"]),
    ({"tags": ["a", 1, None]}, ["/tags/1: expected string, got number", "/tags/2: expected string, got null"]),
    ({"status": "gone"}, ['/status: must be one of: "active", "inactive"']),
    ({"email": "nobody"}, ["/email: must be a valid email"]),
    ({"address": {}}, ["/address/street: Missing required property: street"]),
    ({"address": {"street": "a", "zip": 2.5}}, ["/address/zip: must be an integer"]),
    ({"address": {"street": "a", "more": 1}}, ["/address/more: Unknown property: more"]),
    ({"shared": -1}, ["/shared: must be >= 0"]),
]


@pytest.mark.parametrize(("arguments", "said"), DEEPER)
def test_whatever_else_the_schema_declares_is_enforced_and_told_with_its_place(
    arguments: dict[str, Any], said: list[str]
) -> None:
    """Contract 28, 35, C7."""
    assert errors(SEARCH, {"xyz": "ab"} | arguments) == said


def test_all_errors_are_collected_missing_then_unknown_then_types_then_the_rest() -> None:
    """Contract 35."""
    sent = {"flag": 1, "abc": 1, "limit": 2.5, "tags": [1], "def": 2, "status": "gone", "price": None, "address": {}}
    assert errors(SEARCH | {"required": ["xyz", "email"]}, sent) == [
        "Missing required parameter: xyz",
        "Missing required parameter: email",
        "Unknown parameter: abc",
        "Unknown parameter: def",
        "Parameter flag has wrong type: expected boolean, got number",
        "Parameter limit must be an integer, got: 2.5",
        "Parameter price has wrong type: expected number, got null",
        *("/tags/0: expected string, got number", '/status: must be one of: "active", "inactive"'),
        "/address/street: Missing required property: street",
    ]


def test_unknown_parameters_pass_unless_the_schema_closes_the_object() -> None:
    """Contract 29."""
    opened = {key: item for key, item in SEARCH.items() if key != "additionalProperties"}
    typed = opened | {"additionalProperties": {"type": "integer"}}
    patterned = SEARCH | {"patternProperties": {"^x-": {"type": "integer"}}}
    assert errors(opened, {"xyz": "ab", "abc": [1]}) == []
    assert errors(typed, {"xyz": "ab", "abc": 1}) == []
    assert errors(typed, {"xyz": "ab", "abc": "1"}) == ["Parameter abc has wrong type: expected integer, got string"]
    assert errors(patterned, {"xyz": "ab", "x-a": 1}) == []
    assert errors(patterned, {"xyz": "ab", "x-a": 1, "xyy": 1}) == ["Unknown parameter: xyy"]


COMPOSED = {
    "type": "object",
    "properties": {"kind": {"enum": ["card", "cash"]}},
    "anyOf": [{"required": ["card"]}, {"required": ["cash"]}],
    "unevaluatedProperties": False,
    "$defs": {"all": {"not": {"required": ["never"]}}},
    "allOf": [{"properties": {"card": {"type": "string"}, "cash": {"type": "number"}}}, {"$ref": "#/$defs/all"}],
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"card": "1"}, []),
        ({"card": "1", "kind": "card", "cash": 2.5}, []),
        ({}, ["Missing required parameter: card"]),
        ({"card": 1}, ["Parameter card has wrong type: expected string, got number"]),
        ({"card": "1", "more": 1}, ["Unknown parameter: more"]),
    ],
)
def test_composed_schemas_are_enforced_in_the_same_words(arguments: dict[str, Any], said: list[str]) -> None:
    """Contract 34, C7: what Zod would strip is enforced here."""
    found = errors(COMPOSED, arguments)
    assert bool(found) == bool(said)
    assert set(said) <= set(found), "what a failed branch leaves unevaluated is told as unknown, too"


# ---------------------------------------------------------------------- what cannot be read

UNREADABLE = [
    '{"xyz"',
    "nonsense",
    "[]",
    '"text"',
    "null",
    '{"xyz": NaN}',
    '{"xyz": 1, "xyz": 2}',
    '{"xyz": "\\ud800"}',
]


@pytest.mark.parametrize("text", [*UNREADABLE, 7, ["a"], b"\xff", object(), {1: 2}, {"xyz": float("inf")}, {"a": "\0"}])
def test_arguments_that_are_no_json_object_are_one_error_in_the_documents_words(text: Any) -> None:
    """Contract 34, 37."""
    check = provider_of(SEARCH).validate_tool_arguments(call(text))
    assert check["valid"] is False
    (error,) = check.get("errors", [])
    assert error.startswith("Invalid tool arguments JSON: ")
    assert "xyz" not in error


@pytest.mark.parametrize("huge", ["x" * 10_000_000, '{"xyz": ' + "[" * 100_000, '{"xyz": ' + "9" * 1_000 + "}"])
def test_arguments_beyond_the_limits_are_not_parsed(huge: str) -> None:
    """Contract 37, invariants B1."""
    check = provider_of(SEARCH).validate_tool_arguments(call(huge))
    assert check["valid"] is False
    assert check.get("errors", [""])[0].startswith("Invalid tool arguments JSON: ")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("xyz", "Tool xyz not found in client tools"),
        ("", "Tool (no name) not found in client tools"),
        ("🔍", "Tool 🔍 not found in client tools"),
        ("a\nb", "Tool a\\nb not found in client tools"),
        ("x" * 10_000_000, f"Tool {'x' * 63}… not found in client tools"),
    ],
)
def test_a_tool_that_is_not_the_clients_is_named_and_nothing_else(name: str, said: str) -> None:
    """Contract 34."""
    assert provider_of(SEARCH).validate_tool_arguments(call("{", name)) == {"valid": False, "errors": [said]}


@pytest.mark.parametrize(
    "odd", [None, 7, "text", [], {}, {"function": 1}, {"id": 1, "function": {"name": ["a"]}}, object()]
)
def test_what_is_no_call_is_a_call_of_no_tool(odd: Any) -> None:
    """Contract 34, 36."""
    check = provider_of(SEARCH).validate_tool_arguments(odd)
    assert check == {"valid": False, "errors": ["Tool (no name) not found in client tools"]}


# ---------------------------------------------------------------------- bounded, and without values


def test_a_hundred_errors_are_told_and_that_there_may_be_more() -> None:
    """Contract 35, invariants B1."""
    some = {f"p{number}": 1 for number in range(MAX_ERRORS)}
    many = {f"p{number}": 1 for number in range(15_000)}
    assert errors(SEARCH, {"xyz": "ab"} | some)[:MAX_ERRORS] == [f"Unknown parameter: {name}" for name in some]
    found = errors(SEARCH, {"xyz": "ab"} | many)
    assert len(found) == MAX_ERRORS + 1
    assert found[-1] == MORE


def test_deep_errors_that_are_left_out_are_spoken_of() -> None:
    """Contract 35, invariants B1."""
    found = errors(SEARCH, {"xyz": "ab", "tags": [1] * 500})
    assert found[0] == "/tags/0: expected string, got number"
    assert found[-1] == MORE
    assert sum(map(len, found)) < 2_500


def test_names_of_any_length_and_kind_are_shown_short_and_printable() -> None:
    """Contract 34, invariants B1."""
    odd = {"x" * 5_000: 1, "a\nb": 1, "\u202e": 1, "a/b~c": 1, "🔍": 1, "": 1}
    found = errors(SEARCH, {"xyz": "ab"} | odd)
    assert found[1:] == [
        *(f"Unknown parameter: {name}" for name in ("a\\nb", "\\u202e", "a/b~c", "🔍", "")),
    ]
    assert len(found[0]) < 120
    assert "".join(found).isprintable()


SECRET = "canary-4711"
LEAKY = [SECRET, [SECRET], {"a": SECRET}, {SECRET: 1}, {"street": SECRET * 9, "zip": SECRET}, 4711]


@pytest.mark.parametrize("value", LEAKY)
@pytest.mark.parametrize("name", [*SEARCH["properties"], "abc"])
def test_no_error_holds_a_value_that_was_sent(name: str, value: Any) -> None:
    """Contract 34, invariants I9, design 10.10: names are shown, values are not."""
    assert not leaks({name: value})


def leaks(arguments: dict[str, Any]) -> bool:
    found = "\n".join(errors(SEARCH, arguments))
    return "4711" in found.replace(f": {SECRET}", "").replace(f"/{SECRET}", "")


def test_control_a_value_in_an_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariants I9."""
    monkeypatch.setattr(client_arguments, "_exact", lambda issue, arguments: (3, f"{issue} {arguments}"))
    assert leaks({"xyz": [SECRET]})


# ---------------------------------------------------------------------- against the engine


@pytest.mark.parametrize("seed", range(4))
def test_valid_means_what_the_schema_says_and_the_order_always_holds(seed: int) -> None:
    """Contract 33, 35, C7."""
    rng, judged = Random(seed), 0
    for _ in range(60):
        schema = {"properties": {}} | random_schema(rng, None) | {"type": "object"}
        definition = {"name": "search", "description": "Search.", "parameters": schema}
        if not safe_validate_tool_definitions([definition])["success"]:
            continue
        judge, provider = compile_schema(schema, trusted=False, formats="assert"), provider_of(schema)
        value = value_for(schema, schema, rng)
        for sent in (value, *broken(value, schema, rng, 6)):
            check = provider.validate_tool_arguments(call(json.dumps(sent)))
            if check.get("errors", [""])[0].startswith("Invalid tool arguments JSON"):
                continue
            assert check["valid"] == (judge.issues(sent) == [])
            ranks = [rank(error) for error in check.get("errors", [])]
            assert ranks == sorted(ranks)
            judged += 1
    assert judged > 200


def rank(error: str) -> int:
    starts = ("Missing required parameter: ", "Unknown parameter: ", "Parameter ")
    return next((number for number, words in enumerate(starts) if error.startswith(words)), len(starts))


def test_real_schemas_say_yes_and_no_as_the_engine_does(shared_data: Path) -> None:
    """Contract 28, 33, C7."""
    rng, judged = Random(11), 0
    for name, role, schema in mcp_schemas(shared_data):
        sent = {"name": "search", "description": name, "parameters": schema}
        if role != "parameters" or not safe_validate_tool_definitions([sent])["success"]:
            continue
        provider, judge = provider_of(schema), compile_schema(schema, trusted=False, formats="assert")
        value = value_for(schema, schema, rng)
        for variant in (value, *broken(value, schema, rng, 2)):
            if isinstance(variant, dict):
                check = provider.validate_tool_arguments(call(variant))
                assert check["valid"] == (judge.issues(variant) == []), name
                judged += 1
    assert judged > 1_000


# ---------------------------------------------------------------------- calls


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=100)
@given(TEXT, TEXT, st.dictionaries(TEXT, VALUES, max_size=4))
def test_a_call_that_goes_over_the_wire_comes_back_the_same(id: str, name: str, arguments: dict[str, Any]) -> None:
    """Contract 39, 45."""
    sent = ToolCall(id=id, name=name, arguments=arguments)
    spelled = json.loads(json.dumps(sent.to_function_call()))
    read = as_tool_call(spelled)
    assert (read.id, read.name) == (id, name)
    assert json.loads(read.arguments) == arguments
    assert read.to_function_call() == spelled
    assert as_tool_call(sent) is sent
    opened = provider_of({"type": "object", "properties": {}})
    assert opened.validate_tool_arguments(spelled | {"function": {**spelled["function"], "name": "search"}})["valid"]


async def test_the_callback_of_a_client_gets_the_call_in_its_form_on_the_wire_too() -> None:
    """Contract 39."""
    seen: list[Any] = []

    def asked(call: ToolCall, _context: Any) -> Any:
        seen.append(call.to_function_call())
        return {"toolCallId": call.id, "toolName": call.name, "success": True, "result": 1}

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    provider = ClientToolProvider([{"name": "find", "description": "x", "parameters": schema}], asked)
    sent = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"n":1}'}}
    await provider.execute(sent)
    assert seen == [sent]
