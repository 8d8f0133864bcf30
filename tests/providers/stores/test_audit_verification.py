"""Verification of the audit log on every store: one snapshot, indexes, constant memory, signed checkpoints."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from callgate.errors import HookError, RegistrationError
from callgate.hooks import verify_audit
from callgate.hooks.stock.records.audit_checkpoints import signed_checkpoint
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import CheckpointKind
from callgate.providers.stores.sql import audit_reading as sql_audit_reading
from callgate.providers.stores.sql.audit import SqlAudit
from callgate.providers.stores.sql.audit_reading import SqlAuditSnapshot
from callgate.providers.stores.sql.store import SqlStore
from callgate.runtime.commands.audit import main as audit_command
from tests.providers.stores.audit_log import KEY, chained, forge
from tests.providers.stores.backends import Backend, opened


async def _race(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Append rows and anchors, and prune, after the segments and before the rows are read; the kinds of the problems."""
    audit, rows, later = backend.store.audit, chained(6), chained(2, name="z")
    name = rows[0].segment
    await audit.append("t", rows[:3])
    await audit.anchor(name, 3, rows[2].hash, 1.0)
    read = SqlAuditSnapshot._next_rows

    async def change_first(self: SqlAuditSnapshot, *given: Any) -> list[Any]:
        if not changed:
            changed.append(True)
            await audit.append("t", rows[3:])
            await audit.anchor(name, 6, rows[5].hash, 1.0)
            await audit.append("t", later)
            await audit.anchor("z", 2, later[1].hash, 1.0)
            await audit.checkpoint(
                [signed_checkpoint(SigningKeys([KEY]), CheckpointKind.PRUNED, name, 2, rows[1].hash, 1.0)]
            )
        return await read(self, *given)

    changed: list[bool] = []
    monkeypatch.setattr(SqlAuditSnapshot, "_next_rows", change_first)
    report = await verify_audit(audit, signing_keys=[KEY])
    assert changed
    return [one.kind for one in report.problems]


@pytest.mark.parametrize("fresh", ["sqlite-file", "postgresql"], indirect=True)
async def test_rows_and_anchors_written_during_a_verification_are_no_problem(
    fresh: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 16 D1: a verification reads one snapshot, so a live service shows no tampering."""
    assert await _race(fresh, monkeypatch) == []
    report = await verify_audit(fresh.store.audit, signing_keys=[KEY])
    assert (report.ok, report.rows, report.segments) == (True, 6, 2), str(report)


@pytest.mark.parametrize("fresh", ["sqlite-file", "postgresql"], indirect=True)
async def test_control_without_a_snapshot_a_live_service_shows_tampering(
    fresh: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 16 D1: the sabotaged control reads each page in a transaction of its own."""

    @asynccontextmanager
    async def no_snapshot(self: SqlAudit) -> AsyncGenerator[SqlAuditSnapshot]:
        async with self._database.reading() as connection:
            yield SqlAuditSnapshot(connection, "control")

    monkeypatch.setattr(SqlAudit, "snapshot", no_snapshot)
    assert await _race(fresh, monkeypatch) != []


async def _explained(backend: Backend, sql: str, values: dict[str, Any]) -> str:
    assert isinstance(backend.store, SqlStore)
    async with backend.store._database.reading() as connection:
        if backend.store._database.lite:
            plan = await connection.execute(text(f"EXPLAIN QUERY PLAN {sql}"), values)
            return "\n".join(row[3] for row in plan.all())
        for way in ("seqscan", "bitmapscan"):  # tables of a test are small
            await connection.exec_driver_sql(f"SET enable_{way} = off")
        plan = await connection.execute(text(f"EXPLAIN {sql}"), values)
        found = "\n".join(row[0] for row in plan.all())
        await connection.exec_driver_sql("RESET ALL")
        return found


@pytest.mark.parametrize("fresh", ["sqlite-file", "postgresql"], indirect=True)
@pytest.mark.parametrize("table", ["rows", "anchors", "segments"])
async def test_each_page_is_read_with_an_index_and_without_a_sort(fresh: Backend, table: str) -> None:
    """Issue 16 D1: a page cost a scan and a sort of the whole table."""
    values: dict[str, Any] = {"segment": "s", "number": 1, "hash": "h"}
    sql = {"rows": sql_audit_reading._ROWS, "anchors": sql_audit_reading._ANCHORS}.get(table)
    if sql is None:
        sql, values = sql_audit_reading._SEGMENTS, {"after": "", "cursor": ""}
    elif table == "rows":
        del values["hash"]
    plan = await _explained(fresh, sql, values)
    assert "callgate" in plan
    for word in ("Sort", "TEMP B-TREE", "Seq Scan on callgate", "SCAN callgate"):
        assert word not in plan, plan
    sorted_by_time = "SELECT * FROM callgate_audit ORDER BY at, segment, number"
    control = await _explained(fresh, sorted_by_time, {})
    assert "Sort" in control or "TEMP B-TREE" in control


async def test_small_segments_share_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 16 D1: a process that lives for one call leaves a segment of two rows."""
    queries: list[str] = []
    query = SqlAuditSnapshot._query

    async def counted(self: SqlAuditSnapshot, sql: str, values: dict[str, Any]) -> list[Any]:
        queries.append(sql)
        return await query(self, sql, values)

    monkeypatch.setattr(SqlAuditSnapshot, "_query", counted)
    async with opened("sqlite-file", (f"sqlite:///{tmp_path}/a.db", "")) as backend:
        for _ in range(300):
            rows = chained(2)
            await backend.store.audit.append("t", rows)
            await backend.store.audit.anchor(rows[0].segment, 2, rows[1].hash, 1.0)
        report = await verify_audit(backend.store.audit)
    assert (report.ok, report.rows, report.segments, report.anchors) == (True, 600, 300, 300)
    assert len(queries) < 10, queries


async def _peak(tmp_path: Path, count: int) -> int:
    async with opened("sqlite-file", (f"sqlite:///{tmp_path}/{count}.db", "")) as backend:
        await backend.store.audit.append("t", chained(count, name="one"))
        tracemalloc.start()
        report = await verify_audit(backend.store.audit)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (report.ok, report.rows) == (True, count)
    return peak


async def test_the_memory_of_a_verification_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """Issue 16 D1: two hashes a row were kept in memory."""
    few, many = await _peak(tmp_path, 2_000), await _peak(tmp_path, 10_000)
    assert many < 1.3 * few, (few, many)


async def test_an_incremental_verification_reads_new_rows_only(fresh: Backend) -> None:
    """Issue 16 D1: signed checkpoints."""
    audit, rows = fresh.store.audit, chained(10)
    other = chained(3)
    await audit.append("t", rows[:6])
    await audit.append("t", other)
    first = await verify_audit(audit, signing_keys=[KEY], incremental=True)
    assert (first.ok, first.rows, first.skipped) == (True, 9, 0)
    again = await verify_audit(audit, signing_keys=[KEY], incremental=True)
    assert (again.ok, again.rows, again.skipped, again.unanchored) == (True, 0, 2, 0)
    await audit.append("t", rows[6:])
    third = await verify_audit(audit, signing_keys=["a newer key of the tests", KEY], incremental=True)
    assert (third.ok, third.rows, third.skipped) == (True, 5, 2), "the row of the checkpoint, and four new rows"
    full = await verify_audit(audit, signing_keys=[KEY, "a newer key of the tests"])
    assert (full.ok, full.rows, full.skipped) == (True, 13, 0)
    assert (await verify_audit(audit)).ok, "checkpoints of verified rows are optional"


@pytest.mark.parametrize("fresh", ["sqlite-file", "postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("DELETE FROM callgate_audit WHERE number > 3", "cut"),
        ("DELETE FROM callgate_audit", "cut"),
        ("UPDATE callgate_audit SET hash = 'x' WHERE number = 4", "altered"),
        ("UPDATE callgate_audit_checkpoints SET number = 2", "checkpoint"),
        ("UPDATE callgate_audit_checkpoints SET hash = 'x'", "checkpoint"),
        ("UPDATE callgate_audit_checkpoints SET kind = 'pruned'", "checkpoint"),
        ("UPDATE callgate_audit_checkpoints SET segment = 'other'", "checkpoint"),
        ("UPDATE callgate_audit_checkpoints SET at = at + 1", "checkpoint"),
    ],
)
async def test_changes_of_rows_at_a_checkpoint_and_of_checkpoints_are_found(
    fresh: Backend, statement: str, kind: str
) -> None:
    """Issue 16 D1: a checkpoint is signed, and covers its rows like an anchor."""
    await fresh.store.audit.append("t", chained(4))
    assert (await verify_audit(fresh.store.audit, signing_keys=[KEY], incremental=True)).ok
    await forge(fresh, statement)
    for incremental in (True, False):
        report = await verify_audit(fresh.store.audit, signing_keys=[KEY], incremental=incremental)
        assert kind in {one.kind for one in report.problems}, str(report)


@pytest.mark.parametrize("fresh", ["sqlite-file"], indirect=True)
async def test_a_problem_stores_no_checkpoint(fresh: Backend) -> None:
    """Issue 16 D1: the next incremental run finds the same problem."""
    await fresh.store.audit.append("t", chained(4))
    await fresh.store.audit.append("t", chained(4))
    await forge(fresh, "UPDATE callgate_audit SET body = replace(body, '2', '3') WHERE number = 2")
    for _ in range(2):
        report = await verify_audit(fresh.store.audit, signing_keys=[KEY], incremental=True)
        assert {one.kind for one in report.problems} == {"altered"}
        assert report.skipped == 0


async def test_links_between_many_segments_are_followed(fresh: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 16 D1: a segment that continues another one, in any order of names, and beyond one query."""
    monkeypatch.setattr("callgate.hooks.stock.records.audit_links.MAX_PENDING", 2)
    previous = ""
    for name in ("c", "a", "e", "b", "d"):
        rows = chained(2, name=name, previous=previous)
        previous = rows[-1].hash
        await fresh.store.audit.append("t", rows)
    assert (await verify_audit(fresh.store.audit)).ok
    await fresh.store.audit.append("t", chained(1, name="f", previous="0" * 64))
    assert [(one.kind, one.segment) for one in (await verify_audit(fresh.store.audit)).problems] == [("cut", "f")]


async def test_an_incremental_verification_needs_keys(fresh: Backend) -> None:
    with pytest.raises(HookError, match="signing_keys"):
        await verify_audit(fresh.store.audit, incremental=True)
    with pytest.raises(RegistrationError):
        await verify_audit(fresh.store.audit, signing_keys=["short"])


async def test_checkpoints_in_a_transaction_are_read_there(fresh: Backend) -> None:
    """A snapshot within a transaction sees its rows."""
    rows = chained(2)
    async with fresh.store.transaction() as transaction:
        await transaction.audit.append("t", rows)
        async with transaction.audit.snapshot() as snapshot:
            assert [(one.name, one.last) async for one in snapshot.segments()] == [(rows[0].segment, 2)]
            assert [row async for _, row in snapshot.rows(rows[0].segment)] == rows
            assert [row async for _, row in snapshot.rows(rows[0].segment, 1)] == rows[1:], "again, from the front"


async def test_a_broken_log_is_reported_and_leaves_no_transaction(fresh: Backend) -> None:
    if not isinstance(fresh.store, SqlStore):
        pytest.skip("memory reads no text")
    await fresh.store.audit.append("t", chained(2))
    await forge(fresh, "UPDATE callgate_audit SET version = 9")
    assert [one.kind for one in (await verify_audit(fresh.store.audit)).problems] == ["unread"]
    await fresh.store.audit.append("t", chained(2))
    with pytest.raises(ZeroDivisionError):
        async with fresh.store.audit.snapshot():
            _ = 1 / 0
    await fresh.store.audit.append("t", chained(2))


def test_the_command_shows_progress_and_verifies_from_checkpoints(tmp_path: Path) -> None:
    """Issue 16 D1: ``callgate audit verify --incremental``."""
    import asyncio

    address, keys = f"sqlite:///{tmp_path}/a.db", tmp_path / "keys"
    keys.write_text(f"{KEY.replace(' ', '-')}\n")

    async def fill() -> None:
        async with opened("sqlite-file", (address, "")) as backend:
            await backend.store.audit.append("t", chained(20_500))

    asyncio.run(fill())

    def run(*given: str) -> tuple[int, str]:
        out = io.StringIO()
        return audit_command(["verify", address, *given], out), out.getvalue()

    code, shown = run("--signing-keys", str(keys), "--incremental")
    assert code == 0
    assert [line.split() for line in shown.splitlines()[:3]] == [
        ["rows", "segments", "problems"],
        ["10,000", "1", "0"],
        ["20,000", "1", "0"],
    ]
    code, shown = run("--signing-keys", str(keys), "--incremental")
    assert (code, "log of 0 rows" in " ".join(shown.split())) == (0, True), shown
    assert run("--incremental")[0] == 2
