"""Rules about tools that come at run time: ``Options(dynamic_tools=True)``."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from callgate import Gate, Options, Outcome, ToolDefinition, ToolRecord, User, tool
from callgate.errors import CallgateError, HookError
from callgate.hooks import Authorize, forbid, permit

CLERK, OTHER = User("ann", roles={"clerk"}), User("eve")
RULES = (permit("clerks", roles={"clerk"}, tools={"late"}), forbid("never", tools={"later"}))


@tool(effect="read")
async def late() -> int:
    """Come late."""
    return 1


@tool(effect="read")
async def later() -> int:
    """Come later."""
    return 2


async def test_a_rule_that_names_no_tool_is_refused_unless_tools_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    """It holds as soon as its tool comes; until then it is logged, once."""
    with pytest.raises(HookError, match="there is no tool"):
        await Gate([], [Authorize(*RULES)]).open()
    gate = Gate([], [Authorize(*RULES, permit("all"))], options=Options(dynamic_tools=True))
    async with gate:
        assert caplog.text.count("it may come later") == 1
        gate.add(late)
        gate.add(later)
        assert (await gate.call("late", user=CLERK)).ok
        assert (await gate.call("later", user=CLERK)).outcome is Outcome.DENIED
        gate.remove("late")
        gate.remove("later")
        assert caplog.text.count("it may come later") == 1


async def test_a_permit_for_a_tool_that_comes_later_permits_no_one_else() -> None:
    """The rule is the same before and after."""
    async with Gate([], [Authorize(RULES[0])], options=Options(dynamic_tools=True)) as gate:
        gate.add(late)
        assert (await gate.call("late", user=CLERK)).ok
        assert (await gate.call("late", user=OTHER)).outcome is Outcome.DENIED


async def test_the_gate_says_when_its_tools_change() -> None:
    """For hosts that keep a list."""
    seen: list[tuple[str, ...]] = []
    async with Gate([], [Authorize(permit("all"))], options=Options(dynamic_tools=True)) as gate:
        stop = gate.on_tools_changed(lambda: seen.append(gate.registry.names))
        gate.add(late)
        gate.remove("late")
        stop()
        gate.add(later)
    assert seen == [("late",), ()]


def numbered(*numbers: int, effect: Any = "read") -> list[ToolRecord]:
    """Tools ``t0``, ``t1``, ... that return their numbers."""

    def made(number: int) -> ToolRecord:
        definition = ToolDefinition(f"t{number}", "Return a number.", {"type": "object"}, effect=effect)
        return ToolRecord(definition, lambda _arguments, _ctx: number, is_async=False, inline=True)

    return [made(number) for number in numbers]


async def test_an_exchange_is_seen_whole_or_not_at_all() -> None:
    """By other threads, by lists and by calls; the new tools have their own plans."""
    first, second = [f"t{n}" for n in range(50)], [f"t{n}" for n in range(50, 100)]
    async with Gate(numbered(*range(50)), [Authorize(permit("all"))]) as gate:
        seen, stop = set[tuple[str, ...]](), threading.Event()

        def watch() -> None:
            while not stop.is_set():
                seen.add(gate.registry.names)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            for _ in range(50):
                gate.exchange(numbered(*range(50, 100)), first)
                assert (await gate.call("t50", user=CLERK)).output == 50
                assert gate.registry.names == tuple(second)
                gate.exchange(numbered(*range(50)), second)
                assert (await gate.call("t0", user=CLERK)).output == 0
        finally:
            stop.set()
            watching.join()
        assert seen <= {tuple(first), tuple(second)}


async def test_an_exchange_that_is_refused_changes_nothing() -> None:
    """A duplicate, an unknown name, and a tool that the open gate refuses; in each case all tools are as before."""
    async with Gate(numbered(0, 1), [Authorize(permit("some", tools={"t0"}))]) as gate:
        cases: list[tuple[list[ToolRecord], list[str]]] = [
            (numbered(2, 1), []),
            (numbered(2, 2), []),
            (numbered(2), ["nosuch"]),
            (numbered(2, effect="irreversible"), ["t1"]),
            (numbered(2), ["t0"]),
        ]
        for add, remove in cases:
            with pytest.raises(CallgateError):
                gate.exchange(add, remove)
            assert gate.registry.names == ("t0", "t1")
        assert gate.exchange(numbered(1, 2), replace=True)
        assert gate.registry.names == ("t0", "t1", "t2")
        assert [one.id for one in gate.exchange(numbered(0), ["t0"])] == ["t0"]
