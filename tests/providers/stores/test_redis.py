"""Promises of Redis only: its own clock, keys that expire, keys of one slot, JSON."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
import redis
from redis.asyncio import Redis as AsyncRedis
from redis.crc import key_slot

from callgate.errors import StoreError
from callgate.providers.stores.base import CacheEntry, Grant, Limit
from callgate.providers.stores.redis.client import RedisConnection
from callgate.providers.stores.redis.scripts import RedisScript
from callgate.providers.stores.redis.store import RedisStore
from tests.providers.stores.backends import REDIS, Now, keyspace

TENANTS = ["", "a", "a}b", "{", "ä:"]


@pytest.fixture
async def store() -> AsyncGenerator[RedisStore, None]:
    with keyspace() as prefix:
        made = RedisStore(REDIS, Now(), prefix=prefix)
        await made.open()
        yield made
        await made.close()


def server() -> Any:
    return redis.Redis.from_url(REDIS)


def keys(store: RedisStore) -> list[bytes]:
    with server() as asked:
        return sorted(asked.scan_iter(match=f"{store._connection.prefix}:*", count=1000))


async def fill(store: RedisStore, tenant: str) -> None:
    now = store.cache._now()
    await store.quotas.take(tenant, "k", Limit(5, 60.0))
    await store.semaphores.acquire(tenant, "k", 1, "t", 60.0)
    await store.cache.put(tenant, "k", CacheEntry(b'"v"', now, now + 30, now + 60, frozenset({"x", "y"})))
    await store.consents.grant(tenant, Grant("ann", "tool", "", now, now + 60))


async def test_every_key_expires_and_holds_its_tenant(store: RedisStore) -> None:
    for tenant in TENANTS:
        await fill(store, tenant)
        await store.quotas.give_back(tenant, "k", Limit(5, 60.0))
    found = keys(store)
    assert len(found) == 6 * len(TENANTS)
    with server() as asked:
        lives = [asked.pttl(key) for key in found]
    assert all(0 < life <= 121_000 for life in lives)
    assert len({key.split(b":")[1] for key in found}) == len(TENANTS)


async def test_all_keys_of_a_tenant_lie_in_one_slot_of_a_cluster(store: RedisStore) -> None:
    for tenant in TENANTS:
        await fill(store, tenant)
    slots: dict[bytes, set[int]] = {}
    for key in keys(store):
        slots.setdefault(key.split(b":")[1], set()).add(key_slot(key))
    assert [len(each) for each in slots.values()] == [1] * len(TENANTS)
    assert len({slot for each in slots.values() for slot in each}) == len(TENANTS)


async def test_a_consent_without_end_keeps_its_user_from_expiring_and_others_do_not(store: RedisStore) -> None:
    now = store.cache._now()
    await store.consents.grant("", Grant("ann", "tool", "lasting", now, None))
    await store.consents.grant("", Grant("ann", "tool", "short", now, now + 5))
    await store.consents.grant("", Grant("bob", "tool", "far", now, 1e17))
    (ann, bob) = keys(store)
    with server() as asked:
        assert asked.pttl(ann) == -1
        assert asked.pttl(bob) > 0


async def test_windows_and_places_go_by_the_clock_of_redis(store: RedisStore) -> None:
    """Unchanged scripts. The time of our process plays no part in them."""
    assert (await store.quotas.take("", "k", Limit(1, 1e6))).ok
    assert await store.semaphores.acquire("", "k", 1, "first", 3_600.0)
    now: Any = store.cache._now
    now.move(1e7)
    assert not (await store.quotas.take("", "k", Limit(1, 1e6))).ok
    assert not await store.semaphores.acquire("", "k", 1, "second", 1.0)
    assert await store.semaphores.acquire("", "brief", 1, "first", 0.001)
    for _ in range(10_000):
        if await store.semaphores.acquire("", "brief", 1, "second", 60.0):
            break
    else:
        raise AssertionError("a millisecond is over")
    assert not await store.semaphores.release("", "brief", "first")


async def test_a_short_stay_does_not_shorten_the_life_of_the_key(store: RedisStore) -> None:
    await store.semaphores.acquire("", "k", 2, "long", 600.0)
    await store.semaphores.acquire("", "k", 2, "short", 0.5)
    (key,) = keys(store)
    with server() as asked:
        assert asked.pttl(key) > 599_000


async def test_values_are_json_and_those_of_another_version_are_not_read(store: RedisStore) -> None:
    await fill(store, "")
    with server() as asked:
        entry = next(key for key in keys(store) if b":cache:" in key)
        header = json.loads(asked.hget(entry, "header"))
        assert asked.hget(entry, "value") == b'"v"'
        asked.hset(entry, "header", json.dumps(header | {"version": 2}))
        consents = next(key for key in keys(store) if b":consents:" in key)
        ((field, value),) = asked.hgetall(consents).items()
        assert json.loads(field) == ["tool", ""]
        asked.hset(consents, field, json.dumps(json.loads(value) | {"version": 2}))
    assert await store.cache.get("", "k") is None
    assert await store.consents.find("", "ann", "tool", "") is None


async def test_scripts_that_redis_has_forgotten_are_sent_again(store: RedisStore) -> None:
    assert (await store.quotas.take("", "k", Limit(5, 1e6))).ok
    with server() as asked:
        asked.script_flush()
    assert (await store.quotas.take("", "k", Limit(5, 1e6))).remaining == 3


async def test_a_client_of_the_callers_is_used_and_left_open() -> None:
    with keyspace() as prefix:
        client: Any = AsyncRedis.from_url(REDIS)
        store = RedisStore("redis://elsewhere", prefix=prefix, client=client)
        await store.open()
        assert (await store.quotas.take("", "k", Limit(5, 60.0))).ok
        await store.close()
        assert await client.ping()
        await client.aclose()


class Recorded(RedisConnection):
    """Notes which keys each script was told of."""

    def __init__(self, given: RedisConnection) -> None:
        super().__init__(given._url, given.prefix, given._pool_size)
        self.told: list[list[bytes]] = []

    async def script(self, script: RedisScript, keys: Sequence[bytes], *arguments: Any, withdraw: bool = False) -> Any:
        self.told.append([*keys])
        return await super().script(script, keys, *arguments, withdraw=withdraw)


async def test_every_script_is_told_all_its_keys_and_they_lie_in_one_slot(store: RedisStore) -> None:
    """Requirement of a cluster: the scripts make no keys."""
    recorded = Recorded(store._connection)
    await recorded.open()
    store.cache._connection = recorded
    await fill(store, "t")
    await store.cache.drop_tags("t", ["x", "y"])
    assert len(recorded.told) == 3, "the entry with its tags, and each tag with the entry that had it"
    assert all(len({key_slot(key) for key in told}) == 1 for told in recorded.told)
    await recorded.close()


async def test_a_server_that_is_not_there_is_a_store_error() -> None:
    store = RedisStore(f"redis://ann:{uuid.uuid4().hex}@127.0.0.1:1/0")
    with pytest.raises(StoreError, match="redis: "):
        await store.open()
    with pytest.raises(StoreError, match="not open"):
        await store.quotas.look("", "k", Limit(1, 1.0))
