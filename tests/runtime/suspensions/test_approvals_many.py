"""Many suspended calls: pages for approvers, filtered by the store, and an expiry that does not leave any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from callgate import Approval, Gate, User
from callgate.errors import NotPending
from callgate.runtime.suspensions import listing, suspensions
from callgate.testing import FakeClock
from tests.providers.stores.backends import place
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
    monkeypatch.setattr(suspensions, "_DUE", 10)
    desk, clock = Desk(), FakeClock()
    async with gate_of(desk.tool(requires_approval=Approval(expires=60.0)), clock=clock, store=address) as gate:
        for _ in range(NUMBER):
            await asked(gate)
        clock.advance(61.0)
        last = await asked(gate)
        assert await gate.waits.sweep() == NUMBER
        assert [one.handle for one in await gate.waits.pending(BOB)] == [last]
        assert await gate.waits.sweep() == 0
