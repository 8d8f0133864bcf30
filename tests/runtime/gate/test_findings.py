"""What a gate reports about its tools and hooks when it opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from callgate import Effects, Gate, Hook, InvokeContext, Options, ToolContext, configure_logging, tool
from tests.hooks.making import record


@tool(effect="read", tags={"shop"})
async def look(what: str) -> str:
    """Look."""
    return what


@tool(effect="read")
async def undescribed(what: str) -> str:
    return what


@tool(effect="read")
async def untyped(what, how: Any, rest: list[Any]) -> str:  # type: ignore[no-untyped-def]  # the mistake itself
    """Look."""
    return f"{what} {how} {rest}"


@tool(effect="irreversible")
async def pay(cents: int) -> None:
    """Pay."""


@tool(effect="read")
async def hidden_payment(ctx: ToolContext) -> Any:
    """Look, and pay."""
    return await ctx.call("pay", {"cents": 1})


class Watch(Hook):
    def will_execute(self, ctx: InvokeContext) -> None:
        """Watch."""


class OfTool(Watch):
    tools = ("look", "lok")


class OfTag(Watch):
    tags = ("shop", "shp")


def using(**selectors: Any) -> Gate:
    gate = Gate([look])
    gate.use(Watch(), **selectors)
    return gate


FINDINGS: dict[str, tuple[Callable[[], Gate], set[tuple[str, str, str]]]] = {
    "a hook for a tool that is not there": (
        lambda: Gate([look], [OfTool()]),
        {("unknown_selector", "*", "OfTool")},
    ),
    **{
        f"gate.use with {what}={none}": (partial(using, **{what: none}), {("unknown_selector", "*", "Watch")})
        for what, none in (("tools", ()), ("tags", ()), ("tenants", ()), ("tenants", ("",)))
    },
    "a hook for a tag that no tool has": (lambda: Gate([look], [OfTag()]), {("unknown_selector", "*", "OfTag")}),
    "gate.use for a tool that is not there": (lambda: using(tools={"lok"}), {("unknown_selector", "*", "Watch")}),
    "gate.use for a tag that no tool has": (lambda: using(tags={"shp"}), {("unknown_selector", "*", "Watch")}),
    "a tool's own hook for another tool": (
        lambda: Gate([look, record(hooks=[OfTool()])]),
        {("unknown_selector", "double", "OfTool")},
    ),
    "a tool without a description": (lambda: Gate([undescribed]), {("no_description", "undescribed", "tool")}),
    "parameters without a type": (
        lambda: Gate([untyped]),
        {("no_type", "untyped", "parameter 'what'"), ("no_type", "untyped", "parameter 'how'")},
    ),
    "an irreversible tool without a key": (
        lambda: Gate([pay], allow_unguarded=True, effects=Effects(durable=False)),
        {("irreversible_without_key", "pay", "tool")},
    ),
    "a read tool that calls an effect": (
        lambda: Gate([pay, hidden_payment], allow_unguarded=True, effects=Effects(durable=False)),
        {("irreversible_without_key", "pay", "tool"), ("read_calls_effect", "hidden_payment", "tool")},
    ),
    "nothing": (lambda: Gate([look], [Watch()]), set()),
    "selectors that name something": (lambda: using(tools={"look"}, tags={"shop"}), set()),
}


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    configure_logging(found.append, level="WARNING")
    yield found
    configure_logging()


def logged(events: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return the findings in the log; a warning about a definition is logged when its tool is added."""
    found = [(one["rule"], one["tool"], one["hook"]) for one in events if one["event"] == "lint.found"]
    return found + [("no_description", one["tool"], "tool") for one in events if one["event"] == "definition.warning"]


@pytest.mark.parametrize("mistake", FINDINGS)
async def test_a_gate_logs_each_finding_once_when_it_opens(mistake: str, events: list[dict[str, Any]]) -> None:
    make, expected = FINDINGS[mistake]
    async with make() as gate:
        assert {(one.rule, one.tool, one.hook) for one in gate.lint()} == expected
    assert sorted(logged(events)) == sorted(expected)


async def test_development_mode_prints_the_findings_about_hooks_too(capsys: pytest.CaptureFixture[str]) -> None:
    async with Gate([look], [OfTool()], mode="development"):
        pass
    assert (
        "lint unknown_selector: *: OfTool: no tool has tools={'lok'}; did you mean 'look'?" in capsys.readouterr().err
    )


async def test_a_finding_is_no_reason_to_compile_the_plans_of_a_lazy_gate(events: list[dict[str, Any]]) -> None:
    async with Gate([look], [OfTool()], options=Options(lazy=True)):
        pass
    assert logged(events) == []
