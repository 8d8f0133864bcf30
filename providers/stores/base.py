"""What a store is: small protocols, one a concern, and the facts they exchange.

Everything in a store belongs to a tenant (``""`` where there are none): it is the first argument of every method, part
of every key and index, and has no default, so that no query can forget it. Values are JSON bytes; nothing is revived
into objects. Times are seconds since the epoch, durations seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from callgate.providers.stores.effects import EffectStore, PinStore, WaitStore
from callgate.providers.stores.jobs import JobStore


class CacheEntry(NamedTuple):
    """One cached value, as JSON bytes. Fresh until ``fresh_until``, usable while it is renewed until ``stale_until``."""

    value: bytes
    made_at: float
    fresh_until: float
    stale_until: float
    tags: frozenset[str] = frozenset()


class CacheStore(Protocol):
    """Cached values by key; an entry that is past ``stale_until`` may be gone at any time and is never returned."""

    async def get(self, tenant: str, key: str) -> CacheEntry | None:
        """The entry of a key, None when there is none."""
        ...

    async def put(self, tenant: str, key: str, entry: CacheEntry) -> None:
        """Keep an entry, in the place of any other."""
        ...

    async def drop(self, tenant: str, key: str) -> bool:
        """Forget an entry; whether there was one."""
        ...

    async def drop_tags(self, tenant: str, tags: Collection[str]) -> int:
        """Forget every entry that has one of the tags; how many."""
        ...


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of an attempt to take from a quota: ``retry_after`` in seconds, when it may be tried again."""

    ok: bool
    remaining: int
    retry_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """So many units in so many seconds."""

    amount: int
    seconds: float


class QuotaStore(Protocol):
    """Units taken from windows of time. ``take`` is atomic: concurrent takers together never get more than the limit."""

    async def take(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> Taken:
        """Take *cost* units, or none at all."""
        ...

    async def give_back(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> None:
        """Return units that were taken and not used; those of a window that is over are gone anyway."""
        ...

    async def look(self, tenant: str, key: str, limit: Limit) -> Taken:
        """What taking one unit would answer; takes nothing."""
        ...


class SemaphoreStore(Protocol):
    """Places, held by token for a time: a holder that dies loses its place when the time is over."""

    async def acquire(self, tenant: str, key: str, places: int, token: str, ttl: float) -> bool:
        """Take a place, or renew it when the token has one; False when all are taken."""
        ...

    async def release(self, tenant: str, key: str, token: str) -> bool:
        """Give a place back; whether the token still had one. Harmless otherwise."""
        ...

    async def holders(self, tenant: str, key: str) -> int:
        """How many places are taken now."""
        ...


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One audit record in its chain: ``hash`` covers the body, the segment, the number and the hash before.

    A segment is what one process wrote; ``number`` counts from 1 in it without gaps.
    """

    segment: str
    number: int
    at: float
    body: Mapping[str, Any]
    previous: str
    hash: str


class AuditStore(Protocol):
    """An append-only record. Rows are never changed; ``anchor`` writes down how long each segment was at some time."""

    async def append(self, tenant: str, rows: Sequence[AuditRow]) -> None:
        """Add rows, all or none.

        Raises:
            StoreConflict: a row of that segment and number is there already.
        """
        ...

    def read(self, tenant: str | None, *, since: float = 0.0, until: float | None = None) -> AsyncIterator[AuditRow]:
        """Rows by time, segment and number; of all tenants for None, which only verification asks for."""
        ...

    async def anchor(self, segment: str, number: int, hash: str, at: float) -> None:
        """Write down a segment's head."""
        ...

    async def anchors(self) -> list[tuple[str, int, str, float]]:
        """Every head that was written down."""
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """A consent: who allowed which tool what, until when (None: until it is revoked)."""

    user: str
    tool: str
    scope: str
    granted_at: float
    expires_at: float | None


class ConsentStore(Protocol):
    """Consents by user, tool and scope; an expired one is never returned."""

    async def find(self, tenant: str, user: str, tool: str, scope: str) -> Grant | None:
        """The consent, None when there is none."""
        ...

    async def grant(self, tenant: str, grant: Grant) -> None:
        """Remember a consent, in the place of any other."""
        ...

    async def revoke(self, tenant: str, user: str, tool: str | None = None, scope: str | None = None) -> int:
        """Forget a user's consents, of one tool or scope if given; how many."""
        ...

    async def list(self, tenant: str, user: str) -> Sequence[Grant]:
        """A user's consents, the oldest first."""
        ...


class Transaction(Protocol):
    """What is written together, or not at all (design 10.3)."""

    @property
    def audit(self) -> AuditStore:
        """The audit record, within the transaction."""
        ...

    @property
    def effects(self) -> EffectStore:
        """The effect ledger, within the transaction."""
        ...

    @property
    def waits(self) -> WaitStore:
        """Suspended calls, within the transaction."""
        ...

    @property
    def jobs(self) -> JobStore:
        """Invocations for workers, within the transaction."""
        ...


@runtime_checkable
class Store(Protocol):
    """A family of stores behind one address; ``async with store`` opens and closes it.

    A part that a backend cannot promise raises ``StoreUnsupported`` when it is asked for.
    """

    name: str

    @property
    def durable(self) -> bool:
        """Whether what is kept outlives the process, a crash of the machine included."""
        ...

    @property
    def cache(self) -> CacheStore:
        """Cached values."""
        ...

    @property
    def quotas(self) -> QuotaStore:
        """Units in windows of time."""
        ...

    @property
    def semaphores(self) -> SemaphoreStore:
        """Places."""
        ...

    @property
    def audit(self) -> AuditStore:
        """Audit records."""
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
    def waits(self) -> WaitStore:
        """Suspended calls."""
        ...

    @property
    def pins(self) -> PinStore:
        """Agreed definitions of outside tools."""
        ...

    @property
    def jobs(self) -> JobStore:
        """Invocations for workers."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Writes that belong together."""
        ...

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...
