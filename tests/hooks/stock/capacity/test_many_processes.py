"""One limit for several processes, on a real Redis: never over it, and what a killed process held is free within one TTL."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from callgate import Gate, InvocationError, Options, ToolCall, User, tool
from callgate.hooks.stock.capacity.concurrency import Concurrency
from callgate.hooks.stock.capacity.rate_limit import Quota
from callgate.hooks.stock.resilience.circuit_breaker import CircuitBreaker
from callgate.providers.stores.redis.store import RedisStore
from callgate.testing import FakeClock
from tests.hooks.stock.capacity.limiting import key_in
from tests.providers.stores.backends import REDIS, Now, keyspace, on_our_clock

ROOT = Path(__file__).resolve().parents[4]
WORKER = Path(__file__).with_name("permits_worker.py")


@pytest.fixture
def prefix() -> Iterator[str]:
    with keyspace() as made:
        yield made


@pytest.fixture
def server() -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(REDIS, decode_responses=True)) as made:
        yield made


def started(prefix: str, calls: int, places: int, ttl: float) -> subprocess.Popen[str]:
    command = [sys.executable, str(WORKER), REDIS, prefix, str(calls), str(places), str(ttl)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def later(prefix: str, seconds: float = 0.0) -> RedisStore:
    """The store as it will be in so many seconds."""
    now = Now()
    now.time = time.time() + seconds
    return on_our_clock(RedisStore(REDIS, prefix=prefix), now)


async def held(prefix: str, places: int, after: float = 0.0) -> int:
    store = later(prefix, after)
    await store.open()
    try:
        return await store.semaphores.holders(*key_in(Concurrency(places)))
    finally:
        await store.close()


def killed_inside(victim: subprocess.Popen[str], server: Any, prefix: str) -> list[str]:
    """Kill it while it holds places; who was inside. It is stopped to look: a busy machine may be long about that."""
    while True:
        victim.send_signal(signal.SIGSTOP)
        lost = [one for one in server.zrange(f"{prefix}:inside", 0, -1) if one.startswith(f"{victim.pid}:")]
        if lost:
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            return lost
        victim.send_signal(signal.SIGCONT)
        time.sleep(0.002)
        assert victim.poll() is None, victim.stderr.read() if victim.stderr else ""


def one_limit(server: Any, prefix: str, *, calls: int, places: int = 4, ttl: float = 6.0) -> None:
    """Four processes, one of them killed in the middle of its work."""
    workers = [started(prefix, calls, places, ttl) for _ in range(4)]
    victim = workers[0]
    try:
        server.zrem(f"{prefix}:inside", *killed_inside(victim, server, prefix))
        for worker in workers[1:]:
            out, err = worker.communicate(timeout=600)
            assert (worker.returncode, out.strip()) == (0, str(calls)), err[-2000:]
        assert 1 <= int(server.get(f"{prefix}:most")) <= places
        assert asyncio.run(held(prefix, places, ttl)) == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_four_processes_keep_one_limit_and_a_killed_one_loses_its_places_within_a_ttl(server: Any, prefix: str) -> None:
    """Design 8, I11."""
    one_limit(server, prefix, calls=100)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_soak_four_processes_with_2500_calls_each(server: Any, prefix: str) -> None:
    """Design 8, I11."""
    one_limit(server, prefix, calls=2500, places=8)


def test_the_dead_mans_places_are_taken_over_by_the_living_within_a_ttl(server: Any, prefix: str) -> None:
    """I11: all of them were his, and on a clock of ours their minute is over."""
    victim = started(prefix, 100_000, 2, 60.0)
    try:
        while True:  # it gives a place back at the end of each call, so it stands still while its places are counted
            assert victim.poll() is None, victim.stderr.read() if victim.stderr else ""
            victim.send_signal(signal.SIGSTOP)
            if asyncio.run(held(prefix, 2)) == 2:
                break
            victim.send_signal(signal.SIGCONT)
        victim.send_signal(signal.SIGKILL)
        victim.wait()

        async def next_one(after: float) -> Any:
            async with Gate([work], [Concurrency(2, shared=True)], store=later(prefix, after)) as gate:
                return (await gate.call(ToolCall(name="work", arguments={}), user=User("u"))).outcome

        assert asyncio.run(next_one(0.0)) == "retry_later", "his places are held"
        assert asyncio.run(next_one(60.0)) == "success"
    finally:
        victim.kill()
        victim.communicate()


@tool(effect="read")
async def work(fail: bool = False) -> str:
    """Works, or does not."""
    if fail:
        raise ConnectionError
    return "done"


def made(prefix: str) -> RedisStore:
    return RedisStore(REDIS, prefix=prefix)


async def test_a_quota_on_redis_is_never_over_spent_by_two_gates(prefix: str) -> None:
    """I11."""

    def gate() -> Gate:
        return Gate([work], [Quota("40/hour; 60/day", by="user")], store=made(prefix))

    async with gate() as one, gate() as two:
        calls = [(one, two)[n % 2].invoke("work", user=User("u")) for n in range(120)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
    assert ends.count("done") == 40


async def test_a_circuit_on_redis_is_one_for_two_gates(prefix: str) -> None:
    """Design 8."""

    clock = FakeClock(time.time())  # Redis lets keys go by its own clock, and that only later

    def gate() -> Gate:
        breaker = CircuitBreaker(4, open_for=30.0, shared=True, refresh=0.0)
        return Gate([work], [breaker], store=RedisStore(REDIS, clock.time, prefix=prefix), options=Options(clock=clock))

    async with gate() as one, gate() as two:

        async def ends(which: Gate, fail: bool) -> str:
            try:
                return str(await which.invoke("work", {"fail": fail}, user=User("u")))
            except InvocationError as error:
                return type(error).__name__

        assert [await ends((one, two)[n % 2], True) for n in range(5)] == ["ToolFailed"] * 4 + ["RetryLater"]
        assert await ends(two, False) == "RetryLater"
        clock.advance(30.0)
        assert await ends(two, False) == "done"
        assert await ends(one, False) == "done"
