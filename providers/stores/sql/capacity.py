"""Rate limits and concurrency limits in SQL."""

from __future__ import annotations

from callgate.providers.stores.base import Limit, Taken
from callgate.providers.stores.kept_texts import keepable
from callgate.providers.stores.namespaces import in_table
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.shared import SharedWriter
from callgate.providers.stores.sql.shared_limits import PermitRequest, QuotaRequest
from callgate.providers.stores.windows import counts_at, looked

_FIND = (
    "SELECT period, used, used_before FROM callgate_quotas WHERE tenant = :tenant AND key = :key AND seconds = :seconds"
)
_HOLDERS = "SELECT count(*) FROM callgate_permits WHERE tenant = :tenant AND key = :key AND ends > :now"


@keepable
class SqlQuotas:
    """Rate limits with sliding windows (see ``windows``), one row each. ``shared`` serves concurrent calls together."""

    def __init__(self, database: Database, shared: SharedWriter, namespace: str = "") -> None:
        from sqlalchemy import text

        self._namespace = namespace
        self._database, self.shared = database, shared
        self._find = text(_FIND)

    async def take(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> Taken:
        request = QuotaRequest(in_table(self._namespace, tenant), key, limit, cost)
        taken: Taken = await self.shared.ask(request, withdraw=True)
        return taken

    async def give_back(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> None:
        if cost > 0:
            await self.shared.ask(QuotaRequest(in_table(self._namespace, tenant), key, limit, -cost))

    async def look(self, tenant: str, key: str, limit: Limit) -> Taken:
        seconds = float(limit.seconds)
        where = {"tenant": in_table(self._namespace, tenant), "key": key, "seconds": seconds}
        rows = await self._database.rows(self._find, where)
        row = (rows[0][0], rows[0][1], rows[0][2]) if rows else None
        return looked(counts_at(self._database.now(), seconds, row), limit)


@keepable
class SqlSemaphores:
    """Concurrency limits: one row for each permit, counted under a lock of the key. See ``SqlQuotas`` for ``shared``."""

    def __init__(self, database: Database, shared: SharedWriter, namespace: str = "") -> None:
        from sqlalchemy import text

        self._namespace = namespace
        self._database, self.shared = database, shared
        self._holders = text(_HOLDERS)

    async def acquire(self, tenant: str, key: str, permits: int, token: str, ttl: float) -> bool:
        request = PermitRequest(in_table(self._namespace, tenant), key, token, permits, float(ttl))
        return bool(await self.shared.ask(request, withdraw=True))

    async def release(self, tenant: str, key: str, token: str) -> bool:
        return bool(await self.shared.ask(PermitRequest(in_table(self._namespace, tenant), key, token)))

    async def holders(self, tenant: str, key: str) -> int:
        values = {"tenant": in_table(self._namespace, tenant), "key": key, "now": float(self._database.now())}
        return int((await self._database.rows(self._holders, values))[0][0])
