"""The hash chain of an audit log: hashes rows, writes them in order, and anchors the head.

A segment is a sequence of rows without gaps, numbered from 1. Each row has the hash of the row before it. After a failed
write it is unknown whether the row exists: the segment ends, and the next one begins with the last known hash.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, TypeAlias

import orjson

from callgate.errors import StoreError
from callgate.hooks.stock.records.audit_late import LateRows
from callgate.providers.logs import LogEvent, emit
from callgate.providers.stores.base import AuditRow, AuditStore, AuditTip
from callgate.providers.stores.group_commit import GroupCommit
from callgate.providers.stores.ledger_writes import ChainRows, RowBody, SearchedAudit, row_json, sealing
from callgate.providers.stores.turns import Turns
from callgate.tools.values import has_float, hash_of

Late: TypeAlias = Callable[[object, asyncio.Future[Any]], None]
"""Gets the future of a row that the store goes on writing after its caller has stopped to wait."""
Put: TypeAlias = Callable[[str, Sequence[AuditRow]], Awaitable[None]]
"""Writes the rows of a tenant, all or none."""
Append: TypeAlias = Callable[[str, ChainRows, Late | None], Awaitable[None]]
"""Writes a row of a tenant together with those of other chains; it seals them with ``Chain.seal``."""
Anchor: TypeAlias = Callable[[str, int, str, float], Awaitable[None]]
"""Stores an anchor: segment, number, hash, seconds since the epoch."""

_Row: TypeAlias = tuple[str, dict[str, object]]
"""A tenant, and the body of a row."""


def row_hash(body: Mapping[str, object], segment: str, number: int, previous: str) -> str:
    """Hash a row: SHA-256 over the canonical JSON of its body, segment, number and the previous hash.

    Raises:
        TypeError: the body is not JSON.
        ValueError: a number in the body is not finite.
    """
    return hash_of({"body": body, "number": number, "previous": previous, "segment": segment})


def _own_row_hash(body: Mapping[str, object], segment: str, number: int, previous: str) -> str:
    """``row_hash``, faster, for a body that Callgate made: only its arguments can contain a float."""
    shown = body.get("input")
    try:
        is_exact = not shown or not has_float(orjson.dumps(shown))
        if is_exact and (data := getattr(body, "encoded", None) or row_json(body)) is not None:
            place = orjson.dumps({"number": number, "previous": previous, "segment": segment})
            return sha256(b'{"body":%b,%b' % (data, place[1:])).hexdigest()
    except TypeError:  # an integer beyond 64 bits, or an unpaired surrogate
        pass
    return row_hash(body, segment, number, previous)


def micros(seconds: float) -> int:
    """Convert seconds to whole microseconds. An integer has the same JSON in every store."""
    return round(seconds * 1_000_000)


class Chain:
    """The segment of one gate, and the queue of rows to write.

    With ``in_place`` *put* never waits, and no task is created. Otherwise rows that arrive while others are written form
    the next batch; with *append* the store does that for all chains. ``limit`` is the timeout of one write in seconds.
    *sign* adds a signature to the hash of a row.
    The writes do not run in the caller's task, so a cancelled call leaves no gap and no partial row.
    """

    def __init__(
        self,
        put: Put,
        anchor: Anchor | None,
        now: Callable[[], float],
        *,
        in_place: bool,
        limit: float,
        every: int,
        append: Append | None = None,
        audit: AuditStore | None = None,
        sign: Callable[[str], str] | None = None,
    ) -> None:
        self._audit = audit
        self._sign = sign
        self._put = put
        self._append = append
        self._anchor = anchor
        self._now = now
        self._in_place = in_place
        self._limit = limit
        self.lock = Turns()  # the next hash depends on whether the rows before are written
        self._group: GroupCommit[_Row] = GroupCommit(self._write_all)
        self._every = every
        self.late = LateRows(self._add_again)
        self.noted: list[tuple[Any, ...]] = []
        self.closed = False
        self.deferred = False
        self.trim: Callable[[], None] = lambda: None
        self._end: Callable[[Chain], None] = lambda _: None
        self.room = 0  # the number of noted rows beyond which the store drops the oldest
        self.head = ""
        self.unanchored = 0
        self._begin()

    def _begin(self) -> None:
        """Begin a segment. Its first row has the last known hash, so the loss of the previous segment is detected."""
        began = datetime.fromtimestamp(self._now(), UTC)
        self.segment = f"{began:%Y%m%dT%H%M%S}.{secrets.token_hex(8)}"
        self.number = 0
        self.unanchored = 0
        self.links: Sequence[AuditTip] | None = None

    async def add(self, tenant: str, body: dict[str, object], within: float | None = None) -> None:
        """Hash a row and write it; returns when it is written. The time of the row is ``at_us`` in the body.

        After *within* seconds the caller goes on: the row is then written late, and again if that fails. None waits as
        long as one write may take, and fails then.

        Raises:
            StoreError: the row was not written, or that is unknown.
        """
        if self._in_place:
            await self._write(tenant, [body])
        elif within is None:
            await self._put_row(tenant, body, None)
        else:
            await self._put_late(tenant, body, min(within, self._limit))

    async def _add_again(self, tenant: str, body: dict[str, object]) -> None:
        """Write a row again, unless a write that seemed to fail has written it."""
        for row in getattr(body, "doubts", ()):
            if isinstance(self._audit, SearchedAudit) and await self._audit.holds(tenant, row):
                return
        await self.add(tenant, body)

    async def _put_late(self, tenant: str, body: dict[str, object], within: float) -> None:
        followed = False

        def follow(_: object, done: asyncio.Future[Any]) -> None:
            nonlocal followed
            followed = True
            self.late.follow(tenant, body, done)

        try:
            async with asyncio.timeout(within):
                await self._put_row(tenant, body, follow)
        except (TimeoutError, StoreError):
            if not followed:
                raise
        else:
            self.late.retry()

    async def _put_row(self, tenant: str, body: dict[str, object], late: Late | None) -> None:
        if self._append is not None:
            async with asyncio.timeout(self._limit):
                await self._append(tenant, [(self, body)], late)
            return
        error: Exception | None = await self._group.put((tenant, body), object(), withdraw=False, late=late)
        if error is not None:
            raise StoreError(f"the audit row was not written: {type(error).__name__}") from error

    async def anchor_if_due(self) -> None:
        """Anchor the head if enough rows were written since the last anchor."""
        if self.unanchored >= self._every:
            await self.anchor()

    async def close(self) -> None:
        """Write the last anchor."""
        self.closed = True
        await self.late.close()
        if self.deferred:
            self._end(self)
        else:
            await self.anchor()

    # ------------------------------------------------------------------ in memory

    def defer(self, trim: Callable[[], None], end: Callable[[Chain], None]) -> None:
        """Hash rows only in ``settle``: a store in memory calls it before each read.

        Until then ``noted`` has them: a tenant, a function, and the facts that the function makes the row of. No other
        code may change these facts. *trim* drops the oldest rows; ``will_audit`` calls it when there is no room. *end*
        settles a chain that gets no more rows.
        """
        self.trim, self._end = trim, end
        self.deferred = True

    def settle(self, limit: int) -> int:
        """Hash and write the first *limit* noted rows in order, with the anchors that are due. Return how many are left."""
        noted, self.noted = self.noted[:limit], self.noted[limit:]
        for tenant, make, *facts in noted:
            _at_once(self._write(tenant, [make(*facts)]))
            _at_once(self.anchor_if_due())
        if self.closed and not self.noted:
            _at_once(self.anchor())
        return len(self.noted)

    def drop(self, count: int) -> tuple[str, int, str]:
        """Drop the first noted rows: their numbers are used, and they are never hashed. See ``NotingChain``."""
        del self.noted[:count]
        self.number += count
        self.unanchored = 0  # what it counted is older than the dropped rows, and dropped with them
        return self.segment, self.number, self.head

    # ------------------------------------------------------------------ writing

    async def _write_all(self, rows: Sequence[_Row], _wait: int) -> list[Exception | None]:
        """Write rows, those of each tenant together. Return the error of each row."""
        bodies: dict[str, list[dict[str, object]]] = {}
        for tenant, body in rows:
            bodies.setdefault(tenant, []).append(body)
        failed: dict[str, Exception] = {}
        for tenant, given in bodies.items():
            try:
                async with asyncio.timeout(self._limit):
                    await self._write(tenant, given)
            except Exception as error:  # noqa: BLE001  (a sink of the application may raise anything)
                failed[tenant] = error
        return [failed.get(tenant) for tenant, _ in rows]

    async def _write(self, tenant: str, bodies: Sequence[dict[str, object]]) -> None:
        async with sealing(self, bodies, self._audit) as rows:
            await self._put(tenant, rows)

    def seal(self, bodies: Sequence[Mapping[str, Any]]) -> list[AuditRow]:
        """Return the next rows of the chain; see ``RowChain``."""
        rows: list[AuditRow] = []
        number, head = self.number, self.head
        for body in bodies:
            number, at = number + 1, body["at_us"] / 1_000_000
            if number == 1 and self.links:
                body = {**body, "links": [list(link) for link in self.links]}
            hash = _own_row_hash(body, self.segment, number, head)
            if self._sign is not None:
                hash = self._sign(hash)
            rows.append(AuditRow(self.segment, number, at, body, head, hash))
            head = hash
        return rows

    def written(self, rows: Sequence[AuditRow]) -> None:
        """Record that the rows are written."""
        self.number, self.head = rows[-1].number, rows[-1].hash
        self.unanchored += len(rows)

    def doubtful(self, bodies: Sequence[Mapping[str, object]], rows: Sequence[AuditRow]) -> None:
        """Begin a segment: after a failed write the rows may exist, so their numbers are not used again."""
        for body, row in zip(bodies, rows, strict=True):
            if isinstance(body, RowBody):
                body.doubts = [*getattr(body, "doubts", ()), replace(row, body={})]
        self._begin()

    async def anchor(self) -> None:
        """Store an anchor of the head, if rows were written since the last one.

        Raises:
            StoreError: the anchor was not stored; the next one covers its rows.
        """
        count, self.unanchored = self.unanchored, 0
        if not count or self._anchor is None:
            return
        segment = self.segment
        try:
            if self.deferred:
                await self._anchor(segment, self.number, self.head, self._now())
                return
            async with asyncio.timeout(self._limit):
                await self._anchor(segment, self.number, self.head, self._now())
        except BaseException:
            if segment == self.segment:
                self.unanchored += count
            raise


class Closing:
    """Writes the last anchor when the gate closes or the hook has left it. Its failures do not stop other cleanups."""

    def __init__(self, chain: Chain, forget: Callable[[], object]) -> None:
        self.chain = chain
        self._forget = forget

    async def __call__(self) -> None:
        """Write the last anchor. Rows that come later begin another segment."""
        self._forget()
        try:
            await self.chain.close()
        except (Exception, asyncio.CancelledError) as error:
            emit(LogEvent.PROVIDER_FAILED, provider="audit", phase="anchor", error=error)
            if not isinstance(error, Exception):
                raise


def _at_once(work: Coroutine[object, None, None]) -> None:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise StoreError("a store in memory waited")
