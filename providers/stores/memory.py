"""A store in this process's memory: the default. What it keeps is gone with the process, and nobody else sees it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from callgate.errors import StoreConflict
from callgate.providers.stores.base import AuditRow, CacheEntry, Grant, Limit, Taken
from callgate.providers.stores.memory_effects import HeldEffects, MemoryEffects
from callgate.providers.stores.memory_jobs import HeldJobs, MemoryJobs
from callgate.providers.stores.memory_suspensions import HeldWaits, MemoryPins, MemoryWaits
from callgate.providers.stores.windows import Counts, counts_at, granted, looked, refused, returned

Key = tuple[str, str]


class MemoryStore:
    """Every part of a ``Store``. No method waits, so each is atomic; *now* is a clock in seconds since the epoch.

    *cache_size* is how many values are cached at most, *effects_kept* how many effects that are over are known at most:
    of more, those that ended first are forgotten, and may be claimed again. What is open or unknown is never forgotten.
    """

    name = "memory"
    durable = False

    def __init__(
        self, now: Callable[[], float] = time.time, *, cache_size: int = 10_000, effects_kept: int = 100_000
    ) -> None:
        self.cache = MemoryCache(now, cache_size)
        self.quotas = MemoryQuotas(now)
        self.semaphores = MemorySemaphores(now)
        self.audit = MemoryAudit()
        self.consents = MemoryConsents(now)
        self.effects = MemoryEffects(effects_kept)
        self.waits = MemoryWaits()
        self.pins = MemoryPins()
        self.jobs = MemoryJobs()

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[MemoryTransaction, None]:
        """Audit rows and jobs that a transaction adds appear at its end, all at once; of one that fails, none does.

        Other changes are seen as they are written, so that nobody else takes the same effect, suspended call or job
        meanwhile; those of a transaction that fails are taken back.
        """
        held = MemoryTransaction(
            HeldAudit(self.audit), HeldEffects(self.effects), HeldWaits(self.waits), HeldJobs(self.jobs)
        )
        try:
            yield held
        except BaseException:
            for part in (held.audit, held.effects, held.waits, held.jobs):
                part.forget()
            raise
        held.audit.keep()
        held.jobs.keep()

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """What was kept stays until the object goes."""


class MemoryCache:
    """At most so many entries; the least recently used goes first."""

    def __init__(self, now: Callable[[], float], size: int) -> None:
        self._now = now
        self._size = size
        self._entries: OrderedDict[Key, CacheEntry] = OrderedDict()
        self._tagged: dict[Key, set[Key]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, tenant: str, key: str) -> CacheEntry | None:
        """See ``CacheStore``."""
        return self.get_now((tenant, key))

    def get_now(self, key: Key) -> CacheEntry | None:
        """``get``, without a coroutine."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.stale_until <= self._now():
            self._forget(key)
            return None
        self._entries.move_to_end(key)
        return entry

    async def put(self, tenant: str, key: str, entry: CacheEntry) -> None:
        """See ``CacheStore``."""
        self.put_now((tenant, key), entry)

    def put_now(self, key: Key, entry: CacheEntry) -> None:
        """``put``, without a coroutine."""
        entries = self._entries
        if key in entries:
            self._forget(key)
        entries[key] = entry
        for tag in entry.tags:
            self._tagged.setdefault((key[0], tag), set()).add(key)
        while len(entries) > self._size:
            oldest, gone = entries.popitem(last=False)
            self._untag(oldest, gone)

    async def drop(self, tenant: str, key: str) -> bool:
        """See ``CacheStore``."""
        return self._forget((tenant, key))

    async def drop_tags(self, tenant: str, tags: Collection[str]) -> int:
        """See ``CacheStore``."""
        found = {key for tag in tags for key in self._tagged.get((tenant, tag), ())}
        return sum(self._forget(key) for key in found)

    def _forget(self, key: Key) -> bool:
        """Whether there was an entry: one whose time is over is none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._untag(key, entry)
        return entry.stale_until > self._now()

    def _untag(self, key: Key, entry: CacheEntry) -> None:
        for tag in entry.tags:
            tagged = self._tagged[key[0], tag]
            tagged.discard(key)
            if not tagged:
                del self._tagged[key[0], tag]


class MemoryQuotas:
    """Sliding windows (see ``windows``), by tenant, key and length."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._windows: dict[tuple[str, str, float], tuple[int, int, int]] = {}  # number of the window, in it, before it

    def _counts(self, tenant: str, key: str, limit: Limit) -> Counts:
        return counts_at(self._now(), limit.seconds, self._windows.get((tenant, key, limit.seconds)))

    async def take(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> Taken:
        """See ``QuotaStore``."""
        counts = self._counts(tenant, key, limit)
        if counts.sliding + cost > limit.amount:
            return refused(counts, limit, cost)
        number, used, before, passed = counts
        after = Counts(number, used + cost, before, passed)
        self._windows[tenant, key, limit.seconds] = (number, used + cost, before)
        if len(self._windows) > 100_000:
            self._sweep()
        return granted(after, limit)

    def take_now(self, at: Key, limit: Limit, cost: int) -> bool:
        """``take`` for most calls: the window is the same as before, and there is room. False: ask ``take``."""
        seconds = limit.seconds
        place = (*at, seconds)
        kept = self._windows.get(place)
        if kept is None:
            return False
        number, used, before = kept
        now, into = divmod(self._now(), seconds)
        if now != number or limit.amount - used - cost < (before * (1.0 - into / seconds) if before else 0):
            return False
        self._windows[place] = (number, used + cost, before)
        return True

    async def give_back(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> None:
        """See ``QuotaStore``."""
        self.give_back_now((tenant, key), limit, cost)

    def give_back_now(self, at: Key, limit: Limit, cost: int) -> None:
        """``give_back``, without a coroutine."""
        place = (*at, limit.seconds)
        if place in self._windows:
            self._windows[place] = returned(self._counts(*at, limit), cost)

    async def look(self, tenant: str, key: str, limit: Limit) -> Taken:
        """See ``QuotaStore``."""
        return looked(self._counts(tenant, key, limit), limit)

    def _sweep(self) -> None:
        now = self._now()
        for key, (number, _, _) in list(self._windows.items()):
            if number < now // key[2] - 1:
                del self._windows[key]


class MemorySemaphores:
    """Places by token, each until its time is over."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._held: dict[Key, dict[str, float]] = {}

    def _live(self, tenant: str, key: str) -> dict[str, float]:
        now = self._now()
        held = {token: until for token, until in self._held.get((tenant, key), {}).items() if until > now}
        if held:
            self._held[tenant, key] = held
        else:
            self._held.pop((tenant, key), None)
        return held

    async def acquire(self, tenant: str, key: str, places: int, token: str, ttl: float) -> bool:
        """See ``SemaphoreStore``."""
        held = self._live(tenant, key)
        if token not in held and len(held) >= places:
            return False
        held[token] = self._now() + ttl
        self._held[tenant, key] = held
        return True

    async def release(self, tenant: str, key: str, token: str) -> bool:
        """See ``SemaphoreStore``."""
        held = self._live(tenant, key)
        had = held.pop(token, None) is not None
        if had and not held:
            del self._held[tenant, key]
        return had

    async def holders(self, tenant: str, key: str) -> int:
        """See ``SemaphoreStore``."""
        return len(self._live(tenant, key))


class MemoryAudit:
    """Rows in a list."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, AuditRow]] = []
        self._known: set[tuple[str, int]] = set()
        self._anchors: list[tuple[str, int, str, float]] = []
        self.before_reading: list[Callable[[], None]] = []  # whoever keeps rows back until somebody looks

    def _gather(self) -> None:
        for bring in self.before_reading:
            bring()

    def claim(self, rows: Sequence[AuditRow]) -> None:
        """Take the rows' places; all or none."""
        places = {(row.segment, row.number) for row in rows}
        if len(places) < len(rows) or not self._known.isdisjoint(places):
            raise StoreConflict("a row of that segment and number is there already")
        self._known |= places

    async def append(self, tenant: str, rows: Sequence[AuditRow]) -> None:
        """See ``AuditStore``."""
        self.claim(rows)
        self._rows += [(tenant, row) for row in rows]

    async def read(
        self, tenant: str | None, *, since: float = 0.0, until: float | None = None
    ) -> AsyncIterator[AuditRow]:
        """See ``AuditStore``."""
        self._gather()
        chosen = [row for owner, row in self._rows if tenant is None or owner == tenant]
        for row in sorted(chosen, key=lambda row: (row.at, row.segment, row.number)):
            if row.at >= since and (until is None or row.at < until):
                yield row

    async def anchor(self, segment: str, number: int, hash: str, at: float) -> None:
        """See ``AuditStore``."""
        self._anchors.append((segment, number, hash, at))

    async def anchors(self) -> list[tuple[str, int, str, float]]:
        """See ``AuditStore``."""
        self._gather()
        return list(self._anchors)


class HeldAudit(MemoryAudit):
    """The audit record within a transaction: what is added has its place, and is seen inside only until it is kept."""

    def __init__(self, outer: MemoryAudit) -> None:
        super().__init__()
        self._outer = outer

    def claim(self, rows: Sequence[AuditRow]) -> None:
        """Take the rows' places from everybody else."""
        self._outer.claim(rows)
        self._known.update((row.segment, row.number) for row in rows)

    async def read(
        self, tenant: str | None, *, since: float = 0.0, until: float | None = None
    ) -> AsyncIterator[AuditRow]:
        """What is kept, and what this transaction added."""
        both = MemoryAudit()
        both._rows = self._outer._rows + self._rows
        async for row in both.read(tenant, since=since, until=until):
            yield row

    async def anchors(self) -> list[tuple[str, int, str, float]]:
        """The same for the anchors."""
        return self._outer._anchors + self._anchors

    def keep(self) -> None:
        """Everybody sees it."""
        self._outer._rows += self._rows
        self._outer._anchors += self._anchors

    def forget(self) -> None:
        """Nothing was added; the places are free."""
        self._outer._known -= self._known


@dataclass(frozen=True, slots=True)
class MemoryTransaction:
    """See ``Transaction``."""

    audit: HeldAudit
    effects: HeldEffects
    waits: HeldWaits
    jobs: HeldJobs


class MemoryConsents:
    """Grants by user, tool and scope."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._grants: dict[tuple[str, str, str, str], Grant] = {}

    async def find(self, tenant: str, user: str, tool: str, scope: str) -> Grant | None:
        """See ``ConsentStore``."""
        grant = self._grants.get((tenant, user, tool, scope))
        if grant is None or (grant.expires_at is not None and grant.expires_at <= self._now()):
            return None
        return grant

    async def grant(self, tenant: str, grant: Grant) -> None:
        """See ``ConsentStore``."""
        self._grants[tenant, grant.user, grant.tool, grant.scope] = grant

    async def revoke(self, tenant: str, user: str, tool: str | None = None, scope: str | None = None) -> int:
        """See ``ConsentStore``."""
        now = self._now()
        gone = [
            key
            for key in self._grants
            if key[:2] == (tenant, user) and tool in (None, key[2]) and scope in (None, key[3])
        ]
        ends = [self._grants.pop(key).expires_at for key in gone]
        return sum(end is None or end > now for end in ends)

    async def list(self, tenant: str, user: str) -> Sequence[Grant]:
        """See ``ConsentStore``."""
        now = self._now()
        found = [grant for key, grant in self._grants.items() if key[:2] == (tenant, user)]
        live = [grant for grant in found if grant.expires_at is None or grant.expires_at > now]
        return sorted(live, key=lambda grant: grant.granted_at)
