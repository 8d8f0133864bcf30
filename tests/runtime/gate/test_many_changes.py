"""A change of the tools of an open gate visits the tools that change, however many others there are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import pytest

from callgate import Effects, Gate, Hook, InvokeContext, ToolRecord
from callgate.errors import HookError
from callgate.hooks import Authorize, forbid, permit
from callgate.tools.definition import Effect, ToolDefinition

SIZES = (40, 320)
ALL = Authorize(permit("all"))
Change = Callable[[Gate, int], Any]


def record(number: int, **more: Any) -> ToolRecord:
    definition = ToolDefinition(f"t{number:04}", "Do.", {"type": "object"}, effect=Effect.READ)
    return ToolRecord(definition, lambda _arguments, _ctx: number, is_async=False, inline=True, **more)


class Watches(Hook):
    """Checks the tools; *reads* visits each of them."""

    def __init__(self, *, reads: bool) -> None:
        self.reads, self.told = reads, 0

    def check_tools(self, definitions: Iterable[ToolDefinition]) -> None:
        """Count the calls."""
        self.told += 1
        if self.reads:
            for _ in definitions:
                pass

    def will_authorize(self, ctx: InvokeContext) -> None:
        """Permit."""


class Permits(Hook):
    """Checks no tools."""

    def will_authorize(self, ctx: InvokeContext) -> None:
        """Permit."""


def lines_of(work: Callable[[], object]) -> int:
    """The lines of code that run, each as often as it does: a loop in a comprehension counts, too."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


async def lines_by_size(change: Change, shared: Iterable[Any], **more: Any) -> list[int]:
    found = list[int]()
    for size in SIZES:
        tools = [record(number, **more) for number in range(size)]
        async with Gate(tools, list(shared), effects=Effects(durable=False)) as gate:
            change(gate, size)  # what is looked up at the first change, and what loads then
            found.append(lines_of(lambda gate=gate, size=size: change(gate, size + 10)))  # type: ignore[misc]
    return found


def add(gate: Gate, number: int) -> None:
    gate.add(record(number))


def replace(gate: Gate, _number: int) -> None:
    gate.add(record(7), replace=True)


def remove(gate: Gate, number: int) -> None:
    gate.remove(f"t{number % 30:04}")


def exchange(gate: Gate, number: int) -> None:
    gate.exchange([record(number), record(number + 1)], [f"t{number % 30:04}"])


CHANGES: dict[str, Change] = {"add": add, "replace": replace, "remove": remove, "exchange": exchange}
RULES = Authorize(permit("all"), forbid("some", tools={"t0031", "t0032"}))


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("hooks", [[ALL], [RULES], [ALL, Watches(reads=False)]], ids=["rule", "names", "checks"])
async def test_a_change_visits_no_other_tool(name: str, hooks: list[Any]) -> None:
    """Eight times as many tools, and not a line more."""
    few, many = await lines_by_size(CHANGES[name], hooks)
    assert many <= few + 5


async def test_hooks_that_tools_bring_are_not_looked_for_at_each_change() -> None:
    """Only those with ``check_tools`` are told of it, so only their number counts."""
    few, many = await lines_by_size(add, [ALL], hooks=[Permits()])
    assert many <= few + 5


@pytest.mark.parametrize("name", CHANGES)
async def test_the_control_counts_a_visit_of_each_tool(name: str) -> None:
    """A hook that reads all definitions is seen, so the count would see a loop of the gate."""
    few, many = await lines_by_size(CHANGES[name], [ALL, Watches(reads=True)])
    assert many > few + 2 * (SIZES[1] - SIZES[0]) - 50


async def test_a_hook_that_a_tool_brings_is_told_of_every_later_change() -> None:
    """Also one that came with a later tool, and no longer once its tool has gone."""
    first, later = Watches(reads=True), Watches(reads=True)
    async with Gate([record(1, hooks=[first])], [ALL]) as gate:
        told = first.told
        gate.add(record(2, hooks=[later]))
        assert (first.told, later.told) == (told + 1, 1)
        gate.add(record(3))
        gate.add(record(1), replace=True)
        assert later.told == 3
        gate.add(record(4))
        assert (first.told, later.told) == (told + 2, 4)
        gate.remove("t0002")
        gate.add(record(5))
        assert later.told == 4


class Refuses(Watches):
    """Refuses a third tool."""

    def check_tools(self, definitions: Iterable[ToolDefinition]) -> None:
        """Count, then refuse."""
        super().check_tools(definitions)
        if len(list(definitions)) > 2:
            raise HookError("two tools, and no more")


async def test_a_change_that_is_refused_leaves_no_hook_of_its_tools() -> None:
    """The next change tells the hooks that are there."""
    mine, refused = Watches(reads=True), Watches(reads=True)
    async with Gate([record(1), record(2, hooks=[mine])], [ALL, Refuses(reads=True)]) as gate:
        with pytest.raises(HookError, match="no more"):
            gate.add(record(3, hooks=[refused]))
        told = mine.told, refused.told
        gate.exchange([record(4)], ["t0001"])
        assert (mine.told, refused.told) == (told[0] + 1, told[1])
