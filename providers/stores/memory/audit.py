"""The audit log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from callgate.errors import StoreConflict
from callgate.providers.log_events import LogEvent
from callgate.providers.logs import emit
from callgate.providers.stores.base import MAX_TIPS, AuditCheckpoint, AuditRow, AuditSegment, AuditTip, CheckpointKind

SLICE = 200
"""Rows that are hashed in one turn of the event loop: about 10 ms."""

MAX_ROWS = 100_000
"""Rows that a log keeps by default: about 110 MB of calls with small arguments."""


class NotingChain(Protocol):
    """A chain whose rows are hashed when the log is read. ``noted`` has what they are made of, oldest first."""

    noted: list[tuple[object, ...]]
    closed: bool
    room: int
    """The number of noted rows beyond which the chain calls ``MemoryAudit.trim``."""

    def settle(self, limit: int) -> int:
        """Hash and write the first noted rows. Return how many are left."""
        ...

    def drop(self, count: int) -> tuple[str, int, str]:
        """Drop the first noted rows. Return their segment, the last number, and the hash that the next row continues."""
        ...


class MemoryAudit:
    """The audit log as a ring: beyond *max_rows* the oldest rows are dropped, with a warning the first time.

    ``dropped`` has for each segment the number of its last dropped row, and the hash that the next row continues.
    """

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self.max_rows = max_rows
        self.dropped: dict[str, tuple[int, str]] = {}
        self.rows: list[tuple[str, AuditRow]] = []  # with their tenants
        self.heads: list[tuple[str, int, str, float]] = []
        self._claimed: set[tuple[str, int]] = set()
        self.noting: list[NotingChain] = []
        self.checkpoints: list[AuditCheckpoint] = []
        self.positions: dict[tuple[str, str], int] = {}  # of cursors

    async def _flush(self) -> None:
        """Add the rows that hooks have noted until now, in slices that leave turns to other tasks."""
        self.trim()
        for chain in self.noting:
            for _ in range(-(-chain.settle(SLICE) // SLICE)):
                await asyncio.sleep(0)
                chain.settle(SLICE)
        self._forget_ended()
        self.trim()

    def end(self, chain: NotingChain) -> None:
        """Hash the rows of a chain that gets no more, and forget it. If they are many, the next reading does it."""
        chain.settle(SLICE)
        self._forget_ended()

    def _forget_ended(self) -> None:
        self.noting = [one for one in self.noting if one.noted or not one.closed]

    def trim(self) -> None:
        """Drop the oldest rows beyond the maximum. Chains call it once in a while, so up to 1/64 more are kept meanwhile."""
        over = len(self.rows) + sum(len(chain.noted) for chain in self.noting) - self.max_rows
        if over > 0:
            if not self.dropped:
                emit(LogEvent.AUDIT_DROPPED, max_rows=self.max_rows)
            self._drop(over)
        step = max(1, self.max_rows // 64)
        for chain in self.noting:
            chain.room = len(chain.noted) + step

    def _drop(self, count: int) -> None:
        gone = [row for _, row in self.rows[:count]]
        del self.rows[:count]
        for row in gone:
            self.dropped[row.segment] = max(self.dropped.get(row.segment, (0, "")), (row.number, row.hash))
        self.release(gone)
        count -= len(gone)
        for chain in sorted(self.noting, key=lambda chain: -len(chain.noted)):
            if noted := min(count, len(chain.noted)):
                segment, number, hash = chain.drop(noted)
                self.dropped[segment] = (number, hash)
                count -= noted
        self.heads[:] = [head for head in self.heads if head[1] > self.dropped.get(head[0], (0, ""))[0]]

    def claim(self, rows: Sequence[AuditRow]) -> None:
        """Reserve the numbers of rows, all or none.

        Raises:
            StoreConflict: a row has that segment and number already.
        """
        numbers = {(row.segment, row.number) for row in rows}
        dropped = any(number <= self.dropped.get(segment, (0, ""))[0] for segment, number in numbers)
        if dropped or len(numbers) < len(rows) or not self._claimed.isdisjoint(numbers):
            raise StoreConflict(
                "an audit row of that segment and number exists already; append the row with the next number"
            )
        self._claimed |= numbers

    def release(self, rows: Sequence[AuditRow]) -> None:
        """Free the numbers of rows that were claimed and not added."""
        self._claimed -= {(row.segment, row.number) for row in rows}

    async def append(self, tenant: str, rows: Sequence[AuditRow]) -> None:
        self.claim(rows)
        self.rows += [(tenant, row) for row in rows]
        self.trim()

    async def holds(self, tenant: str, row: AuditRow) -> bool:
        """See ``SearchedAudit``."""
        dropped, _ = self.dropped.get(row.segment, (0, ""))
        return (row.segment, row.number) in self._claimed or row.number <= dropped

    async def tips(self) -> list[AuditTip]:
        """See ``TippedAudit``. Rows that are not hashed yet have no hash to link to."""
        last = {row.segment: (row.segment, row.number, row.hash) for _, row in self._all_rows()}
        return [last[segment] for segment in sorted(last, reverse=True)[:MAX_TIPS]]

    def _all_rows(self) -> Sequence[tuple[str, AuditRow]]:
        return self.rows

    async def read(
        self, tenant: str | None, *, since: float = 0.0, until: float | None = None
    ) -> AsyncIterator[AuditRow]:
        await self._flush()
        chosen = [row for owner, row in self.rows if tenant is None or owner == tenant]
        for row in sorted(chosen, key=lambda row: (row.at, row.segment, row.number)):
            if row.at >= since and (until is None or row.at < until):
                yield row

    async def anchor(self, segment: str, number: int, hash: str, at: float) -> None:
        self.heads.append((segment, number, hash, at))

    async def anchors(self) -> list[tuple[str, int, str, float]]:
        await self._flush()
        return list(self.heads)

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[MemoryAuditSnapshot, None]:
        await self._flush()
        yield MemoryAuditSnapshot(self.rows, self.heads, self.checkpoints, self.positions, self.dropped)

    async def checkpoint(self, checkpoints: Sequence[AuditCheckpoint]) -> int:
        await self._flush()
        before = len(self.rows)
        for one in checkpoints:
            if one.kind is CheckpointKind.PRUNED:
                self.rows[:] = [
                    (owner, row) for owner, row in self.rows if row.segment != one.segment or row.number > one.number
                ]
                self.heads[:] = [head for head in self.heads if head[0] != one.segment or head[1] > one.number]
            else:
                self.checkpoints[:] = [
                    old for old in self.checkpoints if (old.segment, old.kind) != (one.segment, one.kind)
                ]
            self.checkpoints.append(one)
        return before - len(self.rows)

    async def advance(self, cursor: str, moves: Sequence[tuple[str, int, int]]) -> None:
        if any(self.positions.get((cursor, segment), 0) != before for segment, before, _ in moves):
            raise StoreConflict("another process has moved this cursor; give each exporter a cursor of its own")
        self.positions |= {(cursor, segment): number for segment, _, number in moves}

    async def cursors(self) -> set[str]:
        return {cursor for cursor, _ in self.positions}


class MemoryAuditSnapshot:
    """See ``AuditSnapshot``: a sorted copy of the lists."""

    def __init__(
        self,
        rows: Iterable[tuple[str, AuditRow]],
        heads: Iterable[tuple[str, int, str, float]] = (),
        checkpoints: Iterable[AuditCheckpoint] = (),
        positions: Mapping[tuple[str, str], int] | None = None,
        dropped: Mapping[str, tuple[int, str]] | None = None,
    ) -> None:
        self._dropped = dict(dropped or {})
        self._rows: dict[str, list[tuple[str, AuditRow]]] = {}
        for owner, row in sorted(rows, key=lambda pair: pair[1].number):
            self._rows.setdefault(row.segment, []).append((owner, row))
        self._anchors: dict[str, list[tuple[int, str]]] = {}
        for segment, number, hash in sorted({head[:3] for head in heads}):
            self._anchors.setdefault(segment, []).append((number, hash))
        self._checkpoints: dict[str, list[AuditCheckpoint]] = {}
        for one in sorted(checkpoints, key=lambda one: one.number):
            self._checkpoints.setdefault(one.segment, []).append(one)
        self._positions = dict(positions or {})

    async def segments(self, after: str = "", *, cursor: str | None = None) -> AsyncIterator[AuditSegment]:
        for name in sorted({*self._rows, *self._anchors, *self._checkpoints, *self._dropped}):
            if name > after:
                rows, anchors = self._rows.get(name, []), self._anchors.get(name, [])
                yield AuditSegment(
                    name,
                    rows[0][1].number if rows else 0,
                    rows[-1][1].number if rows else 0,
                    rows[-1][1].hash if rows else "",
                    anchors[-1][0] if anchors else 0,
                    self._positions.get((cursor or "", name), 0),
                    tuple(self._checkpoints.get(name, ())),
                    self._dropped.get(name),
                )

    async def rows(self, segment: str, after: int = 0) -> AsyncIterator[tuple[str, AuditRow]]:
        for owner, row in self._rows.get(segment, []):
            if row.number > after:
                yield owner, row

    async def anchors(self, segment: str, after: int = 0) -> AsyncIterator[tuple[int, str]]:
        for number, hash in self._anchors.get(segment, []):
            if number > after:
                yield number, hash

    async def known_hashes(self, hashes: Collection[str]) -> set[str]:
        pruned = {
            one.hash for found in self._checkpoints.values() for one in found if one.kind is CheckpointKind.PRUNED
        }
        pruned |= {hash for _, hash in self._dropped.values()}
        return (pruned | {row.hash for rows in self._rows.values() for _, row in rows}) & set(hashes)

    async def continued_hashes(self, hashes: Collection[str]) -> set[str]:
        firsts = {row.previous for rows in self._rows.values() for _, row in rows if row.number == 1}
        return firsts & set(hashes)


class HeldAudit(MemoryAudit):
    """The audit log within a transaction: its rows have their numbers, and other readers see them after ``commit``."""

    def __init__(self, outer: MemoryAudit) -> None:
        super().__init__()
        self._outer = outer

    def _all_rows(self) -> Sequence[tuple[str, AuditRow]]:
        return [*self._outer.rows, *self.rows]

    def trim(self) -> None:
        """Do nothing: the rows are counted when they are in the log."""

    def claim(self, rows: Sequence[AuditRow]) -> None:
        """Reserve the numbers of rows in the whole log."""
        self._outer.claim(rows)

    async def read(
        self, tenant: str | None, *, since: float = 0.0, until: float | None = None
    ) -> AsyncIterator[AuditRow]:
        """Read the committed rows and those of this transaction."""
        both = MemoryAudit()
        both.rows = self._outer.rows + self.rows
        async for row in both.read(tenant, since=since, until=until):
            yield row

    async def anchors(self) -> list[tuple[str, int, str, float]]:
        """Return the committed anchors and those of this transaction."""
        return self._outer.heads + self.heads

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[MemoryAuditSnapshot, None]:
        """Read the committed rows and anchors, and those of this transaction."""
        outer = self._outer
        rows, heads = outer.rows + self.rows, outer.heads + self.heads
        yield MemoryAuditSnapshot(rows, heads, outer.checkpoints, outer.positions, outer.dropped)

    async def checkpoint(self, checkpoints: Sequence[AuditCheckpoint]) -> int:
        """Store checkpoints at once: in memory they are not part of the transaction."""
        return await self._outer.checkpoint(checkpoints)

    async def advance(self, cursor: str, moves: Sequence[tuple[str, int, int]]) -> None:
        """Move a cursor at once: in memory it is not part of the transaction."""
        await self._outer.advance(cursor, moves)

    async def cursors(self) -> set[str]:
        """Return the names of all cursors."""
        return await self._outer.cursors()

    def commit(self) -> None:
        """Add the rows and anchors to the log."""
        self._outer.rows += self.rows
        self._outer.heads += self.heads
        self._outer.trim()

    def roll_back(self) -> None:
        """Add nothing, and free the numbers of the rows."""
        self._outer.release([row for _, row in self.rows])
