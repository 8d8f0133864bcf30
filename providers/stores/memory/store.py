"""The default store, in the memory of this process. Its data ends with the process and is not shared."""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass

from callgate.providers.kinds import Count, checks_kinds
from callgate.providers.stores.base import CacheEntry, Grant, Limit, StoreFigures, Taken
from callgate.providers.stores.kept_texts import keepable, refuse_unkept
from callgate.providers.stores.memory.audit import MAX_ROWS, HeldAudit, MemoryAudit
from callgate.providers.stores.memory.changes import MemoryKey
from callgate.providers.stores.memory.effects import MemoryEffects
from callgate.providers.stores.memory.jobs import MemoryJobs
from callgate.providers.stores.memory.suspensions import MemoryPins, MemorySuspensions
from callgate.providers.stores.windows import Counts, counts_at, granted, looked, refused, returned


class MemoryStore:
    """A ``Store`` in memory. No method awaits, so each is atomic; *now* is a clock in seconds since the epoch.

    *cache_size* is the maximum number of cached values, *cache_bytes* their maximum size, *max_effects* the maximum
    number of ended effects. Beyond it the effects that ended first are deleted, and their keys may be claimed again.
    Open and unknown effects are never deleted. *max_audit_rows* is the maximum number of audit rows in each
    namespace; beyond it the oldest are dropped.
    """

    name = "memory"
    durable = False

    @checks_kinds(TypeError)
    def __init__(
        self,
        now: Callable[[], float] = time.time,
        *,
        cache_size: Count = 10_000,
        cache_bytes: Count = 268_435_456,
        max_effects: Count = 100_000,
        max_audit_rows: Count = MAX_ROWS,
    ) -> None:
        self._now, self._cache_size, self._max_effects = now, cache_size, max_effects
        self._max_audit_rows, self._cache_bytes = max_audit_rows, cache_bytes
        self._namespaces: dict[str, MemoryStore] = {}
        self._bind("")

    def _bind(self, namespace: str) -> None:
        self.namespace = namespace
        self.cache = MemoryCache(self._now, self._cache_size, self._cache_bytes)
        self.quotas = MemoryQuotas(self._now)
        self.semaphores = MemorySemaphores(self._now)
        self.audit = MemoryAudit(self._max_audit_rows)
        self.consents = MemoryConsents(self._now)
        self.pins = MemoryPins()
        self.effects = MemoryEffects(self._max_effects)
        self.suspensions = MemorySuspensions()
        self.jobs = MemoryJobs()
        self._namespaces[namespace] = self

    def in_namespace(self, namespace: str) -> MemoryStore:
        """Return this store with the records of one application, in every part; see ``Options``."""
        if namespace not in self._namespaces:
            copy(self)._bind(namespace)
        return self._namespaces[namespace]

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[MemoryTransaction, None]:
        """Open a unit of work. Added audit rows and jobs appear together when it ends without an error.

        Other changes are visible as they are written, so that concurrent callers cannot take the same effect, suspended
        call or job. An error in the unit of work rolls all changes back.
        """
        work = MemoryTransaction(
            HeldAudit(self.audit),
            self.effects.in_transaction(),
            self.suspensions.in_transaction(),
            self.jobs.in_transaction(),
        )
        try:
            yield work
        except BaseException:
            for part in (work.audit, work.effects, work.suspensions, work.jobs):
                part.roll_back()
            raise
        work.audit.commit()
        work.jobs.commit()

    async def figures(self) -> StoreFigures:
        """Return what operators watch; memory has no connections."""
        now = self._now()
        oldest = self.jobs.oldest(now)
        return StoreFigures(
            unknown_effects=self.effects.unknown(),
            suspended_calls=self.suspensions.waiting(),
            oldest_job=0.0 if oldest is None else now - oldest,
        )

    async def open(self) -> None:
        """Do nothing: memory needs no connection.

        Raises:
            RuntimeError: this is the event loop of trio.
        """
        if "trio" in sys.modules:
            from callgate.providers.concurrency import refuse_trio

            refuse_trio()

    async def close(self) -> None:
        """Do nothing: the data stays as long as the object."""


@keepable
class MemoryCache:
    """A cache of at most *size* entries and *maximum* bytes of values; the least recently used is deleted first."""

    def __init__(self, now: Callable[[], float], size: int, maximum: int) -> None:
        self._now = now
        self._size, self._maximum, self._bytes = size, maximum, 0
        self._entries: OrderedDict[MemoryKey, CacheEntry] = OrderedDict()
        self._tagged: dict[MemoryKey, set[MemoryKey]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, tenant: str, key: str) -> CacheEntry | None:
        return self.get_now((tenant, key))

    def get_now(self, key: MemoryKey) -> CacheEntry | None:
        """Run ``get`` without a coroutine."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.stale_until <= self._now():
            self._delete(key)
            return None
        self._entries.move_to_end(key)
        return entry

    async def put(self, tenant: str, key: str, entry: CacheEntry) -> None:
        refuse_unkept("key", key)
        self.put_now((tenant, key), entry)

    def put_now(self, key: MemoryKey, entry: CacheEntry) -> None:
        """Run ``put`` without a coroutine; the key is a digest, which any database can keep."""
        if entry.tags:
            refuse_unkept("tags", entry.tags)
        entries = self._entries
        if key in entries:
            self._delete(key)
        entries[key] = entry
        self._bytes += len(entry.value)
        for tag in entry.tags:
            self._tagged.setdefault((key[0], tag), set()).add(key)
        while len(entries) > self._size or self._bytes > self._maximum:
            oldest, gone = entries.popitem(last=False)
            self._forget(oldest, gone)

    async def drop(self, tenant: str, key: str) -> bool:
        return self._delete((tenant, key))

    async def drop_tags(self, tenant: str, tags: Collection[str]) -> int:
        found = {key for tag in tags for key in self._tagged.get((tenant, tag), ())}
        return sum(self._delete(key) for key in found)

    def _delete(self, key: MemoryKey) -> bool:
        """Delete an entry. Return False for no entry and for an expired one."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._forget(key, entry)
        return entry.stale_until > self._now()

    def _forget(self, key: MemoryKey, entry: CacheEntry) -> None:
        self._bytes -= len(entry.value)
        for tag in entry.tags:
            tagged = self._tagged[key[0], tag]
            tagged.discard(key)
            if not tagged:
                del self._tagged[key[0], tag]


@keepable
class MemoryQuotas:
    """Rate limits with sliding windows (see ``windows``), by tenant, key and length of the window."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._windows: dict[tuple[str, str, float], tuple[int, int, int]] = {}  # number, units in it, units before it

    def _counts(self, tenant: str, key: str, limit: Limit) -> Counts:
        return counts_at(self._now(), limit.seconds, self._windows.get((tenant, key, limit.seconds)))

    async def take(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> Taken:
        counts = self._counts(tenant, key, limit)
        if counts.sliding + cost > limit.amount:
            return refused(counts, limit, cost)
        number, used, before, passed = counts
        after = Counts(number, used + cost, before, passed)
        self._windows[tenant, key, limit.seconds] = (number, used + cost, before)
        if len(self._windows) > 100_000:
            self._sweep()
        return granted(after, limit)

    def take_now(self, at: MemoryKey, limit: Limit, cost: int) -> bool:
        """Take from a known window that has room, without a coroutine. Return False when ``take`` has to decide."""
        seconds = limit.seconds
        place = (*at, seconds)
        window = self._windows.get(place)
        if window is None:
            return False
        number, used, before = window
        now, into = divmod(self._now(), seconds)
        if now != number or limit.amount - used - cost < (before * (1.0 - into / seconds) if before else 0):
            return False
        self._windows[place] = (number, used + cost, before)
        return True

    async def give_back(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> None:
        self.give_back_now((tenant, key), limit, cost)

    def give_back_now(self, at: MemoryKey, limit: Limit, cost: int) -> None:
        """Run ``give_back`` without a coroutine."""
        place = (*at, limit.seconds)
        if place in self._windows:
            self._windows[place] = returned(self._counts(*at, limit), cost)

    async def look(self, tenant: str, key: str, limit: Limit) -> Taken:
        return looked(self._counts(tenant, key, limit), limit)

    def _sweep(self) -> None:
        now = self._now()
        for key, (number, _, _) in list(self._windows.items()):
            if number < now // key[2] - 1:
                del self._windows[key]


@keepable
class MemorySemaphores:
    """Concurrency limits: permits by token, each with the time when it ends."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._held: dict[MemoryKey, dict[str, float]] = {}

    def _live(self, tenant: str, key: str) -> dict[str, float]:
        now = self._now()
        held = {token: until for token, until in self._held.get((tenant, key), {}).items() if until > now}
        if held:
            self._held[tenant, key] = held
        else:
            self._held.pop((tenant, key), None)
        return held

    async def acquire(self, tenant: str, key: str, permits: int, token: str, ttl: float) -> bool:
        held = self._live(tenant, key)
        if token not in held and len(held) >= permits:
            return False
        held[token] = self._now() + ttl
        self._held[tenant, key] = held
        return True

    async def release(self, tenant: str, key: str, token: str) -> bool:
        held = self._live(tenant, key)
        had = held.pop(token, None) is not None
        if had and not held:
            del self._held[tenant, key]
        return had

    async def holders(self, tenant: str, key: str) -> int:
        return len(self._live(tenant, key))


@dataclass(frozen=True, slots=True)
class MemoryTransaction:
    """See ``Transaction``."""

    audit: HeldAudit
    effects: MemoryEffects
    suspensions: MemorySuspensions
    jobs: MemoryJobs


@keepable
class MemoryConsents:
    """Consents by user, tool and scope."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._grants: dict[tuple[str, str, str, str], Grant] = {}

    async def find(self, tenant: str, user: str, tool: str, scope: str) -> Grant | None:
        grant = self._grants.get((tenant, user, tool, scope))
        if grant is None or (grant.expires_at is not None and grant.expires_at <= self._now()):
            return None
        return grant

    async def grant(self, tenant: str, grant: Grant) -> None:
        self._grants[tenant, grant.user, grant.tool, grant.scope] = grant

    async def revoke(self, tenant: str, user: str, tool: str | None = None, scope: str | None = None) -> int:
        now = self._now()
        gone = [
            key
            for key in self._grants
            if key[:2] == (tenant, user) and tool in (None, key[2]) and scope in (None, key[3])
        ]
        ends = [self._grants.pop(key).expires_at for key in gone]
        return sum(end is None or end > now for end in ends)

    async def list(self, tenant: str, user: str) -> Sequence[Grant]:
        now = self._now()
        found = [grant for key, grant in self._grants.items() if key[:2] == (tenant, user)]
        live = [grant for grant in found if grant.expires_at is None or grant.expires_at > now]
        return sorted(live, key=lambda grant: grant.granted_at)
