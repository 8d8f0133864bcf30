"""The cached values of many calls in one transaction."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence

from callgate.providers.stores.base import CacheEntry
from callgate.providers.stores.sql.batches import Step
from callgate.providers.stores.sql.database.part import as_blob
from callgate.providers.stores.sql.database.rows import Row
from callgate.providers.stores.sql.database.statements import Statement, sql_float
from callgate.providers.stores.sql.shared import SharedRequest

CACHE_VERSION = 1
"""The version of the rows of the cache. Rows of another version are not read: the value is not cached."""

_KEY = {"tenant": "text", "key": "text"}
_COLUMNS = "tenant, key, version, value, made_at, fresh_until, stale_until, tags, mac"
_REPLACE = """ON CONFLICT (tenant, key) DO UPDATE SET version = excluded.version, value = excluded.value,
    made_at = excluded.made_at, fresh_until = excluded.fresh_until, stale_until = excluded.stale_until,
    tags = excluded.tags, mac = excluded.mac"""

READ_VALUES = Statement(
    """SELECT tenant, key, value, made_at, fresh_until, stale_until, tags, mac FROM callgate_cache
    WHERE tenant = :tenant AND key = :key AND version = :version AND stale_until > :now""",
    """SELECT c.tenant, c.key, c.value, c.made_at, c.fresh_until, c.stale_until, c.tags, c.mac
    FROM callgate_cache c JOIN {given} ON c.tenant = given.tenant AND c.key = given.key
    WHERE c.version = given.version AND c.stale_until > given.now""",
    **_KEY,
    version="smallint",
    now="float8",
)
WRITE_VALUES = Statement(
    f"""INSERT INTO callgate_cache ({_COLUMNS})
    VALUES (:tenant, :key, :version, :value, :made_at, :fresh_until, :stale_until, :tags, :mac) {_REPLACE}""",  # noqa: S608
    f"INSERT INTO callgate_cache ({_COLUMNS}) SELECT {_COLUMNS} FROM {{given}} {_REPLACE}",  # noqa: S608
    **_KEY,
    version="smallint",
    value="bytea",
    made_at="float8",
    fresh_until="float8",
    stale_until="float8",
    tags="text",
    mac="text",
)
READ_DROPS = Statement(
    """SELECT tenant, key, number, latest, ends, mac FROM callgate_versions
    WHERE tenant = :tenant AND kind = 'cache' AND key = :key""",
    """SELECT v.tenant, v.key, v.number, v.latest, v.ends, v.mac
    FROM callgate_versions v JOIN {given} ON v.tenant = given.tenant AND v.key = given.key AND v.kind = 'cache'""",
    **_KEY,
)
"""When values were dropped: an earlier value is not valid. Only a store with signing keys asks."""
UNTAG_VALUES = Statement(
    "DELETE FROM callgate_cache_tags WHERE tenant = :tenant AND key = :key",
    "DELETE FROM callgate_cache_tags t USING {given} WHERE t.tenant = given.tenant AND t.key = given.key",
    **_KEY,
)
TAG_VALUES = Statement(
    "INSERT INTO callgate_cache_tags (tenant, tag, key) VALUES (:tenant, :tag, :key)",
    "INSERT INTO callgate_cache_tags (tenant, tag, key) SELECT tenant, tag, key FROM {given}",
    **_KEY,
    tag="text",
)


class CacheRequests:
    """The requests to the cache in one transaction; see ``SharedRequests``."""

    def __init__(self, requests: Sequence[CacheRequest], now: float) -> None:
        self._requests, self._now = requests, now

    def reads(self) -> Sequence[Step]:
        wanted = sorted({one.key for one in self._requests if one.entry is None})
        about = {"version": CACHE_VERSION, "now": self._now}
        signed = sorted({one.key for one in self._requests if one.entry is None and one.signed})
        return (
            (READ_VALUES, [{"tenant": tenant, "key": key, **about} for tenant, key in wanted]),
            (READ_DROPS, [{"tenant": tenant, "key": key} for tenant, key in signed]),
        )

    def compute(self, rows: Sequence[list[Row]]) -> Sequence[Step]:
        found = {
            (tenant, key): (
                CacheEntry(as_blob(value), made_at, fresh_until, stale_until, frozenset(json.loads(tags))),
                mac,
            )
            for tenant, key, value, made_at, fresh_until, stale_until, tags, mac in rows[0]
        }
        drops = {(tenant, key): (number, latest, ends, mac) for tenant, key, number, latest, ends, mac in rows[1]}
        puts: dict[tuple[str, str], CacheRequest] = {}
        for one in self._requests:
            if one.entry is None:
                one.result, one.mac = found.get(one.key, (None, None))
                one.dropped = drops.get(one.key)
            else:
                puts[one.key] = one  # the last one of a key
        entries = [(key, one.entry, one.mac) for key, one in sorted(puts.items()) if one.entry is not None]
        keys = [{"tenant": tenant, "key": key} for (tenant, key), _, _ in entries]
        tags = [{"tenant": t, "key": key, "tag": tag} for (t, key), entry, _ in entries for tag in sorted(entry.tags)]
        values = [cache_values(*key, entry, mac) for key, entry, mac in entries]
        # The values first: their row locks order concurrent writers of a key.
        return (WRITE_VALUES, values), (UNTAG_VALUES, keys), (TAG_VALUES, tags)


class CacheRequest(SharedRequest):
    """Put *entry* into the cache; without it, get the entry of the key, its ``mac`` and the time when it was dropped."""

    __slots__ = ("dropped", "entry", "key", "mac", "signed")
    place = 3
    of = CacheRequests

    def __init__(
        self, tenant: str, key: str, entry: CacheEntry | None = None, mac: str | None = None, *, signed: bool = False
    ) -> None:
        super().__init__()
        self.key = tenant, key
        self.entry, self.mac, self.signed = entry, mac, signed
        self.dropped: tuple[int, str, float | None, str] | None = None

    @property
    def row(self) -> Hashable:
        return self.place, self.key

    @property
    def writes(self) -> bool:
        return self.entry is not None

    @property
    def size(self) -> int:
        return 0 if self.entry is None else 2 * len(self.entry.value)  # hexadecimal digits


def cache_values(tenant: str, key: str, entry: CacheEntry, mac: str | None = None) -> dict[str, object]:
    """Return the row of an entry."""
    return {
        "tenant": tenant,
        "key": key,
        "version": CACHE_VERSION,
        "value": entry.value,
        "made_at": sql_float(entry.made_at),
        "fresh_until": sql_float(entry.fresh_until),
        "stale_until": sql_float(entry.stale_until),
        "tags": json.dumps(sorted(entry.tags)),
        "mac": mac,
    }
