"""Quotas and places in SQL."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from callgate.providers.stores.base import Limit, Taken
from callgate.providers.stores.sql_database import Database
from callgate.providers.stores.windows import Counts, counts_at, granted, looked, refused, returned, window_at

# The three figures as they count in window :period (see ``windows.counts_at``), in one statement: no two takers can
# read the same figures. A window ahead of this clock counts in full.
USED = "CASE WHEN q.period >= :period THEN q.used ELSE 0 END"
BEFORE = "CASE WHEN q.period >= :period THEN q.used_before WHEN q.period = :period - 1 THEN q.used ELSE 0 END"
LEFT = "CASE WHEN q.period > :period THEN 1.0 ELSE :remaining END"
LATEST = "CASE WHEN q.period > :period THEN q.period ELSE :period END"

TAKE = f"""
INSERT INTO callgate_quotas AS q (tenant, key, seconds, period, used, used_before, ends)
VALUES (:tenant, :key, :seconds, :period, :cost, 0, :ends)
ON CONFLICT (tenant, key, seconds) DO UPDATE SET
    used = {USED} + :cost,
    used_before = {BEFORE},
    period = {LATEST},
    ends = CASE WHEN q.ends > :ends THEN q.ends ELSE :ends END
WHERE {USED} + {BEFORE} * {LEFT} + :cost <= :amount
RETURNING period, used, used_before
"""  # noqa: S608  (put together of the constants above)
FIND = (
    "SELECT period, used, used_before FROM callgate_quotas WHERE tenant = :tenant AND key = :key AND seconds = :seconds"
)
PUT_BACK = """
UPDATE callgate_quotas SET period = :period, used = :used, used_before = :used_before
WHERE tenant = :tenant AND key = :key AND seconds = :seconds
"""

FREE = "DELETE FROM callgate_places WHERE tenant = :tenant AND key = :key AND ends <= :now"
ACQUIRE = """
INSERT INTO callgate_places (tenant, key, token, ends)
SELECT CAST(:tenant AS TEXT), CAST(:key AS TEXT), CAST(:token AS TEXT), CAST(:ends AS DOUBLE PRECISION)
WHERE EXISTS (SELECT 1 FROM callgate_places WHERE tenant = :tenant AND key = :key AND token = :token)
    OR (SELECT count(*) FROM callgate_places WHERE tenant = :tenant AND key = :key) < :places
ON CONFLICT (tenant, key, token) DO UPDATE SET ends = excluded.ends
"""
RELEASE = "DELETE FROM callgate_places WHERE tenant = :tenant AND key = :key AND token = :token RETURNING ends"
HOLDERS = "SELECT count(*) FROM callgate_places WHERE tenant = :tenant AND key = :key AND ends > :now"


class SqlQuotas:
    """Sliding windows (see ``windows``), one row each."""

    def __init__(self, database: Database) -> None:
        from sqlalchemy import text

        self._database = database
        self._take, self._find, self._put_back = text(TAKE), text(FIND), text(PUT_BACK)
        self._find_to_change = self._find if database.lite else text(FIND + " FOR UPDATE")

    async def take(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> Taken:
        """See ``QuotaStore``."""
        seconds = float(limit.seconds)
        now = float(self._database.now())
        if cost > limit.amount:
            return refused(await self._counts(tenant, key, limit), limit, cost)
        number, passed = window_at(now, seconds)
        values = {
            "tenant": tenant,
            "key": key,
            "seconds": seconds,
            "period": number,
            "remaining": 1.0 - passed,
            "cost": cost,
            "amount": limit.amount,
            "ends": (number + 2) * seconds,
        }
        row = await self._database.write(self._take, values)
        await self._database.wrote()
        if row is None:
            return refused(await self._counts(tenant, key, limit), limit, cost)
        return granted(counts_at(now, seconds, (row[0], row[1], row[2])), limit)

    async def give_back(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> None:
        """See ``QuotaStore``."""
        seconds = float(limit.seconds)
        where = {"tenant": tenant, "key": key, "seconds": seconds}
        async with self._database.writing() as connection:
            row = (await connection.execute(self._find_to_change, where)).first()
            if row is None:
                return
            counts = counts_at(self._database.now(), seconds, (row[0], row[1], row[2]))
            number, used, before = returned(counts, cost)
            await connection.execute(self._put_back, {**where, "period": number, "used": used, "used_before": before})

    async def look(self, tenant: str, key: str, limit: Limit) -> Taken:
        """See ``QuotaStore``."""
        return looked(await self._counts(tenant, key, limit), limit)

    async def _counts(self, tenant: str, key: str, limit: Limit) -> Counts:
        seconds = float(limit.seconds)
        rows = await self._database.rows(self._find, {"tenant": tenant, "key": key, "seconds": seconds})
        kept = (rows[0][0], rows[0][1], rows[0][2]) if rows else None
        return counts_at(self._database.now(), seconds, kept)


class SqlSemaphores:
    """Places, one row each; those of one key are counted under a lock."""

    def __init__(self, database: Database) -> None:
        from sqlalchemy import text

        self._database = database
        self._free, self._acquire, self._release = text(FREE), text(ACQUIRE), text(RELEASE)
        self._holders = text(HOLDERS)
        self._lock: Any = None if database.lite else text("SELECT pg_advisory_xact_lock(:lock)")

    async def acquire(self, tenant: str, key: str, places: int, token: str, ttl: float) -> bool:
        """See ``SemaphoreStore``."""
        where = {"tenant": tenant, "key": key}
        async with self._database.writing() as connection:
            if self._lock is not None:
                await connection.execute(self._lock, {"lock": lock_of(tenant, key)})
            now = float(self._database.now())
            await connection.execute(self._free, {**where, "now": now})
            values = {**where, "token": token, "ends": now + ttl, "places": places}
            taken = (await connection.execute(self._acquire, values)).rowcount > 0
        await self._database.wrote()
        return bool(taken)

    async def release(self, tenant: str, key: str, token: str) -> bool:
        """See ``SemaphoreStore``."""
        row = await self._database.write(self._release, {"tenant": tenant, "key": key, "token": token})
        return row is not None and bool(row[0] > self._database.now())

    async def holders(self, tenant: str, key: str) -> int:
        """See ``SemaphoreStore``."""
        values = {"tenant": tenant, "key": key, "now": float(self._database.now())}
        return int((await self._database.rows(self._holders, values))[0][0])


def lock_of(tenant: str, key: str) -> int:
    """PostgreSQL's advisory locks are numbers; two keys that share one wait for each other, and no more."""
    name = f"{len(tenant)}:{tenant}{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=8).digest(), signed=True)
