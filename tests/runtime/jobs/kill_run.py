"""A run in which workers and the submitter are killed at random moments, and what is left when everything is over."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import Store
from callgate.providers.stores.jobs import FINAL_STATES, Job, JobState
from tests.runtime.jobs.kill_app import EFFECTFUL, Place
from tests.runtime.jobs.kill_crew import Crew, Process
from tests.runtime.jobs.kill_findings import Findings, Recovery, judge
from tests.runtime.jobs.kill_lines import Oracle
from tests.runtime.jobs.kill_nursery import Nursery

LOOK = 0.01
"""Seconds between two looks at what the processes do."""
EVERYTHING = 1_000_000


@dataclass(frozen=True)
class Sizes:
    """How much there is: of the jobs some are ``effectful``, some are ``asks``, and the rest reads.

    ``concurrency`` is that of each worker; of Celery so many processes. ``in_flight`` is how many jobs are under way as all
    workers die.
    """

    jobs: int
    effectful: int
    asks: int
    workers: int
    concurrency: int
    worker_kills: int
    submitter_kills: int
    in_flight: int = 40

    def keys(self, chance: random.Random) -> list[str]:
        """The keys of all jobs in the order in which they are submitted; ``asks`` first, more than may run then."""
        others = [f"pay-{n}" for n in range(self.effectful)]
        others += [f"look-{n}" for n in range(self.jobs - self.effectful - self.asks)]
        chance.shuffle(others)
        return [f"ask-{n}" for n in range(self.asks)] + others


class KillRun:
    """One run, with processes of its own."""

    def __init__(self, nursery: Nursery, place: Place, sizes: Sizes, seed: int, store: Store) -> None:
        self.sizes, self.place, self.store = sizes, place, store
        self.crew, self.oracle, self.found = Crew(nursery, place), Oracle(place), Findings(seed)
        self._chance = random.Random(seed)
        self._over: dict[str, tuple[Any, ...]] = {}
        self._began = time.monotonic()

    # ------------------------------------------------------------------ killed at random moments

    async def kill_at_random(self) -> None:
        """Submit everything and run it, while workers and the submitter are killed."""
        sizes, chance = self.sizes, self._chance
        keys = sizes.keys(chance)
        for _ in range(sizes.workers):
            self._start_worker()
        await self._until(lambda: len(self.crew.ready) == sizes.workers)
        moments = sorted(chance.sample(range(sizes.jobs // 20, sizes.jobs * 4 // 5), sizes.worker_kills))
        async with asyncio.TaskGroup() as both:
            both.create_task(self._submit(keys, sizes.submitter_kills))
            both.create_task(self._kill_workers(moments))
        await self._all_over(len(keys))

    async def _submit(self, keys: list[str], kills: int) -> None:
        """Have these submitted by a process that is killed so often, and started again."""
        listed = self.place.path("keys")
        listed.write_text("\n".join(keys))
        for moment in sorted(self._chance.sample(range(1, len(keys) // 2), kills)):
            submitter = self.crew.start("tests.runtime.jobs.kill_submitter", str(listed), "stay")
            await self._until(partial(self._have_submitted, moment, submitter))
            self.found.kills["submitter"] += 1
            submitter.kill()
            submitter.end()
        submitter = self.crew.start("tests.runtime.jobs.kill_submitter", str(listed))
        await self._until(lambda: not submitter.lives)
        assert submitter.end() == 0, submitter.last_words()

    def _have_submitted(self, number: int, submitter: Process) -> bool:
        assert submitter.lives, f"it ended by itself: {submitter.last_words()}"
        return len(self.oracle.submitted) >= number

    async def _kill_workers(self, moments: list[int]) -> None:
        """Kill a worker whenever so many bodies have begun."""
        for moment in moments:
            await self._until(partial(self._have_begun, moment))
            how = self._chance.choice(
                ["worker", "process", "main process"] if self.place.engine == "celery" else ["worker"]
            )
            if how == "process":
                self.crew.kill_child(self._chance.choice(self._children()))
            else:
                self.crew.kill(self._chance.choice(self.crew.ready), whole=how == "worker")
                self._start_worker()
            self.found.kills[how] += 1
            await self._look_at_jobs()

    def _have_begun(self, number: int) -> bool:
        ready = self.crew.ready and (self.place.engine != "celery" or self._children())
        return bool(ready) and len(self.oracle.begun) >= number

    def _children(self) -> list[int]:
        """Processes that workers of ours have started and that live: those with a body under way, else those that had one."""
        mine, dead = {worker.pid for worker in self.crew.workers}, {death.pid for death in self.crew.deaths}
        for lines in (self.oracle.open, self.oracle.begun.values()):
            if found := [line["pid"] for line in lines if line["parent"] in mine and line["pid"] not in dead]:
                return found
        return []

    # ------------------------------------------------------------------ all of them at once

    async def kill_all(self, *tools: str) -> None:
        """Kill all workers with jobs of these tools in flight; nothing is submitted any more, and one fresh worker comes."""
        sizes = self.sizes
        keys = [f"{tools[n % len(tools)]}-{n}" for n in range(sizes.in_flight)]
        for _ in range(sizes.workers):  # those of Celery in threads: forty processes are forty gates
            self.crew.start_worker(-(-len(keys) // sizes.workers), pool="threads")
        await self._submit(keys, 0)
        await self._until(lambda: self._in_flight() == len(keys))
        killed_at = time.time()
        for worker in list(self.crew.workers):
            self.crew.kill(worker)
        self.found.kills["all at once"] += 1
        self.place.path("released").touch()
        self._start_worker()
        await self._until(lambda: bool(self.crew.ready))
        ready_at = time.time()
        await self._all_over(len(keys))
        ended_at = max(job.ended_at or 0.0 for job in await self._look_at_jobs())
        self.found.recovery = Recovery(len(keys), ended_at - killed_at, ended_at - ready_at)

    def _in_flight(self) -> int:
        """How many jobs have come as far as they come before they are released."""
        begun = {line["begun"] for line in self.oracle.open}
        return sum(not key.startswith(EFFECTFUL) or self.oracle.effects[key] > 0 for key in begun)

    # ------------------------------------------------------------------ looking

    def _start_worker(self) -> None:
        self.crew.start_worker(self.sizes.concurrency)

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Return once it holds; the run's own limit says how long that may take."""
        self.oracle.look()
        while not holds():
            await asyncio.sleep(LOOK)
            self.crew.check()
            self.oracle.look()

    async def _all_over(self, number: int) -> None:
        """Return once so many jobs are over, and no others are there."""
        while True:
            counted = await self.store.jobs.count()
            if not counted[JobState.QUEUED] + counted[JobState.RUNNING] and sum(counted.values()) >= number:
                return
            await asyncio.sleep(0.05)
            self.crew.check()

    async def _look_at_jobs(self) -> list[Job]:
        """All jobs; an outcome that is there stays as it is."""
        jobs = [job for _, job in await self.store.jobs.list(None, limit=EVERYTHING)]
        for job in jobs:
            if job.state in FINAL_STATES:
                outcome = (job.state, job.ended_at, job.result, job.reason)
                if self._over.setdefault(job.id, outcome) != outcome:
                    self.found.changed.append(f"{job.id} was {self._over[job.id]} and is {outcome}")
        return jobs

    async def finish(self) -> Findings:
        """Everybody is gone, and everything is gathered."""
        self.found.seconds = time.monotonic() - self._began
        jobs = await self._look_at_jobs()
        self.crew.end()
        self.oracle.look()
        judge(self.found, self.oracle, {job.id: job for job in jobs}, self.crew.deaths)
        print(self.found.figures())
        return self.found


@asynccontextmanager
async def run_at(nursery: Nursery, place: Place, sizes: Sizes, seed: int, limit: float) -> AsyncGenerator[KillRun]:
    """A run that takes so many seconds at the most; none of its processes is left."""
    store = store_at(place.store)
    await store.open()
    run = KillRun(nursery, place, sizes, seed, store)
    try:
        async with asyncio.timeout(limit):
            yield run
    except BaseException as error:
        told = "\n".join(worker.last_words()[-1_000:] for worker in run.crew.workers)
        error.add_note(f"seed {seed}, as far as it came: {run.found}; the workers say:\n{told}")
        raise
    finally:
        run.crew.end()
        await store.close()
