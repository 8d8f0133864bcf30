"""Rules about tools that come at run time: ``Options(dynamic_tools=True)``."""

from __future__ import annotations

import pytest

from callgate import Gate, Options, Outcome, User, tool
from callgate.errors import HookError
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
