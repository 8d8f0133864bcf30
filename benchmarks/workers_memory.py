"""What a call takes up while it waits, and while a worker runs it."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable

from benchmarks.workers_place import ANN, KEY, copy, sql, written
from callgate import Gate, ToolCall, tool
from callgate.runtime.hosts.procrastinate import ProcrastinateJobs
from callgate.runtime.options.job_engine import Tally
from callgate.stores import JobState

RECORD = "SELECT pg_total_relation_size('callgate_jobs')"
ROWS = "SELECT pg_total_relation_size('procrastinate_jobs') + pg_total_relation_size('procrastinate_events')"


async def measure(make: Callable[[], str], number: int, step: Callable[[], None]) -> dict[str, float]:
    """Kilobytes a call: in the tables, indices included, while so many wait; in the memory of a worker that runs them all.

    Empty tables have pages, too, and an idle worker its connections: what these take up does not count.
    """
    go, asleep = asyncio.Event(), asyncio.Semaphore(0)

    @tool(effect="read")
    async def hold(n: int) -> int:
        """Wait until all are here."""
        asleep.release()
        await go.wait()
        return n

    async def all_here(expected: int) -> float:
        async with asyncio.timeout(120.0):
            for _ in range(expected):
                await asleep.acquire()
        gc.collect()
        return float(tracemalloc.get_traced_memory()[0])

    async def sizes() -> list[float]:
        return [float((await sql(gate, text))[0][0]) for text in (RECORD, ROWS)]

    stop = asyncio.Event()
    async with Gate([hold], store=make(), signing_keys=[KEY], jobs=ProcrastinateJobs()) as gate:
        empty = await sizes()
        await copy(gate, written(gate, "hold", "default", range(number)), engine=True)
        full = await sizes()
        tracemalloc.start()
        work = asyncio.create_task(gate.jobs.backend.work(number + 1, (), stop, 10.0, Tally()))
        try:
            many = await all_here(number)
            step()
            go.set()
            while (await gate.store.jobs.count())[JobState.DONE] < number:  # noqa: ASYNC110  (the store does not tell)
                await asyncio.sleep(0.05)
            go.clear()
            await gate.submit(
                ToolCall(id="one", name="hold", arguments={"n": 0}), user=ANN
            )  # what the worker itself has, and one call
            one = await all_here(1)
            go.set()
        finally:
            stop.set()
            await work
            tracemalloc.stop()
    record, row = ((after - before) / number / 1e3 for before, after in zip(empty, full, strict=True))
    return {
        "waiting_record_kb": record,
        "waiting_engine_kb": row,
        "inflight_kb": (many - one) / (number - 1) / 1e3,
    }
