"""No tenant finds what is another's, whatever they are called; a store that drops the tenant is found out."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from callgate.errors import StoreConflict
from callgate.providers.stores.base import AuditRow, CacheEntry, Grant, Limit, Store
from callgate.providers.stores.effects import EffectState, Pin, SuspensionState
from tests.providers.stores.backends import Backend
from tests.providers.stores.job_rows import CANCELLED, job
from tests.providers.stores.ledger import effect, wait

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
ANYWHERE = ("cache", "quotas", "semaphores", "consents")
RECORDS = ("audit", "effects", "suspensions", "pins", "jobs")  # what Redis keeps none of


class Mixed(AssertionError):
    """A canary was seen by another tenant."""


async def put_in(store: Store, tenant: str, key: str, now: float, records: bool) -> None:
    canary = f"canary of {tenant!r}"
    await store.cache.put(tenant, key, CacheEntry(canary.encode(), now, now + 60, now + 60, frozenset({key})))
    await store.quotas.take(tenant, key, Limit(100, 3600.0), cost=1 + NAMES.index(tenant.removeprefix(key)))
    await store.semaphores.acquire(tenant, key, 5, canary, 60.0)
    await store.consents.grant(tenant, Grant(key, "tool", canary, now, None))
    if records:
        row = AuditRow(f"{key}-{uuid.uuid4().hex}", 1, now, {"canary": canary}, "", "")
        await store.audit.append(tenant, [row])
        await store.effects.claim(tenant, effect(now, key, note=canary))
        try:
            await store.suspensions.put(tenant, wait(now, key, body=canary.encode()))
        except StoreConflict as error:
            raise Mixed(f"{tenant!r}: another's wait is there") from error
        await store.pins.put(tenant, Pin(key, "tool", canary, now))
        await store.jobs.add(tenant, job(now, tenant + "job", body=canary.encode()))


async def look_at(store: Store, tenant: str, key: str, now: float, records: bool) -> None:
    canary = f"canary of {tenant!r}"
    found = await store.cache.get(tenant, key)
    seen: list[Any] = [found and found.value == canary.encode()]
    left = 100 - 1 - NAMES.index(tenant.removeprefix(key))
    seen.append((await store.quotas.look(tenant, key, Limit(100, 3600.0))).remaining == left)
    seen.append(await store.semaphores.holders(tenant, key) == 1)
    seen.append([grant.scope for grant in await store.consents.list(tenant, key)] == [canary])
    if records:
        seen.append([row.body["canary"] async for row in store.audit.read(tenant)] == [canary])
        seen.append([(row.note, row.token) for _, row in await store.effects.list(tenant)] == [(canary, 1)])
        kept = await store.effects.get(tenant, key)
        seen.append(kept is not None and kept.note == canary)
        suspended = await store.suspensions.get(tenant, key)
        seen.append(suspended is not None and suspended.body == canary.encode())
        seen.append([row.body for row in await store.suspensions.list(tenant)] == [canary.encode()])
        seen.append([pin.digest for pin in await store.pins.list(tenant, key)] == [canary])
        seen.append(await store.pins.find(tenant, key, "tool") == Pin(key, "tool", canary, now))
        seen.append([(owner, row.body) for owner, row in await store.jobs.list(tenant)] == [(tenant, canary.encode())])
        others = key + NAMES[NAMES.index(tenant.removeprefix(key)) - 1] + "job"
        seen.append(await store.jobs.get(tenant, others) is None is await store.jobs.cancel(tenant, others, now))
    if not all(seen):
        raise Mixed(f"{tenant!r}: {seen}")


async def take_out(store: Store, tenant: str, key: str, now: float, records: bool) -> None:
    canary = f"canary of {tenant!r}"
    answers = [
        await store.cache.drop_tags(tenant, [key]) == 1,
        await store.semaphores.release(tenant, key, canary),
        await store.consents.revoke(tenant, key) == 1,
    ]
    await store.quotas.give_back(tenant, key, Limit(100, 3600.0), cost=1 + NAMES.index(tenant.removeprefix(key)))
    if records:
        used = wait(now, key, body=b"used", number=2, state=SuspensionState.USED)
        answers += [
            await store.effects.settle(tenant, key, 1, EffectState.COMMITTED, at=now),
            (await store.effects.claim(tenant, effect(now + 99.0, key)))[1].state is EffectState.COMMITTED,
            await store.suspensions.replace(tenant, used),
            (await store.pins.add(tenant, Pin(key, "tool", "another", now))).digest == canary,
            await store.jobs.cancel(tenant, tenant + "job", now) is CANCELLED,
        ]
        await store.pins.put(tenant, Pin(key, "tool", "another", now))
    if not all(answers):
        raise Mixed(f"{tenant!r}: {answers}")


async def canaries(store: Store, backend: Backend) -> None:
    """Each tenant puts in, sees its own, and takes out its own; the key is the same for all."""
    key, now = backend.tenant, backend.now()
    records = backend.kind != "redis"
    tenants = [key + name for name in NAMES]
    for tenant in tenants:
        await put_in(store, tenant, key, now, records)
    for tenant in tenants:
        await look_at(store, tenant, key, now, records)
    for index, tenant in enumerate(tenants):
        await take_out(store, tenant, key, now, records)
        for other in tenants[index + 1 :]:
            await look_at(store, other, key, now, records)


async def test_canaries_of_tenants_never_meet(backend: Backend) -> None:
    """I20."""
    await canaries(backend.store, backend)


class Forgetful:
    """A part of a store that ignores one tenant."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.part, name)
        return lambda tenant, *args, **kwargs: method("no tenant", *args, **kwargs)


class Sabotaged:
    """The store, but one part drops the tenant."""

    def __init__(self, store: Store, broken: str) -> None:
        self.store, self.broken = store, broken

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        return Forgetful(found) if name == self.broken else found


@pytest.mark.parametrize("part", [*ANYWHERE, *RECORDS])
async def test_the_canaries_find_a_part_that_drops_the_tenant(backend: Backend, part: str) -> None:
    """The control of the test above."""
    if part in RECORDS and backend.kind == "redis":
        return  # it keeps none
    broken: Any = Sabotaged(backend.store, part)
    with pytest.raises(Mixed):
        await canaries(broken, backend)
