"""The audit log in memory is a ring of a stated size, and what it keeps can be verified."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate import Gate
from callgate.errors import StoreConflict
from callgate.hooks import Audit, verify_audit
from callgate.hooks.stock.records.audit_export import export_audit
from callgate.stores import MemoryStore
from tests.hooks.stock.records.auditing import USER, a_gate, rows_of
from tests.providers.stores.audit_log import chained

ANCHOR_EVERY = 3


async def _calls(gate: Gate, count: int) -> None:
    for number in range(count):
        await gate.call("look", {"n": number}, user=USER)


def _held(store: MemoryStore) -> int:
    audit = store.audit
    return len(audit.rows) + sum(len(chain.noted) for chain in audit.noting)


@pytest.mark.parametrize("size", [1, 10, 200])
@pytest.mark.parametrize("calls", ["fewer", "as many", "more", "many more"])
@pytest.mark.parametrize("reads", [0, 1, 7])
async def test_the_newest_rows_are_kept_and_verified(size: int, calls: str, reads: int) -> None:
    """Issue 34, 6: 200,000 calls cost 1.06 kB each for ever. Rows are dropped before and after they are hashed."""
    count = {"fewer": size - 1, "as many": size, "more": size + 1, "many more": 2 * size + 5}[calls]
    store = MemoryStore(max_audit_rows=size)
    async with a_gate(Audit(anchor_every=ANCHOR_EVERY), store=store) as gate:
        for part in range(reads + 1):
            await _calls(gate, count * (part + 1) // (reads + 1) - count * part // (reads + 1))
            assert _held(store) <= size + size // 64 + 1
            assert (await verify_audit(store.audit)).ok
        report = await verify_audit(store.audit)
        kept, dropped = min(size, count), max(0, count - size)
        assert (report.rows, report.dropped) == (kept, dropped)
        assert ("rows were dropped" in str(report)) is bool(dropped)
        assert [row.number for row in await rows_of(store.audit)] == list(range(dropped + 1, count + 1))
        assert all(number > dropped for _, number, _, _ in store.audit.heads)
        assert len(store.audit._claimed) == kept
    assert (await verify_audit(store.audit)).ok


@pytest.mark.parametrize(
    "tamper",
    [
        lambda rows: rows.pop(0),
        lambda rows: rows.pop(3),
        lambda rows: rows.__setitem__(0, rows[1]),
        lambda rows: rows.__setitem__(2, (rows[2][0], chained(1, begin=rows[2][1].number, name=rows[2][1].segment)[0])),
    ],
    ids=["the oldest kept row is removed", "a row is removed", "a row is doubled", "a row is replaced"],
)
async def test_changes_of_the_kept_rows_are_found(tamper: Callable[[list[Any]], None]) -> None:
    """The first kept row must follow the last dropped one; the ring excuses no other gap."""
    store = MemoryStore(max_audit_rows=10)
    async with a_gate(Audit(), store=store) as gate:
        await _calls(gate, 25)
        assert (await verify_audit(store.audit)).ok
        tamper(store.audit.rows)
        assert not (await verify_audit(store.audit)).ok


async def test_the_log_warns_once_when_it_turns_over(caplog: pytest.LogCaptureFixture) -> None:
    """One warning for each log, and not one for each row."""
    caplog.set_level(logging.WARNING, "callgate")
    store = MemoryStore(max_audit_rows=10)

    def warnings() -> int:
        return sum("audit.dropped" in one.getMessage() for one in caplog.records)

    async with a_gate(Audit(), store=store) as gate:
        await _calls(gate, 10)
        assert warnings() == 0
        await _calls(gate, 50)
        assert warnings() == 1
        await verify_audit(store.audit)
        await _calls(gate, 50)
        assert warnings() == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=12), st.integers(1, 12))
async def test_rows_that_are_appended_by_any_writer_are_a_ring(parts: list[tuple[int, int]], size: int) -> None:
    """Rows of several segments, alone and in transactions: what is left is exported and verified; no number is used twice."""
    audit = (store := MemoryStore(max_audit_rows=size)).audit
    segments = [chained(120, name=f"s{number}") for number in range(3)]
    used, added = [0, 0, 0], 0
    for which, count in parts:
        rows = segments[which][used[which] : used[which] + count]
        used[which] += count
        added += count
        async with store.transaction() as unit:
            await unit.audit.append("t", rows)
        with pytest.raises(StoreConflict):
            await audit.append("t", rows[:1])
    report = await verify_audit(audit)
    assert report.ok, str(report)
    assert (report.rows, report.dropped) == (min(size, added), max(0, added - size))
    delivered: list[Any] = []

    async def deliver(rows: Any) -> None:
        delivered.extend(rows)

    assert await export_audit(audit, "c", deliver) == report.rows
    assert len(audit.heads) == 0
    assert len(audit._claimed) == report.rows


async def test_gates_that_share_a_log_share_its_size() -> None:
    """Two gates of a namespace have one ring; another namespace has its own."""
    store = MemoryStore(max_audit_rows=20)
    async with a_gate(Audit(), store=store) as one, a_gate(Audit(), store=store) as two:
        for _ in range(20):
            await _calls(one, 1)
            await _calls(two, 2)
        assert _held(store) <= 22
        report = await verify_audit(store.audit)
        assert report.ok, str(report)
        assert (report.rows, report.dropped) == (20, 40)
    assert store.in_namespace("other").audit.dropped == {}
