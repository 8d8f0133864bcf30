"""Retention of the audit log on every store: signed checkpoints, export, removal; verification agrees afterwards."""

from __future__ import annotations

import asyncio
import io
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import text

from callgate.errors import HookError, StoreError
from callgate.hooks import AuditFile, AuditRow, export_audit, prune_audit, read_audit_file, verify_audit, verify_rows
from callgate.hooks.stock.records import audit_retention
from callgate.hooks.stock.records.audit_checkpoints import signed_checkpoint
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import AuditStore, CheckpointKind
from callgate.providers.stores.sql.store import SqlStore
from callgate.runtime.commands.audit import main as audit_command
from tests.providers.stores.audit_log import KEY, chained, forge
from tests.providers.stores.backends import Backend, opened

OTHER_KEY = "another key of the tests"
SQL = pytest.mark.parametrize("fresh", ["sqlite-memory", "sqlite-file", "postgresql"], indirect=True)


class Kept:
    """A delivery that keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, AuditRow]] = []

    async def __call__(self, rows: Sequence[tuple[str, AuditRow]]) -> None:
        self.rows += rows


async def stored(audit: AuditStore) -> list[tuple[str, int]]:
    return sorted([(row.segment, row.number) async for row in audit.read(None)])


async def test_verification_passes_after_old_rows_were_exported_and_removed(fresh: Backend) -> None:
    """Issue 16 D2: retention and verification agree."""
    audit, kept = fresh.store.audit, Kept()
    old, mixed, new = chained(3, name="old"), chained(6, name="mixed"), chained(2, name="new", at=2_000.0)
    for rows in (old, mixed, new):
        await audit.append("t", rows)
        await audit.anchor(rows[0].segment, 2, rows[1].hash, 1.0)
        await audit.anchor(rows[0].segment, len(rows), rows[-1].hash, 1.0)
    done = await prune_audit(audit, 1_004.0, kept, signing_keys=[KEY])
    assert (done.report.ok, done.rows) == (True, 6)
    assert sorted(kept.rows, key=lambda one: one[1].segment) == [("t", row) for row in (*mixed[:3], *old)]
    assert await stored(audit) == [("mixed", 4), ("mixed", 5), ("mixed", 6), ("new", 1), ("new", 2)]
    assert sorted(head[:2] for head in await audit.anchors()) == [("mixed", 6), ("new", 2), ("new", 2)]
    for keys in ([KEY], [OTHER_KEY, KEY]):
        report = await verify_audit(audit, signing_keys=keys)
        assert (report.ok, report.pruned, report.rows) == (True, 2, 5), str(report)
    await audit.append("t", chained(2, name="mixed", begin=7, previous=mixed[-1].hash))
    await audit.append("t", chained(2, name="old", begin=4, previous=old[-1].hash))
    assert (await verify_audit(audit, signing_keys=[KEY])).ok, "segments go on after the removal"
    assert (await verify_audit(audit, signing_keys=[KEY], incremental=True)).ok
    again = await prune_audit(audit, 1_006.0, kept, signing_keys=[KEY])
    assert (again.rows, again.report.ok) == (4, True), "mixed 4 and 5, old 4 and 5"
    report = await verify_audit(audit, signing_keys=[KEY], incremental=True)
    assert (report.ok, await stored(audit)) == (
        True,
        [("mixed", 6), ("mixed", 7), ("mixed", 8), ("new", 1), ("new", 2)],
    ), str(report)


async def test_without_the_key_removed_rows_are_not_taken_for_granted(fresh: Backend) -> None:
    """Issue 16 D2: only a signature proves that rows were removed on purpose."""
    await fresh.store.audit.append("t", chained(4))
    assert (await prune_audit(fresh.store.audit, 1_003.0, Kept(), signing_keys=[KEY])).rows == 2
    for keys in ([], [OTHER_KEY]):
        report = await verify_audit(fresh.store.audit, signing_keys=keys)
        assert "checkpoint" in {one.kind for one in report.problems}, str(report)


async def test_a_row_that_another_segment_continues_keeps_its_hash(
    fresh: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 16 D2: a segment may continue a row in the middle of a removed one."""
    audit, first = fresh.store.audit, chained(5, name="b")
    await audit.append("t", first)
    await audit.append("t", chained(2, name="a", previous=first[2].hash, at=9_000.0))
    assert (await prune_audit(audit, 2_000.0, Kept(), signing_keys=[KEY])).rows == 5
    report = await verify_audit(audit, signing_keys=[KEY])
    assert (report.ok, report.rows) == (True, 2), str(report)


async def test_control_without_that_hash_the_continued_row_is_missing(fresh: Backend) -> None:
    """Issue 16 D2: the sabotaged control."""
    audit, first = fresh.store.audit, chained(5, name="b")
    await audit.append("t", first)
    await audit.append("t", chained(2, name="a", previous=first[2].hash, at=9_000.0))
    last = signed_checkpoint(SigningKeys([KEY]), CheckpointKind.PRUNED, "b", 5, first[-1].hash, 1.0)
    await audit.checkpoint([last])
    assert [one.kind for one in (await verify_audit(audit, signing_keys=[KEY])).problems] == ["cut"]


@SQL
async def test_a_log_with_problems_is_neither_exported_nor_removed(fresh: Backend) -> None:
    """Issue 16 D2: a checkpoint covers verified rows only."""
    audit, kept = fresh.store.audit, Kept()
    await audit.append("t", chained(4))
    await forge(fresh, "UPDATE callgate_audit SET body = replace(body, 'kind', 'sort') WHERE number = 3")
    done = await prune_audit(audit, 2_000.0, kept, signing_keys=[KEY])
    assert ([one.kind for one in done.report.problems], done.rows, kept.rows) == (["altered"], 0, [])
    assert len(await stored(audit)) == 4


@pytest.mark.parametrize("after", [0, 1])
async def test_an_export_that_fails_removes_nothing(
    fresh: Backend, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 16 D2: export, then removal."""
    monkeypatch.setattr(audit_retention, "_CHUNK", 2)
    audit, calls = fresh.store.audit, list[int]()

    async def fail(rows: Sequence[tuple[str, AuditRow]]) -> None:
        calls.append(len(rows))
        if len(calls) > after:
            raise OSError("disk full")

    await audit.append("t", chained(5))
    with pytest.raises(OSError, match="disk full"):
        await prune_audit(audit, 2_000.0, fail, signing_keys=[KEY])
    assert len(await stored(audit)) == 5
    assert (await verify_audit(audit)).ok


async def test_a_crash_between_two_removals_leaves_a_log_that_verifies(
    fresh: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 16 D2: each transaction stores its checkpoint and removes its rows; the export of the next run is the rest."""
    monkeypatch.setattr(audit_retention, "_CHUNK", 2)
    audit, file, rows = fresh.store.audit, tmp_path / "old.jsonl", chained(7)
    await audit.append("t", rows)
    removals: list[int] = []

    def crash(count: int) -> None:
        removals.append(count)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await prune_audit(audit, 1_007.0, AuditFile(file), signing_keys=[KEY], removed=crash)
    assert ([number for _, number in await stored(audit)], removals) == ([3, 4, 5, 6, 7], [2])
    assert (await verify_audit(audit, signing_keys=[KEY])).ok
    assert (await prune_audit(audit, 1_007.0, AuditFile(file), signing_keys=[KEY])).rows == 4
    assert (await verify_audit(audit, signing_keys=[KEY])).ok
    assert len(file.read_text().splitlines()) == 10, "rows 3 to 6 were delivered twice"
    exported = list(read_audit_file(file))
    assert exported == rows[:6]
    assert (await verify_rows(exported)).ok


@SQL
async def test_rows_that_no_pruning_checkpoint_covers_are_never_removed(fresh: Backend) -> None:
    """Issue 16 D2: the triggers stay, also for checkpoints of removed rows."""
    await fresh.store.audit.append("t", chained(4))
    other = chained(2)
    await fresh.store.audit.append("t", other)
    await fresh.store.audit.anchor(other[0].segment, 2, other[1].hash, 1.0)
    await verify_audit(fresh.store.audit, signing_keys=[KEY], incremental=True)
    await prune_audit(fresh.store.audit, 1_003.0, Kept(), signing_keys=[KEY])
    assert isinstance(fresh.store, SqlStore)
    statements = [
        "DELETE FROM callgate_audit",
        "DELETE FROM callgate_audit WHERE number = 4",
        "DELETE FROM callgate_audit_checkpoints",
        "UPDATE callgate_audit SET hash = 'x'",
        "UPDATE callgate_audit_checkpoints SET number = 100",
    ]
    if fresh.kind == "postgresql":
        statements += ["TRUNCATE callgate_audit", "TRUNCATE callgate_audit_checkpoints"]
    for statement in statements:
        with pytest.raises(StoreError):
            await fresh.store._database.write(text(statement), {})
    assert (await verify_audit(fresh.store.audit, signing_keys=[KEY])).ok


@pytest.mark.parametrize("fresh", ["postgresql"], indirect=True)
async def test_a_temporary_table_does_not_stand_for_the_checkpoints(fresh: Backend) -> None:
    """Issue 16 D2: PostgreSQL finds temporary tables first."""
    rows = chained(2)
    await fresh.store.audit.append("t", rows)
    assert isinstance(fresh.store, SqlStore)
    with pytest.raises(StoreError):
        async with fresh.store._database.writing() as connection:
            await connection.execute(
                text(
                    "CREATE TEMP TABLE callgate_audit_checkpoints ON COMMIT DROP AS"
                    " SELECT segment, 'pruned' AS kind, number FROM callgate_audit"
                )
            )
            await connection.execute(text("DELETE FROM callgate_audit"))
    assert len(await stored(fresh.store.audit)) == 2


@SQL
async def test_a_forged_pruning_checkpoint_is_found(fresh: Backend) -> None:
    """Issue 16 D2: the trigger sees that a checkpoint exists; its signature is verified."""
    assert isinstance(fresh.store, SqlStore)
    rows = chained(4)
    await fresh.store.audit.append("t", rows)
    base = fresh.store._database
    forged = "INSERT INTO callgate_audit_checkpoints (segment, kind, number, hash, at, mac) VALUES (:s, 'pruned', 2, :h, 1, 'x')"
    await base.write(text(forged), {"s": rows[0].segment, "h": rows[1].hash})
    await base.write(text("DELETE FROM callgate_audit WHERE number <= 2"), {})
    report = await verify_audit(fresh.store.audit, signing_keys=[KEY])
    assert {one.kind for one in report.problems} == {"checkpoint", "missing"}


@SQL
async def test_rows_that_come_back_under_a_checkpoint_are_found(fresh: Backend) -> None:
    """Issue 16 D2: a restored or invented row does not pass."""
    rows = chained(4)
    await fresh.store.audit.append("t", rows)
    await prune_audit(fresh.store.audit, 1_003.0, Kept(), signing_keys=[KEY])
    await fresh.store.audit.append("t", rows[1:2])
    report = await verify_audit(fresh.store.audit, signing_keys=[KEY])
    assert [one.kind for one in report.problems] == ["checkpoint"]


async def test_rows_that_a_cursor_has_not_passed_stay(fresh: Backend) -> None:
    """Issue 16 D2, D3: retention waits for the exporters."""
    audit = fresh.store.audit
    await audit.append("t", chained(3, name="a"))
    await export_audit(audit, "siem", Kept())
    await audit.append("t", chained(2, name="a", begin=4, previous=chained(3, name="a")[-1].hash))
    await audit.append("t", chained(2, name="b"))
    await export_audit(audit, "kafka", Kept())
    done = await prune_audit(audit, 2_000.0, Kept(), signing_keys=[KEY], exported_by=["kafka", "siem"])
    assert (done.rows, await stored(audit)) == (3, [("a", 4), ("a", 5), ("b", 1), ("b", 2)])
    with pytest.raises(HookError, match="nats"):
        await prune_audit(audit, 2_000.0, Kept(), signing_keys=[KEY], exported_by=["nats"])
    with pytest.raises(HookError, match="signing_keys"):
        await prune_audit(audit, 2_000.0, Kept(), signing_keys=[])


def test_the_command_removes_old_rows_after_an_export(tmp_path: Path) -> None:
    """Issue 16 D2: ``callgate audit prune``."""
    address, keys, file = f"sqlite:///{tmp_path}/a.db", tmp_path / "keys", tmp_path / "old.jsonl"
    keys.write_text("a-signing-key-of-the-tests\n")

    async def fill() -> None:
        async with opened("sqlite-file", (address, "")) as backend:
            await backend.store.audit.append("t", chained(3))
            await backend.store.audit.append("t", chained(2, at=time.time() + 900))

    asyncio.run(fill())

    def run(verb: str, *given: str, answer: str = "") -> tuple[int, str]:
        out = io.StringIO()
        options = ["--signing-keys", os.fspath(keys)]
        return audit_command([verb, address, *options, *given], out, io.StringIO(answer)), out.getvalue()

    prune = ("prune", "--older-than", "1d", "--export", os.fspath(file))
    assert run(*prune, answer="n\n")[0] == 1
    assert not file.exists()
    code, shown = run(*prune, answer="y\n")
    assert (code, shown.splitlines()[-1]) == (0, "removed: 3 rows"), shown
    assert [row.number for row in read_audit_file(file)] == [1, 2, 3]
    code, shown = run("verify")
    assert (code, "removed under a signed checkpoint" in " ".join(shown.split())) == (0, True)
    assert run(*prune, "--yes", "--exported-by", "x")[0] == 2
