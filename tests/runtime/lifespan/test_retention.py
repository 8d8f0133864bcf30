"""Old rows go by themselves: after the stated time, in batches, with their number in the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from callgate import Approve, Effects, Jobs, Suspensions
from callgate.errors import RegistrationError
from callgate.jobs import EmbeddedJobs
from callgate.providers.logs import configure_logging
from callgate.providers.stores.effects import PRUNE_BATCH
from callgate.runtime.lifespan import background
from callgate.runtime.lifespan.background import prune_all, prune_and_log
from callgate.runtime.options.gate import KEPT
from callgate.stores import JobState
from callgate.testing import FakeClock
from tests.runtime.effects.scene_desk import ANN, BOB, LEAD, Desk, asked, call, gate_of

EVERY_STORE = pytest.mark.parametrize("store", ["memory://", "sqlite://"])


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    configure_logging(found.append, level="DEBUG")
    yield found
    configure_logging()


def pruned(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(one["rows"], one["number"]) for one in events if one["event"] == "rows.pruned"]


@EVERY_STORE
async def test_what_has_ended_goes_after_its_time_and_what_is_open_stays(
    store: str, events: list[dict[str, Any]]
) -> None:
    """Issue 16 A8."""
    desk, clock = Desk(), FakeClock()
    tools = [desk.tool(), desk.tool("ask", requires_approval=LEAD)]
    options: dict[str, Any] = {
        "effects": Effects(durable=False, keep=100.0),
        "suspensions": Suspensions(keep=200.0),
        "jobs": Jobs(engine=EmbeddedJobs(0), keep=300.0),
        "durable": False,
    }
    async with gate_of(tools, store=store, clock=clock, **options) as gate:
        await gate.call(call(), user=ANN, idempotency_key="k")
        await gate.resume(await asked(gate, wanted=call(tool="ask")), Approve(), approver=BOB)
        waiting = await asked(gate, wanted=call(tool="ask"))
        await gate.submit(call(), user=ANN)
        await gate.submit(call(), user=ANN)
        await gate.jobs.run_invocation()
        for seconds in (99.0, 2.0, 100.0, 100.0):
            clock.advance(seconds)
            await gate.maintain()
        assert pruned(events) == [("effects", 3), ("suspensions", 1), ("jobs", 1)]
        assert [one.handle for one in await gate.waits.pending(BOB)] == [waiting]
        assert (await gate.store.jobs.count())[JobState.QUEUED] == 1


@EVERY_STORE
async def test_a_tool_that_answers_repeats_for_longer_keeps_its_receipts(
    store: str, events: list[dict[str, Any]]
) -> None:
    desk, clock = Desk(), FakeClock()
    tools = [desk.tool(effect="irreversible", dedupe="arguments", within=500.0)]
    keep = Effects(durable=False, keep=100.0)
    async with gate_of(tools, store=store, clock=clock, effects=keep) as gate:
        for seconds in (400.0, 200.0):
            await gate.call(call(), user=ANN, idempotency_key="k")
            clock.advance(seconds)
            await gate.maintain()
            assert pruned(events) == ([] if seconds == 400.0 else [("effects", 1)])
        assert desk.paid == [5]


@EVERY_STORE
async def test_none_keeps_all(store: str, events: list[dict[str, Any]]) -> None:
    desk, clock = Desk(), FakeClock()
    for keep, found in ((None, []), (KEPT, [("effects", 1)])):
        async with gate_of(desk.tool(), store=store, clock=clock, effects=Effects(durable=False, keep=keep)) as gate:
            await gate.call(call(), user=ANN)
            clock.advance(KEPT + 1.0)
            await gate.maintain()
            assert pruned(events) == found


async def test_no_time_is_zero_or_less() -> None:
    for options in (Effects, Suspensions, Jobs):
        with pytest.raises(RegistrationError, match="keep"):
            options(keep=0.0)


class Rows:
    """A table of so many old rows."""

    def __init__(self, number: int) -> None:
        self.left, self.batches = number, list[int]()

    async def prune(self, before: float) -> int:
        self.batches.append(min(self.left, PRUNE_BATCH))
        self.left -= self.batches[-1]
        return self.batches[-1]


async def test_a_large_table_is_pruned_in_batches_with_progress(
    monkeypatch: pytest.MonkeyPatch, events: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(background, "_REPORT_EVERY", 2)
    rows = Rows(3 * PRUNE_BATCH + 1)
    await prune_and_log("jobs", rows.prune, 1.0)
    assert rows.batches == [PRUNE_BATCH] * 3 + [1]
    told = [(one["number"], one["done"]) for one in events if one["event"] == "rows.pruned"]
    assert told == [(2 * PRUNE_BATCH, False), (3 * PRUNE_BATCH + 1, True)]
    assert await prune_all(Rows(0).prune, 1.0, print) == 0


@pytest.mark.parametrize("store", ["memory://", "sqlite://"])
async def test_an_effect_without_a_key_keeps_no_output(store: str) -> None:
    """Issue 16 A8: no repeat can ask for it."""
    desk = Desk()
    async with gate_of(desk.tool(), store=store) as gate:
        await gate.invoke("pay", {"cents": 5}, user=ANN)
        await gate.invoke("pay", {"cents": 5}, user=ANN, idempotency_key="k")
        receipts = {effect.idempotency_key: effect.receipt for _, effect in await gate.store.effects.list(None)}
        assert receipts[None] is None
        assert b"paid 2" in (receipts["k"] or b"")
