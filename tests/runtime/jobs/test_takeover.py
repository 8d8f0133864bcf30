"""A job whose process died is taken over by any open gate of its namespace, within the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from callgate import Gate, Jobs, User, tool
from callgate.jobs import EmbeddedJobs
from callgate.runtime.jobs.executor import Executor
from callgate.testing import FakeClock, VirtualTime
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place

ANN = User("ann", "acme")
LEASE = 30.0


@tool(effect="read")
async def look(n: int) -> int:
    """Look something up."""
    return n


@pytest.fixture(params=["sqlite-file", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    with place(request.param, tmp_path) as (where, _):
        yield where


def gate(address: str, clock: FakeClock, concurrency: int, **options: Any) -> Gate:
    return Gate(
        [look],
        allow_unguarded=True,
        store=address,
        signing_keys=["a key of sixteen bytes"],
        jobs=Jobs(engine=EmbeddedJobs(concurrency), lease=LEASE, notify=False),
        **gate_options(clock=clock, **options),
    )


async def has_run(job: Any) -> Any:
    """The output of a job that only another process can run."""
    async with asyncio.timeout(60.0):
        return (await job).output


@pytest.mark.parametrize("died", ["before it took the job", "while it ran the job"])
async def test_an_idle_gate_takes_over_the_jobs_of_a_dead_process_within_the_lease(died: str, address: str) -> None:
    """Issue 34. The gate was opened on an empty store, and no job is ever submitted to it."""
    clock = FakeClock()
    async with gate(address, clock, 1) as idle, gate(address, clock, 0) as dead:
        job = await dead.submit("look", {"n": 7}, user=ANN)
        if died == "while it ran the job":
            now = dead.jobs.now()
            assert await dead.store.jobs.take("dead", now, now + dead.jobs.options.valid) is not None
        clock.advance(dead.jobs.options.valid)
        await idle.maintain()  # each fifth of the lease
        assert await has_run(idle.job(job.id, user=ANN)) == 7


async def test_a_gate_of_another_namespace_does_not_start_for_these_jobs(address: str) -> None:
    """The control: the promise is that of a namespace."""
    clock = FakeClock()
    other = EmbeddedJobs(1)
    async with gate(address, clock, 0) as dead, gate(address, clock, 0, namespace="b") as stranger:
        stranger._jobs.backend = other
        other.bind(stranger.jobs)
        await dead.submit("look", {"n": 7}, user=ANN)
        await other.recover()
        assert other._executor is None


async def test_maintenance_starts_no_worker_while_the_gate_closes(address: str) -> None:
    clock = FakeClock()
    async with gate(address, clock, 0) as dead:
        async with gate(address, clock, 1) as closing:
            pass
        await dead.submit("look", {"n": 7}, user=ANN)
        await closing.store.open()
        await closing.jobs.recover()
        assert [task.get_name() for task in asyncio.all_tasks() if "job worker" in task.get_name()] == []
        await closing.store.close()


class Polls:
    """The queue as a worker sees it: it notes when the worker asks for a job."""

    runner = SimpleNamespace(running=())

    def __init__(self, lease: float, now: Any) -> None:
        self.options, self.at, self._now = Jobs(lease=lease), list[float](), now

    async def run_invocation(self, **_: Any) -> None:
        self.at.append(self._now())

    def listen(self) -> None:
        """No notices."""


@pytest.mark.parametrize("lease", [0.5, 2.0, 60.0])
def test_the_lease_covers_its_validity_a_round_of_maintenance_and_a_poll(
    lease: float, virtual_time: VirtualTime
) -> None:
    """A poll of a second exceeded a short lease."""

    async def main() -> None:
        polls: Any = Polls(lease, virtual_time.clock.time)
        worker = Executor(polls, 1)
        worker.start()
        await asyncio.sleep(30.0)
        await worker.stop()
        longest = max(after - before for before, after in pairwise(polls.at))
        assert polls.options.valid + polls.options.every + longest <= lease + 0.01

    virtual_time.run(main())
