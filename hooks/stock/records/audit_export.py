"""Export of the audit log: a cursor that misses no row, and a delivery to a file."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeAlias

from callgate.errors import HookError
from callgate.providers.stores.base import AuditRow, AuditSegment, AuditSnapshot, AuditStore, CheckpointKind

Delivery: TypeAlias = Callable[[Sequence[tuple[str, AuditRow]]], Awaitable[None]]
"""Takes tenants and rows; an exception means that they may not have arrived, and are delivered again."""

_BLOCK = 65_536


async def export_audit(audit: AuditStore, cursor: str, deliver: Delivery, *, batch: int = 500) -> int:
    """Deliver the rows that a cursor has not passed, and move the cursor. Return their number.

    Each segment is read by number without gaps. A row that is committed late is delivered later, however early its time
    is. Rows arrive in the order of each segment, at least once: a process that fails between delivery and cursor delivers
    the last batch again. Segment and number identify a row. No transaction is open during a delivery.

    Args:
        audit: the audit part of a store: ``store.audit``.
        cursor: a name; each destination has its own. The position is in the store.
        deliver: an async function of a sequence of tenants and rows, which are durable there when it returns.
        batch: the maximum number of rows of one delivery.

    Raises:
        HookError: the cursor has no name, or the batch no rows.
        StoreConflict: another process moved the cursor; its rows may have been delivered twice.
    """
    if not cursor or batch < 1:
        raise HookError("export_audit needs the name of a cursor, and a batch of at least 1")
    count, after = 0, ""
    while True:
        rows, moves, place = await _next_batch(audit, cursor, after, batch)
        if rows:
            await deliver(rows)
            await audit.advance(cursor, moves)
            count += len(rows)
        if place is None:
            return count
        after = place


async def _next_batch(
    audit: AuditStore, cursor: str, after: str, size: int
) -> tuple[list[tuple[str, AuditRow]], list[tuple[str, int, int]], str | None]:
    """Read rows of the segments after a name. Return them, the moves of the cursor, and the name to continue after."""
    rows: list[tuple[str, AuditRow]] = []
    moves: list[tuple[str, int, int]] = []
    async with audit.snapshot() as snapshot:
        async for segment in snapshot.segments(after, cursor=cursor):
            number = segment.exported
            if segment.last > number:
                async for owner, row in _without_gaps(snapshot, segment):
                    rows.append((owner, row))
                    number = row.number
                    if len(rows) == size:
                        break
            if number > segment.exported:
                moves.append((segment.name, segment.exported, number))
            if len(rows) == size:
                return rows, moves, after
            after = segment.name
    return rows, moves, None


async def _without_gaps(snapshot: AuditSnapshot, segment: AuditSegment) -> AsyncIterator[tuple[str, AuditRow]]:
    """Read the rows after the cursor up to the first missing number: that row may be committed later."""
    pruned = max((one.number for one in segment.checkpoints if one.kind is CheckpointKind.PRUNED), default=0)
    number = max(segment.exported, pruned, 0 if segment.dropped is None else segment.dropped[0])
    async for owner, row in snapshot.rows(segment.name, number):
        if row.number != number + 1:
            return
        number = row.number
        yield owner, row


class AuditFile:
    """A delivery to a file of JSON Lines: an object with the tenant and the fields of the row in each line.

    Rows are on the disk when a delivery returns. An incomplete last line, after a crash or on a full disk, is removed by
    the next delivery, which has its row again.

    Args:
        path: the file; it is created, or rows are appended.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __call__(self, rows: Sequence[tuple[str, AuditRow]]) -> None:
        """Append rows."""
        lines = [json.dumps(_line(tenant, row), separators=(",", ":"), default=dict) + "\n" for tenant, row in rows]
        await asyncio.to_thread(self._append, "".join(lines).encode("ascii"))

    def _append(self, data: bytes) -> None:
        new = not self._path.exists()
        with self._path.open("a+b") as file:
            _remove_incomplete_line(file)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if new and os.name == "posix":  # the name of the file is in its folder
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def read_audit_file(*paths: Path) -> Iterator[AuditRow]:
    """Read the rows of files that an ``AuditFile`` wrote, for ``verify_rows``. A row that was delivered twice is read once.

    Raises:
        ValueError: a line is no row; the message has the number of the line.
    """
    seen: set[tuple[str, int, str]] = set()
    for path in paths:
        with path.open("rb") as lines:
            for count, line in enumerate(lines, 1):
                try:
                    found = json.loads(line)
                    del found["tenant"]
                    row = AuditRow(**found)
                except (ValueError, KeyError, TypeError):
                    raise ValueError(f"line {count} of {path.name} is no audit row") from None
                place = (row.segment, row.number, row.hash)
                if place not in seen:
                    seen.add(place)
                    yield row


def _line(tenant: str, row: AuditRow) -> dict[str, object]:
    return {
        "tenant": tenant,
        "segment": row.segment,
        "number": row.number,
        "at": row.at,
        "body": row.body,
        "previous": row.previous,
        "hash": row.hash,
    }


def _remove_incomplete_line(file: BinaryIO) -> None:
    end = file.seek(0, os.SEEK_END)
    place = end
    while place:
        begin = max(0, place - _BLOCK)
        file.seek(begin)
        found = file.read(place - begin).rfind(b"\n")
        if found >= 0:
            place = begin + found + 1
            break
        place = begin
    if place < end:
        file.truncate(place)
