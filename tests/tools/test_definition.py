"""The frozen contract of a tool: contract 5, 6, 9-17, 24, 25, C4, C5, C9."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.errors import DefinitionError
from callgate.tools.definition import DefinitionWarning, Effect, NoSchemaMode, ToolAnnotations, ToolDefinition

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string", "enum": ["a", "b"]},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1},
    },
    "required": ["order_id"],
    "additionalProperties": False,
    "$defs": {"line": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0.5}}}},
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def make(**changes: Any) -> ToolDefinition:
    fields: dict[str, Any] = {"name": "refund", "description": "Refund an order.", "parameters": SCHEMA, **changes}
    return ToolDefinition(**fields)


# ------------------------------------------------------------------ freezing


def test_the_schema_is_kept_verbatim() -> None:
    """Contract 11."""
    definition = make()
    assert definition.parameters == SCHEMA
    assert json.loads(json.dumps(definition.parameters)) == SCHEMA
    assert orjson.loads(orjson.dumps(definition.parameters)) == SCHEMA
    assert list(definition.parameters or ()) == list(SCHEMA)


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_any_json_object_survives_as_a_schema_and_as_metadata(value: dict[str, Any]) -> None:
    """Contract 10, 11."""
    definition = make(parameters=value, metadata=value, effect="read")
    assert definition.parameters == value
    assert definition.metadata == value
    assert json.dumps(definition.parameters) == json.dumps(value)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.parameters.__setitem__("type", "array"),
        lambda d: d.parameters["properties"].pop("lines"),
        lambda d: d.parameters["required"].append("lines"),
        lambda d: d.parameters["properties"]["order_id"]["enum"].sort(),
        lambda d: d.parameters["$defs"]["line"].update(type="string"),
        lambda d: d.metadata.clear(),
        lambda d: d.safety["levels"].append(3),
        lambda d: d.examples[0].update(input={}),
    ],
)
def test_no_nested_part_can_be_changed(change: Callable[[Any], Any]) -> None:
    """Contract 5."""
    definition = make(metadata={"a": 1}, safety={"levels": [1, 2]}, examples=[{"input": {"order_id": "a"}}])
    with pytest.raises(TypeError):
        change(definition)


def test_a_field_cannot_be_set() -> None:
    """Contract 5."""
    with pytest.raises(AttributeError):
        make().name = "other"  # type: ignore[misc]


def test_a_later_change_of_the_authors_dict_does_not_reach_the_definition() -> None:
    """Contract 5."""
    schema, tags = copy.deepcopy(SCHEMA), ["money"]
    definition = make(parameters=schema, tags=tags)
    schema["properties"]["order_id"]["enum"].append("c")
    tags.append("other")
    assert definition.parameters == SCHEMA
    assert definition.tags == {"money"}


def test_a_copy_is_the_definition_itself_and_a_pickled_one_is_frozen_again() -> None:
    definition = make(key=("order_id",), effect="keyed", tags={"a"}, annotations=ToolAnnotations(read_only_hint=False))
    assert copy.copy(definition) is definition
    assert copy.deepcopy(definition) is definition
    revived = pickle.loads(pickle.dumps(definition))
    assert revived == definition
    assert hash(revived) == hash(definition)
    with pytest.raises(TypeError):
        revived.parameters["properties"]["order_id"]["enum"].append("c")


def test_enum_members_in_a_schema_become_plain_json() -> None:
    class Unit(StrEnum):
        C = "celsius"

    definition = make(parameters={"type": "object", "properties": {"unit": {"enum": [Unit.C], "default": Unit.C}}})
    value = (definition.parameters or {})["properties"]["unit"]
    assert type(value["enum"][0]) is str
    assert type(value["default"]) is str


# ------------------------------------------------------------------ names and texts


@pytest.mark.parametrize("name", ["a", "get_weather", "A-1", "x" * 64])
def test_a_wire_name_has_1_to_64_safe_characters(name: str) -> None:
    """Contract 24."""
    assert make(name=name).name == name


@pytest.mark.parametrize("name", ["", "x" * 65, "Sum Two Numbers", "a.b", "é", "a\n", "a/b", None, 7])
def test_any_other_name_is_refused_and_the_message_points_to_title(name: Any) -> None:
    """Contract 24, C5."""
    with pytest.raises(DefinitionError, match="title"):
        make(name=name)


def test_a_name_for_people_goes_into_the_title() -> None:
    """Contract C5."""
    assert make(name="sum", title="Sum Two Numbers").title == "Sum Two Numbers"


def test_a_description_may_be_left_out_and_that_is_remarked_on() -> None:
    """Contract 25, C5."""
    definition = make(description=None)
    assert any("description" in lint for lint in definition.lints)
    assert make().lints == ()


@pytest.mark.parametrize(("field", "most"), [("description", 65_536), ("title", 1024)])
def test_a_text_that_is_given_is_neither_empty_nor_too_long(field: str, most: int) -> None:
    """Contract 25."""
    for text in ("", "x" * (most + 1), 5):
        with pytest.raises(DefinitionError, match=f"{field} must be text of 1 to {most}"):
            make(**{field: text})
    assert make(**{field: "x" * most})


@pytest.mark.parametrize(("field", "most"), [("description", 65_536), ("title", 1024)])
def test_a_text_of_an_author_says_something(field: str, most: int) -> None:
    """Contract 25: else it would be lost on the way through ``to_dict`` and ``from_dict``."""
    with pytest.raises(
        DefinitionError, match=f"{field} must be text of 1 to {most} characters, or left out; it is blank"
    ):
        make(**{field: " \n"})


@pytest.mark.parametrize("blank", ["", " ", "\n\t "])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_blank_description_from_outside_counts_as_absent(blank: str, wrapped: bool) -> None:
    """Contract 25, C5: catalogues have them. The remark stays; a name or title gets no such grace."""
    flat: dict[str, Any] = {"name": "x", "description": blank, "parameters": SCHEMA}
    definition = ToolDefinition.from_dict({"type": "function", "function": flat} if wrapped else flat)
    assert definition.description is None
    assert any("description" in lint for lint in definition.lints)
    assert definition == ToolDefinition.from_dict({"name": "x", "parameters": SCHEMA})
    for refused in ({"title": blank}, {"name": blank}, {"description": "x" * 65_537}, {"description": 5}):
        with pytest.raises(DefinitionError):
            ToolDefinition.from_dict({**flat, **refused})


# ------------------------------------------------------------------ choices and collections


def test_effect_and_mode_may_be_given_by_their_names() -> None:
    assert make(effect="idempotent").effect is Effect.IDEMPOTENT
    silent = make(parameters=None, allow_no_schema=True, no_schema_mode="full")
    assert silent.no_schema_mode is NoSchemaMode.FULL


def test_a_wrong_choice_lists_the_right_ones() -> None:
    with pytest.raises(DefinitionError, match="effect must be one of 'read', 'idempotent', 'keyed', 'irreversible'"):
        make(effect="write")
    with pytest.raises(DefinitionError, match="'read-only', 'human-approval', 'full'"):
        make(parameters=None, allow_no_schema=True, no_schema_mode="readonly")


@pytest.mark.parametrize("field", ["tags", "allowed_roles", "key"])
def test_one_string_is_no_collection_of_names(field: str) -> None:
    with pytest.raises(DefinitionError, match="not one string"):
        make(**{field: "order_id"})


@pytest.mark.parametrize("value", [7, {"a": 1}, [1], [""]])
def test_a_collection_of_names_holds_names(value: Any) -> None:
    with pytest.raises(DefinitionError, match="tags"):
        make(tags=value)


class Backwards(frozenset[str]):
    """A set as another process may iterate it."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__(), reverse=True))


def test_a_key_that_is_a_set_is_the_same_in_every_process() -> None:
    """I4: its order is part of the idempotency key, and of the version that an approval is bound to."""
    properties = {name: {"type": "string"} for name in ("order", "line")}
    parameters = {"type": "object", "properties": properties, "required": ["order", "line"]}

    def made(key: Any) -> ToolDefinition:
        return ToolDefinition("pay", "Pay.", parameters, effect=Effect.KEYED, key=key)

    assert made({"order", "line"}).binding_digest == made(Backwards({"order", "line"})).binding_digest
    assert made(["order", "line"]).binding_digest != made(["line", "order"]).binding_digest


@pytest.mark.parametrize("field", ["safe", "strict", "tolerant", "allow_no_schema"])
def test_a_flag_is_a_boolean_and_not_a_text_that_counts_as_true(field: str) -> None:
    with pytest.raises(DefinitionError, match=field):
        make(**{field: "false"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("parameters", True),
        ("parameters", [1]),
        ("output_schema", "object"),
        ("metadata", {"at": object()}),
        ("metadata", {1: "a"}),
        ("safety", {"limit": float("nan")}),
        ("capabilities", None),
        ("examples", {"input": 1}),
        ("examples", [{1, 2}]),
        ("parameters", {"title": "\ud800"}),
        ("version", 2),
        ("version", ""),
        ("type", "tool"),
        ("annotations", 5),
        ("annotations", {"readOnlyHint": "no"}),
    ],
)
def test_what_is_not_json_or_of_the_wrong_kind_is_refused(field: str, value: Any) -> None:
    with pytest.raises(DefinitionError):
        make(**{field: value})


def test_a_schema_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {"type": "object"}
    loop["properties"] = {"a": loop}
    with pytest.raises(DefinitionError, match="contains itself"):
        make(parameters=loop)


def test_annotations_may_be_given_in_mcps_words() -> None:
    assert make(annotations={"destructiveHint": True, "title": "x"}).annotations == ToolAnnotations(
        destructive_hint=True
    )


# ------------------------------------------------------------------ keys


def test_a_keyed_effect_needs_a_key_of_argument_fields() -> None:
    assert make(effect="keyed", key=["order_id"]).key == ("order_id",)
    with pytest.raises(DefinitionError, match="needs key"):
        make(effect="keyed")
    with pytest.raises(DefinitionError, match="did you mean 'order_id'"):
        make(effect="keyed", key=["order"])
    with pytest.raises(DefinitionError, match="twice"):
        make(effect="keyed", key=["order_id", "order_id"])


def test_a_key_in_a_composed_schema_is_not_looked_for_at_its_root() -> None:
    assert make(parameters={"allOf": [SCHEMA]}, effect="keyed", key=["order_id"]).key == ("order_id",)


def test_a_key_that_may_be_absent_or_has_no_use_is_remarked_on() -> None:
    assert "key field lines is not required" in make(effect="keyed", key=["lines"]).lints
    assert any("has a use only" in lint for lint in make(effect="read", key=["order_id"]).lints)


# ------------------------------------------------------------------ no schema


def test_without_a_schema_registration_fails_and_asks_for_one() -> None:
    """Contract 13."""
    with pytest.raises(DefinitionError, match="give `parameters`"):
        make(parameters=None)


def test_the_escape_hatch_needs_a_mode() -> None:
    """Contract 14, C9."""
    with pytest.raises(DefinitionError, match="no_schema_mode"):
        make(parameters=None, allow_no_schema=True)
    with pytest.raises(DefinitionError, match="allow_no_schema"):
        make(parameters=None, no_schema_mode="full")


def test_read_only_mode_is_for_tools_that_declare_to_read() -> None:
    """Contract 15, C9."""
    with pytest.raises(DefinitionError, match="effect='read'"):
        make(parameters=None, allow_no_schema=True, no_schema_mode="read-only")
    definition = make(parameters=None, allow_no_schema=True, no_schema_mode="read-only", effect="read")
    assert not definition.has_schema
    assert any("not validated" in lint for lint in definition.lints)


def test_beside_a_schema_the_flags_are_ignored_with_a_warning_at_the_authors_line() -> None:
    """Contract C9."""
    with pytest.warns(DefinitionWarning, match="there is a schema") as caught:
        definition = ToolDefinition("x", "y", SCHEMA, allow_no_schema=True, no_schema_mode=NoSchemaMode.FULL)
    assert caught[0].filename == __file__
    assert definition.allow_no_schema is False
    assert definition.no_schema_mode is None
    assert definition.has_schema
    assert any("ignored" in lint for lint in definition.lints)


# ------------------------------------------------------------------ derived


@pytest.mark.parametrize(
    ("effect", "tolerant", "expected"),
    [
        (None, None, True),
        ("read", None, True),
        ("irreversible", None, False),
        ("irreversible", True, True),
        ("read", False, False),
    ],
)
def test_tolerance_is_off_for_irreversible_tools_unless_said(effect: Any, tolerant: Any, expected: bool) -> None:
    """Design 6."""
    assert make(effect=effect, tolerant=tolerant).tolerates is expected


def test_the_digest_changes_with_the_contract_and_with_nothing_else() -> None:
    same = make(parameters=dict(reversed(SCHEMA.items())))
    assert same.digest == make().digest == make(version="1").digest
    changes: list[dict[str, Any]] = [
        {"name": "other"},
        {"description": "Other."},
        {"parameters": {**SCHEMA, "minProperties": 1}},
        {"annotations": ToolAnnotations(read_only_hint=True)},
        {"version": "2"},
        {"effect": "read"},
        {"allowed_roles": {"clerk"}},
    ]
    assert len({make().digest, *(make(**change).digest for change in changes)}) == len(changes) + 1


def test_the_binding_digest_leaves_out_the_texts_and_nothing_else() -> None:
    """Issue 16 B4: a property or a value may have the name of a text."""

    def schema(**line: Any) -> dict[str, Any]:
        inner = {"type": "object", "properties": {"title": {"type": "string", **line}, "description": {}}}
        return {"type": "object", "properties": {"lines": {"type": "array", "items": {"anyOf": [inner]}}}}

    base = make(parameters=schema())
    texts: list[dict[str, Any]] = [
        {"description": "Other words."},
        {"title": "Other"},
        {"examples": [{"lines": []}]},
        {"parameters": schema(description="Other words.", title="Other", examples=["x"])},
    ]
    others: list[dict[str, Any]] = [
        {"version": "2"},
        {"tags": ["new"]},
        {"parameters": schema(maxLength=1)},
        {"parameters": schema(enum=["x"])},
        {"parameters": {"type": "object", "properties": {"lines": {"type": "array"}}}},
        {"parameters": {**schema(), "required": ["lines"]}},
        {"output_schema": {"const": {"title": "x"}}},
    ]
    for change in texts:
        changed = make(**{"parameters": schema(), **change})
        assert changed.binding_digest == base.binding_digest
        assert changed.digest != base.digest
    digests = {make(**{"parameters": schema(), **change}).binding_digest for change in others}
    digests.add(make(parameters=schema(), output_schema={"const": {"title": "y"}}).binding_digest)
    assert len(digests | {base.binding_digest}) == len(others) + 2


def test_equal_definitions_hash_alike_and_serve_as_keys() -> None:
    assert {make(): 1}[make(parameters=copy.deepcopy(SCHEMA))] == 1


# ------------------------------------------------------------------ as JSON


def test_to_dict_is_the_documents_flat_form_with_only_what_is_set() -> None:
    """Contract 9, 12, C3."""
    assert make().to_dict() == {
        "type": "function",
        "name": "refund",
        "description": "Refund an order.",
        "parameters": SCHEMA,
    }
    assert make(strict=False).to_dict()["strict"] is False
    assert make(safe=False).to_dict()["safe"] is False
    bare = make(parameters=None, description=None, allow_no_schema=True, no_schema_mode="full")
    assert bare.to_dict() == {"type": "function", "name": "refund", "allowNoSchema": True, "noSchemaMode": "full"}


def test_to_dict_gives_a_copy_that_may_be_changed() -> None:
    """Contract 6, 60."""
    definition = make()
    shown = definition.to_dict()
    shown["parameters"]["properties"].clear()
    assert definition.parameters == SCHEMA


FULL: dict[str, Any] = {
    "title": "Refund",
    "output_schema": {"type": "object"},
    "effect": "keyed",
    "key": ["order_id"],
    "tags": {"money", "orders"},
    "safe": False,
    "safety": {"threat": "high"},
    "allowed_roles": {"clerk"},
    "capabilities": {"streaming": True},
    "annotations": ToolAnnotations(destructive_hint=True),
    "examples": [{"input": {"order_id": "a"}}],
    "version": "3",
    "strict": True,
    "provider_schema": {"type": "object"},
    "tolerant": False,
    "metadata": {"team": "billing"},
}


def test_from_dict_reads_back_what_to_dict_wrote() -> None:
    definition = make(**FULL)
    shown = definition.to_dict()
    assert {"outputSchema", "providerSchema", "allowedRoles"} <= shown.keys()
    assert shown["tags"] == ["money", "orders"]
    assert ToolDefinition.from_dict(json.loads(json.dumps(shown))) == definition


@pytest.mark.parametrize("part", sorted(FULL))
def test_each_extension_alone_survives_the_round_trip(part: str) -> None:
    changes = {part: FULL[part]} | ({"key": ["order_id"]} if part == "effect" else {})
    definition = make(**changes)
    assert ToolDefinition.from_dict(definition.to_dict()) == definition


@pytest.mark.parametrize("inner_type", [{}, {"type": "object"}, {"type": "function"}])
def test_the_wrapped_form_is_read_like_the_flat_one(inner_type: dict[str, str]) -> None:
    """Contract 41, 59, C4."""
    flat = {"name": "refund", "description": "Refund an order.", "parameters": SCHEMA, "strict": True}
    wrapped = {"type": "function", "function": {**flat, **inner_type}}
    assert ToolDefinition.from_dict(wrapped) == ToolDefinition.from_dict({"type": "function", **flat})


def test_a_null_counts_as_absent_and_pythons_spelling_is_read_too() -> None:
    data = {"name": "x", "description": None, "input_schema": SCHEMA, "strict": None, "allowed_roles": ["clerk"]}
    definition = ToolDefinition.from_dict(data)
    assert definition.description is None
    assert definition.parameters == SCHEMA
    assert definition.allowed_roles == {"clerk"}


def test_unknown_keys_are_kept_as_metadata_and_misspelt_ones_refused() -> None:
    """Contract 10."""
    definition = ToolDefinition.from_dict({"name": "x", "parameters": SCHEMA, "cacheControl": 5, "metadata": {"a": 1}})
    assert definition.metadata == {"a": 1, "cacheControl": 5}
    with pytest.raises(DefinitionError, match="did you mean 'allowedRoles'"):
        ToolDefinition.from_dict({"name": "x", "parameters": SCHEMA, "allowdRoles": ["clerk"]})


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"type": "function", "function": "x"},
        {"name": "x", "parameters": SCHEMA, "inputSchema": SCHEMA},
        {"name": "x", "parameters": SCHEMA, 5: 1},
        {"type": "web_search", "name": "x", "parameters": SCHEMA},
        {"name": "x"},
    ],
)
def test_what_is_no_definition_is_refused(data: Any) -> None:
    with pytest.raises(DefinitionError):
        ToolDefinition.from_dict(data)


def test_verify_refuses_the_documents_malformed_sample() -> None:
    """Contract C31: a bare map of properties is kept verbatim, and refused loudly at registration."""
    validation = pytest.importorskip("callgate.tools.schemas.validation")
    assert validation
    malformed = {
        "location": {"type": "string", "description": "The name of the city e.g. San Francisco, CA"},
        "format": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "required": ["location", "format"],
    }
    with pytest.raises(DefinitionError):
        make(parameters=malformed).verify()
    with pytest.raises(DefinitionError):
        make(output_schema={"type": "objekt"}).verify()
    make().verify()
    make(output_schema={"type": "array"}).verify()
    make(parameters=None, allow_no_schema=True, no_schema_mode="full").verify()


def test_real_schemas_are_kept_verbatim(shared_data: Path) -> None:
    """Contract 11, on the schemas of popular MCP servers."""
    for line in (shared_data / "mcp_tool_schemas.jsonl").read_text("utf-8").splitlines():
        schema = json.loads(line)["inputSchema"]
        definition = make(parameters=schema)
        assert json.dumps(definition.parameters) == json.dumps(schema)
        assert ToolDefinition.from_dict(definition.to_dict()).digest == definition.digest


@pytest.mark.parametrize("name", ["github.search_code", "a/b:c", "x" * 65, "x." * 60])
def test_a_name_of_another_system_is_replaced_by_a_legal_one_and_kept(name: str) -> None:
    """Contract C5."""
    definition = ToolDefinition.from_dict({"name": name, "description": "x", "inputSchema": SCHEMA})
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", definition.name)
    assert (definition.title, definition.metadata["foreign_name"]) == (name, name)
    assert ToolDefinition.from_dict({"name": name, "parameters": SCHEMA}).name == definition.name, (
        "it depends on it alone"
    )
    assert ToolDefinition.from_dict({"name": f"{name}y", "parameters": SCHEMA}).name != definition.name
    assert ToolDefinition.from_dict(definition.to_dict()) == definition


@pytest.mark.parametrize("name", ["Sum Two Numbers", "x" * 129, "a\nb", "größe", " "])
def test_a_name_that_no_system_allows_is_refused(name: str) -> None:
    """Contract 24, C5."""
    with pytest.raises(DefinitionError, match="tool name"):
        ToolDefinition.from_dict({"name": name, "parameters": SCHEMA})
