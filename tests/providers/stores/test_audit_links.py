"""The segments of an audit log are linked, so that a removed whole segment is noticed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from callgate import Gate, User
from callgate.hooks import Audit, verify_audit
from callgate.hooks.stock.records.audit_chain import row_hash
from callgate.hooks.stock.records.audit_checkpoints import signed_checkpoint
from callgate.hooks.stock.records.audit_retention import prune_audit
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import MAX_TIPS, CheckpointKind
from callgate.providers.stores.ledger_writes import TippedAudit
from callgate.providers.stores.memory.audit import MemoryAudit
from callgate.providers.stores.memory.store import MemoryStore
from callgate.providers.stores.sql import batches as sql_batches
from callgate.providers.stores.sql import batches_lite as sql_batches_lite
from callgate.providers.stores.sql.audit import SqlAudit
from tests.harness.gate_options import gate_options
from tests.providers.stores.audit_log import KEY, chained, forge, look, pay
from tests.providers.stores.backends import Backend

GATES = 4
STORES = pytest.mark.parametrize("fresh", ["memory", "sqlite-file", "postgresql"], indirect=True)


@asynccontextmanager
async def _gates(
    backend: Backend, name: str, count: int = GATES, namespace: str = ""
) -> AsyncGenerator[list[str], None]:
    """Gates of one store, as many processes have them, which began one after another; the names of their segments."""
    names: list[str] = []
    async with AsyncExitStack() as stack:
        for number in range(count):
            gate = Gate(
                [look, pay],
                [Audit(anchor_every=1)],
                allow_unguarded=True,
                **gate_options(store=backend.store, durable=False, namespace=namespace),
            )
            await stack.enter_async_context(gate)
            await gate.call(name, {"n": number}, user=User("u", tenant="t"))
            await gate.call(name, {"n": 100 + number}, user=User("u", tenant="t"))
            await verify_audit(gate.store.audit)  # in memory it hashes the rows
            found = {row.segment async for row in gate.store.audit.read(None)}
            names += found - {*names}
        yield names


async def _remove(backend: Backend, segment: str, after: int = 0) -> None:
    """Remove a segment with all that the store has of it, or the rows after a number, as an attacker does."""
    if isinstance(backend.store, MemoryStore):
        audit = backend.store.audit
        audit.rows[:] = [pair for pair in audit.rows if pair[1].segment != segment or pair[1].number <= after]
        audit.heads[:] = [head for head in audit.heads if head[0] != segment or head[1] <= after]
        return
    for table in ("callgate_audit", "callgate_anchors", "callgate_audit_checkpoints"):
        await forge(backend, f"DELETE FROM {table} WHERE segment = '{segment}' AND number > {after}")


async def _kinds(backend: Backend) -> list[tuple[str, str]]:
    return [(one.kind, one.segment) for one in (await verify_audit(backend.store.audit, signing_keys=[KEY])).problems]


@STORES
@pytest.mark.parametrize("name", ["look", "pay"])
async def test_a_removed_segment_is_noticed(fresh: Backend, name: str) -> None:
    """Issue 34, 6: each segment but the last to begin is named by a later one, with the rows that it had."""
    async with _gates(fresh, name) as segments:
        assert len(segments) == GATES
        assert await _kinds(fresh) == []
        for removed in segments[:-1]:
            await _remove(fresh, removed)
            assert ("missing", removed) in await _kinds(fresh)


@STORES
async def test_control_without_links_a_removed_segment_is_not_noticed(
    fresh: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 34, 6: the sabotaged control links to nothing."""

    async def none(*_given: Any) -> list[Any]:
        return []

    for part in (MemoryAudit, SqlAudit):
        monkeypatch.setattr(part, "tips", none)
    for module in (sql_batches, sql_batches_lite):
        monkeypatch.setattr(module, "links", lambda *_: [])
    async with _gates(fresh, "look") as segments:
        for removed in segments[:-1]:
            await _remove(fresh, removed)
            assert await _kinds(fresh) == []


@STORES
async def test_a_segment_that_was_cut_before_a_link_is_noticed(fresh: Backend) -> None:
    """A link names the last row at that time, so it does the work of an anchor for the segments before."""
    async with _gates(fresh, "look") as segments:
        await _remove(fresh, segments[0], after=1)
        assert await _kinds(fresh) == [("cut", segments[0])]


@STORES
async def test_logs_of_before_verify_and_are_linked(fresh: Backend) -> None:
    """Rows without links stay valid, alone and beside new ones; their removal is noticed from then on."""
    audit, old = fresh.store.audit, [chained(3, name=f"2020010{day}T000000.0") for day in (1, 2)]
    for rows in old:
        await audit.append("t", rows)
    assert await _kinds(fresh) == []
    async with _gates(fresh, "look", 1):
        assert await _kinds(fresh) == []
        await _remove(fresh, old[0][0].segment)
        assert await _kinds(fresh) == [("missing", old[0][0].segment)]


@STORES
@pytest.mark.parametrize("whole", [False, True])
async def test_rows_that_were_pruned_are_not_missing(fresh: Backend, whole: bool) -> None:
    """A signed checkpoint answers for the rows that a link names; a forged one does not."""

    async def deliver(_rows: Any) -> None:
        return None

    audit, old = fresh.store.audit, chained(3, name="20200101T000000.0")
    await audit.append("t", old)
    async with _gates(fresh, "look", 2):
        await prune_audit(audit, old[-1].at + whole, deliver, signing_keys=[KEY])
        report = await verify_audit(audit, signing_keys=[KEY])
        assert report.ok, str(report)
        assert report.pruned == 1
    await fresh.store.open()
    other = chained(2, name="20200102T000000.0")
    keys = SigningKeys(["another key of the tests"])
    await audit.checkpoint([signed_checkpoint(keys, CheckpointKind.PRUNED, other[0].segment, 2, other[1].hash, 1.0)])
    assert ("checkpoint", other[0].segment) in await _kinds(fresh)


@STORES
async def test_links_stay_in_their_namespace(fresh: Backend) -> None:
    """A namespace verifies alone, so it has no links to the segments of another."""
    async with _gates(fresh, "look", 1) as first, _gates(fresh, "look", 2, "other") as others:
        assert first[0] not in others
        audit = fresh.store.in_namespace("other").audit  # type: ignore[attr-defined]
        links = [row.body.get("links") async for row in audit.read(None) if row.number == 1]
        assert [len(found or ()) for found in sorted(links, key=lambda found: len(found or ()))] == [0, 1]
        assert (await verify_audit(audit)).ok


@STORES
async def test_the_number_of_links_is_bounded(fresh: Backend) -> None:
    """A store with thousands of segments costs a new one eight reads of an index, in its transaction."""
    for number in range(2 * MAX_TIPS):
        await fresh.store.audit.append("t", chained(2, name=f"202001{10 + number}T000000.0"))
    async with _gates(fresh, "look", 1):
        rows = [row async for row in fresh.store.audit.read(None) if "links" in row.body]
        assert [[segment, number] for segment, number, _ in rows[0].body["links"]] == [
            [f"202001{10 + number}T000000.0", 2] for number in range(2 * MAX_TIPS - 1, MAX_TIPS - 1, -1)
        ]
        assert len(rows) == 1


@STORES
@pytest.mark.parametrize("links", [7, ["a"], [["a", "b", "c"]], [["a", 1]], [None], "abc", {"a": 1}, None])
async def test_links_of_any_shape_are_read(fresh: Backend, links: Any) -> None:
    """A row with a valid hash may have any JSON as its links: verification goes on."""
    report = await verify_audit(fresh.store.audit)
    assert report.ok
    row = chained(1)[0]
    body = {**row.body, "links": links}
    await fresh.store.audit.append(
        "t", [type(row)(row.segment, 1, row.at, body, "", row_hash(body, row.segment, 1, ""))]
    )
    kinds = await _kinds(fresh)
    assert kinds == ([("altered", row.segment)] * (isinstance(links, list)))


@STORES
async def test_a_transaction_sees_its_own_rows_as_tips(fresh: Backend) -> None:
    """A decision about an effect is written in a transaction of its own, and links as the rows of a gate do."""
    old, new = chained(2, name="20200101T000000.0"), chained(3, name="20200102T000000.0")
    await fresh.store.audit.append("t", old)
    async with fresh.store.transaction() as unit:
        await unit.audit.append("t", new)
        assert isinstance(unit.audit, TippedAudit)
        assert await unit.audit.tips() == [(rows[-1].segment, rows[-1].number, rows[-1].hash) for rows in (new, old)]
