"""A call ends at its deadline although the audit log cannot be written; its row is written later, and none is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from callgate import Gate
from callgate.errors import StoreError
from callgate.hooks import Audit
from callgate.hooks.stock.records import audit, audit_late
from callgate.hooks.stock.records.audit_chain import Chain
from callgate.hooks.stock.records.audit_late import LateRows
from callgate.hooks.stock.records.audit_verify import verify_audit
from callgate.providers.stores import server_answers
from callgate.providers.stores.base import AuditRow
from callgate.providers.stores.memory.audit import MemoryAudit
from callgate.providers.stores.memory.store import MemoryStore
from callgate.providers.stores.sql.batches import _PostgresBatch
from callgate.providers.stores.sql.batches_lite import LiteBatches
from callgate.providers.stores.sql.store import SqlStore
from callgate.runtime.pipeline import leases
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place
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


class LosingAudit(MemoryAudit):
    """A log in memory whose writes take a while and may fail, after they have written or before."""

    lose: Any = None

    async def append(self, tenant: str, rows: Sequence[AuditRow]) -> None:
        async def write() -> None:
            await MemoryAudit.append(self, tenant, rows)

        await (write() if self.lose is None else self.lose(write))


class Lost:
    """Loses the response to the first write of the log: the row is written, or is not. It comes late, too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, written: bool) -> None:
        self.left, self.written = 0, written
        commit_lite, commit = LiteBatches._commit_now, _PostgresBatch._commit

        def lose_lite(batches: LiteBatches) -> None:
            if not self.due():
                return commit_lite(batches)
            if self.written:
                commit_lite(batches)
            time.sleep(0.2)
            raise sqlite3.OperationalError("disk I/O error")

        async def lose(batch: Any, *given: Any) -> None:
            if not self.due():
                return await commit(batch, *given)
            if self.written:
                await commit(batch, *given)
            batch.committing = True
            await asyncio.sleep(0.2)
            await batch._connection.close()
            raise psycopg.OperationalError("the connection is lost")

        async def lose_in_memory(_: object, write: Callable[[], Awaitable[None]]) -> None:
            if not self.due():
                return await write()
            if self.written:
                await write()
            await asyncio.sleep(0.2)
            raise StoreError("the connection is lost")

        monkeypatch.setattr(LiteBatches, "_commit_now", lose_lite)
        monkeypatch.setattr(_PostgresBatch, "_commit", lose)
        monkeypatch.setattr(LosingAudit, "lose", lose_in_memory)

    def due(self) -> bool:
        self.left -= 1
        return self.left >= 0


@pytest.mark.parametrize("control", [False, True], ids=["", "control: not looked for"])
@pytest.mark.parametrize("written", [True, False], ids=["written", "not written"])
@pytest.mark.parametrize("ends", ["before the gate closes", "while it closes"])
@pytest.mark.parametrize("kind", ["memory", "sqlite-file", "postgresql"])
async def test_a_late_row_of_a_lost_commit_is_in_the_log_once(
    kind: str, ends: str, written: bool, control: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there twice if the COMMIT had taken place, and on PostgreSQL not at all if it had not."""
    monkeypatch.setattr(audit, "RECORD_GRACE", 0.05)
    lost = Lost(monkeypatch, written=written)
    if control:
        monkeypatch.setattr(Chain, "_add_again", Chain.add)
    with place(kind, tmp_path) as (address, _):
        store: Any = MemoryStore() if kind == "memory" else SqlStore(address)
        if kind == "memory":
            store.audit = LosingAudit()
        async with Gate([look], [Audit()], store=store, **gate_options()) as gate:
            assert await gate.invoke("look", {"n": 0}, user=ANN) == 0
            lost.left = 1
            results = [await gate.call("look", {"n": 1}, user=ANN, deadline=0.05)]
            await asyncio.sleep(0.4)
            if ends == "before the gate closes":
                results.append(await gate.call("look", {"n": 2}, user=ANN))
                await asyncio.sleep(0.1)
        assert [one.output for one in results] == [1, 2][: len(results)]
        await store.open()
        try:
            rows = [row.body["input"]["n"] async for row in store.audit.read(None)]
            assert sorted(rows) == sorted([0, 1, 2][: len(results) + 1] + [1] * (control and written))
            assert not (await verify_audit(store.audit)).problems
        finally:
            await store.close()


async def test_a_row_is_looked_for_until_the_transaction_that_may_write_it_has_ended(tmp_path: Path) -> None:
    """Such as one that waits for a standby server. The first write would come after the second one."""
    row = AuditRow("20260101T000000.a", 1, 1.0, {}, "", "h")
    with place("postgresql", tmp_path) as (address, _):
        store, other = SqlStore(address), SqlStore(address)
        await asyncio.gather(store.open(), other.open())
        try:
            for ends in (RuntimeError, None):
                looking: asyncio.Task[bool] | None = None
                with contextlib.suppress(RuntimeError):
                    async with other.transaction() as written:
                        await written.audit.append("t", [row])
                        looking = asyncio.create_task(store.audit.holds("t", row))
                        await asyncio.wait([looking], timeout=0.2)
                        assert not looking.done()
                        if ends is not None:
                            raise ends
                assert looking is not None
                assert await looking is (ends is None)
            assert len([one async for one in store.audit.read(None)]) == 1
        finally:
            await asyncio.gather(store.close(), other.close())
