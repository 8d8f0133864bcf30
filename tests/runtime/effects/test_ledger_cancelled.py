"""Calls with an effect, cancelled or overrun at every point: their claims are settled, and as they should be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from callgate import Approve, Hook, InvokeContext, ToolCall, ToolContext, tool
from callgate.hooks import Audit
from callgate.providers.stores.effects import OPEN_STATES, EffectRecord, EffectState
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.effects.steps import EffectSteps
from callgate.testing import FAR, LeaseLedger, SweepFailed
from tests.harness.sweeps import swept
from tests.runtime.effects.scene_desk import ANN, BOB, LEAD, call, gate_of

# ---------------------------------------------------------------------- cancellation at every point


class Books:
    """What a cancelled run has left: the sweep asks it at every point."""

    def __init__(self, ledger: LeaseLedger) -> None:
        self.store = MemoryStore()
        self.began = self.done = 0
        ledger.watch("open effects", self.open)
        ledger.watch("effects that are not what they ought to be", self.wrong)

    def effects(self) -> list[EffectRecord]:
        return [*self.store.effects._live.values(), *(end.effect for end in self.store.effects._ended.values())]

    def open(self) -> int:
        return sum(effect.state in OPEN_STATES for effect in self.store.effects._live.values())

    def wrong(self) -> int:
        """A body that ended is committed; of one that began and did not, nobody knows; without one there is no effect."""
        ends = [end.state for end in self.store.effects._ended.values()]
        unknown = sum(effect.state is EffectState.UNKNOWN for effect in self.store.effects._live.values())
        return int((ends.count(EffectState.COMMITTED), unknown) != (self.done, self.began - self.done))

    def tool(self, **options: Any) -> Any:
        @tool(effect="irreversible", **options)
        async def pay(cents: int, ctx: ToolContext) -> str:
            """Pay."""
            self.began += 1
            await asyncio.sleep(0.01)
            self.done += 1
            return "paid"

        return pay


class Rests(Hook):
    """Waits a little at stages on both sides of the claim."""

    async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0.01)

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0.01)

    async def will_execute(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0.01)

    async def did_execute(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0.01)

    async def will_audit(self, ctx: InvokeContext) -> None:
        await asyncio.sleep(0.01)


Scene = Callable[[LeaseLedger], Any]


def one_call(*hooks: Any, **options: Any) -> Scene:
    async def scene(ledger: LeaseLedger) -> Any:
        books = Books(ledger)
        async with gate_of(books.tool(), [make() for make in hooks], store=books.store) as gate:
            return await gate.invoke("pay", {"cents": 5}, user=ANN, idempotency_key="k", **options)

    return scene


async def two_calls(ledger: LeaseLedger) -> Any:
    """The second waits for the first, which is not cancelled with it."""
    books = Books(ledger)
    async with gate_of(books.tool(), store=books.store) as gate:
        told = await asyncio.gather(*(gate.call(call(), user=ANN, idempotency_key="k") for _ in range(2)))
        return [result.outcome for result in told]


async def nested_calls(ledger: LeaseLedger) -> Any:
    books = Books(ledger)

    @tool(effect="read")
    async def outer(ctx: ToolContext) -> str:
        """Call another."""
        return str(await ctx.call("pay", {"cents": 5}))

    async with gate_of([outer, books.tool()], store=books.store) as gate:
        return (await gate.call(ToolCall(id="c", name="outer", arguments={}), user=ANN)).outcome


async def an_approved_call(ledger: LeaseLedger) -> Any:
    books = Books(ledger)
    async with gate_of(books.tool(requires_approval=LEAD), [Rests()], store=books.store) as gate:
        waiting = await gate.call(call(), user=ANN, idempotency_key="k")
        done = await gate.resume(waiting.pending.handle, Approve(), approver=BOB)
        return waiting.outcome, done.outcome


SCENES: dict[str, Scene] = {
    "a call": one_call(),
    "with hooks": one_call(Rests),
    "with audit rows": one_call(Rests, Audit),
    "two of one key": two_calls,
    "a nested call": nested_calls,
    "an approved call": an_approved_call,
}


@swept
@pytest.mark.parametrize("name", SCENES)
def test_wherever_a_call_is_cancelled_its_claim_is_settled_as_it_returns(
    name: str, sweep: dict[str, Any], every_cancel_point: Callable[..., Any]
) -> None:
    """I1, I4, I13: never left running, and never said to have had no effect when it may have had one."""
    report = every_cancel_point(SCENES[name], **sweep)
    assert report.points > 30


@swept
@pytest.mark.parametrize("hooks", [(), (Rests,), (Rests, Audit)], ids=["alone", "with hooks", "with audit rows"])
def test_wherever_a_deadline_passes_the_claim_is_settled_as_the_call_returns(
    hooks: Any, sweep: dict[str, Any], every_cancel_point: Callable[..., Any]
) -> None:
    """I1, I4, I12."""
    scenario = one_call(*hooks, deadline=FAR)
    assert every_cancel_point(scenario, deadline=True, pairs=sweep["pairs"]).points > 5


@pytest.mark.parametrize("sabotage", ["forgets", "guesses"])
def test_a_ledger_that_forgets_a_claim_or_guesses_how_it_ended_is_found_out(
    sabotage: str, every_cancel_point: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the two tests above."""
    real = EffectSteps._outcome

    def guessed(self: EffectSteps, ctx: Any, claim: Any) -> Any:
        outcome = real(self, ctx, claim)
        return outcome._replace(state=EffectState.NO_EFFECT) if outcome.state is EffectState.UNKNOWN else outcome

    def forgotten(self: EffectSteps, ctx: Any) -> None:
        if ctx.error is None:
            real_end(self, ctx)

    real_end = EffectSteps.end_now
    if sabotage == "forgets":
        monkeypatch.setattr(EffectSteps, "end_now", forgotten)
    else:
        monkeypatch.setattr(EffectSteps, "_outcome", guessed)
    with pytest.raises(SweepFailed):
        every_cancel_point(one_call())
