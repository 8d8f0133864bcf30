"""Rate limits and concurrency limits in SQL."""

from __future__ import annotations

from functools import partial
from typing import Any

from callgate.providers.stores.base import Limit, Taken
from callgate.providers.stores.namespaces import in_table
from callgate.providers.stores.sql_database import Database
from callgate.providers.stores.sql_shared import SharedWriter
from callgate.providers.stores.sql_shared_limits import PermitRequest, QuotaRequest, lock_of
from callgate.providers.stores.windows import Counts, counts_at, granted, looked, refused, returned, window_at

# The three counts as they apply in window :period (see ``windows.counts_at``), in one statement, so that concurrent
# callers cannot read the same counts. A window ahead of this clock counts in full.
_USED = "CASE WHEN q.period >= :period THEN q.used ELSE 0 END"
_BEFORE = "CASE WHEN q.period >= :period THEN q.used_before WHEN q.period = :period - 1 THEN q.used ELSE 0 END"
_LEFT = "CASE WHEN q.period > :period THEN 1.0 ELSE :remaining END"
_LATEST = "CASE WHEN q.period > :period THEN q.period ELSE :period END"

_TAKE = f"""
INSERT INTO callgate_quotas AS q (tenant, key, seconds, period, used, used_before, ends)
VALUES (:tenant, :key, :seconds, :period, :cost, 0, :ends)
ON CONFLICT (tenant, key, seconds) DO UPDATE SET
    used = {_USED} + :cost,
    used_before = {_BEFORE},
    period = {_LATEST},
    ends = CASE WHEN q.ends > :ends THEN q.ends ELSE :ends END
WHERE {_USED} + {_BEFORE} * {_LEFT} + :cost <= :amount
RETURNING period, used, used_before
"""  # noqa: S608  (built from the constants above)
_FIND = (
    "SELECT period, used, used_before FROM callgate_quotas WHERE tenant = :tenant AND key = :key AND seconds = :seconds"
)
_PUT_BACK = """
UPDATE callgate_quotas SET period = :period, used = :used, used_before = :used_before
WHERE tenant = :tenant AND key = :key AND seconds = :seconds
"""

_FREE = "DELETE FROM callgate_places WHERE tenant = :tenant AND key = :key AND ends <= :now"
_ACQUIRE = """
INSERT INTO callgate_places (tenant, key, token, ends)
SELECT CAST(:tenant AS TEXT), CAST(:key AS TEXT), CAST(:token AS TEXT), CAST(:ends AS DOUBLE PRECISION)
WHERE EXISTS (SELECT 1 FROM callgate_places WHERE tenant = :tenant AND key = :key AND token = :token)
    OR (SELECT count(*) FROM callgate_places WHERE tenant = :tenant AND key = :key) < :permits
ON CONFLICT (tenant, key, token) DO UPDATE SET ends = excluded.ends
"""
_RELEASE = "DELETE FROM callgate_places WHERE tenant = :tenant AND key = :key AND token = :token RETURNING ends"
_HOLDERS = "SELECT count(*) FROM callgate_places WHERE tenant = :tenant AND key = :key AND ends > :now"


class SqlQuotas:
    """Rate limits with sliding windows (see ``windows``), one row each. ``shared`` serves concurrent calls together."""

    def __init__(self, database: Database, shared: SharedWriter | None, namespace: str = "") -> None:
        from sqlalchemy import text

        self._namespace = namespace
        self._database, self.shared = database, shared
        self._take, self._find, self._put_back = text(_TAKE), text(_FIND), text(_PUT_BACK)
        self._find_to_change = self._find if database.lite else text(_FIND + " FOR UPDATE")

    async def take(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> Taken:
        tenant = in_table(self._namespace, tenant)
        if self.shared is None:
            return await self._take_alone(tenant, key, limit, cost)
        alone = None if self._database.lite else partial(self._take_alone, tenant, key, limit, cost)
        taken: Taken = await self.shared.ask(QuotaRequest(tenant, key, limit, cost, alone), withdraw=True)
        return taken

    async def _take_alone(self, tenant: str, key: str, limit: Limit, cost: int) -> Taken:
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
        tenant = in_table(self._namespace, tenant)
        if self.shared is not None and cost > 0:
            await self.shared.ask(QuotaRequest(tenant, key, limit, -cost))
            return
        seconds = float(limit.seconds)
        where = {"tenant": tenant, "key": key, "seconds": seconds}

        async def put_back(connection: Any) -> None:
            row = (await connection.execute(self._find_to_change, where)).first()
            if row is None:
                return
            counts = counts_at(self._database.now(), seconds, (row[0], row[1], row[2]))
            number, used, before = returned(counts, cost)
            await connection.execute(self._put_back, {**where, "period": number, "used": used, "used_before": before})

        await self._database.transact(put_back)

    async def look(self, tenant: str, key: str, limit: Limit) -> Taken:
        return looked(await self._counts(in_table(self._namespace, tenant), key, limit), limit)

    async def _counts(self, tenant: str, key: str, limit: Limit) -> Counts:
        seconds = float(limit.seconds)
        rows = await self._database.rows(self._find, {"tenant": tenant, "key": key, "seconds": seconds})
        row = (rows[0][0], rows[0][1], rows[0][2]) if rows else None
        return counts_at(self._database.now(), seconds, row)


class SqlSemaphores:
    """Concurrency limits: one row for each permit, counted under a lock of the key. See ``SqlQuotas`` for ``shared``."""

    def __init__(self, database: Database, shared: SharedWriter | None, namespace: str = "") -> None:
        from sqlalchemy import text

        self._namespace = namespace
        self._database, self.shared = database, shared
        self._free, self._acquire, self._release = text(_FREE), text(_ACQUIRE), text(_RELEASE)
        self._holders = text(_HOLDERS)
        self._lock: object = None if database.lite else text("SELECT pg_advisory_xact_lock(:lock)")

    async def acquire(self, tenant: str, key: str, permits: int, token: str, ttl: float) -> bool:
        tenant = in_table(self._namespace, tenant)
        if self.shared is not None:
            request = PermitRequest(tenant, key, token, permits, float(ttl))
            return bool(await self.shared.ask(request, withdraw=True))
        where = {"tenant": tenant, "key": key}

        async def take(connection: Any) -> bool:
            if self._lock is not None:
                await connection.execute(self._lock, {"lock": lock_of(tenant, key)})
            now = float(self._database.now())
            await connection.execute(self._free, {**where, "now": now})
            values = {**where, "token": token, "ends": now + ttl, "permits": permits}
            return bool((await connection.execute(self._acquire, values)).rowcount > 0)

        taken = await self._database.transact(take)
        await self._database.wrote()
        return taken

    async def release(self, tenant: str, key: str, token: str) -> bool:
        tenant = in_table(self._namespace, tenant)
        if self.shared is None:
            return await self._release_alone(tenant, key, token)
        alone = None if self._database.lite else partial(self._release_alone, tenant, key, token)
        return bool(await self.shared.ask(PermitRequest(tenant, key, token, alone=alone)))

    async def _release_alone(self, tenant: str, key: str, token: str) -> bool:
        row = await self._database.write(self._release, {"tenant": tenant, "key": key, "token": token})
        return row is not None and bool(row[0] > self._database.now())

    async def holders(self, tenant: str, key: str) -> int:
        values = {"tenant": in_table(self._namespace, tenant), "key": key, "now": float(self._database.now())}
        return int((await self._database.rows(self._holders, values))[0][0])
