"""Jobs that cannot run yet: they come back, and what was no attempt does not count as one."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from callgate import Effects, Gate, Hook, Jobs, Outcome, ToolCall, User, tool
from callgate.errors import StoreError
from callgate.hooks import Concurrency, Quota
from callgate.providers.stores.base import Taken
from callgate.runtime.jobs.embedded import EmbeddedJobs
from callgate.stores import JobState
from callgate.testing import FakeClock
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place

ANN = User("ann", "acme")
KEY = "a key of the tests, long enough"


@pytest.fixture(params=["memory", "sqlite-file", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with place(request.param, tmp_path) as (where, _):
        yield where


@tool(effect="read")
async def look(n: int) -> int:
    """Look something up."""
    return n


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="c1", name=name, arguments=arguments)


async def test_a_job_waits_for_an_earlier_run_of_its_effect_however_often_it_is_delivered(address: str) -> None:
    """I4: what an earlier run may still bring about is no failure of this one, and no attempt."""
    begun, ended, ran = asyncio.Event(), asyncio.Event(), 0

    @tool(effect="irreversible")
    async def slow(n: int) -> int:
        """Take long."""
        nonlocal ran
        ran += 1
        begun.set()
        await ended.wait()
        return n

    effects, once = Effects(wait=0.0), Jobs(max_attempts=1, backoff=0.0)
    options: dict[str, Any] = {"store": address, "signing_keys": [KEY], "durable": False, "open": True}
    async with Gate([slow], **gate_options(jobs=EmbeddedJobs(0), job_options=once, effects=effects, **options)) as gate:
        first = asyncio.create_task(gate.call(call("slow", n=7), user=ANN, idempotency_key="k"))
        await begun.wait()
        job = await gate.submit(call("slow", n=7), user=ANN, key="k")
        for _ in range(3):
            assert await gate.jobs.run_invocation(job.id) is JobState.QUEUED
        assert (await job.status()).attempts == 0
        ended.set()
        assert (await first).output == 7
        assert await gate.jobs.run_invocation(job.id) is JobState.DONE
        result = await job
        assert (result.output, result.replayed, (await job.status()).attempts) == (7, True, 1)
    assert ran == 1


@pytest.mark.parametrize("limit", [Quota("1/minute", by=()), Concurrency(1, by=())], ids=["quota", "places"])
async def test_a_job_that_a_limit_puts_off_comes_back_as_often_as_it_takes(limit: Hook) -> None:
    """Issue 8: limits hold, and no job is lost by them. It has not begun: that is no attempt."""
    clock, begun, ended = FakeClock(), asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def slow(n: int) -> int:
        """Take long."""
        begun.set()
        await ended.wait()
        return n

    options: dict[str, Any] = {"jobs": EmbeddedJobs(0), "job_options": Jobs(max_attempts=1), "clock": clock}
    async with Gate([slow, look], [limit], **gate_options(**options)) as gate:
        first = asyncio.create_task(gate.call(call("slow", n=1), user=ANN))
        await begun.wait()
        job = await gate.submit(call("look", n=2), user=ANN)
        for _ in range(3):
            assert await gate.jobs.run_invocation(job.id) is JobState.QUEUED
            clock.advance((await job.status()).run_at.timestamp() - clock.time())
            await gate.call(call("look", n=1), user=ANN)  # where there is room, somebody else is quicker
        assert (await job.status()).attempts == 0
        ended.set()
        await first
        clock.advance(120.0)
        assert await gate.jobs.run_invocation(job.id) is JobState.DONE
        assert ((await job).output, (await job.status()).attempts) == (2, 1)


class FailsOnce:
    """The store of a limit; the first time that it is asked it fails."""

    def __init__(self) -> None:
        self.quotas = self.semaphores = self
        self.times = 0

    async def take(self, *_: Any) -> Taken:
        return Taken(await self.acquire(), 1)

    async def acquire(self, *_: Any) -> bool:
        self.times += 1
        if self.times == 1:
            raise StoreError("too many clients")
        return True

    async def release(self, *_: Any) -> bool:
        return True


@pytest.mark.parametrize("limit", [partial(Quota, "9/minute"), partial(Concurrency, 9)], ids=["quota", "places"])
async def test_a_job_is_tried_again_where_the_store_of_a_limit_failed(limit: Any) -> None:
    """I20. Such a call is denied, as nobody could count it; that is no outcome of the job, and no attempt."""
    options: dict[str, Any] = {"job_options": Jobs(max_attempts=1, backoff=0.0)}
    async with Gate([look], [limit(store=FailsOnce())], **gate_options(**options)) as gate:
        job = await gate.submit(call("look", n=2), user=ANN)
        assert (await job).outcome is Outcome.SUCCESS
        assert ((await job.status()).state, (await job.status()).attempts) == (JobState.DONE, 1)
