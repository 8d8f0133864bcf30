"""Definitions of a remote server with anchors: the names stay, and the references become JSON Pointers, which models know."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

from mcp_types import Tool

from callgate.mcp import McpServer
from callgate.runtime.remote.mcp.definitions import Found, admit_tools

TEXT = {"type": "string"}
SERVER = McpServer(name="far", url="https://tools.example/mcp")


async def admitted(schema: dict[str, Any]) -> Found:
    tool = Tool(name="send", description="Send.", input_schema={"type": "object", **schema})
    return await admit_tools([tool], SERVER)


def address(**more: Any) -> dict[str, Any]:
    return {"$anchor": "address", "type": "object", "properties": {"street": TEXT}, **more}


@pytest.mark.parametrize("pointer", ["/$defs/address", "/properties/home"])
async def test_an_anchor_stays_and_a_reference_to_it_is_a_pointer(pointer: str) -> None:
    """Anywhere in the document; the validator enforces what is referred to."""
    home = address() if pointer == "/properties/home" else TEXT
    more = {"$defs": {"address": address()}} if pointer == "/$defs/address" else {}
    found = await admitted({"properties": {"home": home, "work": {"$ref": "#address"}}, **more})
    ((_, definition, validators),) = found.tools.values()
    made = json.loads(json.dumps(definition.parameters))
    assert made["properties"]["work"] == {"$ref": f"#{pointer}"}
    assert json.dumps(made).count('"$anchor": "address"') == 1
    assert [one.pointer for one in validators["parameters"].issues({"work": {"street": 5}}, 5)] == ["/work/street"]
    assert validators["parameters"].issues({"work": {"street": "x"}}, 5) == []


async def test_a_parameter_may_have_the_name_of_the_keyword() -> None:
    """It was dropped with the anchors."""
    found = await admitted({"properties": {"$anchor": TEXT, "home": address()}, "required": ["$anchor"]})
    ((_, definition, validators),) = found.tools.values()
    assert definition.parameters is not None
    assert "$anchor" in definition.parameters["properties"]
    assert validators["parameters"].issues({"$anchor": "x"}, 5) == []
    assert validators["parameters"].issues({"$anchor": 5}, 5) != []


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {"home": {"$ref": "#nowhere"}}}, "not a subschema"),
        ({"properties": {"home": {"$anchor": 5}}}, "meta-schema"),
        ({"properties": {"home": {"$anchor": "not a name"}}}, "meta-schema"),
        ({"properties": {"home": {"$dynamicAnchor": "a"}, "work": {"$dynamicRef": "#a"}}}, "not accepted from outside"),
    ],
)
async def test_a_reference_without_a_target_and_a_name_that_is_none_are_refused(
    schema: dict[str, Any], reason: str
) -> None:
    found = await admitted(schema)
    assert found.tools == {}
    assert reason in found.refused["send"]
