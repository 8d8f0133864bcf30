"""Cached values and consents in SQL."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from callgate.errors import StoreError
from callgate.providers.stores.base import CacheEntry, Grant
from callgate.providers.stores.kept_texts import keepable
from callgate.providers.stores.namespaces import in_table
from callgate.providers.stores.signed_rows import CACHE, CONSENT, RowSigner, cache_facts, grant_facts
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.database.part import SqlPart
from callgate.providers.stores.sql.database.rows import Row
from callgate.providers.stores.sql.shared import SharedWriter
from callgate.providers.stores.sql.shared_cache import CacheRequest
from callgate.providers.stores.sql.versions import SqlVersions, checked_version

R = TypeVar("R")

_DROP = "DELETE FROM callgate_cache WHERE tenant = :tenant AND key = :key RETURNING stale_until, key"
# Rows are locked in order of their keys, so that two drops never wait for each other.
_DROP_TAGS = """
DELETE FROM callgate_cache WHERE tenant = :tenant AND key IN (
    SELECT key FROM callgate_cache WHERE tenant = :tenant
        AND key IN (SELECT key FROM callgate_cache_tags WHERE tenant = :tenant AND tag IN :tags)
    ORDER BY key {lock}
)
RETURNING stale_until, key
"""

_FIND = """
SELECT tool, scope, granted_at, expires_at, mac FROM callgate_consents
WHERE tenant = :tenant AND person = :person AND tool = :tool AND scope = :scope AND version = :version
    AND (expires_at IS NULL OR expires_at > :now)
"""
_GRANT = """
INSERT INTO callgate_consents (tenant, person, tool, scope, version, granted_at, expires_at, mac)
VALUES (:tenant, :person, :tool, :scope, :version, :granted_at, :expires_at, :mac)
ON CONFLICT (tenant, person, tool, scope) DO UPDATE SET
    version = excluded.version, granted_at = excluded.granted_at, expires_at = excluded.expires_at, mac = excluded.mac
"""
_REVOKE = "DELETE FROM callgate_consents WHERE tenant = :tenant AND person = :person"
_LIST = """
SELECT tool, scope, granted_at, expires_at, mac FROM callgate_consents
WHERE tenant = :tenant AND person = :person AND version = :version AND (expires_at IS NULL OR expires_at > :now)
ORDER BY granted_at, tool, scope
"""


@keepable
class SqlCache(SqlPart):
    """The cache, with a row for each tag. Expired rows are deleted from time to time.

    ``shared`` serves concurrent calls together. A value that does not verify is not cached.
    """

    def __init__(
        self, database: Database, shared: SharedWriter, namespace: str = "", signer: RowSigner | None = None
    ) -> None:
        super().__init__(database, None, namespace, signer)
        self.shared = shared
        self._drop_tags = _DROP_TAGS.format(lock="" if database.lite else "FOR UPDATE")

    async def get(self, tenant: str, key: str) -> CacheEntry | None:
        request = CacheRequest(in_table(self.namespace, tenant), key, signed=self.signer is not None)
        found: CacheEntry | None = await self.shared.ask(request, withdraw=True)
        return found if found is None or self.signer is None or self._is_valid(tenant, found, request) else None

    def _is_valid(self, tenant: str, found: CacheEntry, request: CacheRequest) -> bool:
        """Return True for a signed value that was not dropped since."""
        assert self.signer is not None
        key = request.key[1]
        if not self.signer.check(request.mac, CACHE, tenant, cache_facts(key, found), found.value):
            return False
        if request.dropped is None:
            return True
        return found.made_at * 1e6 >= checked_version(self.signer, tenant, CACHE, key, request.dropped).number

    async def put(self, tenant: str, key: str, entry: CacheEntry) -> None:
        mac = None if self.signer is None else self.signer.sign(CACHE, tenant, cache_facts(key, entry), entry.value)
        await self.shared.ask(CacheRequest(in_table(self.namespace, tenant), key, entry, mac))

    async def drop(self, tenant: str, key: str) -> bool:
        return bool(await self._dropped(_DROP, tenant, {"key": key}))

    async def drop_tags(self, tenant: str, tags: Collection[str]) -> int:
        return await self._dropped(self._drop_tags, tenant, {"tags": list(tags)})

    async def _dropped(self, query: str, tenant: str, values: dict[str, object]) -> int:
        """Delete values. Return the number of those that were not expired."""
        values["tenant"] = in_table(self.namespace, tenant)
        now = self._database.now()
        if self.signer is None:
            rows = await self._write_rows(query, values)
        else:
            versions = self.beside(SqlVersions)
            rows = await self._database.transact(
                lambda connection: versions.inside(connection).drop(query, values, tenant, now)
            )
        return sum(row[0] > now for row in rows)


@keepable
class SqlConsents(SqlPart):
    """Consents, one row each, written with durable commits. A consent that does not verify is not given."""

    version = 1
    """The version of the rows of consents. Rows of another version are not read: the consent is not given."""

    async def find(self, tenant: str, user: str, tool: str, scope: str) -> Grant | None:
        rows = await self._rows(_FIND, {**self._of(tenant, user), "tool": tool, "scope": scope, "now": self._now()})
        return await self._checked(tenant, user, rows[0]) if rows else None

    async def grant(self, tenant: str, grant: Grant) -> None:
        await self._changed(lambda part: part._grant(tenant, grant))

    async def _grant(self, tenant: str, grant: Grant) -> None:
        mac = None if self.signer is None else self.signer.sign(CONSENT, tenant, grant_facts(grant))
        values = {
            **self._of(tenant, grant.user),
            "tool": grant.tool,
            "scope": grant.scope,
            "granted_at": float(grant.granted_at),
            "expires_at": None if grant.expires_at is None else float(grant.expires_at),
            "mac": mac,
        }
        await self._write(_GRANT, values)
        await self._note(tenant, grant.user, grant.tool, grant.scope, mac)

    async def revoke(self, tenant: str, user: str, tool: str | None = None, scope: str | None = None) -> int:
        return await self._changed(lambda part: part._revoke(tenant, user, tool, scope))

    async def _revoke(self, tenant: str, user: str, tool: str | None, scope: str | None) -> int:
        values = self._of(tenant, user)
        query = _REVOKE
        for name, given in (("tool", tool), ("scope", scope)):
            if given is not None:
                query += f" AND {name} = :{name}"
                values[name] = given
        rows = await self._write_rows(query + " RETURNING expires_at, tool, scope", values)
        for _, of_tool, of_scope in rows:
            await self._note(tenant, user, of_tool, of_scope, "")
        now = self._now()
        return sum(row[0] is None or row[0] > now for row in rows)

    async def list(self, tenant: str, user: str) -> Sequence[Grant]:
        rows = await self._rows(_LIST, {**self._of(tenant, user), "now": self._now()})
        found = [await self._checked(tenant, user, row) for row in rows]
        return [grant for grant in found if grant is not None]

    async def _changed(self, work: Callable[[SqlConsents], Awaitable[R]]) -> R:
        """Run *work*; with signatures in one transaction with the counter."""
        return await (work(self) if self.signer is None else self.transact(work))

    async def _checked(self, tenant: str, user: str, row: Row) -> Grant | None:
        tool, scope, granted_at, expires_at, mac = row
        grant = Grant(user, tool, scope, granted_at, expires_at)
        if self.signer is None:
            return grant
        if not self.signer.check(mac, CONSENT, tenant, grant_facts(grant)):
            return None
        versions = self.beside(SqlVersions)
        try:
            known = await versions.find(tenant, CONSENT, _grant_key(user, tool, scope))
        except StoreError:  # the counter was changed, or its key removed: the user is asked again
            return None
        return grant if known is None or known.latest == mac else None

    async def _note(self, tenant: str, user: str, tool: str, scope: str, mac: str | None) -> None:
        """Make a consent, or none, the only valid version."""
        if self.signer is not None:
            versions = self.beside(SqlVersions)
            await versions.set(tenant, CONSENT, _grant_key(user, tool, scope), mac or "")

    def _of(self, tenant: str, user: str) -> dict[str, object]:
        return {"tenant": in_table(self.namespace, tenant), "person": user}

    def _now(self) -> float:
        return float(self._database.now())


def _grant_key(user: str, tool: str, scope: str) -> str:
    return json.dumps([user, tool, scope])
