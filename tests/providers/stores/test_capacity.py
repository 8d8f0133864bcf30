"""Quotas and places, the same on every store."""

from __future__ import annotations

import asyncio
import math
import random

import pytest

from callgate.providers.stores.base import Limit
from callgate.providers.stores.memory.store import MemoryStore
from tests.providers.stores.backends import Backend

HOUR = Limit(100, 3600.0)


async def test_a_limit_of_100_lets_exactly_100_of_300_through_at_once(backend: Backend) -> None:
    """I11."""
    taken = await asyncio.gather(*(backend.store.quotas.take(backend.tenant, "k", HOUR) for _ in range(300)))
    assert sum(each.ok for each in taken) == 100
    assert sorted(each.remaining for each in taken if each.ok) == list(range(100))
    assert all(each.remaining == 0 and each.retry_after > 0 for each in taken if not each.ok)


async def test_units_come_back_and_looking_takes_none(backend: Backend) -> None:
    quotas, limit = backend.store.quotas, Limit(5, 60.0)
    assert (await quotas.look(backend.tenant, "k", limit)).remaining == 5
    assert (await quotas.take(backend.tenant, "k", limit, cost=4)).remaining == 1
    assert not (await quotas.take(backend.tenant, "k", limit, cost=2)).ok
    assert (await quotas.look(backend.tenant, "k", limit)).ok
    assert (await quotas.take(backend.tenant, "k", limit)).ok
    assert not (await quotas.look(backend.tenant, "k", limit)).ok
    await quotas.give_back(backend.tenant, "k", limit, cost=3)
    assert (await quotas.look(backend.tenant, "k", limit)).remaining == 3
    await quotas.give_back(backend.tenant, "k", limit, cost=50)
    assert (await quotas.look(backend.tenant, "k", limit)).remaining == 5, "more never comes back than was taken"


async def test_a_cost_above_the_limit_is_never_taken(backend: Backend) -> None:
    answer = await backend.store.quotas.take(backend.tenant, "k", Limit(5, 60.0), cost=6)
    assert (answer.ok, answer.remaining, answer.retry_after) == (False, 5, 60.0)
    assert (await backend.store.quotas.take(backend.tenant, "k", Limit(5, 60.0), cost=5)).ok


async def test_keys_windows_and_tenants_have_units_of_their_own(backend: Backend) -> None:
    quotas = backend.store.quotas
    assert (await quotas.take(backend.tenant, "k", Limit(1, 60.0))).ok
    assert (await quotas.take(backend.tenant, "other", Limit(1, 60.0))).ok
    assert (await quotas.take(backend.tenant, "k", Limit(1, 3600.0))).ok
    assert (await quotas.take(backend.tenant + "2", "k", Limit(1, 60.0))).ok
    assert not (await quotas.take(backend.tenant, "k", Limit(1, 60.0))).ok


async def test_what_was_taken_leaves_the_window_bit_by_bit(backend: Backend) -> None:
    limit = Limit(10, 60.0)
    backend.now.move(60.0 - backend.now() % 60.0)
    assert (await backend.store.quotas.take(backend.tenant, "k", limit, cost=10)).ok
    refused = await backend.store.quotas.take(backend.tenant, "k", limit)
    assert refused.retry_after == pytest.approx(66.0)
    backend.now.move(65.0)
    assert not (await backend.store.quotas.take(backend.tenant, "k", limit)).ok
    backend.now.move(25.0)  # half of the next window
    assert (await backend.store.quotas.take(backend.tenant, "k", limit, cost=5)).ok
    assert not (await backend.store.quotas.take(backend.tenant, "k", limit)).ok
    backend.now.move(90.0)
    assert (await backend.store.quotas.look(backend.tenant, "k", limit)).remaining == 10


async def test_a_clock_that_is_set_back_opens_no_new_window(backend: Backend) -> None:
    limit = Limit(3, 60.0)
    assert (await backend.store.quotas.take(backend.tenant, "k", limit, cost=3)).ok
    backend.now.move(-120.0)
    assert not (await backend.store.quotas.take(backend.tenant, "k", limit)).ok


@pytest.mark.parametrize("seed", range(3))
async def test_quotas_answer_as_those_in_memory_do(backend: Backend, seed: int) -> None:
    """I20. Random takes, returns and looks on a random clock."""
    chance = random.Random(seed)
    backend.now.move(-backend.now() % 60.0)  # where a window begins: each run is rounded alike
    model = MemoryStore(backend.now).quotas
    for _ in range(120):
        backend.now.move(chance.choice([0.0, 0.25, 1.0, 7.5, 30.0, 61.0, 130.0]))
        key, limit, cost = chance.choice("ab"), Limit(chance.choice([3, 10]), 60.0), chance.choice([1, 1, 2, 5])
        where = backend.tenant, f"{seed}{key}", limit
        deed = chance.choice(["take", "take", "take", "give_back", "look"])
        if deed == "give_back":
            await model.give_back(*where, cost)
            await backend.store.quotas.give_back(*where, cost)
            continue
        expected = await (model.look(*where) if deed == "look" else model.take(*where, cost))
        quotas = backend.store.quotas
        answer = await (quotas.look(*where) if deed == "look" else quotas.take(*where, cost))
        assert (answer.ok, answer.remaining) == (expected.ok, expected.remaining)
        assert answer.retry_after == pytest.approx(expected.retry_after, abs=1e-4)


async def test_after_retry_after_it_can_be_taken() -> None:
    """Property, in memory, whose arithmetic every store shares; hooks count whole milliseconds, rounded up."""
    chance = random.Random(7)
    for _ in range(2_000):
        now = chance.uniform(1.7e9, 1.9e9)
        clock = [now]
        quotas = MemoryStore(lambda clock=clock: clock[0]).quotas  # type: ignore[misc]
        limit = Limit(chance.randint(1, 50), chance.choice([0.5, 1.0, 60.0, 3600.0]))
        while (await quotas.take("", "k", limit, chance.randint(1, 5))).ok:
            clock[0] += chance.uniform(0.0, limit.seconds / 5)
        cost = chance.randint(1, limit.amount)
        refused = await quotas.take("", "k", limit, cost)
        if not refused.ok:
            assert 0.0 <= refused.retry_after <= 2 * limit.seconds
            clock[0] += (math.ceil(refused.retry_after * 1000) + 1) / 1000
            assert (await quotas.take("", "k", limit, cost)).ok


async def test_of_300_who_come_at_once_as_many_get_in_as_there_are_places(backend: Backend) -> None:
    """I11."""
    semaphores = backend.store.semaphores
    got = await asyncio.gather(
        *(semaphores.acquire(backend.tenant, "k", 7, f"token-{number}", 60.0) for number in range(300))
    )
    assert sum(got) == await semaphores.holders(backend.tenant, "k") == 7
    freed = await asyncio.gather(*(semaphores.release(backend.tenant, "k", f"token-{number}") for number in range(300)))
    assert freed == got
    assert await semaphores.holders(backend.tenant, "k") == 0


async def test_a_place_is_renewed_given_back_once_and_lost_when_its_time_is_over(backend: Backend) -> None:
    semaphores, tenant = backend.store.semaphores, backend.tenant
    assert await semaphores.acquire(tenant, "k", 1, "a", 10.0)
    assert not await semaphores.acquire(tenant, "k", 1, "b", 10.0)
    backend.now.move(8.0)
    assert await semaphores.acquire(tenant, "k", 1, "a", 10.0), "renewed"
    backend.now.move(8.0)
    assert not await semaphores.acquire(tenant, "k", 1, "b", 10.0)
    assert await semaphores.release(tenant, "k", "a")
    assert not await semaphores.release(tenant, "k", "a")
    assert not await semaphores.release(tenant, "k", "never there")
    assert await semaphores.acquire(tenant, "k", 1, "b", 10.0)
    backend.now.move(10.0)
    assert await semaphores.holders(tenant, "k") == 0
    assert await semaphores.acquire(tenant, "k", 1, "c", 10.0), "b is dead"
    assert not await semaphores.acquire(tenant, "k", 1, "b", 10.0), "b comes too late"
    assert not await semaphores.release(tenant, "k", "b")


async def test_a_short_stay_does_not_shorten_that_of_others(backend: Backend) -> None:
    semaphores, tenant = backend.store.semaphores, backend.tenant
    assert await semaphores.acquire(tenant, "k", 2, "long", 600.0)
    assert await semaphores.acquire(tenant, "k", 2, "short", 1.0)
    backend.now.move(5.0)
    assert await semaphores.holders(tenant, "k") == 1
    assert await semaphores.acquire(tenant, "k", 2, "next", 1.0)
    assert not await semaphores.acquire(tenant, "k", 2, "too many", 1.0)


@pytest.mark.parametrize("seed", range(3))
async def test_places_answer_as_those_in_memory_do(backend: Backend, seed: int) -> None:
    """I20."""
    chance = random.Random(seed)
    model = MemoryStore(backend.now).semaphores
    for _ in range(120):
        backend.now.move(chance.choice([0.0, 0.5, 1.0, 3.0]))
        where, token = (backend.tenant, f"{seed}{chance.choice('ab')}"), chance.choice("pqrst")
        match chance.choice(["acquire", "acquire", "release", "holders"]):
            case "acquire":
                places, ttl = chance.choice([1, 2, 3]), chance.choice([0.5, 2.0, 8.0])
                expected = await model.acquire(*where, places, token, ttl)
                assert await backend.store.semaphores.acquire(*where, places, token, ttl) is expected
            case "release":
                assert await backend.store.semaphores.release(*where, token) is await model.release(*where, token)
            case _:
                assert await backend.store.semaphores.holders(*where) == await model.holders(*where)
