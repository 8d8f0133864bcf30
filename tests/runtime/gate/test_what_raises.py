"""``gate.call`` raises nothing but a cancellation and a closed gate; ``gate.invoke`` raises when it is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from callgate import Gate, Hook, InvokeContext, Provide, ToolCall, UnknownTool, User, tool
from callgate.errors import GateClosed, ProviderError
from callgate.tools.calls import Outcome
from tests.runtime.gate.making import Seeing, call, double, gate_of, made


@tool(effect="read")
async def stranger(n: int) -> int:
    """A tool of another gate."""
    return n


@tool(effect="read")
async def needs_nothing_given(*, it: Annotated[str, Provide["nothing"]]) -> str:
    """A tool whose provider is missing."""
    return it


class Binds(Hook):
    """Binds a provider for one tool."""

    binds = ("it",)

    def will_bind_providers(self, ctx: InvokeContext) -> dict[str, str]:
        return {"it": "bound"}


class NeedsWhatAToolBinds(Hook):
    """A shared hook that runs only where a tool binds what it needs."""

    def __init__(self, it: Annotated[str, Provide["it"]]) -> None:
        assert it == "bound"

    def will_authorize(self, ctx: InvokeContext) -> None: ...


class Unhashable:
    """A value that no dict takes."""

    __hash__ = None  # type: ignore[assignment]


def broken(_ctx: Any) -> list[Any]:
    raise TypeError("secret of the host")


MISTAKES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "no tool": ((5,), {}),
    "a mapping": (({"name": "work"},), {}),
    "an unhashable value": ((Unhashable(),), {}),
    "an unknown name": (("wrok", {"n": 1}), {}),
    "a tool of another gate": ((stranger, {"n": 1}), {}),
    "a call and arguments": ((call(), {"n": 1}), {}),
    "another user": (("work", {"n": 1}), {"user": "ann"}),
    "another user of a call": ((call(),), {"user": None}),
    "an unknown option": (("work", {"n": 1}), {"deadlin": 3}),
    "a deadline of another type": (("work", {"n": 1}), {"deadline": "soon"}),
    "a name of another type": ((ToolCall(name=5),), {}),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_call_returns_a_result_for_every_mistake(mistake: str) -> None:
    given, options = MISTAKES[mistake]
    seeing = Seeing()
    async with gate_of([made(double)], seeing) as gate:
        result = await gate.call(*given, **options)
    assert result.outcome is Outcome.INVALID
    assert [outcome for outcome, _ in seeing.audited] == ["invalid"]


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_invoke_raises_only_when_it_is_awaited(mistake: str) -> None:
    given, options = MISTAKES[mistake]
    async with gate_of([made(double)]) as gate:
        running = gate.invoke(*given, **options)
        with pytest.raises((TypeError, UnknownTool)):
            await running


@pytest.mark.parametrize("given", [("wrok", {}), (ToolCall(name="wrok"),), (stranger, {"n": 1})])
async def test_invoke_records_a_call_of_an_unknown_tool_as_call_does(given: Any) -> None:
    seeing = Seeing()
    async with gate_of([made(double)], seeing) as gate:
        with pytest.raises(UnknownTool) as raised:
            await gate.invoke(*given, request_id="r1")
        assert (await gate.call(*given, request_id="r1")).outcome is Outcome.INVALID
    assert raised.value.correlation_id == "r1"
    assert [outcome for outcome, _ in seeing.audited] == ["invalid", "invalid"]


async def test_a_failing_trace_of_the_host_is_a_result_without_its_text() -> None:
    async with gate_of([made(double)]) as gate:
        result = await gate.call("work", {"n": 1}, trace=broken)
    assert result.error is not None
    assert (result.error.code, "secret" in str(result)) == ("bad_call", False)


async def test_the_result_of_a_mistake_has_the_line_to_write() -> None:
    async with gate_of([made(double)]) as gate:
        result = await gate.call("work", {"n": 1}, user="ann")  # type: ignore[arg-type]
    assert result.error is not None
    assert 'write user=User("ann")' in result.error.public


async def test_a_plan_that_is_refused_at_its_first_call_is_a_result() -> None:
    async with gate_of([needs_nothing_given], lazy=True) as gate:
        result = await gate.call("needs_nothing_given")
        running = gate.invoke("needs_nothing_given")
        with pytest.raises(ProviderError):
            await running
        job = await gate.jobs.runner._calls.make(ToolCall(name="needs_nothing_given"), User("u"), {}, "j1")
    for one in (result, job):
        assert one.error is not None
        assert (one.outcome, one.error.code) == (Outcome.ERROR, "provider")


async def test_a_hook_that_only_some_tools_can_supply_makes_no_unknown_tool_raise() -> None:
    seeing = Seeing()
    record = made(double, hooks=[Binds()])
    async with gate_of([record], seeing, NeedsWhatAToolBinds) as gate:
        assert await gate.invoke("work", {"n": 1}) == 2
        assert (await gate.call("wrok")).outcome is Outcome.INVALID
    assert [outcome for outcome, _ in seeing.audited] == ["success", "invalid"]


@pytest.mark.parametrize("make", [lambda gate: gate.call("work", {"n": 1}), lambda gate: gate.invoke("work", {"n": 1})])
async def test_a_closed_gate_is_the_one_refusal_that_both_raise(make: Callable[[Gate], Any]) -> None:
    gate = gate_of([made(double)])
    with pytest.raises(GateClosed):
        await make(gate)
    async with gate:
        early = make(gate)
    with pytest.raises(GateClosed):  # made while the gate was open, awaited afterwards
        await early


async def test_a_cancelled_call_raises_its_cancellation() -> None:
    async def waits(n: int) -> int:
        await asyncio.Event().wait()
        return n

    async with gate_of([made(waits)]) as gate:
        running = asyncio.ensure_future(gate.call("work", {"n": 1}, user=User("u")))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
