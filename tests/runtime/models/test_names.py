"""The neutral format, and names that a provider refuses (contract 41, C3, C4, C5)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from callgate.errors import DefinitionError
from callgate.runtime.models import codec
from callgate.runtime.models.wire.names import GEMINI_NAME, WIRE_NAME, NameMap
from callgate.runtime.models.wire.neutral import to_neutral
from callgate.tools.definition import ToolDefinition
from callgate.tools.naming import MAX_NAME
from tests.runtime.models.wires import RICH, tool

# ------------------------------------------------------------------------------------------------ the neutral format


def test_contract_41_and_c3_the_neutral_format_is_flat() -> None:
    """Contract 41, C3."""
    assert to_neutral(tool(RICH, description="Weather.", strict=True, tags={"t"}, effect="read")) == {
        "type": "function",
        "name": "get_weather",
        "description": "Weather.",
        "parameters": RICH,
        "strict": True,
    }
    assert set(to_neutral(tool())) == {"type", "name", "parameters"}


def test_contract_c4_flat_and_wrapped_definitions_are_read_alike() -> None:
    """Contract C4."""
    flat = to_neutral(tool(RICH, description="Weather.", strict=False))
    wrapped = {"type": "function", "function": {name: value for name, value in flat.items() if name != "type"}}
    assert (
        ToolDefinition.from_dict(flat)
        == ToolDefinition.from_dict(wrapped)
        == tool(RICH, description="Weather.", strict=False)
    )
    assert to_neutral(ToolDefinition.from_dict(wrapped)) == flat


@pytest.mark.parametrize("wire", ["openai_chat", "ollama"])
def test_contract_c4_what_a_wrapping_wire_is_sent_reads_back_as_the_definition(wire: str) -> None:
    """Contract C4."""
    definition = tool(RICH, description="Weather.")
    assert ToolDefinition.from_dict(codec(wire).translate([definition]).request["tools"][0]) == definition


@pytest.mark.parametrize("wrong", [None, 5, [], "get_weather", {"type": "function", "function": "x"}, {"type": "web"}])
def test_contract_c4_what_is_neither_is_refused(wrong: Any) -> None:
    """Contract C4."""
    with pytest.raises(DefinitionError):
        ToolDefinition.from_dict(wrong)


# ------------------------------------------------------------------------------------------------------------- names


def test_contract_c5_legal_names_are_their_own_wire_names() -> None:
    """Contract C5."""
    names = NameMap.of(["get_weather", "a-b", "A" * 64])
    assert dict(names.wire_names) == {name: name for name in ("get_weather", "a-b", "A" * 64)}


FOREIGN = ["fs.read", "fs/read", "fs read", "Sum Two Numbers", "städte", "日本", "x" * 128, "", "a.b" * 40, "\ud800"]


def test_contract_c5_foreign_names_become_legal_and_come_back() -> None:
    """Contract 50, C5."""
    names = NameMap.of(FOREIGN)
    made = [names.wire(name) for name in FOREIGN]
    assert all(WIRE_NAME.fullmatch(name) for name in made)
    assert len(set(made)) == len(FOREIGN)
    assert [names.tool(name) for name in made] == FOREIGN


def test_contract_c5_a_foreign_name_does_not_depend_on_its_neighbours_or_their_order() -> None:
    """Contract C5."""
    alone = {name: NameMap.of([name]).wire(name) for name in FOREIGN}
    assert dict(NameMap.of([*reversed(FOREIGN), "get_weather"]).wire_names) == {**alone, "get_weather": "get_weather"}


def test_contract_c5_a_legal_name_made_to_collide_keeps_its_own_and_takes_nobodys() -> None:
    """Contract C5."""
    short = NameMap.of(["fs.read"]).wire("fs.read")
    longer = NameMap.of(["fs.read", short]).wire("fs.read")
    names = NameMap.of(["fs.read", short, longer])
    assert names.tool(short) == short
    assert names.tool(longer) == longer
    assert names.tool(names.wire("fs.read")) == "fs.read"
    assert len(set(names.wire_names.values())) == 3


def test_contract_c5_the_longest_hash_still_fits() -> None:
    """Contract C5."""
    taken = ["x" * 65]
    for _ in range(3):
        taken.append(NameMap.of(taken).wire("x" * 65))
    assert len(NameMap.of(taken).wire("x" * 65)) == MAX_NAME


def test_contract_c10a_an_unknown_wire_name_stays_as_it_is() -> None:
    """Contract C10a."""
    assert NameMap.of(["known"]).tool("unknown") == "unknown"
    assert NameMap.of(["known"]).wire("unknown") == "unknown"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("7up", id="a digit first"),
        pytest.param("-x", id="a hyphen first"),
        pytest.param("a" * 65, id="too long"),
        pytest.param("", id="empty"),
        pytest.param("a b", id="a space"),
        pytest.param("ünder", id="another alphabet"),
        pytest.param("a\n", id="a newline last"),
    ],
)
def test_contract_c5_gemini_refuses_more_names_and_takes_every_made_one(name: str) -> None:
    """Contract C5: a name starts with a letter or an underscore there."""
    names = NameMap.of([name, "get_weather", "fs.read:x"], GEMINI_NAME)
    made = names.wire(name)
    assert GEMINI_NAME.fullmatch(made)
    assert WIRE_NAME.fullmatch(made)
    assert (names.tool(made), names.wire("get_weather"), names.wire("fs.read:x")) == (name, "get_weather", "fs.read:x")


def test_a_pattern_that_no_generated_name_fits_is_refused() -> None:
    """A name that the host refuses is not sent; a pattern that takes generated names is the control."""
    assert NameMap.of(["2nd"], re.compile(r"[A-Za-z_][\w-]*")).wire("2nd").startswith("_2nd_")
    with pytest.raises(DefinitionError, match="rename the tool"):
        NameMap.of(["get-weather"], re.compile(r"[a-z_]+"))
