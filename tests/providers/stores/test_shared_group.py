"""Requests to limits and the cache that share a transaction have the results of requests one after another."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from callgate.errors import StoreError
from callgate.providers.stores.base import CacheEntry, Limit, Store
from callgate.providers.stores.memory.store import MemoryStore
from callgate.providers.stores.sql import shared_limits as sql_shared_limits
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import Now, made, place

KINDS = ("sqlite-file", "postgresql")
KEYS = st.sampled_from(["a", "b"])
LIMIT = Limit(7, 60.0)

Ask: TypeAlias = Callable[[Store, str], Awaitable[Any]]
"""A request to a store, of a tenant."""


def _entry(number: int) -> CacheEntry:
    return CacheEntry(str(number).encode(), 1.0, math.inf, math.inf, frozenset({"even" if number % 2 == 0 else "odd"}))


def _take(key: str, cost: int) -> tuple[str, Ask]:
    return f"take {cost} of {key}", lambda store, tenant: store.quotas.take(tenant, key, LIMIT, cost)


def _give_back(key: str, cost: int) -> tuple[str, Ask]:
    return f"give {cost} of {key} back", lambda store, tenant: store.quotas.give_back(tenant, key, LIMIT, cost)


def _acquire(key: str, token: str) -> tuple[str, Ask]:
    return f"acquire {key} for {token}", lambda store, tenant: store.semaphores.acquire(tenant, key, 2, token, 30.0)


def _release(key: str, token: str) -> tuple[str, Ask]:
    return f"release {key} of {token}", lambda store, tenant: store.semaphores.release(tenant, key, token)


TOKENS = st.sampled_from(["t1", "t2", "t3"])
LIMITS: st.SearchStrategy[tuple[str, Ask]] = st.one_of(
    st.builds(_take, KEYS, st.integers(1, 8)),
    st.builds(_give_back, KEYS, st.integers(1, 3)),
    st.builds(_acquire, KEYS, TOKENS),
    st.builds(_release, KEYS, TOKENS),
)
ROUNDS = st.lists(st.tuples(st.lists(LIMITS, min_size=2, max_size=12), st.integers(0, 40)), min_size=1, max_size=4)


@pytest.fixture(params=KINDS, scope="module")
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, str]]:
    """The kind and address of a store."""
    with place(request.param, tmp_path_factory.mktemp("shared")) as (found, _):
        yield request.param, found


@pytest.fixture
async def stores(address: tuple[str, str]) -> AsyncGenerator[tuple[list[SqlStore], Now]]:
    """Two stores on one database, as two processes have them."""
    now = Now()
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(2):
            store = made(*address, "", now)
            assert isinstance(store, SqlStore)
            await store.open()
            stack.push_async_callback(store.close)
            found.append(store)
        yield found, now


_tenants = iter(range(1_000_000))


def tenant() -> str:
    """A tenant of this test alone."""
    return f"tenant-{next(_tenants)}"


async def differences(store: SqlStore, now: Now, rounds: Any) -> list[str]:
    """Ask both the store, all requests of a round at once, and a store in memory, one request after another."""
    now.time = 1_800_000_000.0
    expected, owner, found = MemoryStore(now), tenant(), list[str]()
    for asks, pause in rounds:
        together = await asyncio.gather(*(ask(store, owner) for _, ask in asks))
        for (name, ask), result in zip(asks, together, strict=True):
            wanted = await ask(expected, owner)
            if result != wanted:
                found.append(f"{name}: {result}, one after another {wanted}")
        now.move(float(pause))
    return found


async def test_requests_at_once_have_the_results_of_requests_one_after_another(
    stores: tuple[list[SqlStore], Now],
) -> None:
    (store, _), now = stores
    await _hold_for_any_rounds(store, now)


async def _hold_for_any_rounds(store: SqlStore, now: Now, examples: int = 40) -> None:
    loop = asyncio.get_running_loop()

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
        derandomize=True,
        phases=[Phase.generate],
    )
    @given(ROUNDS)
    def check(rounds: Any) -> None:
        future = asyncio.run_coroutine_threadsafe(differences(store, now, rounds), loop)
        assert future.result(timeout=30) == []

    await asyncio.to_thread(check)


@contextmanager
def _a_release_that_frees_nothing() -> Generator[None]:
    compute = sql_shared_limits.PermitRequests.compute

    def sabotaged(self: Any, rows: Any) -> Any:
        steps = compute(self, rows)
        return [
            (statement, [] if statement is sql_shared_limits.RELEASE_PERMITS else values) for statement, values in steps
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_shared_limits.PermitRequests, "compute", sabotaged)
        yield


@contextmanager
def _counts_that_are_not_carried_on() -> Generator[None]:
    reads = sql_shared_limits.QuotaRequests.compute

    def sabotaged(self: Any, rows: Any) -> Any:
        steps = [step for one in self._requests for step in reads(type(self)([one], self._now), rows)]
        return steps[-1:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_shared_limits.QuotaRequests, "compute", sabotaged)
        yield


@pytest.mark.parametrize("sabotage", [_a_release_that_frees_nothing, _counts_that_are_not_carried_on])
async def test_control_a_sabotaged_group_is_noticed(stores: tuple[list[SqlStore], Now], sabotage: Any) -> None:
    (store, _), now = stores
    with sabotage(), pytest.raises(AssertionError):
        await _hold_for_any_rounds(store, now, 200)


async def test_two_processes_together_never_grant_more_than_the_limit(stores: tuple[list[SqlStore], Now]) -> None:
    both, _ = stores
    owner, limit = tenant(), Limit(50, 3600.0)
    taken = await asyncio.gather(*(both[n % 2].quotas.take(owner, f"k{n % 3}", limit) for n in range(300)))
    permits = await asyncio.gather(
        *(both[n % 2].semaphores.acquire(owner, f"k{n % 3}", 20, f"t{n}", 30.0) for n in range(150))
    )
    assert [sum(one.ok for one in taken[k::3]) for k in range(3)] == [50, 50, 50]
    assert [sum(permits[k::3]) for k in range(3)] == [20, 20, 20]


async def test_values_of_the_cache_come_back_as_they_were_put(stores: tuple[list[SqlStore], Now]) -> None:
    (one, other), _ = stores
    owner = tenant()
    await asyncio.gather(*(one.cache.put(owner, f"k{n % 8}", _entry(n)) for n in range(40)))
    found = await asyncio.gather(*(other.cache.get(owner, f"k{n}") for n in range(9)))
    assert found == [*(_entry(n) for n in range(32, 40)), None]
    assert await other.cache.drop_tags(owner, {"odd"}) == 4
    assert [one is None for one in await asyncio.gather(*(one.cache.get(owner, f"k{n}") for n in range(4)))] == [
        False,
        True,
        False,
        True,
    ]


async def test_a_request_that_fails_takes_no_other_along(stores: tuple[list[SqlStore], Now]) -> None:
    (store, _), _ = stores
    owner, wrong = tenant(), "\ud800"  # no text of a database
    results = await asyncio.gather(
        *(store.quotas.take(owner, wrong if n == 5 else "k", LIMIT) for n in range(8)),
        *(store.semaphores.acquire(owner, wrong if n == 3 else "k", 9, f"t{n}", 30.0) for n in range(8)),
        *(store.cache.put(owner, wrong if n == 1 else f"k{n}", _entry(n)) for n in range(8)),
        return_exceptions=True,
    )
    failed = [n for n, result in enumerate(results) if isinstance(result, BaseException)]
    assert failed == [5, 11, 17]
    assert all(isinstance(results[n], StoreError) for n in failed)
    assert (await store.quotas.look(owner, "k", LIMIT)).remaining == 0
    assert await store.semaphores.holders(owner, "k") == 7
    assert [await store.cache.get(owner, f"k{n}") is None for n in range(8)] == [n == 1 for n in range(8)]


async def test_a_cancelled_caller_takes_nothing_unless_its_transaction_has_begun(
    stores: tuple[list[SqlStore], Now],
) -> None:
    (store, _), _ = stores
    owner, limit = tenant(), Limit(100, 3600.0)
    tasks = [asyncio.ensure_future(store.quotas.take(owner, "k", limit)) for _ in range(20)]
    await asyncio.sleep(0)
    for task in tasks[10:]:
        task.cancel()  # the first transaction has begun without them
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(one, asyncio.CancelledError) for one in done) == 10
    assert (await store.quotas.look(owner, "k", limit)).remaining == 90


async def test_a_store_that_was_closed_can_be_opened_again(tmp_path: Path) -> None:
    for kind in KINDS:
        with place(kind, tmp_path) as (found, _):
            store = made(kind, found, "", Now())
            for _ in range(2):
                await store.open()
                taken = await asyncio.gather(*(store.quotas.take("", "k", LIMIT) for _ in range(3)))
                assert all(one.ok for one in taken)
                await store.close()
