"""The chain of audit rows that one gate writes: sealing, writing in order, anchoring its head.

A segment is a run of rows, numbered from 1 without gaps, each sealed with the hash of the one before. Where a write
fails, nobody knows whether the row is there: the segment ends, and the next one begins with the last hash that is known.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, TypeAlias

import orjson

from callgate.errors import StoreError
from callgate.providers.stores.base import AuditRow, AuditStore
from callgate.tools.values import FLOAT, PLAIN, hash_of

Put: TypeAlias = Callable[[str, Sequence[AuditRow]], Awaitable[None]]
"""Writes rows of a tenant, all or none."""
Anchor: TypeAlias = Callable[[str, int, str, float], Awaitable[None]]
"""Writes down a head: segment, number, hash, seconds since the epoch."""

_Entry: TypeAlias = tuple[dict[str, Any], asyncio.Future[None]]

MOST_AT_ONCE = 256
"""Rows that are written together when calls wait for a slow store."""


def row_hash(body: Mapping[str, Any], segment: str, number: int, previous: str) -> str:
    """The seal of a row: SHA-256 over the canonical JSON of its body, segment, number and the hash before it.

    Raises:
        TypeError: the body is not JSON.
        ValueError: a number in it is not finite.
    """
    return hash_of({"body": body, "number": number, "previous": previous, "segment": segment})


def _seal(body: Mapping[str, Any], segment: str, number: int, previous: str) -> str:
    """``row_hash`` of a body that Callgate made: a float can only be in the arguments, and only those are looked at."""
    shown = body.get("input")
    try:
        if not shown or not FLOAT.search(orjson.dumps(shown)):
            whole = {"body": body, "number": number, "previous": previous, "segment": segment}
            return sha256(orjson.dumps(whole, option=PLAIN)).hexdigest()
    except TypeError:  # integers that are too long for it, half a surrogate pair
        pass
    return row_hash(body, segment, number, previous)


def micros(seconds: float) -> int:
    """Whole microseconds: integers have one spelling in JSON, whatever store they have been in."""
    return round(seconds * 1_000_000)


class Sealed:
    """Rows with their places in a chain."""

    __slots__ = ("rows", "tried")

    def __init__(self, rows: list[AuditRow]) -> None:
        self.rows = rows
        self.tried = False

    async def put(self, audit: AuditStore, tenant: str) -> None:
        """Write them."""
        self.tried = True
        await audit.append(tenant, self.rows)


class Chain:
    """One gate's segment, and the rows that wait to be written to it.

    With ``in_place`` *put* never waits, and no task is made. Otherwise one task writes, and rows that come meanwhile go
    together; ``limit`` is in seconds, for one write. The task is not the caller's: a call that is cancelled while it
    waits leaves no gap and no row half-written.
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
    ) -> None:
        self._put = put
        self._anchor = anchor
        self._now = now
        self._in_place = in_place
        self._limit = limit
        self._turn = asyncio.Lock()  # whoever seals rows: the next hash depends on whether they are written
        self._waiting: dict[str, list[_Entry]] = {}  # by tenant: rows of one are written together
        self._writer: asyncio.Task[None] | None = None
        self._every = every
        self.noted: list[tuple[Any, ...]] = []
        self._closed = False
        self.keeps_back = False
        self.head = ""
        self.unanchored = 0
        self._begin()

    def _begin(self) -> None:
        """A new segment. Its first row names the last hash that is known, so that the one before is not lost unseen."""
        began = datetime.fromtimestamp(self._now(), UTC)
        self.segment = f"{began:%Y%m%dT%H%M%S}.{secrets.token_hex(8)}"
        self.number = 0
        self.unanchored = 0

    async def add(self, tenant: str, body: dict[str, Any]) -> None:
        """Seal a row and write it; returns when it is written. The body says when: ``at_us``.

        Raises:
            StoreError: it was not written, or nobody knows.
        """
        if self._in_place:
            await self._write(tenant, [body])
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, []).append((body, written))
        if self._writer is None:
            self._writer = asyncio.ensure_future(self._write_all())
        await written

    async def anchor_if_due(self) -> None:
        """Anchor the head when enough rows came since the last time."""
        if self.unanchored >= self._every:
            await self.anchor()

    async def close(self) -> None:
        """Anchor the head for good."""
        self._closed = True
        if not self.keeps_back:
            await self.anchor()

    # ------------------------------------------------------------------ in memory

    def keep_back(self) -> None:
        """Seal rows only when ``settle`` is called: for a store in memory, before somebody reads it.

        Until then they are in ``noted``: a tenant, a function, and the facts that it makes the row of. They must be the
        row's own: nobody may change them.
        """
        self.keeps_back = True

    def settle(self) -> None:
        """Seal what was noted, in order, with the anchors that are due."""
        noted, self.noted = self.noted, []
        for tenant, make, *facts in noted:
            _at_once(self._write(tenant, [make(*facts)]))
            _at_once(self.anchor_if_due())
        if self._closed:
            _at_once(self.anchor())

    # ------------------------------------------------------------------ writing

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                tenant = next(iter(self._waiting))
                entries = self._waiting.pop(tenant)
                batch, rest = entries[:MOST_AT_ONCE], entries[MOST_AT_ONCE:]
                if rest:
                    self._waiting[tenant] = rest  # at the end: every tenant has its turn
                try:
                    async with asyncio.timeout(self._limit):
                        await self._write(tenant, [body for body, _ in batch])
                except BaseException as error:
                    _tell(batch, error)
                    if not isinstance(error, Exception):
                        raise
                else:
                    _tell(batch, None)
        finally:  # also when the loop ends under it: nobody may be left waiting
            self._writer = None
            for left in self._waiting.values():
                _tell(left, StoreError("the audit record was not written"))
            self._waiting.clear()

    async def _write(self, tenant: str, bodies: Sequence[dict[str, Any]]) -> None:
        async with self.sealing(bodies) as sealed:
            sealed.tried = True
            await self._put(tenant, sealed.rows)

    @asynccontextmanager
    async def sealing(self, bodies: Sequence[dict[str, Any]]) -> AsyncGenerator[Sealed, None]:
        """Rows that are next in the chain, for whoever writes them within this context; nobody else has a turn then.

        What is not tried is not in the chain. What is tried and fails may be there or not: no row may take its number.
        """
        async with self._turn:
            rows: list[AuditRow] = []
            number, head = self.number, self.head
            for body in bodies:
                number += 1
                seal = _seal(body, self.segment, number, head)
                rows.append(AuditRow(self.segment, number, body["at_us"] / 1_000_000, body, head, seal))
                head = seal
            sealed = Sealed(rows)
            try:
                yield sealed
            except BaseException:
                if sealed.tried:
                    self._begin()
                raise
            if sealed.tried:
                self.number, self.head = number, head
                self.unanchored += len(rows)

    async def anchor(self) -> None:
        """Write down the head, if rows came since it was last written down.

        Raises:
            StoreError: it was not written; the next attempt covers it.
        """
        count, self.unanchored = self.unanchored, 0
        if not count or self._anchor is None:
            return
        segment = self.segment
        try:
            if self.keeps_back:
                await self._anchor(segment, self.number, self.head, self._now())
                return
            async with asyncio.timeout(self._limit):
                await self._anchor(segment, self.number, self.head, self._now())
        except BaseException:
            if segment == self.segment:
                self.unanchored += count
            raise


def _at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run what never waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise StoreError("a store in memory waited")


def _tell(batch: Iterable[_Entry], error: BaseException | None) -> None:
    for _, written in batch:
        if written.done():  # its caller was cancelled and waits no longer
            continue
        if error is None:
            written.set_result(None)
        else:  # one each: an exception that several raise gathers all their tracebacks
            told = StoreError(f"the audit record was not written: {type(error).__name__}")
            told.__cause__ = error
            written.set_exception(told)
