"""From definitions to what each provider is told (contract 12, 14, 20, 41, 50, 57-60, C3-C6)."""

from __future__ import annotations

import pytest

from callgate.errors import DefinitionError
from callgate.runtime.adapters import codec, codecs
from callgate.runtime.wire.codec import WireError
from callgate.tools.definition import ToolDefinition
from callgate.tools.values import digest, thaw
from tests.adapters.wires import RICH, tool

WIRES = ("openai_chat", "anthropic", "ollama")


def test_contract_58_and_c3_chat_completions_nests_the_tool_under_function() -> None:
    """Contract 58, C3."""
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
    """Contract 58, C3."""
    definition = tool(RICH, description="Weather.", strict=True)
    assert codec("anthropic").translate([definition]).request == {
        "tools": [{"name": "get_weather", "description": "Weather.", "input_schema": RICH}]
    }


def test_contract_59_ollama_takes_the_raw_schema_and_its_type() -> None:
    """Contract 59."""
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
    """Contract 60."""
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
    """Contract 60."""
    definitions = [tool(RICH, strict=True), tool(name="other")]
    first, second = codec(wire).translate(definitions), codec(wire).translate(definitions)
    assert first == second
    assert first.request is not second.request


@pytest.mark.parametrize(("strict", "sent"), [(None, {}), (False, {"strict": False}), (True, {"strict": True})])
def test_contract_12_strict_is_sent_only_if_it_is_set(strict: bool | None, sent: dict[str, bool]) -> None:
    """Contract 12."""
    (spelled,) = codec("openai_chat").translate([tool(strict=strict)]).request["tools"]
    assert {name: value for name, value in spelled["function"].items() if name == "strict"} == sent


def test_contract_12_a_wish_that_strict_mode_cannot_say_is_sent_plain_with_the_reason_on_record() -> None:
    """Contract 12."""
    free = {"type": "object", "properties": {"any": {"type": "object"}}}
    translation = codec("openai_chat").translate([tool(free, strict=True)])
    assert translation.request["tools"][0]["function"] == {"name": "get_weather", "parameters": free, "strict": False}
    assert translation.tools["get_weather"].fallback == "an open object at /properties/any"


@pytest.mark.parametrize("wire", WIRES)
def test_contract_20_the_compact_provider_schema_is_sent_where_there_is_one(wire: str) -> None:
    """Contract 20."""
    compact = {"type": "object", "properties": {"city": {"type": "string"}}}
    (spelled,) = codec(wire).translate([tool(RICH, provider_schema=compact)]).request["tools"]
    inner = spelled.get("function", spelled)
    assert inner.get("parameters", inner.get("input_schema")) == compact


@pytest.mark.parametrize("wire", WIRES)
def test_contract_14_a_tool_without_a_schema_is_offered_with_an_open_object(wire: str) -> None:
    """Contract 14."""
    loose = ToolDefinition(name="loose", allow_no_schema=True, no_schema_mode="full", strict=True)  # type: ignore[arg-type]
    translation = codec(wire).translate([loose])
    inner = translation.request["tools"][0].get("function", translation.request["tools"][0])
    open_object = {"type": "object", "properties": {}, "additionalProperties": True}
    assert inner.get("parameters", inner.get("input_schema")) == open_object
    assert inner.get("strict") is (False if wire == "openai_chat" else None)


@pytest.mark.parametrize("wire", WIRES)
def test_contract_61_a_root_without_a_type_gets_the_one_that_providers_ask_for(wire: str) -> None:
    """Contract 61."""
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
    """Contract 50."""
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
    """Contract C6."""
    with pytest.raises(DefinitionError, match="Duplicate tool names: get_weather"):
        codec(wire).translate([tool(), tool()])


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
    with pytest.raises(WireError, match=r"no codec 'xyzzy'; known: .*anthropic"):
        codec("xyzzy")


def test_the_codecs_there_are_can_be_listed() -> None:
    """Contract C3: each under the one name that it has itself; aliases are left out."""
    assert set(WIRES) <= set(codecs())
    assert list(codecs()) == sorted(set(codecs()))
    assert [codec(name).name for name in codecs()] == list(codecs())
