"""The signed counters of rows in SQL; see ``signed_rows``."""

from __future__ import annotations

from callgate.errors import StoreError
from callgate.providers.stores.namespaces import in_table
from callgate.providers.stores.signed_rows import CACHE, RowSigner, Version, refusal, version_facts
from callgate.providers.stores.sql.database.part import SqlPart
from callgate.providers.stores.sql.database.rows import Row

_FIND = "SELECT number, latest, ends, mac FROM callgate_versions WHERE tenant = :tenant AND kind = :kind AND key = :key"
_SET = """
INSERT INTO callgate_versions AS v (tenant, kind, key, number, latest, ends, mac)
VALUES (:tenant, :kind, :key, :number, :latest, :ends, :mac)
ON CONFLICT (tenant, kind, key) DO UPDATE SET
    number = excluded.number, latest = excluded.latest, ends = excluded.ends, mac = excluded.mac
WHERE v.number < excluded.number
"""
_ATTEMPTS = 5


class SqlVersions(SqlPart):
    """The counters of the rows of one namespace, which are signed."""

    @property
    def _signer(self) -> RowSigner:
        assert self.signer is not None
        return self.signer

    async def find(self, tenant: str, kind: str, key: str) -> Version | None:
        """Return the latest version of a row; None if the row was never replaced.

        Raises:
            StoreError: the counter was changed.
        """
        values = {"tenant": in_table(self.namespace, tenant), "kind": kind, "key": key}
        rows = await self._rows(_FIND, values)
        if not rows:
            return None
        number, latest, ends, mac = rows[0]
        return checked_version(self._signer, tenant, kind, key, (number, latest, ends, mac))

    async def set(self, tenant: str, kind: str, key: str, latest: str, *, ends: float | None = None) -> None:
        """Make *latest* the only valid version of a row. The counter is deleted after *ends*.

        Raises:
            StoreError: the counter was changed, or other processes changed it too often.
        """
        number = int(self._database.now() * 1e6)
        for _ in range(_ATTEMPTS):
            values = version_values(self._signer, self.namespace, tenant, kind, key, Version(number, latest), ends)
            if await self._write(_SET, values):
                return
            found = await self.find(tenant, kind, key)
            number = number if found is None else max(number, found.number) + 1
        raise StoreError("other processes changed the row at the same time; try again later")

    def inside(self, connection: object) -> SqlVersions:
        """Return the counters within a transaction."""
        return SqlVersions(self._database, connection, self.namespace, self._signer)

    async def drop(self, query: str, values: dict[str, object], tenant: str, now: float) -> list[Row]:
        """Run *query*, which deletes cached values, and note the time: no value from before is valid. Return its rows."""
        rows = await self._write_rows(query, values)
        for stale_until, key in rows:
            version = Version(int(now * 1e6), "")
            await self._write(
                _SET, version_values(self._signer, self.namespace, tenant, CACHE, key, version, stale_until)
            )
        return rows


def version_values(
    signer: RowSigner, namespace: str, tenant: str, kind: str, key: str, version: Version, ends: float | None
) -> dict[str, object]:
    """Return the row of a counter."""
    facts = version_facts(kind, key, version, ends)
    return {
        "tenant": in_table(namespace, tenant),
        "kind": kind,
        "key": key,
        "number": version.number,
        "latest": version.latest,
        "ends": ends,
        "mac": signer.sign("version", tenant, facts),
    }


def checked_version(
    signer: RowSigner, tenant: str, kind: str, key: str, row: tuple[int, str, float | None, str]
) -> Version:
    """Return the version in the row of a counter.

    Raises:
        StoreError: the row was changed.
    """
    number, latest, ends, mac = row
    version = Version(number, latest)
    if not signer.check(mac, "version", tenant, version_facts(kind, key, version, ends)):
        raise refusal("version", mac)
    return version
