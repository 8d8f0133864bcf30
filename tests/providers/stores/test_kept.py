"""Cached values and consents, the same on every store."""

from __future__ import annotations

import random

import pytest

from callgate.errors import StoreError
from callgate.providers.stores.base import CacheEntry, Grant
from callgate.providers.stores.memory.store import MemoryStore
from tests.providers.stores.backends import Backend, made


def entry(
    backend: Backend, value: bytes = b'{"n":1}', *tags: str, fresh: float = 10.0, stale: float = 20.0
) -> CacheEntry:
    now = backend.now()
    return CacheEntry(value, now, now + fresh, now + stale, frozenset(tags))


@pytest.mark.parametrize("value", [b"1", b"", bytes(range(256)), b'"' + b"x" * 300_000 + b'"'])
async def test_a_value_comes_back_byte_for_byte(backend: Backend, value: bytes) -> None:
    put = entry(backend, value, "tag", "a tag with ' \" : } and ünïcode")
    await backend.store.cache.put(backend.tenant, "key", put)
    assert await backend.store.cache.get(backend.tenant, "key") == put
    assert await backend.store.cache.get(backend.tenant, "other key") is None


async def test_a_value_is_there_until_it_is_stale_and_not_after(backend: Backend) -> None:
    cache, tenant = backend.store.cache, backend.tenant
    await cache.put(tenant, "k", entry(backend, fresh=10.0, stale=20.0))
    await cache.put(tenant, "over", entry(backend, fresh=-2.0, stale=-1.0))
    assert await cache.get(tenant, "over") is None
    backend.now.move(19.0)
    assert await cache.get(tenant, "k") is not None, "stale, and usable while it is renewed"
    backend.now.move(1.0)
    assert await cache.get(tenant, "k") is None
    assert not await cache.drop(tenant, "k")


async def test_a_new_value_takes_the_place_of_the_old_with_its_tags(backend: Backend) -> None:
    cache, tenant = backend.store.cache, backend.tenant
    await cache.put(tenant, "k", entry(backend, b"1", "old", "both"))
    await cache.put(tenant, "k", entry(backend, b"2", "new", "both"))
    assert await cache.drop_tags(tenant, ["old"]) == 0
    found = await cache.get(tenant, "k")
    assert found is not None
    assert (found.value, found.tags) == (b"2", frozenset({"new", "both"}))
    assert await cache.drop_tags(tenant, ["both", "new", "old"]) == 1
    assert await cache.get(tenant, "k") is None


async def test_dropping_says_what_there_was(backend: Backend) -> None:
    cache, tenant = backend.store.cache, backend.tenant
    for number in range(5):
        await cache.put(tenant, f"k{number}", entry(backend, b"1", "all", "even" if number % 2 == 0 else "odd"))
    await cache.put(tenant, "untagged", entry(backend))
    assert await cache.drop(tenant, "k0")
    assert not await cache.drop(tenant, "k0")
    assert await cache.drop_tags(tenant, []) == 0
    assert await cache.drop_tags(tenant, ["unknown"]) == 0
    assert await cache.drop_tags(tenant, ["even"]) == 2
    assert await cache.drop_tags(tenant, {"all", "even"}) == 2
    assert await cache.get(tenant, "untagged") is not None


async def test_many_values_of_one_tag_go_together(backend: Backend) -> None:
    for number in range(600):
        await backend.store.cache.put(backend.tenant, str(number), entry(backend, b"1", "t"))
    assert await backend.store.cache.drop_tags(backend.tenant, ["t"]) == 600


async def test_a_value_that_never_ends_is_kept(backend: Backend) -> None:
    put = CacheEntry(b"1", backend.now(), float("inf"), float("inf"))
    await backend.store.cache.put(backend.tenant, "k", put)
    backend.now.move(30 * 86_400.0)
    found = await backend.store.cache.get(backend.tenant, "k")
    assert found is not None
    assert found.fresh_until > backend.now()


@pytest.mark.parametrize("seed", range(3))
async def test_the_cache_answers_as_that_in_memory_does(backend: Backend, seed: int) -> None:
    """I20."""
    chance = random.Random(seed)
    model = MemoryStore(backend.now).cache
    cache = backend.store.cache
    for _ in range(120):
        backend.now.move(chance.choice([0.0, 0.0, 1.0, 6.0]))
        where = backend.tenant, f"{seed}{chance.choice('abcd')}"
        match chance.choice(["put", "put", "get", "get", "drop", "drop_tags"]):
            case "put":
                tags = chance.sample("xyz", chance.randint(0, 3))
                put = entry(backend, str(chance.random()).encode(), *tags, stale=chance.choice([0.0, 3.0, 20.0]))
                await model.put(*where, put)
                await cache.put(*where, put)
            case "get":
                assert await cache.get(*where) == await model.get(*where)
            case "drop":
                assert await cache.drop(*where) is await model.drop(*where)
            case _:
                tags = chance.sample("xyz", chance.randint(0, 2))
                assert await cache.drop_tags(backend.tenant, tags) == await model.drop_tags(backend.tenant, tags)


async def test_a_consent_is_found_until_it_expires_or_is_revoked(backend: Backend) -> None:
    consents, tenant, now = backend.store.consents, backend.tenant, backend.now()
    lasting, short = Grant("ann", "mail", "send", now, None), Grant("ann", "mail", "read", now + 1, now + 10.5)
    for grant in (lasting, short):
        await consents.grant(tenant, grant)
    assert await consents.find(tenant, "ann", "mail", "send") == lasting
    assert await consents.find(tenant, "ann", "mail", "read") == short
    for other in [("bob", "mail", "send"), ("ann", "post", "send"), ("ann", "mail", "")]:
        assert await consents.find(tenant, *other) is None
    assert list(await consents.list(tenant, "ann")) == [lasting, short]
    backend.now.move(10.5)
    assert await consents.find(tenant, "ann", "mail", "read") is None
    assert list(await consents.list(tenant, "ann")) == [lasting]
    assert await consents.revoke(tenant, "ann") == 1, "what has expired is none"
    assert list(await consents.list(tenant, "ann")) == []


async def test_a_consent_takes_the_place_of_an_older_one(backend: Backend) -> None:
    consents, tenant, now = backend.store.consents, backend.tenant, backend.now()
    await consents.grant(tenant, Grant("ann", "mail", "send", now, None))
    await consents.grant(tenant, Grant("ann", "mail", "send", now + 1, now + 5))
    assert list(await consents.list(tenant, "ann")) == [Grant("ann", "mail", "send", now + 1, now + 5)]
    backend.now.move(5.0)
    assert await consents.find(tenant, "ann", "mail", "send") is None


async def test_revoking_takes_what_it_names_and_no_more(backend: Backend) -> None:
    consents, tenant, now = backend.store.consents, backend.tenant, backend.now()

    async def given() -> set[tuple[str, str, str]]:
        found = [*await consents.list(tenant, "ann"), *await consents.list(tenant, "bob")]
        return {(grant.user, grant.tool, grant.scope) for grant in found}

    everything = {(user, tool, scope) for user in ("ann", "bob") for tool in ("t", "u") for scope in ("", "s")}
    for user, tool, scope in everything:
        await consents.grant(tenant, Grant(user, tool, scope, now, None))
    assert await given() == everything
    assert await consents.revoke(tenant, "ann", "t", "s") == 1
    assert await given() == everything - {("ann", "t", "s")}
    assert await consents.revoke(tenant, "ann", scope="s") == 1
    assert await consents.revoke(tenant, "ann", "t") == 1
    assert await given() == {("ann", "u", "")} | {each for each in everything if each[0] == "bob"}
    assert await consents.revoke(tenant, "carol") == 0
    assert await consents.revoke(tenant, "bob") == 4


async def test_a_store_that_is_closed_says_so_and_opens_again(shared: Backend) -> None:
    await shared.store.cache.put(shared.tenant, "k", entry(shared))
    await shared.store.close()
    with pytest.raises(StoreError, match="not open"):
        await shared.store.cache.get(shared.tenant, "k")
    await shared.store.open()
    assert await shared.store.cache.get(shared.tenant, "k") is not None
    await shared.store.open()
    again = made(shared.kind, shared.address, shared.prefix, shared.now)
    await again.open()
    assert await again.cache.get(shared.tenant, "k") is not None, "another process sees it"
    await again.close()
