"""Effects that nobody knows the end of: who may find out, and that nothing runs again meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callgate import Approve, Outcome
from callgate.errors import Invalid
from callgate.hooks import Committed, NoEffect
from callgate.providers.stores.effects import EffectRecord
from callgate.providers.stores.memory.store import MemoryStore
from callgate.runtime.effects.ledger import ASK_AT_ONCE
from callgate.testing import FakeClock, VirtualTime
from tests.runtime.effects.scene_desk import ANN, BOB, Desk, call, gate_of, states

EVERY_STORE = pytest.mark.parametrize("store", ["memory://", "sqlite://"])
COMMITTED, UNKNOWN = "committed", "unknown"


# ---------------------------------------------------------------------- what nobody knows


class Finds:
    """Finds out what became of an effect, or fails to. No hook otherwise: it needs no stage."""

    def __init__(self, *found: Any) -> None:
        self.found = list(found)
        self.asked: list[tuple[str, EffectRecord]] = []

    async def reconcile(self, tenant: str, effect: EffectRecord) -> Any:
        self.asked.append((tenant, effect))
        found = self.found[min(len(self.asked), len(self.found)) - 1]
        if isinstance(found, BaseException):
            raise found
        if found == "hangs":
            await asyncio.Event().wait()
        return found


KNOWN: list[tuple[str, list[Any], str, Outcome, list[int]]] = [
    ("it took place", [Committed("paid 7")], COMMITTED, Outcome.SUCCESS, [5]),
    ("it took place, and gave nothing", [Committed()], COMMITTED, Outcome.SUCCESS, [5]),
    ("it did not", [NoEffect()], COMMITTED, Outcome.SUCCESS, [5, 5]),
    ("it cannot say", [None], UNKNOWN, Outcome.UNKNOWN, [5]),
    ("it fails", [ConnectionError("down")], UNKNOWN, Outcome.UNKNOWN, [5]),
    ("it says nonsense", ["yes"], UNKNOWN, Outcome.UNKNOWN, [5]),
    ("it says a word that is true", [True], UNKNOWN, Outcome.UNKNOWN, [5]),
    ("it names a class", [NoEffect], UNKNOWN, Outcome.UNKNOWN, [5]),
]


@EVERY_STORE
@pytest.mark.parametrize("through", ["a repeat", "upkeep"])
@pytest.mark.parametrize(("what", "found", "state", "outcome", "paid"), KNOWN, ids=[row[0] for row in KNOWN])
async def test_a_hook_may_find_out_what_nobody_knows(
    what: str, found: list[Any], state: str, outcome: Outcome, paid: list[int], through: str, store: str
) -> None:
    """I4: never a silent second run."""
    desk, finds = Desk(), Finds(*found)
    async with gate_of(desk.tool(), [finds], store=store) as gate:
        await gate.call(call(5, how="raise"), user=ANN, idempotency_key="k")
        if through == "upkeep":
            await gate.maintain()
            assert finds.asked
        desk_says = call(5, how="raise") if paid == [5] else call(5, how="ok")
        if paid == [5, 5]:  # other arguments would be a conflict while nobody knows
            finds.found = [NoEffect()]
            await gate.maintain()
        result = await gate.call(desk_says, user=ANN, idempotency_key="k")
        assert (result.outcome, desk.paid) == (outcome, paid)
        assert await states(gate) == [state]
        if state == COMMITTED and paid == [5]:
            assert (result.output, result.replayed) == (found[0].output, True)
        tenant, effect = finds.asked[0]
        assert (tenant, effect.tool, effect.user, effect.idempotency_key) == ("acme", "pay", "ann", "k")


async def test_what_a_hook_found_is_kept_and_not_asked_again() -> None:
    """I4: one recorded outcome."""
    desk, silent, knows = Desk(), Finds(None), Finds(Committed("paid 7"), NoEffect())
    async with gate_of(desk.tool(), [silent, knows]) as gate:
        await gate.call(call(how="raise"), user=ANN, idempotency_key="k")
        for _ in range(3):
            result = await gate.call(call(how="raise"), user=ANN, idempotency_key="k")
            assert (result.output, result.replayed) == ("paid 7", True)
            await gate.maintain()
        assert (len(silent.asked), len(knows.asked), desk.paid) == (1, 1, [5])


@EVERY_STORE
async def test_every_unknown_effect_is_asked_about_in_turn_the_oldest_first(store: str) -> None:
    """Issue 16 B6: of more than a hundred, the oldest were never asked about."""
    desk, finds, clock = Desk(), Finds(None), FakeClock()
    async with gate_of(desk.tool(), [finds], store=store, clock=clock) as gate:
        for number in range(2 * ASK_AT_ONCE + 50):
            await gate.call(call(number, how="raise"), user=ANN, idempotency_key=f"k{number}")
            clock.advance(0.001)
        oldest_first = [f"k{number}" for number in range(2 * ASK_AT_ONCE + 50)]
        for first in range(0, len(oldest_first), ASK_AT_ONCE):
            finds.asked.clear()
            await gate.maintain()
            asked = [effect.idempotency_key for _, effect in finds.asked]
            assert asked == oldest_first[first : first + ASK_AT_ONCE]
        finds.asked.clear()
        await gate.maintain()
        assert [effect.idempotency_key for _, effect in finds.asked] == oldest_first[:ASK_AT_ONCE], (
            "again from the start"
        )


async def test_an_approval_that_meets_an_unknown_effect_is_not_used_up_before_it_may_run() -> None:
    """I4, I5."""
    store, desk, finds = MemoryStore(), Desk(), Finds(None, NoEffect())
    asks, runs = desk.tool(requires_approval=True), desk.tool()
    async with gate_of(asks, [finds], store=store) as gate, gate_of(runs, [finds], store=store) as older:
        waiting = await gate.call(call(how="raise"), user=ANN, request_id="r")
        await older.call(call(how="raise"), user=ANN, request_id="r")
        unknown = await gate.resume(waiting.pending.handle, Approve(), approver=BOB)
        assert (unknown.outcome, desk.paid) == (Outcome.UNKNOWN, [5])
        done = await gate.resume(waiting.pending.handle, Approve(), approver=BOB)
        assert (done.outcome, desk.paid) == (Outcome.ERROR, [5, 5]), "it ran: that it fails again is its own matter"


def test_a_hook_that_never_answers_is_not_waited_for(virtual_time: VirtualTime) -> None:
    """I4, I12."""
    desk, finds = Desk(), Finds("hangs")

    async def run() -> None:
        async with gate_of(desk.tool(), [finds], clock=virtual_time.clock) as gate:
            await gate.call(call(how="raise"), user=ANN, idempotency_key="k")
            began = virtual_time.elapsed
            result = await gate.call(call(how="raise"), user=ANN, idempotency_key="k")
            assert result.outcome is Outcome.UNKNOWN
            assert 10.0 <= virtual_time.elapsed - began < 11.0
            await gate.maintain()
            assert await states(gate) == [UNKNOWN]

    virtual_time.run(run())
    assert desk.paid == [5]


async def test_a_key_that_is_wrong_is_told_before_anything_is_claimed() -> None:
    desk = Desk()
    async with gate_of(desk.tool()) as gate:
        with pytest.raises(Invalid):
            await gate.invoke("pay", {"cents": 5}, user=ANN, idempotency_key="x" * 999)
        assert (desk.paid, await states(gate)) == ([], [])
