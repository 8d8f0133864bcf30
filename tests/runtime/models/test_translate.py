"""From definitions to what each provider is told (contract 12, 14, 20, 41, 50, 57-60, C3-C6)."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.errors import DefinitionError
from callgate.runtime.models import codec, codecs
from callgate.runtime.models.wire.codec import Translation, WireError
from callgate.tools.definition import ToolDefinition
from callgate.tools.values import digest, thaw
from tests.runtime.models.wires import RICH, tool

WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama")
SCHEMA_KEYS = ("parameters", "input_schema", "parametersJsonSchema")


def sent(wire: str, translation: Translation) -> list[dict[str, Any]]:
    """Every tool of a request, without what wraps it."""
    tools = translation.request["tools"]
    if wire == "gemini":
        return [declared for tool in tools for declared in tool["functionDeclarations"]]
    return [each.get("function", each) for each in tools]


def schema_of(spelled: dict[str, Any]) -> Any:
    """The schema of a tool as sent, under the one key that a wire has for it."""
    (key,) = (key for key in SCHEMA_KEYS if key in spelled)
    return spelled[key]


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


def test_contract_58_and_c3_responses_is_flat() -> None:
    """Contract 58, C3."""
    assert codec("openai_responses").translate([tool(RICH, description="Weather.", strict=False)]).request == {
        "tools": [
            {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": RICH, "strict": False}
        ]
    }


def test_contract_58_and_c3_gemini_declares_functions_with_json_schema() -> None:
    """Contract 58, C3: ``parameters`` and ``parametersJsonSchema`` exclude each other."""
    declared = {"name": "get_weather", "description": "Weather.", "parametersJsonSchema": RICH}
    definition = tool(RICH, description="Weather.", strict=True)
    assert codec("gemini").translate([definition]).request == {"tools": [{"functionDeclarations": [declared]}]}


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
    translation = codec(wire).translate([definition])
    made = translation.request
    for spelled in sent(wire, translation):
        schema = schema_of(spelled)
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


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("strict", [None, False, True])
def test_contract_12_strict_is_sent_only_if_it_is_set_and_the_wire_has_it(wire: str, strict: bool | None) -> None:
    """Contract 12. OpenAI's Responses takes silence for a yes: there a plain schema is sent with a no."""
    (spelled,) = sent(wire, codec(wire).translate([tool(strict=strict)]))
    expected: dict[str, bool] = {}
    if wire == "openai_responses":
        expected = {"strict": bool(strict)}
    elif wire == "openai_chat" and strict is not None:
        expected = {"strict": strict}
    assert {name: value for name, value in spelled.items() if name == "strict"} == expected


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
    (spelled,) = sent(wire, codec(wire).translate([tool(RICH, provider_schema=compact)]))
    assert schema_of(spelled) == compact


@pytest.mark.parametrize("wire", WIRES)
def test_contract_14_a_tool_without_a_schema_is_offered_with_an_open_object(wire: str) -> None:
    """Contract 14."""
    loose = ToolDefinition(name="loose", allow_no_schema=True, no_schema_mode="full", strict=True)  # type: ignore[arg-type]
    (spelled,) = sent(wire, codec(wire).translate([loose]))
    assert schema_of(spelled) == {"type": "object", "properties": {}, "additionalProperties": True}
    assert spelled.get("strict") is (False if wire.startswith("openai") else None)


@pytest.mark.parametrize("wire", WIRES)
def test_contract_61_a_root_without_a_type_gets_the_one_that_providers_ask_for(wire: str) -> None:
    """Contract 61."""
    definition = tool({"properties": {}})
    (spelled,) = sent(wire, codec(wire).translate([definition]))
    assert schema_of(spelled)["type"] == "object"
    assert thaw(definition.parameters) == {"properties": {}}


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses", "gemini"])
def test_some_wires_need_properties_even_where_there_are_none(wire: str) -> None:
    (spelled,) = sent(wire, codec(wire).translate([tool({"type": "object"})]))
    assert schema_of(spelled) == {"type": "object", "properties": {}}


@pytest.mark.parametrize("wire", WIRES)
def test_contract_c5_names_that_a_wire_refuses_are_mapped_there_and_only_there(wire: str) -> None:
    """Contract C5: Gemini refuses a digit or a hyphen at the start."""
    translation = codec(wire).translate([tool(name="7up"), tool(name="get_weather")])
    first, second = sent(wire, translation)
    assert (first["name"] == "7up") is (wire != "gemini")
    assert second["name"] == "get_weather"
    assert translation.names.tool(first["name"]) == "7up"


@pytest.mark.parametrize("wire", WIRES)
def test_no_tools_are_no_tools(wire: str) -> None:
    assert codec(wire).translate([]).request == {"tools": []}


@pytest.mark.parametrize("wire", WIRES)
def test_contract_50_the_record_holds_name_digest_and_schema_of_every_tool(wire: str) -> None:
    """Contract 50."""
    definitions = [tool(RICH), tool(name="other")]
    translation = codec(wire).translate(definitions)
    assert list(translation.tools) == ["get_weather", "other"]
    for definition, spelled in zip(definitions, sent(wire, translation), strict=True):
        record = translation.tools[definition.name]
        assert record.digest == digest(schema_of(spelled))
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
        ("openai_responses", "openai_responses"),
        ("gemini", "gemini"),
        ("anthropic", "anthropic"),
        ("ollama", "ollama"),
    ],
)
def test_a_codec_is_found_by_its_names(alias: str, name: str) -> None:
    assert codec(alias).name == name


def test_an_unknown_codec_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(WireError, match="no wire 'antropic'; did you mean 'anthropic'"):
        codec("antropic")
    with pytest.raises(WireError, match=r"no wire 'xyzzy'; known: .*anthropic"):
        codec("xyzzy")


def test_the_codecs_there_are_can_be_listed() -> None:
    """Contract C3: each under the one name that it has itself; aliases are left out."""
    assert set(WIRES) <= set(codecs())
    assert list(codecs()) == sorted(set(codecs()))
    assert [codec(name).name for name in codecs()] == list(codecs())


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses", "anthropic", "gemini", "ollama"])
@pytest.mark.parametrize("length", [1024, 1025, 5000])
def test_a_long_description_is_shortened_only_where_the_wire_has_a_limit(wire: str, length: int) -> None:
    """Contract 25, C5."""
    text = "x" * length
    definition = ToolDefinition("find", text, {"type": "object"})
    translation = codec(wire).translate([definition])
    short = wire.startswith("openai") and length > 1024
    sent = str(translation.request["tools"][0])
    assert (text in sent) is not short
    assert not short or "'" + "x" * 1023 + "…'" in sent
    assert translation.tools["find"].shortened is short
    assert definition.description == text
