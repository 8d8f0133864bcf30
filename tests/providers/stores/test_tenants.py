"""No tenant finds what is another's, whatever they are called; a store that drops the tenant is found out."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from callgate.providers.stores.base import AuditRow, CacheEntry, Grant, Limit, Store
from tests.providers.stores.backends import Backend

NAMES = [
    "",
    "a",
    "A",
    "a:b",
    "a:b:c",
    "{",
    "}",
    "a}",
    "{a}",
    "%",
    "%25",
    "'",
    '"; --',
    "a b",
    "ä",
    "a\u0308",
    "*",
    "\n",
]
PARTS = ("cache", "quotas", "semaphores", "audit", "consents")


class Mixed(AssertionError):
    """A canary was seen by another tenant."""


async def put_in(store: Store, tenant: str, key: str, now: float, audit: bool) -> None:
    canary = f"canary of {tenant!r}"
    await store.cache.put(tenant, key, CacheEntry(canary.encode(), now, now + 60, now + 60, frozenset({key})))
    await store.quotas.take(tenant, key, Limit(100, 3600.0), cost=1 + NAMES.index(tenant.removeprefix(key)))
    await store.semaphores.acquire(tenant, key, 5, canary, 60.0)
    await store.consents.grant(tenant, Grant(key, "tool", canary, now, None))
    if audit:
        row = AuditRow(f"{key}-{uuid.uuid4().hex}", 1, now, {"canary": canary}, "", "")
        await store.audit.append(tenant, [row])


async def look_at(store: Store, tenant: str, key: str, audit: bool) -> None:
    canary = f"canary of {tenant!r}"
    found = await store.cache.get(tenant, key)
    seen: list[Any] = [found and found.value == canary.encode()]
    left = 100 - 1 - NAMES.index(tenant.removeprefix(key))
    seen.append((await store.quotas.look(tenant, key, Limit(100, 3600.0))).remaining == left)
    seen.append(await store.semaphores.holders(tenant, key) == 1)
    seen.append([grant.scope for grant in await store.consents.list(tenant, key)] == [canary])
    if audit:
        seen.append([row.body["canary"] async for row in store.audit.read(tenant)] == [canary])
    if not all(seen):
        raise Mixed(f"{tenant!r}: {seen}")


async def take_out(store: Store, tenant: str, key: str) -> None:
    canary = f"canary of {tenant!r}"
    answers = [
        await store.cache.drop_tags(tenant, [key]) == 1,
        await store.semaphores.release(tenant, key, canary),
        await store.consents.revoke(tenant, key) == 1,
    ]
    await store.quotas.give_back(tenant, key, Limit(100, 3600.0), cost=1 + NAMES.index(tenant.removeprefix(key)))
    if not all(answers):
        raise Mixed(f"{tenant!r}: {answers}")


async def canaries(store: Store, backend: Backend) -> None:
    """Each tenant puts in, sees its own, and takes out its own; the key is the same for all."""
    key, now = backend.tenant, backend.now()
    audit = backend.kind != "redis"
    tenants = [key + name for name in NAMES]
    for tenant in tenants:
        await put_in(store, tenant, key, now, audit)
    for tenant in tenants:
        await look_at(store, tenant, key, audit)
    for index, tenant in enumerate(tenants):
        await take_out(store, tenant, key)
        for other in tenants[index + 1 :]:
            await look_at(store, other, key, audit)


async def test_canaries_of_tenants_never_meet(backend: Backend) -> None:
    """I20."""
    await canaries(backend.store, backend)


class Forgetful:
    """A part, one of whose tenants is forgotten: everything belongs to nobody."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.part, name)
        return lambda tenant, *args, **kwargs: method("nobody", *args, **kwargs)


class Sabotaged:
    """The store, but one part drops the tenant."""

    def __init__(self, store: Store, broken: str) -> None:
        self.store, self.broken = store, broken

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        return Forgetful(found) if name == self.broken else found


@pytest.mark.parametrize("part", PARTS)
async def test_the_canaries_find_a_part_that_drops_the_tenant(backend: Backend, part: str) -> None:
    """The control of the test above."""
    if part == "audit" and backend.kind == "redis":
        return  # it keeps none
    broken: Any = Sabotaged(backend.store, part)
    with pytest.raises(Mixed):
        await canaries(broken, backend)
