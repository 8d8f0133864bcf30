"""``LimitsQuotas``: what the strategies of ``limits`` promise as a store of quotas, in memory and on a real Redis."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal

import limits.aio.storage.memory
import limits.aio.storage.redis.redispy
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from limits.aio.storage import MemoryStorage, Storage
from limits.storage import MemoryStorage as BlockingStorage

from callgate import Gate, User, tool
from callgate.errors import Denied, Invalid, RetryLater, StoreError, StoreUnsupported
from callgate.hooks import Limit, Quota
from callgate.providers.stores import limits_quotas
from callgate.stores import LimitsQuotas, MemoryStore
from callgate.testing import FaultyStore, InjectedFault, faults_of
from tests.hooks.stock.capacity.limiting import key_in
from tests.providers.stores.backends import REDIS, Now

MEMORY = "async+memory://"
STRATEGIES: tuple[limits_quotas.Strategy, ...] = ("fixed-window", "moving-window", "sliding-window-counter")
KINDS = [(where, strategy) for where in ("memory", "redis") for strategy in STRATEGIES]
HOUR = Limit(100, 3600.0)


@contextmanager
def keyspace() -> Generator[tuple[str, Any]]:
    """A prefix of our own in Redis, and a client; skipped loudly where there is no server."""
    server = redis.Redis.from_url(REDIS)
    try:
        server.ping()
    except redis.ConnectionError as error:
        pytest.skip(f"NO REDIS at {REDIS} (set CALLGATE_TEST_REDIS): {error}")
    prefix = f"callgate-test-{uuid.uuid4().hex[:12]}"
    try:
        yield prefix, server
    finally:
        for key in server.scan_iter(match=f"*{prefix}*", count=1000):
            server.delete(key)
        server.close()


DAY = 86_400.0


class Counted:
    """A store on a clock that stands still: in Redis, keys are brought nearer to their end as it is moved."""

    def __init__(self, where: str, strategy: limits_quotas.Strategy, now: Now, prefix: str, server: Any) -> None:
        self.where, self.strategy, self.now, self.prefix, self.server = where, strategy, now, prefix, server
        self.address = MEMORY if where == "memory" else f"async+{REDIS}"
        self.store = LimitsQuotas(self.address, strategy=strategy, prefix=prefix)

    def move(self, seconds: float) -> None:
        self.now.move(seconds)
        if self.server is not None:
            for key in self.server.scan_iter(match=f"*{self.prefix}*", count=1000):
                left = self.server.pttl(key) - round(seconds * 1000)
                self.server.pexpire(key, left) if left > 0 else self.server.delete(key)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    clock = Now()
    for module in (limits.aio.storage.memory, limits.aio.storage.redis.redispy, limits_quotas):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=clock))
    return clock


@pytest.fixture(params=KINDS, ids=["-".join(kind) for kind in KINDS])
async def counted(request: pytest.FixtureRequest, now: Now) -> AsyncGenerator[Counted, None]:
    where, strategy = request.param
    if where == "memory":
        yield Counted(where, strategy, now, "callgate", None)
        return
    with keyspace() as (prefix, server):
        made = Counted(where, strategy, now, prefix, server)
        await made.store.open()
        yield made
        await made.store.close()


# ---------------------------------------------------------------------- the contract of quotas


async def hold_100_of_300(store: LimitsQuotas) -> None:
    taken = await asyncio.gather(*(store.take("t", "k", HOUR) for _ in range(300)))
    assert sum(each.ok for each in taken) == 100
    assert all(0 <= each.remaining < 100 for each in taken if each.ok)
    assert all(each.remaining == 0 and each.retry_after > 0 for each in taken if not each.ok)


async def test_a_limit_of_100_lets_exactly_100_of_300_through_at_once(counted: Counted) -> None:
    """I11."""
    await hold_100_of_300(counted.store)


async def test_a_strategy_that_looks_and_then_counts_is_found_out(counted: Counted) -> None:
    """The control: a stand-in that is not atomic lets more through."""

    class Apart:
        async def hit(self, item: Any, *names: str, cost: int = 1) -> bool:
            storage, key = counted.store._storage, item.key_for(*names, "apart")
            fits = bool(await storage.get(key) + cost <= item.amount)
            await asyncio.sleep(0)
            await storage.incr(key, item.get_expiry(), cost)
            return fits

    counted.store._limiter = Apart()
    with pytest.raises(AssertionError, match="== 100"):
        await hold_100_of_300(counted.store)


async def test_costs_that_race_are_never_over_the_limit(counted: Counted) -> None:
    """I11. A fixed window may lose some to the race; none gives too many."""
    costs = [random.Random(seed).choice([1, 2, 5]) for seed in range(200)]
    taken = await asyncio.gather(*(counted.store.take("t", "k", HOUR, cost) for cost in costs))
    given_out = sum(cost for cost, each in zip(costs, taken, strict=True) if each.ok)
    assert 90 <= given_out <= 100


async def test_taking_and_looking_tell_what_is_left_and_looking_takes_none(counted: Counted) -> None:
    quotas, limit = counted.store.quotas, Limit(5, 3600.0)
    assert (await quotas.look("t", "k", limit)).remaining == 5
    assert (await quotas.take("t", "k", limit, cost=4)).remaining == 1
    refused = await quotas.take("t", "k", limit, cost=2)
    assert (refused.ok, refused.remaining) == (False, 1)
    assert (await quotas.look("t", "k", limit)).ok
    assert (await quotas.take("t", "k", limit)).ok, "what was refused took none"
    looked = await quotas.look("t", "k", limit)
    assert (looked.ok, looked.remaining) == (False, 0)
    assert looked.retry_after > 0


async def test_units_never_come_back_before_their_window_is_over(counted: Counted) -> None:
    limit = Limit(5, 3600.0)
    assert (await counted.store.take("t", "k", limit, cost=5)).ok
    await counted.store.give_back("t", "k", limit, cost=5)
    assert not (await counted.store.take("t", "k", limit)).ok
    await counted.store.give_back("t", "never", limit, cost=5)
    counted.move(7200.5)
    assert [(await counted.store.take("t", name, limit, cost=5)).ok for name in ("k", "never")] == [True, True]
    assert [(await counted.store.take("t", name, limit)).ok for name in ("k", "never")] == [False, False]


async def test_a_cost_above_the_limit_is_never_taken(counted: Counted) -> None:
    answer = await counted.store.take("t", "k", Limit(5, 60.0), cost=6)
    assert (answer.ok, answer.remaining, answer.retry_after) == (False, 5, 60.0)
    assert (await counted.store.take("t", "k", Limit(5, 60.0), cost=5)).ok


async def test_keys_windows_and_tenants_have_units_of_their_own(counted: Counted) -> None:
    pairs = [
        ("t", "k"),
        ("t", "other"),
        ("t/k", ""),
        ("t", "k/"),
        ("t%2Fk", ""),
        ("", "t/k"),
        ("", ""),
        ("\ud800", "{"),
    ]
    for tenant, key in pairs:
        assert (await counted.store.take(tenant, key, Limit(1, 3600.0))).ok, (tenant, key)
    assert (await counted.store.take("t", "k", Limit(1, 7200.0))).ok
    for tenant, key in pairs:
        assert not (await counted.store.take(tenant, key, Limit(1, 3600.0))).ok, (tenant, key)


ID = st.text(st.sampled_from("ab/%{}: é\ud800"), max_size=6)


@given(ID, ID, ID, ID)
def test_no_two_pairs_of_tenant_and_key_share_a_name_and_the_tenant_comes_first(a: str, b: str, c: str, d: str) -> None:
    """Property, over ids made of what separates."""
    store = LimitsQuotas(MEMORY, strategy="fixed-window")

    def name(tenant: str, key: str) -> str:
        item, names = store._named(tenant, key, HOUR)
        return str(item.key_for(*names))

    assert (name(a, b) == name(c, d)) == ((a, b) == (c, d))
    first, second, *_ = [name(a, b).split("/"), name(a, d).split("/")]
    assert first[:2] == second[:2]
    assert first[0] == "callgate"
    assert len(first) == len(name("", "").split("/"))


@pytest.mark.parametrize("seed", range(8))
async def test_after_retry_after_and_not_much_sooner_it_can_be_taken(counted: Counted, seed: int) -> None:
    """Contract 88. Property: random limits, costs and times; a cost above 1 may be told a whole window in memory."""
    chance = random.Random(seed)
    in_memory = counted.where == "memory"
    trials = 60 if in_memory else 3
    for trial in range(trials):
        limit = Limit(chance.randint(1, 20), chance.choice([1.0, 7.0, 60.0] if in_memory else [3600.0, 86_400.0]))
        cost = chance.randint(1, limit.amount)
        where = "t", f"{seed}-{trial}", limit
        counted.move(chance.uniform(0.0, limit.seconds))
        for _ in range(chance.randint(0, 8)):
            await counted.store.take(*where, chance.randint(1, limit.amount))
            counted.move(chance.uniform(0.0, limit.seconds / 4))
        for _ in range(500):
            refused = await counted.store.take(*where, cost)
            if not refused.ok:
                break
            counted.move(chance.uniform(0.0, limit.seconds / 50))
        else:
            raise AssertionError("never refused")
        assert 0.0 < refused.retry_after <= 2 * limit.seconds + 1
        wait = math.ceil(refused.retry_after * 1000) / 1000  # as the hook tells it
        early = 0.004 if in_memory else 30.0  # Redis's own clock goes on while the test runs
        tight = not (in_memory and counted.strategy == "moving-window" and cost > 1)
        if tight and wait > early:
            counted.move(wait - early)
            assert not (await counted.store.take(*where, cost)).ok, "the time to wait was too long"
            wait = early
        counted.move(wait)
        assert (await counted.store.take(*where, cost)).ok


@pytest.mark.parametrize("seconds", [0.5, 1.5, 59.999])
async def test_windows_of_fractional_seconds_are_refused_by_name(counted: Counted, seconds: float) -> None:
    for asked in (counted.store.take, counted.store.look):
        with pytest.raises(StoreUnsupported, match=f"not of {seconds:g} s: use a MemoryStore"):
            await asked("t", "k", Limit(5, seconds))


# ---------------------------------------------------------------------- failures


@pytest.mark.parametrize("when", ["before", "after"])
async def test_whichever_operation_fails_no_more_is_given_out(
    counted: Counted, when: Literal["before", "after"]
) -> None:
    """I20."""
    limit, real = Limit(4, 3600.0), counted.store._storage
    n, most, causes = 0, 0, set[Any]()
    for n in itertools.count(1):
        faulty: Any = FaultyStore(real, n, when=when)
        counted.store._storage = counted.store._limiter.storage = faulty
        got = 0
        for cost in (1, 2, 1, 1, 1):
            try:
                got += cost * (await counted.store.take("t", f"{when}-{n}", limit, cost)).ok
            except StoreError as error:
                causes.add(type(error.__cause__))
        most = max(most, got)
        assert got <= 4
        if not faults_of(faulty).injected:
            break
    assert n > 5
    assert causes == {InjectedFault}
    assert most == 4, "the last, without a fault"


async def test_a_server_that_is_not_there_is_a_store_error_without_the_address() -> None:
    secret = uuid.uuid4().hex
    store = LimitsQuotas(f"async+redis://ann:{secret}@127.0.0.1:1/0", strategy="moving-window")
    for asked in (store.open(), store.take("t", "k", HOUR), store.look("t", "k", HOUR)):
        with pytest.raises(StoreError, match="limits: ConnectionError") as failed:
            await asked
        assert secret not in str(failed.value) + repr(store)
    await store.close()


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("memory://", "begins with async"),
        ("redis://ann:SECRET@host:6379", "begins with async"),
        ("async+redis://ann:SECRET@host", "host or port is missing"),
        ("async+nothing://ann:SECRET@host:1", "async.nothing:// address: the scheme is unknown"),
        ("async+redis://ann:SECRET@host:port", "not a valid URL"),
        ("SECRET", "begins with async"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused_and_not_shown(address: str, says: str) -> None:
    with pytest.raises(StoreError, match=says) as refused:
        LimitsQuotas(address, strategy="fixed-window")
    assert "SECRET" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.parametrize(
    ("storage", "strategy", "says"),
    [
        (MEMORY, "token-bucket", "there are fixed-window, moving-window, sliding-window-counter"),
        (BlockingStorage(), "fixed-window", "not MemoryStorage"),
        (None, "fixed-window", "not NoneType"),
    ],
    ids=["strategy", "blocking", "none"],
)
def test_what_cannot_count_is_refused_where_it_is_written(storage: object, strategy: Any, says: str) -> None:
    with pytest.raises(StoreError, match=says):
        LimitsQuotas(storage, strategy=strategy)


def test_a_storage_that_cannot_count_by_a_strategy_is_refused() -> None:
    unused = dict.fromkeys(("incr", "get", "get_expiry", "check", "reset", "clear"), lambda self: None)
    members = {"STORAGE_SCHEME": None, "base_exceptions": ValueError, **unused}
    metaclass: Any = type(Storage)
    made = metaclass("Plain", (Storage,), members)
    with pytest.raises(StoreError, match="Plain of limits cannot count by moving-window"):
        LimitsQuotas(made(), strategy="moving-window")
    LimitsQuotas(made(), strategy="fixed-window")


def test_without_its_extra_it_says_which_one_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_quotas, "find_spec", lambda name: None)
    with pytest.raises(StoreError, match=r"callgate\[limits\]"):
        LimitsQuotas(MEMORY, strategy="fixed-window")


def test_it_keeps_quotas_and_nothing_else() -> None:
    store = LimitsQuotas(MemoryStorage(), strategy="fixed-window")
    assert store.quotas is store
    assert not store.durable
    for part in ("cache", "semaphores", "audit", "consents", "effects", "suspensions", "pins", "jobs"):
        with pytest.raises(StoreUnsupported, match="nothing else"):
            getattr(store, part)
    with pytest.raises(StoreUnsupported):
        store.transaction()


async def test_a_closed_store_connects_again() -> None:
    with keyspace() as (prefix, _):
        store = LimitsQuotas(f"async+{REDIS}", strategy="moving-window", prefix=prefix)
        for left in (1, 0):
            assert (await store.take("t", "k", Limit(2, 3600.0))).remaining == left
            await store.close()


def test_every_key_in_redis_expires_and_holds_prefix_and_tenant() -> None:
    async def fill(prefix: str) -> None:
        for strategy in STRATEGIES:
            store = LimitsQuotas(f"async+{REDIS}", strategy=strategy, prefix=prefix)
            await store.take("acme", strategy, Limit(5, 60.0))
            await store.close()

    with keyspace() as (prefix, server):
        asyncio.run(fill(prefix))
        found = sorted(server.scan_iter(match=f"*{prefix}*", count=1000))
        assert len(found) == 3
        assert all(f"{prefix}/acme/".encode() in key for key in found)
        assert all(0 < server.pttl(key) <= 120_000 for key in found)


# ---------------------------------------------------------------------- several processes

WORKER = """
import asyncio, json, sys
from callgate.hooks import Limit
from callgate.stores import LimitsQuotas

async def count(address, prefix, strategy):
    store = LimitsQuotas(address, strategy=strategy, prefix=prefix)
    async def take(each):
        return sum([(await store.take("t", strategy, Limit(150, 86400.0))).ok for _ in range(each)])
    got = sum(await asyncio.gather(*(take(20) for _ in range(5))))
    await store.close()
    return got

async def main(address, prefix, *strategies):
    print(json.dumps([await count(address, prefix, strategy) for strategy in strategies]))

asyncio.run(main(*sys.argv[1:]))
"""


def test_four_processes_on_one_redis_hold_one_limit() -> None:
    """I11, I20. By each strategy, 400 attempts at 150 units."""
    with keyspace() as (prefix, _):
        command = [sys.executable, "-W", "error", "-c", WORKER, f"async+{REDIS}", prefix, *STRATEGIES]
        workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        said: list[list[int]] = [json.loads(worker.communicate(timeout=300)[0]) for worker in workers]
        assert [worker.returncode for worker in workers] == [0] * 4
        assert [sum(each) for each in zip(*said, strict=True)] == [150] * 3


# ---------------------------------------------------------------------- under the hook


@tool(effect="read")
async def work(size: int = 1) -> str:
    """Works."""
    return "done"


ANN, BOB = User("ann", tenant="acme"), User("bob", tenant="acme")


async def ends(gate: Gate, times: int, user: User = ANN) -> list[str]:
    async def once() -> str:
        try:
            return str(await gate.invoke("work", {}, user=user))
        except (Denied, RetryLater) as error:
            return str(error.code)

    return list(await asyncio.gather(*(once() for _ in range(times))))


async def test_a_quota_counts_over_it_and_tells_when_a_call_fits(counted: Counted) -> None:
    """Contract 88, I11."""
    quota = Quota("10/hour", by="user", store=counted.store)
    async with Gate([work], [quota]) as gate:
        said = await ends(gate, 30)
        assert (said.count("done"), said.count("over_quota")) == (10, 20)
        assert await ends(gate, 1, BOB) == ["done"]
        with pytest.raises(RetryLater) as refused:
            await gate.invoke("work", {}, user=ANN)
        counted.move(refused.value.retry_after / 1000)
        assert await ends(gate, 1) == ["done"]


async def test_a_call_that_never_began_has_spent_its_units(counted: Counted) -> None:
    """Units that the storage cannot return stay counted. With other stores an invalid call is free."""
    for store, left in ((MemoryStore(counted.now), 2), (counted.store, 0)):
        async with Gate([work], [Quota("2/hour", by="user", store=store)]) as gate:
            for _ in range(2):
                with pytest.raises(Invalid):
                    await gate.invoke("work", {"size": "large"}, user=ANN)
            assert (await ends(gate, 3)).count("done") == left


async def test_of_several_limits_those_that_gave_their_units_have_spent_them(counted: Counted) -> None:
    """I11."""
    counted.move(DAY - counted.now() % DAY + 3600.0)  # one o'clock: what follows does not cross midnight
    quota = Quota("3/hour; 4/day", by="user", store=counted.store)
    async with Gate([work], [quota]) as gate:
        assert (await ends(gate, 3)).count("done") == 3
        counted.move(7201)
        assert [await ends(gate, 1) for _ in range(3)] == [["done"], ["over_quota"], ["over_quota"]]
    hour = await counted.store.look(*key_in(quota), quota.limits[0])
    assert hour.remaining == 0, "the two that the day refused, too"


def test_a_quota_with_a_window_that_cannot_be_counted_is_refused_when_it_is_made() -> None:
    """C33: with ``on_store_failure="allow"`` such a quota would let everything pass."""
    store = LimitsQuotas("async+memory://", strategy="moving-window")
    with pytest.raises(StoreUnsupported, match=r"not of 0\.5 s"):
        Quota(Limit(5, 0.5), store=store, on_store_failure="allow")
    Quota(Limit(5, 2.0), store=store)


@pytest.mark.parametrize(("on_store_failure", "end"), [("deny", "quota_unavailable"), ("allow", "done")])
async def test_the_hook_decides_what_becomes_of_calls_while_the_storage_fails(
    on_store_failure: Literal["deny", "allow"], end: str
) -> None:
    """I20."""
    store = LimitsQuotas("async+redis://127.0.0.1:1/0", strategy="moving-window")
    async with Gate([work], [Quota("2/hour", store=store, on_store_failure=on_store_failure)]) as gate:
        assert await ends(gate, 3) == [end] * 3
    await store.close()
