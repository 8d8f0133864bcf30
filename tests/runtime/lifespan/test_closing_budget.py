"""Closing a gate has a budget of its own: no exit, session or call that hangs holds it for longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

import pytest

from callgate import Hook, InvokeContext, Provide, Scoped, tool
from callgate.hooks.state.host import CLOSING
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.effects.ledger import Ledger
from callgate.runtime.lifespan.lifespan import Lifespan
from tests.harness.steploop import StepLoop, on_virtual_time
from tests.runtime.gate.making import double, gate_of, made
from tests.runtime.lifespan.test_closing import DRAIN, Desk


async def swallows() -> None:
    while True:
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            continue


EXITS: dict[str, Callable[[], Awaitable[None]]] = {"hangs": lambda: asyncio.sleep(1e9), "swallows": swallows}


async def seconds_to_close(how: str, where: str) -> tuple[float, list[str]]:
    """Close a gate of which two parts hang; return the seconds, and which other parts were closed."""
    loop, closed = asyncio.get_running_loop(), list[str]()

    async def first() -> AsyncIterator[str]:
        yield "first"
        closed.append("first")

    async def second() -> AsyncIterator[str]:
        yield "second"
        await EXITS[how]()

    async def third() -> AsyncIterator[str]:
        yield "third"
        if where == "providers":
            await EXITS[how]()
        closed.append("third")

    async def bound() -> AsyncIterator[str]:
        yield "bound"
        if where == "session":
            await EXITS[how]()
        closed.append("session")

    @tool(effect="read")
    async def uses(bound: Annotated[str, Provide["bound"]]) -> str:
        """Use an instance of the session."""
        return bound

    provide = {"first": first, "second": second, "third": third, "bound": Scoped("session", bound)}
    gate = gate_of([uses], provide=provide, closing=4.0)
    await gate.open()
    await gate.call("uses", session_id="s")
    if where == "at_close":
        gate.at_close(EXITS[how])
    began = loop.time()
    with pytest.raises(TimeoutError, match=r"^'(second|third)' did not close in time: the step took too long"):
        await gate.close()
    assert not gate.is_open
    return loop.time() - began, closed


@pytest.mark.parametrize("where", ["providers", "session", "at_close"])
@pytest.mark.parametrize("how", EXITS)
@on_virtual_time
async def test_what_hangs_holds_a_closing_gate_no_longer_than_its_budget(loop: StepLoop, how: str, where: str) -> None:
    took, closed = await seconds_to_close(how, where)
    assert 2.0 <= took <= 4.1
    assert (
        closed
        == {
            "providers": ["session", "first"],
            "session": ["third", "first"],
            "at_close": ["session", "third", "first"],
        }[where]
    )


@pytest.mark.parametrize("where", ["the store memory", "the function hangs", "the records of effects"])
@pytest.mark.parametrize("how", ["hangs", "fails"])
@on_virtual_time
async def test_the_error_of_a_closing_gate_names_the_step(
    loop: StepLoop, where: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the store, whose server does not answer."""

    async def hangs(*_: object) -> None:
        if how == "fails":
            raise ValueError("failed")
        await asyncio.sleep(1e9)

    gate = gate_of([double], closing=4.0, durable=False)
    await gate.open()
    if "function" in where:
        gate.at_close(hangs)
    elif "store" in where:
        monkeypatch.setattr(MemoryStore, "close", hangs)
    else:
        monkeypatch.setattr(Ledger, "close", hangs)
    with pytest.raises(TimeoutError if how == "hangs" else ValueError) as raised:
        await gate.close()
    assert where in "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])


@on_virtual_time
async def test_an_exit_without_a_limit_is_found(loop: StepLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""

    async def plainly(_self: Lifespan, step: Awaitable[None], _: str) -> None:
        await step

    monkeypatch.setattr(Lifespan, "_in_time", plainly)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1000):
            await seconds_to_close("hangs", "providers")


@on_virtual_time
async def test_calls_whose_records_hang_hold_a_closing_gate_no_longer_than_their_budget(loop: StepLoop) -> None:
    """After the time to drain they are cancelled; their closing has its own budget."""

    class Hangs(Hook):
        async def on_error(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(1e9)

        async def on_metrics(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(1e9)

    desk = Desk()
    desk.gate.use(Hangs())
    await desk.gate.open()
    running = asyncio.ensure_future(desk.gate.invoke("waits"))
    await desk.began.wait()
    began = loop.time()
    await desk.gate.close()
    assert running.cancelled()
    assert desk.used == [True]
    assert DRAIN <= loop.time() - began <= DRAIN + CLOSING


@on_virtual_time
async def test_a_provider_closes_though_closing_the_gate_is_cancelled_meanwhile(loop: StepLoop) -> None:
    closed: list[str] = []

    async def slow() -> AsyncIterator[str]:
        yield "slow"
        await asyncio.sleep(1)
        closed.append("slow")

    gate = gate_of([made(double)], provide={"slow": slow})
    await gate.open()
    closing = asyncio.ensure_future(gate.close())
    await asyncio.sleep(0.5)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert closed == ["slow"]
