"""One worker process against two, with a tool that sleeps 20 ms and four calls at once in each.

All three run from the start; one looks at a queue of its own, two share another. A round is a batch for the one queue and
twice as much for the other, in random order. What waits was written down before, and appears at once: who submits takes no
part. The rate is that of the ends of the jobs, without the first and last ones, while workers begin or run dry.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.workers_place import FOLDER, STORE, account, copy, gate, napped, sql, written
from callgate import Gate
from callgate.runtime.hosts.procrastinate import ProcrastinateJobs
from callgate.stores import JobState

ROOT = Path(__file__).resolve().parents[1]
CONCURRENCY = 4
WORKERS = {"one": 1, "two": 2}
"""How many workers look at which queue."""

EDGE = 2 * CONCURRENCY
RATE = """
SELECT count(*), max(ended_at) - min(ended_at) FROM (
    SELECT ended_at FROM callgate_jobs WHERE id = ANY(%s) AND state = 'done' ORDER BY ended_at OFFSET %s LIMIT %s
) AS inner_ones
"""


@asynccontextmanager
async def worker(queue: str, store: str, folder: Path) -> AsyncGenerator[int]:
    """The id of a ``callgate worker`` that has begun; it is gone afterwards."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "callgate", "worker", "--app", "benchmarks.workers_place:worker"),
        *("--concurrency", str(CONCURRENCY), "--queues", queue),
        cwd=ROOT,
        env={**os.environ, STORE: store, FOLDER: str(folder)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60.0):
            told = await process.stdout.readline()
        if b"at once" not in told:
            raise SystemExit(f"the benchmark is broken: a worker did not begin: {told.decode()}")
        yield process.pid
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def waiting(owner: Gate, queue: str) -> int:
    """How many are not done yet."""
    counted = await owner.store.jobs.count([queue])
    return counted[JobState.QUEUED] + counted[JobState.RUNNING]


async def batch(owner: Gate, queue: str, numbers: range) -> tuple[dict[str, int], float]:
    """Jobs a second, and which they were."""
    jobs = written(owner, "nap", queue, numbers)
    await copy(owner, jobs, engine=True)
    ids, inner = [job.id for job in jobs], len(jobs) - 2 * EDGE
    async with asyncio.timeout(120.0):
        while await waiting(owner, queue):  # noqa: ASYNC110  (other processes make it so)
            await asyncio.sleep(0.1)
    ((number, seconds),) = await sql(owner, RATE, ids, EDGE, inner)
    return dict(zip(ids, numbers, strict=True)), (number - 1) / seconds


def resident(pid: int) -> float:
    """Megabytes of memory that a process has; 0 where the system does not say."""
    told = Path(f"/proc/{pid}/statm")
    return int(told.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6 if told.exists() else 0.0


async def measure(make: Callable[[], str], rounds: int, calls: int, step: Callable[[], None]) -> dict[str, float]:
    """The ratio of the rates, and what was lost or ran twice."""
    store, chance, first = make(), random.Random(1), 0
    asked: dict[str, int] = {}
    rates: dict[str, list[float]] = {queue: [] for queue in WORKERS}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="callgate-bench-")))
        owner = await stack.enter_async_context(gate(store, ProcrastinateJobs()))
        workers = [worker(queue, store, folder) for queue, number in WORKERS.items() for _ in range(number)]
        pids = await asyncio.gather(*(stack.enter_async_context(one) for one in workers))
        order = list(WORKERS)
        for number in range(rounds + 1):
            chance.shuffle(order)
            for queue in order:
                some, rate = await batch(owner, queue, range(first, first + calls * WORKERS[queue]))
                first += calls * WORKERS[queue]
                asked |= some
                if number:  # the first round warms up
                    rates[queue].append(rate)
            step()
        lost = await account(owner, asked, napped(folder))
        megabytes = [resident(pid) for pid in pids]
    return {
        "two_workers_x_one": median(two / one for one, two in zip(rates["one"], rates["two"], strict=True)),
        "one_worker_calls_s": median(rates["one"]),
        "two_workers_calls_s": median(rates["two"]),
        "worker_mb": median(megabytes),
        **{name: float(lost[name]) for name in ("lost", "doubled")},
    }
