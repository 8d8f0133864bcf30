"""``gate.submit`` to done, against Procrastinate alone with a task that runs the same SQL transactions by hand.

Both submit and work in this process, on tables of the same shape, with the same settings of the connections. A round is
so many calls through the one and as many through the other, in random order; the ratio is taken of each round.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

from benchmarks.workers_place import ANN, RAN, account, gate, looked
from callgate import Gate, ToolCall
from callgate.providers.stores.jobs import JobState
from callgate.runtime.hosts.procrastinate import ProcrastinateJobs
from callgate.runtime.hosts.procrastinate.backend import NEVER
from callgate.runtime.options.job_engine import Tally

CONCURRENCY = 4
"""Calls that are submitted at once, and that the worker runs at once."""

ADD = """
INSERT INTO callgate_jobs (tenant, version, id, tool, person, body, mac, made_at, run_at, queue, priority, max_attempts, state,
    attempts, token, sent_at)
VALUES (%s, 1, %s, 'look', %s, %s, '', %s, %s, 'default', 0, 5, 'queued', 0, 0, %s) ON CONFLICT DO NOTHING
"""
TAKE = """
UPDATE callgate_jobs SET state = 'running', owner = %s, lease_until = %s, attempts = attempts + 1, token = token + 1
WHERE id = %s AND version = 1 AND free_at <= %s RETURNING tenant, body, token
"""
END = """
UPDATE callgate_jobs SET state = 'done', lease_until = NULL, ended_at = %s, result = %s
WHERE id = %s AND tenant = %s AND version = 1 AND state = 'running' AND token = %s
"""


class Counted(Tally):
    """Says when so many jobs are done."""

    def __init__(self) -> None:
        super().__init__()
        self._wanted, self._all = 0, asyncio.Event()

    def expect(self, more: int) -> asyncio.Event:
        self._wanted, self._all = self.done + more, asyncio.Event()
        return self._all

    def count(self, state: JobState | None) -> None:
        super().count(state)
        if self.done == self._wanted:
            self._all.set()


class Bare:
    """The engine, and what somebody writes who uses it without Callgate."""

    def __init__(self, address: str) -> None:
        from procrastinate import App, PsycopgConnector
        from psycopg_pool import AsyncConnectionPool

        async def alone(connection: Any) -> None:
            await connection.set_autocommit(True)

        async def hasty(connection: Any) -> None:  # as Callgate has it: what the engine forgets, the record knows
            await alone(connection)
            await connection.execute("SET synchronous_commit = off")

        self.tally = Counted()
        self._pool = AsyncConnectionPool(address, min_size=10, max_size=10, open=False, configure=alone)
        connector = PsycopgConnector(conninfo=address, min_size=1, max_size=4, timeout=10.0, configure=hasty)
        self._app = App(connector=connector)
        self._task = self._app.task(name="look")(self._run)

    async def submit(self, n: int) -> None:
        id, now = uuid.uuid4().hex, time.time()
        body = json.dumps({"tool": "look", "arguments": {"n": n}, "user": ANN.id}).encode()
        async with self._pool.connection() as connection, connection.transaction():
            await connection.execute(ADD, (ANN.tenant, id, ANN.id, body, now, now, now))
            await self._task.configure(connection=connection, queueing_lock=id).defer_async(id=id)

    async def _run(self, id: str) -> None:
        now = time.time()
        async with self._pool.connection() as connection:
            taken = await connection.execute(TAKE, (uuid.uuid4().hex, now + 36.0, id, now))
            row = await taken.fetchone()
        if row is None:
            return
        tenant, body, token = row
        output = await looked(**json.loads(body)["arguments"])
        result = json.dumps({"outcome": "success", "output": output}).encode()
        async with self._pool.connection() as connection:
            await connection.execute(END, (time.time(), result, id, tenant, token))
        self.tally.count(JobState.DONE)

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        async with self._pool, self._app.open_async():
            worker = asyncio.create_task(
                self._app.run_worker_async(
                    concurrency=CONCURRENCY,
                    fetch_job_polling_interval=1.0,
                    abort_job_polling_interval=NEVER,
                    delete_jobs="successful",
                    install_signal_handlers=False,
                )
            )
            try:
                yield
            finally:
                worker.cancel()
                await asyncio.wait({worker})


class Ours:
    """The same through a gate."""

    def __init__(self, address: str) -> None:
        self.tally = Counted()
        self.gate: Gate = gate(address, ProcrastinateJobs())
        self.asked: dict[str, int] = {}

    async def submit(self, n: int) -> None:
        job = await self.gate.submit(ToolCall(id=f"c{n}", name="look", arguments={"n": n}), user=ANN)
        self.asked[job.id] = n

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        stop = asyncio.Event()
        async with self.gate:
            work = asyncio.create_task(self.gate.jobs.backend.work(CONCURRENCY, (), stop, 10.0, self.tally))
            try:
                yield
            finally:
                stop.set()
                await work


async def timed(side: Bare | Ours, numbers: range) -> tuple[float, float]:
    """Wall and CPU seconds a call, from the first ``submit`` until all are done."""
    done, left = side.tally.expect(len(numbers)), iter(numbers)

    async def some() -> None:
        for n in left:
            await side.submit(n)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(some() for _ in range(CONCURRENCY)))
    async with asyncio.timeout(60.0):
        await done.wait()
    return (time.perf_counter() - wall) / len(numbers), (time.process_time() - cpu) / len(numbers)


async def measure(make: Callable[[], str], rounds: int, calls: int, step: Callable[[], None]) -> dict[str, float]:
    """The ratios, and what was lost or ran twice."""
    logging.getLogger("procrastinate").setLevel(
        logging.ERROR
    )  # an App in `__main__` cannot be found by its own command
    ours, bare = Ours(make()), Bare(tables := make())
    async with gate(tables, ProcrastinateJobs()):  # makes the tables, of the engine, too
        pass
    sides: list[Bare | Ours] = [ours, bare]
    found: dict[Any, list[tuple[float, float]]] = {side: [] for side in sides}
    chance, first, before = random.Random(1), 0, len(RAN)
    async with ours.working(), bare.working():
        for number in range(rounds + 1):
            chance.shuffle(sides)
            for side in sides:
                took = await timed(side, range(first, first + calls))
                first += calls
                if number:  # the first round warms up
                    found[side].append(took)
            step()
        lost = await account(ours.gate, ours.asked, RAN[before:])
    wall, cpu = ([b[one] / a[one] for a, b in zip(found[ours], found[bare], strict=True)] for one in (0, 1))
    return {
        "submit_x_engine": median(wall),
        "submit_cpu_x_engine": median(cpu),
        "submit_calls_s": 1 / median(took for took, _ in found[ours]),
        "engine_calls_s": 1 / median(took for took, _ in found[bare]),
        **{name: float(lost[name]) for name in ("lost", "doubled")},
    }
