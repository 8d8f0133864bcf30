"""The cached values of many calls in one transaction."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from typing import Any

from callgate.providers.stores.base import CacheEntry
from callgate.providers.stores.sql_batches import Step
from callgate.providers.stores.sql_shared import SharedRequest
from callgate.providers.stores.sql_statements import Statement, sql_float

CACHE_VERSION = 1
"""The version of the rows of the cache. Rows of another version are not read: the value is not cached."""

_KEY = {"tenant": "text", "key": "text"}
_COLUMNS = "tenant, key, version, value, made_at, fresh_until, stale_until, tags"
_REPLACE = """ON CONFLICT (tenant, key) DO UPDATE SET version = excluded.version, value = excluded.value,
    made_at = excluded.made_at, fresh_until = excluded.fresh_until, stale_until = excluded.stale_until,
    tags = excluded.tags"""

READ_VALUES = Statement(
    """SELECT tenant, key, value, made_at, fresh_until, stale_until, tags FROM callgate_cache
    WHERE tenant = :tenant AND key = :key AND version = :version AND stale_until > :now""",
    """SELECT c.tenant, c.key, c.value, c.made_at, c.fresh_until, c.stale_until, c.tags
    FROM callgate_cache c JOIN {given} ON c.tenant = given.tenant AND c.key = given.key
    WHERE c.version = given.version AND c.stale_until > given.now""",
    **_KEY,
    version="smallint",
    now="float8",
)
WRITE_VALUES = Statement(
    f"""INSERT INTO callgate_cache ({_COLUMNS})
    VALUES (:tenant, :key, :version, :value, :made_at, :fresh_until, :stale_until, :tags) {_REPLACE}""",  # noqa: S608
    f"INSERT INTO callgate_cache ({_COLUMNS}) SELECT {_COLUMNS} FROM {{given}} {_REPLACE}",  # noqa: S608
    **_KEY,
    version="smallint",
    value="bytea",
    made_at="float8",
    fresh_until="float8",
    stale_until="float8",
    tags="text",
)
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
        return ((READ_VALUES, [{"tenant": tenant, "key": key, **about} for tenant, key in wanted]),)

    def compute(self, rows: Sequence[list[Any]]) -> Sequence[Step]:
        found = {
            (tenant, key): CacheEntry(bytes(value), made_at, fresh_until, stale_until, frozenset(json.loads(tags)))
            for tenant, key, value, made_at, fresh_until, stale_until, tags in rows[0]
        }
        puts: dict[tuple[str, str], CacheEntry] = {}
        for one in self._requests:
            if one.entry is None:
                one.result = found.get(one.key)
            else:
                puts[one.key] = one.entry  # the last one of a key
        keys = [{"tenant": tenant, "key": key} for tenant, key in sorted(puts)]
        tags = [{**key, "tag": tag} for key in keys for tag in sorted(puts[key["tenant"], key["key"]].tags)]
        values = [cache_values(*key, entry) for key, entry in sorted(puts.items())]
        # The values first: their row locks order concurrent writers of a key.
        return (WRITE_VALUES, values), (UNTAG_VALUES, keys), (TAG_VALUES, tags)


class CacheRequest(SharedRequest):
    """Put *entry* into the cache; without it, get the entry of the key."""

    __slots__ = ("entry", "key")
    place = 3
    of = CacheRequests

    def __init__(self, tenant: str, key: str, entry: CacheEntry | None = None) -> None:
        super().__init__()
        self.key = tenant, key
        self.entry = entry

    @property
    def row(self) -> Hashable:
        return self.place, self.key

    @property
    def writes(self) -> bool:
        return self.entry is not None

    @property
    def size(self) -> int:
        return 0 if self.entry is None else 2 * len(self.entry.value)  # hexadecimal digits


def cache_values(tenant: str, key: str, entry: CacheEntry) -> dict[str, Any]:
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
    }
