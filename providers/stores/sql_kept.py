"""Cached values and consents in SQL."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from callgate.providers.stores.base import CacheEntry, Grant
from callgate.providers.stores.namespaces import in_table
from callgate.providers.stores.sql_database import Database
from callgate.providers.stores.sql_shared import SharedWriter
from callgate.providers.stores.sql_shared_cache import CACHE_VERSION, CacheRequest, cache_values

_VERSION = 1
"""The version of the rows of consents. Rows of another version are not read: the consent is not given."""

_GET = """
SELECT value, made_at, fresh_until, stale_until, tags FROM callgate_cache
WHERE tenant = :tenant AND key = :key AND version = :version AND stale_until > :now
"""
_PUT = """
INSERT INTO callgate_cache (tenant, key, version, value, made_at, fresh_until, stale_until, tags)
VALUES (:tenant, :key, :version, :value, :made_at, :fresh_until, :stale_until, :tags)
ON CONFLICT (tenant, key) DO UPDATE SET version = excluded.version, value = excluded.value,
    made_at = excluded.made_at, fresh_until = excluded.fresh_until, stale_until = excluded.stale_until,
    tags = excluded.tags
"""
_UNTAG = "DELETE FROM callgate_cache_tags WHERE tenant = :tenant AND key = :key"
_TAG = "INSERT INTO callgate_cache_tags (tenant, tag, key) VALUES (:tenant, :tag, :key)"
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

    def __init__(self, database: Database, shared: SharedWriter | None, namespace: str = "") -> None:
        from sqlalchemy import Text, bindparam, text

        self._namespace = namespace
        self._database, self.shared = database, shared
        self._get, self._put, self._untag, self._tag = text(_GET), text(_PUT), text(_UNTAG), text(_TAG)
        lock = "" if database.lite else "FOR UPDATE"
        tags = bindparam("tags", expanding=True, type_=Text)
        self._drop, self._drop_tags = text(_DROP), text(_DROP_TAGS.format(lock=lock)).bindparams(tags)

    async def get(self, tenant: str, key: str) -> CacheEntry | None:
        tenant = in_table(self._namespace, tenant)
        if self.shared is None:
            return await self._get_alone(tenant, key)
        alone = None if self._database.lite else partial(self._get_alone, tenant, key)
        found: CacheEntry | None = await self.shared.ask(CacheRequest(tenant, key, alone=alone), withdraw=True)
        return found

    async def _get_alone(self, tenant: str, key: str) -> CacheEntry | None:
        values = {"tenant": tenant, "key": key, "version": CACHE_VERSION, "now": float(self._database.now())}
        rows = await self._database.rows(self._get, values)
        if not rows:
            return None
        value, made_at, fresh_until, stale_until, tags = rows[0]
        return CacheEntry(bytes(value), made_at, fresh_until, stale_until, frozenset(json.loads(tags)))

    async def put(self, tenant: str, key: str, entry: CacheEntry) -> None:
        tenant = in_table(self._namespace, tenant)
        if self.shared is not None:
            await self.shared.ask(CacheRequest(tenant, key, entry))
            return
        where, values = {"tenant": tenant, "key": key}, cache_values(tenant, key, entry)

        async def write(connection: Any) -> None:
            await connection.execute(self._put, values)  # first: this row lock orders concurrent writers of the key
            await connection.execute(self._untag, where)
            if entry.tags:
                await connection.execute(self._tag, [{**where, "tag": tag} for tag in sorted(entry.tags)])

        await self._database.transact(write)
        await self._database.wrote()

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
        await self._database.write(self._grant, values, durable=True)

    async def revoke(self, tenant: str, user: str, tool: str | None = None, scope: str | None = None) -> int:
        values = {"tenant": in_table(self._namespace, tenant), "person": user}
        statement = _REVOKE
        for name, given in (("tool", tool), ("scope", scope)):
            if given is not None:
                statement += f" AND {name} = :{name}"
                values[name] = given
        rows = await self._database.write_rows(self._text(statement + " RETURNING expires_at"), values, durable=True)
        now = self._database.now()
        return sum(row[0] is None or row[0] > now for row in rows)

    async def list(self, tenant: str, user: str) -> Sequence[Grant]:
        now = float(self._database.now())
        values = {"tenant": in_table(self._namespace, tenant), "person": user, "version": _VERSION, "now": now}
        return [Grant(user, *row) for row in await self._database.rows(self._list, values)]
