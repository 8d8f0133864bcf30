"""Cached values and consents in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from callgate.providers.stores.base import CacheEntry, Grant
from callgate.providers.stores.namespaces import in_table
from callgate.providers.stores.sql_database import Database
from callgate.providers.stores.sql_shared import SharedWriter
from callgate.providers.stores.sql_shared_cache import CacheRequest

_VERSION = 1
"""The version of the rows of consents. Rows of another version are not read: the consent is not given."""

_DROP = "DELETE FROM callgate_cache WHERE tenant = :tenant AND key = :key RETURNING stale_until"
# Rows are locked in order of their keys, so that two drops never wait for each other.
_DROP_TAGS = """
DELETE FROM callgate_cache WHERE tenant = :tenant AND key IN (
    SELECT key FROM callgate_cache WHERE tenant = :tenant
        AND key IN (SELECT key FROM callgate_cache_tags WHERE tenant = :tenant AND tag IN :tags)
    ORDER BY key {lock}
)
RETURNING stale_until
"""

_FIND = """
SELECT granted_at, expires_at FROM callgate_consents
WHERE tenant = :tenant AND person = :person AND tool = :tool AND scope = :scope AND version = :version
    AND (expires_at IS NULL OR expires_at > :now)
"""
_GRANT = """
INSERT INTO callgate_consents (tenant, person, tool, scope, version, granted_at, expires_at)
VALUES (:tenant, :person, :tool, :scope, :version, :granted_at, :expires_at)
ON CONFLICT (tenant, person, tool, scope) DO UPDATE SET
    version = excluded.version, granted_at = excluded.granted_at, expires_at = excluded.expires_at
"""
_REVOKE = "DELETE FROM callgate_consents WHERE tenant = :tenant AND person = :person"
_LIST = """
SELECT tool, scope, granted_at, expires_at FROM callgate_consents
WHERE tenant = :tenant AND person = :person AND version = :version AND (expires_at IS NULL OR expires_at > :now)
ORDER BY granted_at, tool, scope
"""


class SqlCache:
    """The cache, with a row for each tag. Expired rows are deleted from time to time.

    ``shared`` serves concurrent calls together.
    """

    def __init__(self, database: Database, shared: SharedWriter, namespace: str = "") -> None:
        from sqlalchemy import Text, bindparam, text

        self._namespace = namespace
        self._database, self.shared = database, shared
        lock = "" if database.lite else "FOR UPDATE"
        tags = bindparam("tags", expanding=True, type_=Text)
        self._drop, self._drop_tags = text(_DROP), text(_DROP_TAGS.format(lock=lock)).bindparams(tags)

    async def get(self, tenant: str, key: str) -> CacheEntry | None:
        tenant = in_table(self._namespace, tenant)
        found: CacheEntry | None = await self.shared.ask(CacheRequest(tenant, key), withdraw=True)
        return found

    async def put(self, tenant: str, key: str, entry: CacheEntry) -> None:
        tenant = in_table(self._namespace, tenant)
        await self.shared.ask(CacheRequest(tenant, key, entry))

    async def drop(self, tenant: str, key: str) -> bool:
        row = await self._database.write(self._drop, {"tenant": in_table(self._namespace, tenant), "key": key})
        return row is not None and bool(row[0] > self._database.now())

    async def drop_tags(self, tenant: str, tags: Collection[str]) -> int:
        values = {"tenant": in_table(self._namespace, tenant), "tags": list(tags)}
        rows = await self._database.write_rows(self._drop_tags, values)
        now = self._database.now()
        return sum(row[0] > now for row in rows)


class SqlConsents:
    """Consents, one row each, written with durable commits."""

    def __init__(self, database: Database, namespace: str = "") -> None:
        from sqlalchemy import text

        self._namespace = namespace
        self._database = database
        self._text: Any = text
        self._find, self._grant, self._list = text(_FIND), text(_GRANT), text(_LIST)

    async def find(self, tenant: str, user: str, tool: str, scope: str) -> Grant | None:
        values = {
            "tenant": in_table(self._namespace, tenant),
            "person": user,
            "tool": tool,
            "scope": scope,
            "version": _VERSION,
            "now": float(self._database.now()),
        }
        rows = await self._database.rows(self._find, values)
        return Grant(user, tool, scope, rows[0][0], rows[0][1]) if rows else None

    async def grant(self, tenant: str, grant: Grant) -> None:
        values = {
            "tenant": in_table(self._namespace, tenant),
            "person": grant.user,
            "tool": grant.tool,
            "scope": grant.scope,
            "version": _VERSION,
            "granted_at": float(grant.granted_at),
            "expires_at": None if grant.expires_at is None else float(grant.expires_at),
        }
        await self._database.write(self._grant, values)

    async def revoke(self, tenant: str, user: str, tool: str | None = None, scope: str | None = None) -> int:
        values = {"tenant": in_table(self._namespace, tenant), "person": user}
        statement = _REVOKE
        for name, given in (("tool", tool), ("scope", scope)):
            if given is not None:
                statement += f" AND {name} = :{name}"
                values[name] = given
        rows = await self._database.write_rows(self._text(statement + " RETURNING expires_at"), values)
        now = self._database.now()
        return sum(row[0] is None or row[0] > now for row in rows)

    async def list(self, tenant: str, user: str) -> Sequence[Grant]:
        now = float(self._database.now())
        values = {"tenant": in_table(self._namespace, tenant), "person": user, "version": _VERSION, "now": now}
        return [Grant(user, *row) for row in await self._database.rows(self._list, values)]
