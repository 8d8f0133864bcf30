"""A hostile client of an A2A agent: what the schemas of its tools cost."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from callgate import Effects, Gate, ToolDefinition, ToolError, User, tool
from callgate.errors import DefinitionError, SchemaRefused
from callgate.runtime.hosts.a2a import client_tools
from callgate.runtime.hosts.a2a.client_tools import ClientTools
from callgate.tools import visible
from callgate.tools.client import definitions
from callgate.tools.client.definitions import safe_validate_tool_definitions
from callgate.tools.schemas.allowance import MESSAGE_ALLOWANCE, SchemaAllowance
from callgate.tools.schemas.engines.patterns import MAX_COST
from callgate.tools.schemas.engines.rust import RustEngine
from callgate.tools.schemas.outside import compile_outside
from callgate.tools.visible import hides_text
from tests.harness.cpu import loop_seconds

ANN, BEN, EVE = User("ann", "acme"), User("ben", "acme"), User("eve", "other")
UNLIMITED = SchemaAllowance(10**9, 10**9, 10**9, 10**9, 10**9)


def tools(count: int, properties: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"name": f"t{number}", "description": "d", "parameters": {"type": "object", "properties": properties(number)}}
        for number in range(count)
    ]


def patterns(count: int, text: str = "(?:a|bc){0,400}") -> Callable[[int], dict[str, Any]]:
    return lambda number: {f"p{at}": {"type": "string", "pattern": f"{text}{number}_{at}"} for at in range(count)}


ATTACKS = {
    "count": tools(MESSAGE_ALLOWANCE.max_tools + 1, patterns(0)),
    "bytes": tools(6, lambda _: {f"p{at}": {"description": "x" * 500} for at in range(100)}),
    "patterns": tools(100, patterns(3, "a")),
    "pattern cost": tools(10, patterns(12)),
    "pattern cost of wide classes": tools(10, patterns(12, r"\p{L}")),
}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each schema that was compiled."""
    sizes: list[int] = []
    build = RustEngine.build

    def spy(self: RustEngine, document: Any, budget: Any, *, trusted: bool) -> Any:
        sizes.append(document.size)
        return build(self, document, budget, trusted=trusted)

    monkeypatch.setattr(RustEngine, "build", spy)
    return sizes


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_message_whose_tools_cost_too_much_compiles_nothing(attack: str, compiled: list[int]) -> None:
    with pytest.raises(DefinitionError, match=r"the maximum is|together have"):
        await ClientTools().records(ATTACKS[attack], ANN)
    assert compiled == []


@pytest.mark.parametrize("attack", ATTACKS)
async def test_control_without_the_allowance_all_of_them_are_compiled(
    attack: str, compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_tools, "MESSAGE_ALLOWANCE", UNLIMITED)
    await ClientTools().records(ATTACKS[attack], ANN)
    assert len(compiled) == len(ATTACKS[attack])


async def test_one_schema_has_a_limit_of_its_own_because_a_compiler_is_not_interrupted() -> None:
    with pytest.raises(DefinitionError, match="cost too much together"):
        await ClientTools().records(tools(1, patterns(30_000 // MAX_COST + 1)), ANN)


LARGEST = tools(4, patterns(16)) + [
    tool | {"name": f"w{number}"}
    for number, tool in enumerate(tools(6, lambda _: {f"p{at}": {"type": "string"} for at in range(500)}))
]
"""A message near the limits."""


@pytest.mark.parametrize("threads", [True, False], ids=["in a thread", "control on the loop"])
async def test_the_loop_does_not_pay_for_compiling(threads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU time of the loop's thread: 50 ms at most for a message near the limits, which takes more in all."""

    async def inline(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    if not threads:
        monkeypatch.setattr(asyncio, "to_thread", inline)

    async def compile_all() -> None:
        assert len(await ClientTools().records(LARGEST, ANN)) == len(LARGEST)

    worst = await loop_seconds(lambda: asyncio.create_task(compile_all()), 0.05, sum)
    assert (worst < 0.05) is threads


async def test_a_user_and_a_tenant_that_used_up_their_time_wait_for_the_next_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others are served meanwhile, and a task that was accepted goes on; time is that of the test."""
    now = [1_000.0]
    monkeypatch.setattr(client_tools, "_measured", lambda _: ([], 6.0))
    compiling, one = ClientTools(lambda: now[0]), tools(1, patterns(1))
    for _ in range(2):
        await compiling.records(one, ANN)
    with pytest.raises(DefinitionError, match="try again in 60 seconds"):
        await compiling.records(one, ANN)
    await compiling.records(one, ANN, accepted=True)
    for _ in range(2):
        await compiling.records(one, BEN)
    with pytest.raises(DefinitionError, match="try again"):  # 30 seconds of the tenant
        await compiling.records(one, User("new", "acme"))
    await compiling.records(one, EVE)
    now[0] += client_tools.PERIOD
    await compiling.records(one, ANN)


async def test_the_memory_of_senders_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_tools, "MAX_SENDERS", 10)
    monkeypatch.setattr(client_tools, "_measured", lambda _: ([], 0.0))
    compiling = ClientTools()
    for number in range(50):
        await compiling.records(tools(1, patterns(1)), User(f"u{number}", f"t{number}"))
    assert len(compiling._senders) == 10


HIDDEN = [
    "\ufe0f",
    "\ufe01",
    "\U000e0100",
    "\u3164",
    "\u115f",
    "\u2800",
    "\u034f",
    "\u200d",
    "\u200b",
    "\u180b",
    "\ufe0f\ufe0f",
]


@pytest.mark.parametrize("hidden", HIDDEN, ids=ascii)
def test_no_invisible_character_is_in_a_text_a_name_or_a_value(hidden: str) -> None:
    """The control: the same definition without the character."""
    for character in (hidden, ""):
        text = f"Sea{character}rch"
        definition = {"name": "search", "description": "d", "parameters": {"type": "object", "properties": {}}}
        for odd in (
            definition | {"description": text},
            definition | {"parameters": {"type": "object", "properties": {text: {"type": "string"}}}},
            definition | {"parameters": {"type": "object", "properties": {"a": {"enum": ["x", text]}}}},
            definition | {"parameters": {"type": "object", "properties": {"a": {"const": {"b": [text]}}}}},
        ):
            assert safe_validate_tool_definitions([odd])["success"] is (not character)


HIDING: dict[str, Callable[[str], dict[str, Any]]] = {
    "a description": lambda text: {"properties": {"a": {"description": text}}},
    "a title": lambda text: {"properties": {"a": {"items": {"title": text}}}},
    "a default": lambda text: {"properties": {"a": {"default": [text]}}},
    "an unknown member": lambda text: {"x-note": {"deep": text}},
    "a name": lambda text: {"properties": {text: {}}},
    "an enum": lambda text: {"properties": {"a": {"enum": ["x", text]}}},
    "a constant": lambda text: {"properties": {"a": {"const": {text: 1}}}},
}


@pytest.mark.parametrize("hidden", ["\u200b", "\U000e0041", ""], ids=["space", "tag", "control"])
@pytest.mark.parametrize("place", HIDING)
def test_no_schema_of_a_server_or_an_agent_hides_a_text(place: str, hidden: str) -> None:
    """The schema of a tool, of its output, and of a form that a person fills in."""
    pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")
    import mcp_types as types

    from callgate.runtime.remote.mcp import questions

    schema = {"type": "object", **HIDING[place](f"Sea{hidden}rch")}
    form = types.ElicitRequestFormParams(message="Which?", requested_schema=schema)
    for work, error in (
        (lambda: compile_outside(ToolDefinition("a", "d", schema), None), SchemaRefused),
        (
            lambda: compile_outside(ToolDefinition("a", "d", {"type": "object"}, output_schema=schema), None),
            SchemaRefused,
        ),
        (lambda: questions._check({"q": form}), ToolError),
    ):
        with pytest.raises(error) if hidden else nullcontext():
            work()


def test_a_variation_selector_is_fine_behind_one_picture_and_not_in_a_value() -> None:
    definition = {"name": "a", "description": "⚠️ Deletes! ❤️", "parameters": {"type": "object", "properties": {}}}
    assert safe_validate_tool_definitions([definition])["success"]
    definition["parameters"] = {"type": "object", "properties": {"a": {"enum": ["⚠️"]}}}
    assert not safe_validate_tool_definitions([definition])["success"]


IGNORABLE = [
    *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0x200B, 0x2010)),
    *(*range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164, *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0),
    *(*range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000)),
]
"""Default_Ignorable_Code_Point of Unicode (DerivedCoreProperties), which Python's database lacks."""
BLANK = [0x2800, 0x16FE4, 0x1107F, 0x1D159, 0x13441, 0x13442]
"""Characters of other categories that show nothing."""
UNSEEN = {"Cf", "Co", "Cs", "Zl", "Zp"}


def test_no_code_point_that_shows_nothing_is_in_a_text() -> None:
    """Property: over all code points, by the categories of Python's database and the property of Unicode."""
    hidden = {*IGNORABLE, *BLANK}
    hidden |= {code for code in range(0x110000) if unicodedata.category(chr(code)) in UNSEEN - {"Cs"}}
    hidden |= {code for code in range(0x110000) if code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF}
    assert [hex(code) for code in hidden if not hides_text(f"a{chr(code)}b")] == []
    wrong = [code for code in range(0x110000) if hides_text(f"a{chr(code)}b") and code not in hidden]
    assert {unicodedata.category(chr(code)) for code in wrong} <= {"Cc", "Cn", "Lo"}  # hieroglyphs' format controls


def test_a_name_or_a_value_has_visible_characters_and_plain_spaces_only() -> None:
    """Property: over all code points."""
    pictures = {
        *range(0x1F000, 0x1FB00),
        *range(0x2122, 0x2C00),
    }  # those of a later Unicode are unassigned in Python's database
    for code in range(0x110000):
        one = chr(code)
        seen = unicodedata.category(one)[0] in "LMNPS" or one in " \t\n\r" or code in pictures
        if not seen:
            assert hides_text(f"a{one}b", prose=False), hex(code)


def test_control_the_list_of_before_lets_characters_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible, "_UNSEEN", frozenset())
    assert not hides_text("a\u00a0b", prose=False)
    assert not hides_text("a\u3000b", prose=False)


MARKS = {
    "joiners between letters": "\u0627\u200c\u0627\u200d" * 30,
    "directions between letters": "\u0627\u200e\u0627\u200f" * 30,
    "spaces of many widths": "a\u2000\u2001\u3000" * 30,
    "selectors behind hearts": "\u2764\ufe0f\u2764\u2764\ufe0f" * 40,
}
HONEST = {
    "Persian": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u0646\u0645\u06cc\u200c\u0631\u0648\u0645 " * 20,
    "families": "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 of four, \U0001f469\u200d\U0001f4bb",
    "hearts": "\u26a0\ufe0f Deletes! \u2764\ufe0f",
    "spaces": "10\u202f000\u00a0kg, \u3000 wide",
}


@pytest.mark.parametrize(
    ("text", "hidden"), [*((one, True) for one in MARKS.values()), *((one, False) for one in HONEST.values())]
)
def test_marks_that_a_script_needs_are_few(text: str, hidden: bool) -> None:
    """Each mark stands where it may; hundreds of them spell a text that no person sees."""
    assert hides_text(text) is hidden


@pytest.mark.parametrize("member", ["metadata", "annotations"])
def test_no_hidden_text_is_in_another_member(member: str) -> None:
    """The control: the same text without the character."""
    definition = {"name": "a", "description": "d", "parameters": {"type": "object", "properties": {}}}
    for character in ("\u200b", "\ufff0", ""):
        for value in (f"Sea{character}rch", [{"deep": f"Sea{character}rch"}], {f"Sea{character}rch": 1}):
            assert safe_validate_tool_definitions([definition | {member: {"x": value}}])["success"] is (not character)


@pytest.mark.parametrize(
    ("schema", "fine"),
    [
        ({"properties": {"Amount": {}, "amount": {}}}, False),
        ({"properties": {"a": {"properties": {"Stra\u00dfe": {}, "STRASSE": {}}}}}, False),
        ({"properties": {"a": {"enum": ["m", "M"]}}}, True),
        ({"properties": {"a": {"enum": ["yes", "\uff59\uff45\uff53"]}}}, False),
        ({"properties": {"amount": {}, "amounts": {}, "a": {"enum": ["Yes", "No", 1, True, None]}}}, True),
    ],
)
def test_properties_that_differ_in_case_and_values_that_look_the_same_are_refused(
    schema: dict[str, Any], fine: bool
) -> None:
    definition = {"name": "a", "description": "d", "parameters": {"type": "object", **schema}}
    assert safe_validate_tool_definitions([definition])["success"] is fine


def test_control_names_that_are_compared_as_they_are_may_differ_in_case_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "folded", lambda name: name)
    schema = {"type": "object", "properties": {"Amount": {}, "amount": {}}}
    assert safe_validate_tool_definitions([{"name": "a", "description": "d", "parameters": schema}])["success"]


def test_names_that_differ_in_case_only_are_duplicates() -> None:
    one = {"name": "Search", "description": "d", "parameters": {"type": "object", "properties": {}}}
    assert not safe_validate_tool_definitions([one, one | {"name": "search"}])["success"]
    assert safe_validate_tool_definitions([one, one | {"name": "research"}])["success"]

    @tool(effect="read")
    def search() -> int:
        """Search."""
        return 1

    gate = Gate([search], allow_unguarded=True, effects=Effects(durable=False))
    with pytest.raises(DefinitionError, match="names that are taken"):
        client_tools.refuse_duplicates(gate, [one])
    client_tools.refuse_duplicates(gate, [one | {"name": "research"}])
