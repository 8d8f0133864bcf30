"""Retention of the audit log: verify, export, then remove old rows under signed checkpoints."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import dataclass

from callgate.errors import HookError
from callgate.hooks.stock.records.audit_checkpoints import signed_checkpoint
from callgate.hooks.stock.records.audit_export import Delivery
from callgate.hooks.stock.records.audit_signatures import RowSignatures, keys_of, namespace_of
from callgate.hooks.stock.records.audit_verify import AuditReport, Progress, Verifier
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import (
    AuditCheckpoint,
    AuditRow,
    AuditSegment,
    AuditSnapshot,
    AuditStore,
    CheckpointKind,
)

_CHUNK = 2_000
"""Maximum number of rows that one transaction removes."""


@dataclass(frozen=True, slots=True)
class AuditPruning:
    """The result of removing old rows. Nothing was removed if ``report`` has problems."""

    report: AuditReport
    rows: int = 0


async def prune_audit(
    audit: AuditStore,
    before: float,
    export: Delivery,
    *,
    signing_keys: Iterable[str | bytes],
    exported_by: Collection[str] | None = None,
    progress: Progress | None = None,
    removed: Callable[[int], None] | None = None,
    now: Callable[[], float] = time.time,
) -> AuditPruning:
    """Remove the rows at the beginning of each segment that are older than a time, after a verification and an export.

    The whole log is verified, and the rows are exported from the same snapshot. Then each transaction stores signed
    checkpoints and removes the rows and anchors that they cover. A later verification begins each segment at its last
    checkpoint, and needs the signing keys. After a crash, rows that were exported may still be stored; the next run
    exports and removes them.

    Args:
        audit: the audit part of a store: ``store.audit``.
        before: seconds since the epoch; rows from this time on stay, and all rows after them in their segment.
        export: an async function of a sequence of tenants and rows, which are durable elsewhere when it returns, such as
            an ``AuditFile``.
        signing_keys: keys of the checkpoints, as in ``Gate(signing_keys=)``; the first one signs.
        exported_by: names of cursors of ``export_audit``; rows that one of them has not passed stay. None: no cursor counts.
        progress: a function of the report, called every 10,000 verified rows.
        removed: a function of the number of rows removed so far, called after each transaction.
        now: a clock in seconds since the epoch.

    Raises:
        HookError: there are no signing keys, *exported_by* is empty or one text, or a cursor does not exist.
        StoreError: the log cannot be read, or rows cannot be removed.
    """
    keys = keys_of(signing_keys)
    if keys is None:
        raise HookError("prune_audit needs signing_keys: it stores signed checkpoints in the place of rows")
    if isinstance(exported_by, str) or (exported_by is not None and not exported_by):
        raise HookError("exported_by has names of cursors: write exported_by=['siem'], or leave it out for none")
    if unknown := set(exported_by or ()) - await audit.cursors():
        raise HookError(f"there is no cursor {', '.join(sorted(unknown))!r:.80}; export the log with it first")
    groups: list[list[AuditCheckpoint]] = []
    async with audit.snapshot() as snapshot:
        verifier = Verifier(snapshot, (), keys, progress=progress, signatures=RowSignatures(keys, namespace_of(audit)))
        await verifier.verify()
        if not verifier.report.ok:
            return AuditPruning(verifier.report)
        async for segment, limit in _limits(snapshot, exported_by or ()):
            groups += await _exported(snapshot, segment, before, limit, export, keys, now())
    rows = 0
    for group in groups:
        rows += await audit.checkpoint(group)
        if removed is not None:
            removed(rows)
    return AuditPruning(verifier.report, rows)


async def _limits(snapshot: AuditSnapshot, cursors: Collection[str]) -> AsyncIterator[tuple[AuditSegment, int | None]]:
    """Read the segments, each with the number that all cursors have reached; None without cursors."""
    others = [snapshot.segments(cursor=cursor) for cursor in cursors]
    async for segment in snapshot.segments():
        yield segment, min([(await anext(other)).exported for other in others], default=None)


async def _exported(
    snapshot: AuditSnapshot,
    segment: AuditSegment,
    before: float,
    limit: int | None,
    export: Delivery,
    keys: SigningKeys,
    at: float,
) -> list[list[AuditCheckpoint]]:
    """Export the old rows of a segment. Return the checkpoints that cover them, those of one transaction together."""
    pruned = max((one.number for one in segment.checkpoints if one.kind is CheckpointKind.PRUNED), default=0)
    groups: list[list[AuditCheckpoint]] = []
    chunk: list[tuple[str, AuditRow]] = []

    async def close_chunk() -> None:
        await export(chunk)
        # A row that another segment continues keeps its hash in a checkpoint of its own.
        continued = await snapshot.continued_hashes([row.hash for _, row in chunk])
        covered = [row for _, row in chunk if row.hash in continued or row is chunk[-1][1]]
        groups.append(
            [signed_checkpoint(keys, CheckpointKind.PRUNED, row.segment, row.number, row.hash, at) for row in covered]
        )
        chunk.clear()

    async for owner, row in snapshot.rows(segment.name, pruned):
        if row.at >= before or (limit is not None and row.number > limit):
            break
        chunk.append((owner, row))
        if len(chunk) == _CHUNK:
            await close_chunk()
    if chunk:
        await close_chunk()
    return groups
