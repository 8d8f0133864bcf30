"""Cached values and consents in SQL."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from callgate.providers.stores.base import CacheEntry, Grant
from callgate.providers.stores.sql_database import Database

VERSION = 1
"""Of the rows: one that another version wrote is not read. A cached value is then missing, and a consent not given."""

GET = """
SELECT value, made_at, fresh_until, stale_until, tags FROM callgate_cache
WHERE tenant = :tenant AND key = :key AND version = :version AND stale_until > :now
"""
PUT = """
INSERT INTO callgate_cache (tenant, key, version, value, made_at, fresh_until, stale_until, tags)
VALUES (:tenant, :key, :version, :value, :made_at, :fresh_until, :stale_until, :tags)
ON CONFLICT (tenant, key) DO UPDATE SET version = excluded.version, value = excluded.value,
    made_at = excluded.made_at, fresh_until = excluded.fresh_until, stale_until = excluded.stale_until,
    tags = excluded.tags
"""
UNTAG = "DELETE FROM callgate_cache_tags WHERE tenant = :tenant AND key = :key"
TAG = "INSERT INTO callgate_cache_tags (tenant, tag, key) VALUES (:tenant, :tag, :key)"
DROP = "DELETE FROM callgate_cache WHERE tenant = :tenant AND key = :key RETURNING stale_until"
DROP_TAG = """
DELETE FROM callgate_cache WHERE tenant = :tenant AND key IN
    (SELECT key FROM callgate_cache_tags WHERE tenant = :tenant AND tag = :tag)
RETURNING stale_until
"""

FIND = """
SELECT granted_at, expires_at FROM callgate_consents
WHERE tenant = :tenant AND person = :person AND tool = :tool AND scope = :scope AND version = :version
    AND (expires_at IS NULL OR expires_at > :now)
"""
GRANT = """
INSERT INTO callgate_consents (tenant, person, tool, scope, version, granted_at, expires_at)
VALUES (:tenant, :person, :tool, :scope, :version, :granted_at, :expires_at)
ON CONFLICT (tenant, person, tool, scope) DO UPDATE SET
    version = excluded.version, granted_at = excluded.granted_at, expires_at = excluded.expires_at
"""
REVOKE = "DELETE FROM callgate_consents WHERE tenant = :tenant AND person = :person"
LIST = """
SELECT tool, scope, granted_at, expires_at FROM callgate_consents
WHERE tenant = :tenant AND person = :person AND version = :version AND (expires_at IS NULL OR expires_at > :now)
ORDER BY granted_at, tool, scope
"""


class SqlCache:
    """Values by key, with a row for each tag; what is over is swept at times."""

    def __init__(self, database: Database) -> None:
        from sqlalchemy import text

        self._database = database
        self._get, self._put, self._untag, self._tag = text(GET), text(PUT), text(UNTAG), text(TAG)
        self._drop, self._drop_tag = text(DROP), text(DROP_TAG)

    async def get(self, tenant: str, key: str) -> CacheEntry | None:
        """See ``CacheStore``."""
        values = {"tenant": tenant, "key": key, "version": VERSION, "now": float(self._database.now())}
        rows = await self._database.rows(self._get, values)
        if not rows:
            return None
        value, made_at, fresh_until, stale_until, tags = rows[0]
        return CacheEntry(bytes(value), made_at, fresh_until, stale_until, frozenset(json.loads(tags)))

    async def put(self, tenant: str, key: str, entry: CacheEntry) -> None:
        """See ``CacheStore``."""
        where = {"tenant": tenant, "key": key}
        values = {
            **where,
            "version": VERSION,
            "value": entry.value,
            "made_at": float(entry.made_at),
            "fresh_until": float(entry.fresh_until),
            "stale_until": float(entry.stale_until),
            "tags": json.dumps(sorted(entry.tags)),
        }
        async with self._database.writing() as connection:
            await connection.execute(self._put, values)  # first: two that put the same key take turns from here on
            await connection.execute(self._untag, where)
            if entry.tags:
                await connection.execute(self._tag, [{**where, "tag": tag} for tag in sorted(entry.tags)])
        await self._database.wrote()

    async def drop(self, tenant: str, key: str) -> bool:
        """See ``CacheStore``."""
        row = await self._database.write(self._drop, {"tenant": tenant, "key": key})
        return row is not None and bool(row[0] > self._database.now())

    async def drop_tags(self, tenant: str, tags: Collection[str]) -> int:
        """See ``CacheStore``."""
        now, live = self._database.now(), 0
        async with self._database.writing() as connection:
            for tag in sorted(tags):
                rows = (await connection.execute(self._drop_tag, {"tenant": tenant, "tag": tag})).all()
                live += sum(row[0] > now for row in rows)
        return live


class SqlConsents:
    """Consents, one row each; a commit is on the disk before it counts."""

    def __init__(self, database: Database) -> None:
        from sqlalchemy import text

        self._database = database
        self._text: Any = text
        self._find, self._grant, self._list = text(FIND), text(GRANT), text(LIST)

    async def find(self, tenant: str, user: str, tool: str, scope: str) -> Grant | None:
        """See ``ConsentStore``."""
        values = {
            "tenant": tenant,
            "person": user,
            "tool": tool,
            "scope": scope,
            "version": VERSION,
            "now": float(self._database.now()),
        }
        rows = await self._database.rows(self._find, values)
        return Grant(user, tool, scope, rows[0][0], rows[0][1]) if rows else None

    async def grant(self, tenant: str, grant: Grant) -> None:
        """See ``ConsentStore``."""
        values = {
            "tenant": tenant,
            "person": grant.user,
            "tool": grant.tool,
            "scope": grant.scope,
            "version": VERSION,
            "granted_at": float(grant.granted_at),
            "expires_at": None if grant.expires_at is None else float(grant.expires_at),
        }
        await self._database.write(self._grant, values, durable=True)

    async def revoke(self, tenant: str, user: str, tool: str | None = None, scope: str | None = None) -> int:
        """See ``ConsentStore``."""
        values = {"tenant": tenant, "person": user}
        statement = REVOKE
        for name, given in (("tool", tool), ("scope", scope)):
            if given is not None:
                statement += f" AND {name} = :{name}"
                values[name] = given
        async with self._database.writing(durable=True) as connection:
            rows = (await connection.execute(self._text(statement + " RETURNING expires_at"), values)).all()
        now = self._database.now()
        return sum(row[0] is None or row[0] > now for row in rows)

    async def list(self, tenant: str, user: str) -> Sequence[Grant]:
        """See ``ConsentStore``."""
        values = {"tenant": tenant, "person": user, "version": VERSION, "now": float(self._database.now())}
        return [Grant(user, *row) for row in await self._database.rows(self._list, values)]
