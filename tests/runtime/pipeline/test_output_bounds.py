"""Outputs have a limit of size and of depth on every way, the same on all versions of Python."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, Options, ToolCall, ToolContext, tool
from callgate.runtime.pipeline import bodies
from callgate.tools.limits import Limits
from callgate.tools.values import deeper_than, plain_json

LIMITS = Limits(max_output_bytes=1_000, max_output_depth=10, max_depth=10)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


async def result_of(function: Any, hooks: Any = (), **limits: Any) -> Any:
    made = tool(effect="read")(function)
    async with Gate([made], hooks, options=Options(limits=Limits(**limits) if limits else LIMITS)) as gate:
        return await gate.call(ToolCall(id="c", name=function.__name__, arguments={}))


async def produced(size: int) -> tuple[Any, int, bool]:
    """Return the result of a generator of many parts of *size* bytes, how many it made, and whether it was closed."""
    made, closed = 0, False

    async def produces() -> AsyncIterator[str]:
        """Produce without end."""
        nonlocal made, closed
        try:
            while made < 100_000:
                made += 1
                yield "x" * size
        finally:
            closed = True

    result = await result_of(produces)
    return result, made, closed


@pytest.mark.parametrize("size", [0, 1, 100, 998])
async def test_a_generator_is_closed_at_the_part_that_exceeds_the_limit(size: int) -> None:
    result, made, closed = await produced(size)
    assert result.error.code == "output_too_large"
    assert made <= 1 + 1_000 // (size + 3)
    assert closed


async def test_the_probe_finds_a_generator_that_is_collected_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""

    async def collects(ctx: Any, call: Any) -> list[Any]:
        return [part async for part in call()]

    monkeypatch.setattr(bodies, "_drain", collects)
    _, made, _ = await produced(100)
    assert made == 100_000


@pytest.mark.parametrize("levels", [11, 150, 300, 990, 5_000, 100_000])
async def test_an_output_that_nests_too_deep_is_refused_alike_at_every_depth(levels: int) -> None:
    async def nests() -> Any:
        """Nest."""
        return nested(levels)

    result = await result_of(nests)
    assert result.error.code == "output_too_deep"
    assert str(levels) not in result.error.public


@pytest.mark.parametrize(
    "value", [cyclic, lambda: {"big": 2**80, "x": nested(11)}, lambda: [nested(6), {"a": nested(9)}]]
)
async def test_a_cycle_and_a_deep_part_of_an_output_are_refused(value: Any) -> None:
    async def nests() -> Any:
        """Nest."""
        return value()

    assert (await result_of(nests)).error.code == "output_too_deep"


async def test_an_output_at_the_limit_passes() -> None:
    async def nests() -> Any:
        """Nest."""
        return nested(10)

    assert (await result_of(nests)).output == nested(10)


@pytest.mark.parametrize("way", ["responds", "sends", "yields", "hook", "hook unvalidated", "cache"])
@pytest.mark.parametrize("fault", ["deep", "large"])
async def test_every_way_to_an_output_has_the_limits(way: str, fault: str) -> None:
    value = nested(11) if fault == "deep" else "x" * 1_001

    async def responds(ctx: ToolContext) -> Any:
        """Respond."""
        ctx.respond(value)

    async def sends(ctx: ToolContext) -> Any:
        """Send."""
        await ctx.send(value)
        return 1

    async def yields() -> AsyncIterator[Any]:
        """Yield."""
        yield value

    async def fine() -> Any:
        """Work."""
        return 1

    class Responds(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None:
            ctx.respond(value, validate=way == "hook")

    class Hits(Hook):
        def will_read_cache(self, ctx: InvokeContext) -> None:
            ctx.respond(value)

    hooks: Any = {"hook": [Responds()], "hook unvalidated": [Responds()], "cache": [Hits()]}.get(way, [])
    function: Any = {"responds": responds, "sends": sends, "yields": yields}.get(way, fine)
    made = tool(effect="read")(function)
    async with Gate([made], hooks, options=Options(limits=LIMITS)) as gate:
        events: list[Any] = [
            event async for event in gate.stream(ToolCall(id="c", name=function.__name__, arguments={}))
        ]
    error = events[-1].result.error
    assert error.code == ("output_too_deep" if fault == "deep" else "output_too_large")


async def test_arguments_that_a_hook_left_too_deep_are_refused() -> None:
    ran: list[Any] = []

    async def takes(x: list[Any] | None = None) -> int:
        """Take."""
        ran.append(x)
        return 1

    class Deepens(Hook):
        def will_normalize_input(self, ctx: InvokeContext) -> None:
            ctx.input = {"x": nested(5_000)}

    result = await result_of(takes, [Deepens()])
    assert result.error.code == "invalid_arguments"
    assert ran == []


def test_depth_is_counted_without_recursion_and_shared_parts_once() -> None:
    shared: Any = []
    for _ in range(60):
        shared = [shared, shared]
    assert not deeper_than(shared, 61)
    assert deeper_than(shared, 60)
    assert deeper_than(cyclic(), 64)
    assert not deeper_than("text", 1)


@pytest.mark.parametrize("value", [nested(11), nested(100_000), cyclic(), float("nan")])
def test_an_answer_of_a_person_has_a_limit_of_depth_as_well(value: Any) -> None:
    with pytest.raises(ValueError, match=r"nests deeper|not JSON compliant"):
        plain_json(value, 10)
    assert plain_json(nested(10), 10) == nested(10)
