"""A call ends at its deadline although the audit log cannot be written; its row is written later, and none is lost."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate
from callgate.errors import StoreError
from callgate.hooks import Audit
from callgate.hooks.stock.records import audit, audit_late
from callgate.hooks.stock.records.audit_late import LateRows
from callgate.providers.stores import server_answers
from callgate.runtime.pipeline import leases
from tests.harness.gate_options import gate_options
from tests.world import ANN, RAN, look, pay


@pytest.mark.parametrize("ends", ["before the gate closes", "while it closes"])
async def test_another_process_that_locks_the_file_holds_no_call_beyond_its_deadline(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took as long as one write of the audit log may take."""
    monkeypatch.setattr(audit, "RECORD_GRACE", 0.05)
    file = tmp_path / "audit.db"
    other = sqlite3.connect(file, isolation_level=None)
    async with Gate([look], [Audit()], store=f"sqlite:///{file}", **gate_options()) as gate:
        assert await gate.invoke("look", {"n": 1}, user=ANN) == 1
        other.execute("BEGIN IMMEDIATE")
        began = time.perf_counter()
        results = await asyncio.gather(*(gate.call("look", {"n": n}, user=ANN, deadline=0.05) for n in range(5)))
        took = time.perf_counter() - began
        if ends == "before the gate closes":
            other.execute("ROLLBACK")
        else:
            asyncio.get_running_loop().call_later(0.05, other.execute, "ROLLBACK")
    assert [one.output for one in results] == [0, 1, 2, 3, 4]
    assert took < 3.0
    (rows,) = other.execute("SELECT count(*) FROM callgate_audit WHERE body LIKE '%outcome%'").fetchone()
    other.close()
    assert rows == 6


async def test_an_effect_that_cannot_be_claimed_ends_at_its_deadline_and_runs_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that SQLite may still write is freed: the call has not run, and its repeat runs once."""
    monkeypatch.setattr(audit, "RECORD_GRACE", 0.05)
    monkeypatch.setattr(server_answers, "MARGIN", 0.2)  # for a busy machine
    monkeypatch.setattr(leases, "ACQUIRE_GRACE", 10.0)  # what a claim takes that is cancelled at the deadline
    RAN.clear()
    file = tmp_path / "ledger.db"
    other = sqlite3.connect(file, isolation_level=None)
    async with Gate([pay], [Audit()], store=f"sqlite:///{file}", allow_unguarded=True) as gate:
        await gate.call("pay", {"cents": 1}, user=ANN, idempotency_key="k0")
        other.execute("BEGIN IMMEDIATE")
        began = time.perf_counter()
        result = await gate.call("pay", {"cents": 2}, user=ANN, idempotency_key="k", deadline=0.4)
        took = time.perf_counter() - began
        other.execute("ROLLBACK")
        assert took < 2.0
        assert result.error is not None
        assert result.error.code in {"not_recorded", "deadline_exceeded"}  # the second on a busy machine
        assert RAN == ["pay"]
        for replayed in (False, True):
            again = await gate.call("pay", {"cents": 2}, user=ANN, idempotency_key="k")
            assert (again.output, again.replayed) == ("paid 2", replayed)
    assert RAN == ["pay", "pay"]
    other.close()


class Rows:
    """A chain whose store is *down* for a while."""

    def __init__(self) -> None:
        self.down, self.written = True, list[Any]()
        self.late = LateRows(self.write)

    async def write(self, tenant: str, body: dict[str, object]) -> None:
        if self.down:
            raise StoreError("down")
        self.written.append((tenant, body["n"]))

    def fail(self, number: int) -> None:
        """The store fails to write a row of which no call waits any more."""
        done = asyncio.get_running_loop().create_future()
        self.late.follow("t", {"n": number}, done)
        done.set_exception(StoreError("down"))


async def test_a_late_row_that_fails_is_written_again_when_the_store_is_back_or_at_close() -> None:
    rows = Rows()
    for number in range(3):
        rows.fail(number)
    await asyncio.sleep(0)
    rows.late.retry()
    await asyncio.sleep(0)
    assert rows.written == []
    rows.down = False
    rows.late.retry()
    await asyncio.sleep(0)
    assert rows.written == [("t", 0), ("t", 1), ("t", 2)]
    rows.fail(3)
    await rows.late.close()
    assert rows.written[3:] == [("t", 3)]


async def test_rows_that_are_lost_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """At the maximum, and when the gate closes without the store."""
    monkeypatch.setattr(audit_late, "MAX_LEFT", 2)
    rows = Rows()
    with caplog.at_level(logging.ERROR, "callgate"):
        for number in range(3):
            rows.fail(number)
        await asyncio.sleep(0)
        assert len(caplog.records) == 1
        await rows.late.close()
    assert "2 audit rows were not written" in caplog.text
