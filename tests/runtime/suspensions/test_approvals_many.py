"""Many suspended calls: pages for approvers, filtered by the store, and an expiry that does not leave any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from callgate import Approval, Gate, User
from callgate.errors import NotPending, StoreError
from callgate.providers.stores.sql.database.states import in_transaction
from callgate.runtime.suspensions import expiry, listing
from callgate.testing import FakeClock
from tests.providers.stores.backends import POSTGRES, place
from tests.runtime.effects.scene_desk import ANN, BOB, Desk, asked, gate_of

NUMBER = 45
MAX = User("max", "acme", {"clerk"})


@pytest.fixture(params=["memory", "sqlite-memory", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    with place(request.param, tmp_path) as (found, _):
        yield found


class Reads:
    """The rows that the store returns."""

    def __init__(self, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages: list[int] = []
        part = type(gate.store.suspensions)
        real = part.list

        async def list_rows(store: Any, tenant: str, **options: Any) -> Sequence[Any]:
            rows: Sequence[Any] = await real(store, tenant, **options)
            self.pages.append(len(rows))
            return rows

        monkeypatch.setattr(part, "list", list_rows)


async def test_pending_approvals_come_in_pages_and_only_those_of_the_viewer_are_read(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 34, 6: 10,000 rows were read for each page, also for a person without rights."""
    monkeypatch.setattr(listing, "PAGE", 20)
    desk, clock = Desk(), FakeClock()
    tools = [desk.tool(requires_approval=Approval(roles={"lead"}))]
    async with gate_of(tools, clock=clock, store=address) as gate:
        handles = []
        for _ in range(NUMBER):
            handles.append(await asked(gate))
            clock.advance(0.001 * (len(handles) % 3))  # some have the same time
        reads = Reads(gate, monkeypatch)
        seen: list[str] = []
        while page := await gate.waits.pending(BOB, limit=10, after=seen[-1] if seen else None):
            assert len(page) <= 10
            seen += [one.handle for one in page]
        assert sorted(seen) == sorted(handles)
        assert len(set(seen)) == NUMBER
        assert len(await gate.waits.pending(BOB, limit=1_000)) == NUMBER
        assert max(reads.pages) == 20
        reads.pages.clear()
        assert await gate.waits.pending(MAX) == []
        assert await gate.waits.pending(BOB, kind="consent") == []
        assert reads.pages == [0, 0]
        own = await gate.waits.pending(ANN)
        assert own == []
        with pytest.raises(NotPending):
            await gate.waits.pending(BOB, after="no handle")


async def test_one_round_expires_all_that_is_overdue(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 34, 6: 100 a round took 50 minutes for 10,000."""
    monkeypatch.setattr(expiry, "DUE", 10)
    desk, clock = Desk(), FakeClock()
    async with gate_of(desk.tool(requires_approval=Approval(expires=60.0)), clock=clock, store=address) as gate:
        for _ in range(NUMBER):
            await asked(gate)
        clock.advance(61.0)
        last = await asked(gate)
        assert await gate.waits.sweep() == NUMBER
        assert [one.handle for one in await gate.waits.pending(BOB)] == [last]
        assert await gate.waits.sweep() == 0


async def overdue(gate: Gate, clock: FakeClock) -> list[str]:
    handles = [await asked(gate) for _ in range(NUMBER)]
    clock.advance(61.0)
    return handles


class Commits:
    """The transactions of a gate's store, each with the number of rows that it replaced."""

    def __init__(self, gate: Gate, monkeypatch: pytest.MonkeyPatch, refused: frozenset[str] = frozenset()) -> None:
        self.rows: list[int] = []
        part, real = type(gate.store.suspensions), type(gate.store.suspensions).replace

        async def replace(store: Any, tenant: str, wait: Any) -> bool:
            if wait.id in refused:
                raise StoreError("the row cannot be changed")
            self.rows[-1] += 1
            return await real(store, tenant, wait)

        async def one(*args: Any) -> Any:
            self.rows.append(0)
            return await in_transaction(*args)

        monkeypatch.setattr(part, "replace", replace)
        monkeypatch.setattr(expiry, "in_transaction", one)


async def test_overdue_calls_end_many_in_one_transaction(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 34, 6: a commit for each row ended 119 in a second, and 10,000 took 84 s."""
    monkeypatch.setattr(expiry, "DUE", 20)
    desk, clock = Desk(), FakeClock()
    async with gate_of(desk.tool(requires_approval=Approval(expires=60.0)), clock=clock, store=address) as gate:
        await overdue(gate, clock)
        commits = Commits(gate, monkeypatch)
        assert await gate.waits.sweep() == NUMBER
        assert commits.rows == [20, 20, 5, 0]


async def test_a_row_that_cannot_be_changed_keeps_no_other_from_ending(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is raised after all the others have ended."""
    desk, clock = Desk(), FakeClock()
    async with gate_of(desk.tool(requires_approval=Approval(expires=60.0)), clock=clock, store=address) as gate:
        await overdue(gate, clock)
        (_, first), *_ = await gate.store.suspensions.due(clock.time(), NUMBER)
        Commits(gate, monkeypatch, frozenset({first.id}))
        with pytest.raises(StoreError, match="cannot be changed"):
            await gate.waits.sweep()
        assert [one.id for _, one in await gate.store.suspensions.due(clock.time(), NUMBER)] == [first.id]


async def test_rows_that_another_process_has_locked_are_not_waited_for(tmp_path: Any) -> None:
    """They end in the next round, or in the process that has locked them."""
    with place("postgresql", tmp_path) as (address, _), psycopg.connect(POSTGRES) as other:
        desk, clock = Desk(), FakeClock()
        async with gate_of(desk.tool(requires_approval=Approval(expires=60.0)), clock=clock, store=address) as gate:
            await overdue(gate, clock)
            table = f"{address.partition('%3D')[2]}.callgate_waits"
            other.execute(f"SELECT id FROM {table} ORDER BY expires_at LIMIT 5 FOR UPDATE".encode())
            assert await gate.waits.sweep() == NUMBER - 5
            other.rollback()
            assert await gate.waits.sweep() == 5
