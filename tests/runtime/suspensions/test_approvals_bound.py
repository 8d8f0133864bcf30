"""A call that waits is bound to its handle and its row: whoever changes anything of them lets nothing run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from callgate import Approve, Deny, User
from callgate.errors import StoreError
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState
from callgate.providers.stores.sql.database.part import statement
from callgate.testing import FakeClock
from tests.runtime.effects.machine_world import Kept
from tests.runtime.effects.scene_desk import (
    ANN,
    BOB,
    LEAD,
    ONE_AND_THE_SAME,
    ROB,
    Desk,
    asked,
    call,
    gate_of,
    refused,
)

# ---------------------------------------------------------------------- one and the same error


async def test_unknown_foreign_used_denied_expired_and_damaged_handles_are_told_apart_by_nobody() -> None:
    """I5, I8."""
    desk, clock = Desk(), FakeClock()
    async with gate_of(desk.tool(requires_approval=LEAD), clock=clock) as gate:
        used, denied, taken, late, damaged, foreign = [await asked(gate) for _ in range(6)]
        rivals = await asked(gate, User("ann", "rival"))
        await gate.resume(used, Approve(), approver=BOB)
        await gate.resume(denied, Deny(), approver=BOB)
        await gate.waits.withdraw(taken, ANN)
        rows = gate.store.suspensions._suspensions  # type: ignore[attr-defined]
        at = ("acme", damaged.partition(".")[0])
        rows[at] = replace(rows[at], user="bob")
        id, _, mac = foreign.partition(".")
        odd = [
            "",
            ".",
            id,
            mac,
            f"{id}.",
            f"{id}.{mac[:-1]}",
            f"{id}.{mac}0",
            f"{id}.{mac.upper()}",
            f"x{foreign}",
            "\ud800",
        ]
        nothing: list[Any] = [*odd, f"{mac}.{id}", None, 7, b"x", foreign.encode(), ("a",)]
        for handle in (used, denied, taken, damaged, rivals, *nothing):
            for work in (
                gate.resume(handle, Approve(), approver=BOB),
                gate.waits.look(handle, BOB),
                gate.waits.look(handle, ANN),
                gate.waits.withdraw(handle, ANN),
            ):
                assert await refused(work) == ONE_AND_THE_SAME
        clock.advance(100_000.0)
        assert await refused(gate.resume(late, Approve(), approver=BOB)) == ONE_AND_THE_SAME
        assert desk.paid == [5]


async def test_no_character_of_a_handle_may_be_another() -> None:
    """I5."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=LEAD)) as gate:
        handle = await asked(gate)
        for at, right in enumerate(handle):
            for other in {"0", "1", "f", "F", ".", " ", "ö"} - {right}:
                forged = handle[:at] + other + handle[at + 1 :]
                assert await refused(gate.resume(forged, Approve(), approver=BOB)) == ONE_AND_THE_SAME
        assert desk.paid == []
        assert (await gate.resume(handle, Approve(), approver=BOB)).ok


# ---------------------------------------------------------------------- rows in the store


async def test_no_bit_of_a_row_may_be_another() -> None:
    """I5: every bit of the body, and every column beside it."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=LEAD)) as gate:
        handle = await asked(gate)
        rows = gate.store.suspensions._suspensions  # type: ignore[attr-defined]
        ((at, row),) = rows.items()

        async def stands(changed: SuspensionRecord) -> bool:
            rows[at] = changed
            shown = [*await gate.waits.pending(BOB)]
            told = await refused(gate.resume(handle, Approve(), approver=BOB))
            return bool(shown) or told != ONE_AND_THE_SAME or rows[at] != changed

        for byte in range(len(row.body)):
            for bit in range(8):
                body = bytearray(row.body)
                body[byte] ^= 1 << bit
                assert not await stands(replace(row, body=bytes(body)))
        columns: list[dict[str, Any]] = [{"made_at": row.made_at + 1e-6}, {"made_at": float("nan")}]
        columns += [{"expires_at": None}, {"expires_at": (row.expires_at or 0) + 1}, {"expires_at": float("nan")}]
        columns += [
            {"number": 2},
            {"kind": "input"},
            {"tool": "refund"},
            {"user": "amy"},
            {"mac": ""},
            {"mac": "\ud800"},
        ]
        columns += [{"id": "x"}, {"kind": "\ud800"}, {"body": b""}, {"body": row.body + b" "}, {"mac": row.mac.upper()}]
        for column in columns:
            assert not await stands(replace(row, **column)), column
        assert desk.paid == []
        rows[at] = row
        assert (await gate.resume(handle, Approve(), approver=BOB)).ok
        for state in SuspensionState:  # and it does not wait again because somebody says so
            rows[at] = replace(rows[at], state=state)
            assert await refused(gate.resume(handle, Approve(), approver=BOB)) == ONE_AND_THE_SAME
        assert desk.paid == [5]


async def test_rows_cannot_change_places_or_tenants() -> None:
    """I5, I8."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=LEAD)) as gate:
        one, two = await asked(gate), await asked(gate, wanted=call(1_000_000))
        rows = gate.store.suspensions._suspensions  # type: ignore[attr-defined]
        first, second = rows.items()
        for column in ("body", "mac"), ("body",), ("mac",):
            rows[first[0]] = replace(first[1], **{name: getattr(second[1], name) for name in column})
            assert await refused(gate.resume(one, Approve(), approver=BOB)) == ONE_AND_THE_SAME
        rows["rival", second[0][1]] = second[1]
        assert await gate.waits.pending(ROB) == []
        assert await refused(gate.resume(two, Approve(), approver=ROB)) == ONE_AND_THE_SAME
        assert desk.paid == []


async def test_a_row_that_is_put_back_lets_nothing_run_twice() -> None:
    """I4, I5: the ledger knows what has run."""
    desk = Desk()
    async with gate_of(desk.tool(requires_approval=LEAD)) as gate:
        handle = await asked(gate)
        rows = gate.store.suspensions._suspensions  # type: ignore[attr-defined]
        ((at, row),) = rows.items()
        first = await gate.resume(handle, Approve(), approver=BOB)
        rows[at] = row
        again = await gate.resume(handle, Approve(), approver=BOB)
        assert (again.output, again.replayed, first.replayed) == (first.output, True, False)
        assert desk.paid == [5]


ODD = [
    ("made_at", "'long ago'"),
    ("expires_at", "'never'"),
    ("expires_at", "x'00'"),
    ("number", "'one'"),
    ("body", "'text'"),
    ("body", "7"),
    ("mac", "x'00ff'"),
    ("mac", "7"),
    ("kind", "7"),
    ("person", "x'ff'"),
    ("version", "2"),
    ("state", "'bogus'"),
]


@pytest.mark.parametrize(("column", "value"), ODD)
async def test_what_is_no_text_or_number_where_one_belongs_stops_nobody_else(column: str, value: str) -> None:
    """I5: SQLite keeps anything in any column."""
    desk = Desk()
    store: Any = Kept("sqlite://", FakeClock().time)
    await store.open()
    try:
        async with gate_of(desk.tool(requires_approval=LEAD), store=store) as gate:
            broken, other = await asked(gate), await asked(gate)
            change = f"UPDATE callgate_waits SET {column} = {value} WHERE id = :id"
            await store._database.write(statement(change), {"id": broken.partition(".")[0]})
            with pytest.raises((StoreError, ONE_AND_THE_SAME[0])):
                await gate.resume(broken, Approve(), approver=BOB)
            assert [one.handle for one in await gate.waits.pending(BOB)] == [other]
            await gate.maintain()
            assert (await gate.resume(other, Approve(), approver=BOB)).ok
            assert desk.paid == [5]
    finally:
        await store._database.close()
