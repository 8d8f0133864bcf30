"""From definitions to what each provider is told (contract 12, 14, 20, 41, 50, 57-60, C3-C6)."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.errors import DefinitionError
from callgate.runtime.adapters import codec
from callgate.runtime.wire.codec import WireError
from callgate.runtime.wire.names import LIMIT, WIRE_NAME, NameMap
from callgate.runtime.wire.neutral import from_neutral, to_neutral
from callgate.tools.definition import ToolDefinition
from callgate.tools.values import digest, thaw
from tests.adapters.wires import tool

WIRES = ("openai_chat", "anthropic", "ollama")
RICH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "description": "Where"},
        "days": {"type": "integer", "minimum": 1, "default": 3},
        "place": {"$ref": "#/$defs/place"},
        "pick": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    },
    "required": ["city"],
    "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}},
}


def test_contract_58_and_c3_chat_completions_nests_the_tool_under_function() -> None:
    definition = tool(RICH, description="Weather.")
    assert codec("openai_chat").translate([definition]).request == {
        "tools": [
            {
                "type": "function",
                "function": {"name": "get_weather", "description": "Weather.", "parameters": RICH},
            }
        ]
    }


def test_contract_58_and_c3_anthropic_takes_input_schema_and_neither_type_nor_parameters() -> None:
    definition = tool(RICH, description="Weather.", strict=True)
    assert codec("anthropic").translate([definition]).request == {
        "tools": [{"name": "get_weather", "description": "Weather.", "input_schema": RICH}]
    }


def test_contract_59_ollama_takes_the_raw_schema_and_its_type() -> None:
    definition = tool(RICH, description="Weather.", strict=True)
    assert codec("ollama").translate([definition]).request == {
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "Weather.",
                    "parameters": RICH,
                    "type": "object",
                },
            }
        ]
    }


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("strict", [None, False, True])
def test_contract_60_translation_works_on_copies_and_changes_nothing(wire: str, strict: bool | None) -> None:
    definition = tool(RICH, strict=strict, provider_schema=RICH)
    before = digest(definition.parameters), digest(definition.provider_schema), definition.digest
    made = codec(wire).translate([definition]).request
    for spelled in made["tools"]:
        inner = spelled.get("function", spelled)
        schema = inner.get("parameters", inner.get("input_schema"))
        schema["properties"]["city"].clear()
        schema["properties"]["added"] = {}
        schema["required"].clear()
    assert (digest(definition.parameters), digest(definition.provider_schema), definition.digest) == before
    assert codec(wire).translate([definition]).request != made


@pytest.mark.parametrize("wire", WIRES)
def test_contract_60_a_second_translation_is_the_same_json(wire: str) -> None:
    definitions = [tool(RICH, strict=True), tool(name="other")]
    first, second = codec(wire).translate(definitions), codec(wire).translate(definitions)
    assert first == second
    assert first.request is not second.request


@pytest.mark.parametrize(("strict", "sent"), [(None, {}), (False, {"strict": False}), (True, {"strict": True})])
def test_contract_12_strict_is_sent_only_if_it_is_set(strict: bool | None, sent: dict[str, bool]) -> None:
    (spelled,) = codec("openai_chat").translate([tool(strict=strict)]).request["tools"]
    assert {name: value for name, value in spelled["function"].items() if name == "strict"} == sent


def test_contract_12_a_wish_that_strict_mode_cannot_say_is_sent_plain_with_the_reason_on_record() -> None:
    free = {"type": "object", "properties": {"any": {"type": "object"}}}
    translation = codec("openai_chat").translate([tool(free, strict=True)])
    assert translation.request["tools"][0]["function"] == {"name": "get_weather", "parameters": free, "strict": False}
    assert translation.tools["get_weather"].fallback == "an open object at /properties/any"


@pytest.mark.parametrize("wire", WIRES)
def test_contract_20_the_compact_provider_schema_is_sent_where_there_is_one(wire: str) -> None:
    compact = {"type": "object", "properties": {"city": {"type": "string"}}}
    (spelled,) = codec(wire).translate([tool(RICH, provider_schema=compact)]).request["tools"]
    inner = spelled.get("function", spelled)
    assert inner.get("parameters", inner.get("input_schema")) == compact


@pytest.mark.parametrize("wire", WIRES)
def test_contract_14_a_tool_without_a_schema_is_offered_with_an_open_object(wire: str) -> None:
    loose = ToolDefinition(name="loose", allow_no_schema=True, no_schema_mode="full", strict=True)  # type: ignore[arg-type]
    translation = codec(wire).translate([loose])
    inner = translation.request["tools"][0].get("function", translation.request["tools"][0])
    open_object = {"type": "object", "properties": {}, "additionalProperties": True}
    assert inner.get("parameters", inner.get("input_schema")) == open_object
    assert inner.get("strict") is (False if wire == "openai_chat" else None)


@pytest.mark.parametrize("wire", WIRES)
def test_contract_61_a_root_without_a_type_gets_the_one_that_providers_ask_for(wire: str) -> None:
    definition = tool({"properties": {}})
    (spelled,) = codec(wire).translate([definition]).request["tools"]
    inner = spelled.get("function", spelled)
    assert inner.get("parameters", inner.get("input_schema"))["type"] == "object"
    assert thaw(definition.parameters) == {"properties": {}}


def test_chat_completions_needs_properties_even_where_there_are_none() -> None:
    (spelled,) = codec("openai_chat").translate([tool({"type": "object"})]).request["tools"]
    assert spelled["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize("wire", WIRES)
def test_no_tools_are_no_tools(wire: str) -> None:
    assert codec(wire).translate([]).request == {"tools": []}


@pytest.mark.parametrize("wire", WIRES)
def test_contract_50_the_record_holds_name_digest_and_schema_of_every_tool(wire: str) -> None:
    definitions = [tool(RICH), tool(name="other")]
    translation = codec(wire).translate(definitions)
    assert list(translation.tools) == ["get_weather", "other"]
    for definition, spelled in zip(definitions, translation.request["tools"], strict=True):
        record = translation.tools[definition.name]
        inner = spelled.get("function", spelled)
        assert record.digest == digest(inner.get("parameters", inner.get("input_schema")))
        assert translation.tool(record.wire_name) is record
    assert translation.tool("never_offered") is None


@pytest.mark.parametrize("wire", WIRES)
def test_contract_c6_the_same_tool_twice_is_refused(wire: str) -> None:
    with pytest.raises(DefinitionError, match="Duplicate tool names: get_weather"):
        codec(wire).translate([tool(), tool()])


# ------------------------------------------------------------------------------------------------ the neutral format


def test_contract_41_and_c3_the_neutral_format_is_flat() -> None:
    assert to_neutral(tool(RICH, description="Weather.", strict=True, tags={"t"}, effect="read")) == {
        "type": "function",
        "name": "get_weather",
        "description": "Weather.",
        "parameters": RICH,
        "strict": True,
    }
    assert set(to_neutral(tool())) == {"type", "name", "parameters"}


def test_contract_c4_flat_and_wrapped_definitions_are_read_alike() -> None:
    flat = to_neutral(tool(RICH, description="Weather.", strict=False))
    wrapped = {"type": "function", "function": {name: value for name, value in flat.items() if name != "type"}}
    assert from_neutral(flat) == from_neutral(wrapped) == tool(RICH, description="Weather.", strict=False)
    assert to_neutral(from_neutral(wrapped)) == flat


@pytest.mark.parametrize("wire", ["openai_chat", "ollama"])
def test_contract_c4_what_a_wrapping_wire_is_sent_reads_back_as_the_definition(wire: str) -> None:
    definition = tool(RICH, description="Weather.")
    assert from_neutral(codec(wire).translate([definition]).request["tools"][0]) == definition


@pytest.mark.parametrize("wrong", [None, 5, [], "get_weather", {"type": "function", "function": "x"}, {"type": "web"}])
def test_contract_c4_what_is_neither_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError):
        from_neutral(wrong)


# ------------------------------------------------------------------------------------------------------------- names


def test_contract_c5_legal_names_are_their_own_wire_names() -> None:
    names = NameMap.of(["get_weather", "a-b", "A" * 64])
    assert dict(names.wire_names) == {name: name for name in ("get_weather", "a-b", "A" * 64)}


FOREIGN = ["fs.read", "fs/read", "fs read", "Sum Two Numbers", "städte", "日本", "x" * 128, "", "a.b" * 40, "\ud800"]


def test_contract_c5_foreign_names_become_legal_and_come_back() -> None:
    names = NameMap.of(FOREIGN)
    made = [names.wire(name) for name in FOREIGN]
    assert all(WIRE_NAME.fullmatch(name) for name in made)
    assert len(set(made)) == len(FOREIGN)
    assert [names.tool(name) for name in made] == FOREIGN


def test_contract_c5_a_foreign_name_does_not_depend_on_its_neighbours_or_their_order() -> None:
    alone = {name: NameMap.of([name]).wire(name) for name in FOREIGN}
    assert dict(NameMap.of([*reversed(FOREIGN), "get_weather"]).wire_names) == {**alone, "get_weather": "get_weather"}


def test_contract_c5_a_legal_name_made_to_collide_keeps_its_own_and_takes_nobodys() -> None:
    short = NameMap.of(["fs.read"]).wire("fs.read")
    longer = NameMap.of(["fs.read", short]).wire("fs.read")
    names = NameMap.of(["fs.read", short, longer])
    assert names.tool(short) == short
    assert names.tool(longer) == longer
    assert names.tool(names.wire("fs.read")) == "fs.read"
    assert len(set(names.wire_names.values())) == 3


def test_contract_c5_the_longest_hash_still_fits() -> None:
    taken = ["x" * 65]
    for _ in range(3):
        taken.append(NameMap.of(taken).wire("x" * 65))
    assert len(NameMap.of(taken).wire("x" * 65)) == LIMIT


def test_contract_c10a_an_unknown_wire_name_stays_as_it_is() -> None:
    assert NameMap.of(["known"]).tool("unknown") == "unknown"
    assert NameMap.of(["known"]).wire("unknown") == "unknown"


# ------------------------------------------------------------------------------------------------------------ look-up


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("openai", "openai_chat"),
        ("openai_chat", "openai_chat"),
        ("openai_compat", "openai_chat"),
        ("anthropic", "anthropic"),
        ("ollama", "ollama"),
    ],
)
def test_a_codec_is_found_by_its_names(alias: str, name: str) -> None:
    assert codec(alias).name == name


def test_an_unknown_codec_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(WireError, match="no codec 'antropic'; did you mean 'anthropic'"):
        codec("antropic")
