"""A store in this process's memory: the default. What it keeps is gone with the process, and nobody else sees it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager

from callgate.errors import StoreConflict
from callgate.providers.stores.base import AuditRow, CacheEntry, Grant, Limit, Taken

Key = tuple[str, str]


class MemoryStore:
    """Every part of a ``Store``. No method waits, so each is atomic; *now* is a clock in seconds since the epoch."""

    name = "memory"

    def __init__(self, now: Callable[[], float] = time.time, *, cache_size: int = 10_000) -> None:
        self.cache = MemoryCache(now, cache_size)
        self.quotas = MemoryQuotas(now)
        self.semaphores = MemorySemaphores(now)
        self.audit = MemoryAudit()
        self.consents = MemoryConsents(now)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[MemoryStore, None]:
        """Audit rows of a transaction that fails are taken back."""
        before = self.audit.mark()
        try:
            yield self
        except BaseException:
            self.audit.take_back(before)
            raise

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
        entry = self._entries.get((tenant, key))
        if entry is None:
            return None
        if entry.stale_until <= self._now():
            self._forget((tenant, key))
            return None
        self._entries.move_to_end((tenant, key))
        return entry

    async def put(self, tenant: str, key: str, entry: CacheEntry) -> None:
        """See ``CacheStore``."""
        self._forget((tenant, key))
        self._entries[tenant, key] = entry
        for tag in entry.tags:
            self._tagged.setdefault((tenant, tag), set()).add((tenant, key))
        while len(self._entries) > self._size:
            self._forget(next(iter(self._entries)))

    async def drop(self, tenant: str, key: str) -> bool:
        """See ``CacheStore``."""
        return self._forget((tenant, key))

    async def drop_tags(self, tenant: str, tags: Collection[str]) -> int:
        """See ``CacheStore``."""
        found = {key for tag in tags for key in self._tagged.get((tenant, tag), ())}
        return sum(self._forget(key) for key in found)

    def _forget(self, key: Key) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        for tag in entry.tags:
            tagged = self._tagged[key[0], tag]
            tagged.discard(key)
            if not tagged:
                del self._tagged[key[0], tag]
        return True


class MemoryQuotas:
    """Sliding windows, counted in two neighbouring fixed ones: the older counts for the part that still reaches in."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._windows: dict[tuple[str, str, float], tuple[int, int, int]] = {}  # number of the window, in it, before it

    def _counts(self, tenant: str, key: str, limit: Limit) -> tuple[int, int, int, float]:
        now = self._now()
        number, at = divmod(now, limit.seconds)
        known, current, before = self._windows.get((tenant, key, limit.seconds), (int(number), 0, 0))
        if known != number:
            current, before = 0, current if known == number - 1 else 0
        return int(number), current, before, at / limit.seconds

    async def take(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> Taken:
        """See ``QuotaStore``."""
        number, current, before, passed = self._counts(tenant, key, limit)
        used = current + before * (1.0 - passed)
        if used + cost > limit.amount:
            return Taken(False, max(0, int(limit.amount - used)), self._wait(current, before, passed, limit, cost))
        self._windows[tenant, key, limit.seconds] = (number, current + cost, before)
        if len(self._windows) > 100_000:
            self._sweep()
        return Taken(True, int(limit.amount - used - cost))

    async def give_back(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> None:
        """See ``QuotaStore``."""
        number, current, before, _ = self._counts(tenant, key, limit)
        from_current = min(cost, current)
        self._windows[tenant, key, limit.seconds] = (
            number,
            current - from_current,
            max(0, before - (cost - from_current)),
        )

    async def look(self, tenant: str, key: str, limit: Limit) -> Taken:
        """See ``QuotaStore``."""
        _, current, before, passed = self._counts(tenant, key, limit)
        used = current + before * (1.0 - passed)
        wait = self._wait(current, before, passed, limit, 1) if used + 1 > limit.amount else 0.0
        return Taken(not wait, max(0, int(limit.amount - used)), wait)

    @staticmethod
    def _wait(current: int, before: int, passed: float, limit: Limit, cost: int) -> float:
        """Seconds until *cost* fits, if nobody takes more; for a cost that never fits, a whole window."""
        room = limit.amount - cost
        if room < 0:
            return limit.seconds
        if before and current <= room:  # the older window leaves, bit by bit
            return max(0.0, (1.0 - (room - current) / before) - passed) * limit.seconds
        until_next = (1.0 - passed) * limit.seconds  # then today's count is the older window
        return until_next + max(0.0, 1.0 - room / current) * limit.seconds

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
        self._held[tenant, key] = held
        return held

    async def acquire(self, tenant: str, key: str, places: int, token: str, ttl: float) -> bool:
        """See ``SemaphoreStore``."""
        held = self._live(tenant, key)
        if token not in held and len(held) >= places:
            return False
        held[token] = self._now() + ttl
        return True

    async def release(self, tenant: str, key: str, token: str) -> bool:
        """See ``SemaphoreStore``."""
        held = self._live(tenant, key)
        had = held.pop(token, None) is not None
        if not held:
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

    async def append(self, tenant: str, rows: Sequence[AuditRow]) -> None:
        """See ``AuditStore``."""
        places = [(row.segment, row.number) for row in rows]
        if len(set(places)) < len(places) or not self._known.isdisjoint(places):
            raise StoreConflict("a row of that segment and number is there already")
        self._known.update(places)
        self._rows += [(tenant, row) for row in rows]

    async def read(
        self, tenant: str | None, *, since: float = 0.0, until: float | None = None
    ) -> AsyncIterator[AuditRow]:
        """See ``AuditStore``."""
        chosen = [row for owner, row in self._rows if tenant is None or owner == tenant]
        for row in sorted(chosen, key=lambda row: (row.at, row.segment, row.number)):
            if row.at >= since and (until is None or row.at < until):
                yield row

    async def anchor(self, segment: str, number: int, hash: str, at: float) -> None:
        """See ``AuditStore``."""
        self._anchors.append((segment, number, hash, at))

    async def anchors(self) -> list[tuple[str, int, str, float]]:
        """See ``AuditStore``."""
        return list(self._anchors)

    def mark(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def take_back(self, mark: int) -> None:
        """Forget the rows after a mark."""
        for _, row in self._rows[mark:]:
            self._known.discard((row.segment, row.number))
        del self._rows[mark:]


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
        gone = [
            key
            for key in self._grants
            if key[:2] == (tenant, user) and tool in (None, key[2]) and scope in (None, key[3])
        ]
        for key in gone:
            del self._grants[key]
        return len(gone)

    async def list(self, tenant: str, user: str) -> Sequence[Grant]:
        """See ``ConsentStore``."""
        now = self._now()
        found = [grant for key, grant in self._grants.items() if key[:2] == (tenant, user)]
        live = [grant for grant in found if grant.expires_at is None or grant.expires_at > now]
        return sorted(live, key=lambda grant: grant.granted_at)
