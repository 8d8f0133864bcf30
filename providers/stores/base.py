"""Protocols of a store, one for each concern, and their records.

Every record belongs to a tenant (``""`` without tenants). The tenant is the first argument of every method, has no default
and is part of every key and index, so that a query cannot omit it. Values are JSON bytes and are never unpickled. Times
are seconds since the epoch, durations are seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from callgate.providers.stores.effects import EffectStore, PinStore, SuspensionStore
from callgate.providers.stores.jobs import JobStore


class CacheEntry(NamedTuple):
    """One cached value as JSON bytes: fresh until ``fresh_until``, and served while it is renewed until ``stale_until``."""

    value: bytes
    made_at: float
    fresh_until: float
    stale_until: float
    tags: frozenset[str] = frozenset()


class CacheStore(Protocol):
    """A cache. An entry past ``stale_until`` is never returned and may be deleted at any time."""

    async def get(self, tenant: str, key: str) -> CacheEntry | None:
        """Return the entry of a key, or None."""
        ...

    async def put(self, tenant: str, key: str, entry: CacheEntry) -> None:
        """Store an entry, and replace an earlier one."""
        ...

    async def drop(self, tenant: str, key: str) -> bool:
        """Delete an entry. Return True if there was one."""
        ...

    async def drop_tags(self, tenant: str, tags: Collection[str]) -> int:
        """Delete every entry that has one of the tags. Return the number."""
        ...


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of taking units from a rate limit; ``retry_after`` is in seconds."""

    ok: bool
    remaining: int
    retry_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate limit: *amount* units in a window of *seconds*."""

    amount: int
    seconds: float


class QuotaStore(Protocol):
    """Rate limits over windows of time. ``take`` is atomic: concurrent callers never get more than the limit together."""

    async def take(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> Taken:
        """Take *cost* units, or none."""
        ...

    async def give_back(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> None:
        """Return units that were taken and not used. Units of a past window are not returned."""
        ...

    async def look(self, tenant: str, key: str, limit: Limit) -> Taken:
        """Return what ``take`` would return for one unit, and take nothing."""
        ...


class SemaphoreStore(Protocol):
    """Permits of a concurrency limit. A token holds a permit for a time, so a crashed holder loses it."""

    async def acquire(self, tenant: str, key: str, permits: int, token: str, ttl: float) -> bool:
        """Acquire a permit for *ttl* seconds, or renew the permit of the token. Return False when all *permits* are taken."""
        ...

    async def release(self, tenant: str, key: str, token: str) -> bool:
        """Release the permit of a token. Return False if the token has none."""
        ...

    async def holders(self, tenant: str, key: str) -> int:
        """Return the number of permits that are taken now."""
        ...


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One row of the audit log. ``hash`` covers the body, the segment, the number and the hash of the row before.

    A segment holds the rows of one process; ``number`` counts them from 1 without gaps.
    """

    segment: str
    number: int
    at: float
    body: Mapping[str, Any]
    previous: str
    hash: str


AuditTip: TypeAlias = tuple[str, int, str]
"""The last row of a segment: its segment, number and hash."""
MAX_TIPS = 8
"""The number of segments that a new segment links to: so many gates may start at once, and each is linked to later."""


class CheckpointKind(StrEnum):
    """The kind of a checkpoint of the audit log."""

    VERIFIED = "verified"
    PRUNED = "pruned"


@dataclass(frozen=True, slots=True)
class AuditCheckpoint:
    """A signed statement about the rows of a segment up to a number: they were verified, or they were removed.

    ``hash`` is the hash of the row with that number, ``mac`` the signature.
    """

    kind: CheckpointKind
    segment: str
    number: int
    hash: str
    at: float
    mac: str


@dataclass(frozen=True, slots=True)
class AuditSegment:
    """A segment of the audit log. Numbers and hash are of its stored rows; 0 and ``""`` without rows.

    ``anchored`` is the number of its last anchor, ``exported`` the position of the cursor that was asked for.
    ``checkpoints`` are sorted by number. ``dropped`` is of a store of limited size: the number of the last row that it has
    dropped, and the hash that the next row continues.
    """

    name: str
    first: int
    last: int
    hash: str
    anchored: int
    exported: int
    checkpoints: tuple[AuditCheckpoint, ...]
    dropped: tuple[int, str] | None = None


class AuditSnapshot(Protocol):
    """One consistent state of the audit log, of all tenants. It is read in the order of segments and numbers."""

    def segments(self, after: str = "", *, cursor: str | None = None) -> AsyncIterator[AuditSegment]:
        """Read the segments with a name greater than *after*: those with rows, anchors or checkpoints."""
        ...

    def rows(self, segment: str, after: int = 0) -> AsyncIterator[tuple[str, AuditRow]]:
        """Read the rows of a segment with a number greater than *after*, each with its tenant."""
        ...

    def anchors(self, segment: str, after: int = 0) -> AsyncIterator[tuple[int, str]]:
        """Read number and hash of the anchors of a segment with a number greater than *after*."""
        ...

    async def known_hashes(self, hashes: Collection[str]) -> set[str]:
        """Return those of the hashes that a row or a pruning checkpoint has."""
        ...

    async def continued_hashes(self, hashes: Collection[str]) -> set[str]:
        """Return those of the hashes that the first row of a segment continues."""
        ...


class AuditStore(Protocol):
    """An append-only audit log. Rows never change; an anchor records the last row of a segment at some time."""

    async def append(self, tenant: str, rows: Sequence[AuditRow]) -> None:
        """Append rows, all or none.

        Raises:
            StoreConflict: a row has that segment and number already.
        """
        ...

    def read(self, tenant: str | None, *, since: float = 0.0, until: float | None = None) -> AsyncIterator[AuditRow]:
        """Read rows by time, segment and number; None as tenant means all tenants, for verification."""
        ...

    async def anchor(self, segment: str, number: int, hash: str, at: float) -> None:
        """Record the last row of a segment."""
        ...

    async def anchors(self) -> list[tuple[str, int, str, float]]:
        """Return every anchor: segment, number, hash and time."""
        ...

    def snapshot(self) -> AbstractAsyncContextManager[AuditSnapshot]:
        """Open one consistent state of the log for reading. Writers do not wait for it, except in memory."""
        ...

    async def checkpoint(self, checkpoints: Sequence[AuditCheckpoint]) -> int:
        """Store checkpoints. The rows and anchors that a pruning checkpoint covers are removed in the same transaction.

        A checkpoint of verified rows replaces earlier ones of its segment. Return the number of removed rows.
        """
        ...

    async def advance(self, cursor: str, moves: Sequence[tuple[str, int, int]]) -> None:
        """Move a cursor, all or nothing. A move is a segment, the number before and the new number.

        Raises:
            StoreConflict: the cursor has moved in the meantime.
        """
        ...

    async def cursors(self) -> set[str]:
        """Return the names of all cursors."""
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """A consent: a user grants a tool a scope, until ``expires_at`` (None: until it is revoked)."""

    user: str
    tool: str
    scope: str
    granted_at: float
    expires_at: float | None


class ConsentStore(Protocol):
    """Consents by user, tool and scope. Expired consents are never returned."""

    async def find(self, tenant: str, user: str, tool: str, scope: str) -> Grant | None:
        """Return the consent, or None."""
        ...

    async def grant(self, tenant: str, grant: Grant) -> None:
        """Store a consent, and replace an earlier one."""
        ...

    async def revoke(self, tenant: str, user: str, tool: str | None = None, scope: str | None = None) -> int:
        """Delete the consents of a user, of one tool or scope if given. Return the number."""
        ...

    async def list(self, tenant: str, user: str) -> Sequence[Grant]:
        """Return the consents of a user, oldest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFigures:
    """The figures of a store that its operators watch; see ``SqlStore.figures``.

    The first three are of one namespace, the others of this process since it opened the store.

    Args:
        unknown_effects: effects without a known outcome; see ``callgate effects``.
        suspended_calls: calls that wait for a decision or an answer.
        oldest_job: seconds for which the longest waiting job could have run; 0.0 without one.
        changes: claims, outcomes and audit rows that were written.
        transactions: transactions that wrote them. ``changes / transactions`` is the mean size of a batch.
        connection_waits: requests that had to wait for a connection of the pool.
        connection_wait_time: seconds that they have waited, in total.
    """

    unknown_effects: int
    suspended_calls: int
    oldest_job: float
    changes: int = 0
    transactions: int = 0
    connection_waits: int = 0
    connection_wait_time: float = 0.0


@runtime_checkable
class MeasuredStore(Protocol):
    """A store that knows its figures. A store of another package may be without."""

    async def figures(self) -> StoreFigures:
        """Return the figures of this namespace and process."""
        ...


class Transaction(Protocol):
    """A unit of work: its writes are committed together or not at all."""

    @property
    def audit(self) -> AuditStore:
        """The audit log, within the transaction."""
        ...

    @property
    def effects(self) -> EffectStore:
        """The effect ledger, within the transaction."""
        ...

    @property
    def suspensions(self) -> SuspensionStore:
        """Suspended calls, within the transaction."""
        ...

    @property
    def jobs(self) -> JobStore:
        """Durable jobs, within the transaction."""
        ...


@runtime_checkable
class Store(Protocol):
    """A set of stores behind one address.

    Reading a part that a backend does not support raises ``StoreUnsupported``.
    """

    name: str

    @property
    def durable(self) -> bool:
        """True when the data survives the process and a crash of the machine."""
        ...

    @property
    def cache(self) -> CacheStore:
        """The cache."""
        ...

    @property
    def quotas(self) -> QuotaStore:
        """Rate limits."""
        ...

    @property
    def semaphores(self) -> SemaphoreStore:
        """Concurrency limits."""
        ...

    @property
    def audit(self) -> AuditStore:
        """The audit log."""
        ...

    @property
    def consents(self) -> ConsentStore:
        """Consents."""
        ...

    @property
    def effects(self) -> EffectStore:
        """The effect ledger."""
        ...

    @property
    def suspensions(self) -> SuspensionStore:
        """Suspended calls."""
        ...

    @property
    def pins(self) -> PinStore:
        """Approved definitions of outside tools."""
        ...

    @property
    def jobs(self) -> JobStore:
        """Durable jobs."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a unit of work."""
        ...

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...
