"""The parts of the store in Redis. Every key contains its tenant and expires; values are JSON bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence

from callgate.providers.stores.base import CacheEntry, Grant, Limit, Taken
from callgate.providers.stores.kept_texts import keepable
from callgate.providers.stores.redis.client import RedisConnection
from callgate.providers.stores.redis.scripts import (
    ACQUIRE,
    DROP_TAGGED,
    GIVE_BACK,
    GRANT,
    HOLDERS,
    PEEK,
    PUT,
    RELEASE,
    TAKE,
    RedisScript,
)
from callgate.providers.stores.redis.versions import RedisVersions
from callgate.providers.stores.signed_rows import CACHE, CONSENT
from callgate.providers.stores.windows import Counts, granted, looked, refused

_VERSION = 1
"""The version of the values. Values of another version are not read: the value is not cached, the consent not given."""

_LONGEST_TTL = 366 * 86_400.0  # seconds; the maximum time to live of a cached value
_BATCH = 500


@keepable
class RedisQuotas:
    """Rate limits with sliding windows (see ``windows``), one hash each, by the clock of Redis."""

    def __init__(self, connection: RedisConnection, namespace: str = "") -> None:
        self._connection, self._namespace = connection, namespace

    async def take(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> Taken:
        ok, counts = await self._run(TAKE, tenant, key, limit, cost, withdraw=True)
        return granted(counts, limit) if ok else refused(counts, limit, cost)

    async def give_back(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> None:
        await self._run(GIVE_BACK, tenant, key, limit, cost)

    async def look(self, tenant: str, key: str, limit: Limit) -> Taken:
        _, counts = await self._run(PEEK, tenant, key, limit, 0)
        return looked(counts, limit)

    async def _run(
        self, script: RedisScript, tenant: str, key: str, limit: Limit, cost: int, *, withdraw: bool = False
    ) -> tuple[bool, Counts]:
        seconds = float(limit.seconds)
        name = self._connection.key(tenant, "quota", f"{seconds!r}:{key}", self._namespace)
        given = (repr(seconds), limit.amount, cost)
        ok, *figures = await self._connection.script(script, [name], *given, withdraw=withdraw)
        number, used, before = (int(figure) for figure in figures[:3])
        return bool(ok), Counts(number, used, before, float(figures[3]))


@keepable
class RedisSemaphores:
    """Concurrency limits: a sorted set of tokens by the time when their permits end, by the clock of Redis."""

    def __init__(self, connection: RedisConnection, namespace: str = "") -> None:
        self._connection, self._namespace = connection, namespace

    async def acquire(self, tenant: str, key: str, permits: int, token: str, ttl: float) -> bool:
        lifetime = max(1, math.ceil(ttl * 1000))
        given = (token, permits, lifetime)
        return bool(await self._connection.script(ACQUIRE, [self._key(tenant, key)], *given, withdraw=True))

    async def release(self, tenant: str, key: str, token: str) -> bool:
        return bool(await self._connection.script(RELEASE, [self._key(tenant, key)], token))

    async def holders(self, tenant: str, key: str) -> int:
        return int(await self._connection.script(HOLDERS, [self._key(tenant, key)]))

    def _key(self, tenant: str, key: str) -> bytes:
        return self._connection.key(tenant, "permits", key, self._namespace)


class _SignedPart:
    """A part whose rows have signatures, if the store has keys."""

    def __init__(
        self,
        connection: RedisConnection,
        now: Callable[[], float],
        namespace: str = "",
        signed: RedisVersions | None = None,
    ) -> None:
        self._connection, self._namespace = connection, namespace
        self._now, self._signed = now, signed


@keepable
class RedisCache(_SignedPart):
    """The cache: values by key, and for each tag a sorted set of its keys."""

    async def get(self, tenant: str, key: str) -> CacheEntry | None:
        header, value = await self._connection.run("HMGET", self._key(tenant, key), "header", "value")
        if header is None or value is None:
            return None
        about = json.loads(header)
        if self._signed is not None and not await self._signed.checks(tenant, CACHE, key, about, bytes(value)):
            return None
        if about["version"] != _VERSION or about["stale_until"] <= self._now():
            return None
        tags = frozenset(about["tags"])
        return CacheEntry(bytes(value), about["made_at"], about["fresh_until"], about["stale_until"], tags)

    async def put(self, tenant: str, key: str, entry: CacheEntry) -> None:
        name = self._key(tenant, key)
        lifetime = math.ceil(min(entry.stale_until - self._now(), _LONGEST_TTL) * 1000)
        if lifetime <= 0:
            await self._connection.run("DEL", name)
            return
        about: dict[str, object] = {
            "version": _VERSION,
            "made_at": entry.made_at,
            "fresh_until": entry.fresh_until,
            "stale_until": entry.stale_until,
            "tags": sorted(entry.tags),
        }
        keys = [name, *(self._tag(tenant, tag) for tag in sorted(entry.tags))]
        names = [_bytes(tag) for tag in sorted(entry.tags)]
        about = _finite(about)
        if self._signed is not None:
            about = self._signed.with_mac(tenant, CACHE, key, about, entry.value)
        await self._connection.script(PUT, keys, lifetime, _bytes(key), json.dumps(about), entry.value, *names)

    async def drop(self, tenant: str, key: str) -> bool:
        found = await self.get(tenant, key)
        live = found is not None
        if found is not None and self._signed is not None:
            await self._signed.drop(tenant, key, self._now(), found.stale_until)
        return bool(await self._connection.run("DEL", self._key(tenant, key))) and live

    async def drop_tags(self, tenant: str, tags: Collection[str]) -> int:
        now, live = self._now(), 0
        for tag in sorted(tags):
            tagged = self._tag(tenant, tag)
            members: list[bytes] = await self._connection.run("ZRANGE", tagged, 0, -1)
            for start in range(0, len(members), _BATCH):
                batch = members[start : start + _BATCH]
                keys = [self._key(tenant, member.decode("utf-8", "surrogatepass")) for member in batch]
                gone = await self._connection.script(DROP_TAGGED, [tagged, *keys], _bytes(tag), *batch)
                for about in map(json.loads, gone):
                    live += about["stale_until"] > now
                    if self._signed is not None and "key" in about:
                        await self._signed.drop(tenant, about["key"], now, about["stale_until"])
        return live

    def _key(self, tenant: str, key: str) -> bytes:
        return self._connection.key(tenant, "cache", key, self._namespace)

    def _tag(self, tenant: str, tag: str) -> bytes:
        return self._connection.key(tenant, "tag", tag, self._namespace)


@keepable
class RedisConsents(_SignedPart):
    """Consents: a hash for each user, with a field for each tool and scope. It expires with its last consent."""

    async def find(self, tenant: str, user: str, tool: str, scope: str) -> Grant | None:
        field = _field(tool, scope)
        found = await self._connection.run("HGET", self._key(tenant, user), field)
        return None if found is None else await self._grant(tenant, user, field, found)

    async def grant(self, tenant: str, grant: Grant) -> None:
        about: dict[str, object] = {
            "version": _VERSION,
            "tool": grant.tool,
            "scope": grant.scope,
            "granted_at": grant.granted_at,
            "expires_at": grant.expires_at,
        }
        field, about = _field(grant.tool, grant.scope), _finite(about)
        if self._signed is not None:
            about = self._signed.with_mac(tenant, CONSENT, grant.user + field, about)
            await self._signed.set(tenant, CONSENT, grant.user + field, self._now(), str(about["mac"]))
        await self._connection.script(
            GRANT, [self._key(tenant, grant.user)], repr(float(self._now())), field, json.dumps(about)
        )

    async def revoke(self, tenant: str, user: str, tool: str | None = None, scope: str | None = None) -> int:
        name = self._key(tenant, user)
        fields: list[bytes] = []
        live = 0
        for field, found in (await self._all(name)).items():
            of_tool, of_scope = json.loads(field)
            if tool in {None, of_tool} and scope in {None, of_scope}:
                fields.append(field)
                live += await self._grant(tenant, user, field.decode(), found) is not None
                if self._signed is not None:
                    await self._signed.set(tenant, CONSENT, user + field.decode(), self._now(), "")
        if fields:
            await self._connection.run("HDEL", name, *fields)
        return live

    async def list(self, tenant: str, user: str) -> Sequence[Grant]:
        rows = await self._all(self._key(tenant, user))
        found = [await self._grant(tenant, user, field.decode(), value) for field, value in rows.items()]
        live = [grant for grant in found if grant is not None]
        return sorted(live, key=lambda grant: (grant.granted_at, grant.tool, grant.scope))

    async def _grant(self, tenant: str, user: str, field: str, found: bytes) -> Grant | None:
        about = json.loads(found)
        if self._signed is not None and not await self._signed.checks(tenant, CONSENT, user + field, about):
            return None
        ends = about["expires_at"]
        if about["version"] != _VERSION or (ends is not None and ends <= self._now()):
            return None
        return Grant(user, about["tool"], about["scope"], about["granted_at"], ends)

    async def _all(self, name: bytes) -> dict[bytes, bytes]:
        found = await self._connection.run("HGETALL", name)
        return dict(found)

    def _key(self, tenant: str, user: str) -> bytes:
        return self._connection.key(tenant, "consents", user, self._namespace)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _field(tool: str, scope: str) -> str:
    return json.dumps([tool, scope])


def _finite(about: dict[str, object]) -> dict[str, object]:
    """Return facts that the parser in Redis accepts as JSON: an infinite time becomes a very late one."""
    late = {name: 1e15 for name, value in about.items() if isinstance(value, float) and value == math.inf}
    return about | late
