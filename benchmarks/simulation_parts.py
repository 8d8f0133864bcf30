"""What the parts of an effectful call take, measured each on its own: CPU of the process, CPU of the database, its disk.

CPU is read from counters of the kernel, and never inferred from wall time: a busy machine changes it little.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from benchmarks.simulation_model import Parts
from benchmarks.state_place import drive, paying_on, store_of
from benchmarks.state_way import delayed, round_trip_ms

LEARNED_WITH = (2, 8, 32)
"""Callers with whom the parts are measured: their transactions have different sizes."""
CALLS, ROUNDS = 300, 5
LARGE = 8 << 20
"""Bytes of a large write to the disk of the log: what it takes beside a small one gives the bandwidth."""


class NoCounters(Exception):
    """The CPU of the database cannot be read."""


class Timed:
    """Runs a coroutine, and adds up the CPU of this thread in its steps: what other tasks use meanwhile is not in it."""

    def __init__(self, work: Any) -> None:
        self._work = work.__await__()
        self.cpu = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        step, given = self._work.send, None
        while True:
            began = time.thread_time()
            try:
                asked = step(given)
            except StopIteration as end:
                return end.value
            finally:
                self.cpu += time.thread_time() - began
            try:
                given, step = (yield asked), self._work.send
            except BaseException as error:
                given, step = error, self._work.throw


class Watch:
    """Times the transactions of a store's writer: their changes, CPU seconds of the event loop, and wall seconds."""

    def __init__(self, store: Any) -> None:
        self.batches: list[tuple[int, float, float]] = []
        group = store.ledger.group
        write = group._write

        async def timed(changes: Sequence[Any], wait: int) -> Any:
            began, work = time.perf_counter(), Timed(write(changes, wait))
            try:
                return await work
            finally:
                self.batches.append((len(changes), work.cpu, time.perf_counter() - began))

        group._write = timed


@dataclass(frozen=True)
class Disk:
    """Seconds of a flush, and seconds for each byte of it."""

    sync: float
    byte: float


def cpu_of(connection: psycopg.Connection[Any], name: str) -> dict[int, float]:
    """Return the CPU seconds of the server processes that serve an application.

    Raises:
        NoCounters: the server runs on another machine or system, where nothing can be read.
    """
    pids = [
        pid for (pid,) in connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [name])
    ]
    try:
        return {pid: int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9 for pid in pids}
    except (FileNotFoundError, PermissionError) as error:
        raise NoCounters(f"the CPU of PostgreSQL is read from /proc on its machine: {error}") from None


def name_of(address: str) -> str:
    """Return the name that the connections of an address have."""
    return str(psycopg.conninfo.conninfo_to_dict(address)["application_name"])


async def learn(address: str) -> Parts:
    """Measure the parts of a call on PostgreSQL."""
    with psycopg.connect(address, autocommit=True, application_name="callgate parts") as own:
        name = name_of(address)

        def server_cpu() -> float:
            return sum(cpu_of(own, name).values())

        def log_bytes() -> float:
            row = own.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')").fetchone()
            assert row is not None
            return float(row[0])

        disk = disk_of_server(own)
        return await _learn(address, server_cpu, log_bytes, disk, wake_of(own))


async def learn_lite(address: str) -> Parts:
    """Measure the parts of a call on a SQLite file: its database is a thread of this process."""

    def thread_cpu() -> float:
        return time.process_time() - time.thread_time()

    def written() -> float:
        counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return float(counters["wchar"])

    return await _learn(address, thread_cpu, written, disk_of_folder(), wake_of_thread())


async def _learn(
    address: str, server_cpu: Callable[[], float], log_bytes: Callable[[], float], disk: Disk, wake: float
) -> Parts:
    store = store_of(address)
    server, outside, sizes, written, changes = list[float](), list[float](), list[float](), 0.0, 0
    batches = list[tuple[int, float, float]]()
    async with paying_on(store) as call:
        await drive(call, 8, 200)
        watch = Watch(store)
        for _ in range(ROUNDS):
            for callers in LEARNED_WITH:
                watch.batches, cpu = [], (server_cpu(), time.thread_time())
                log = log_bytes()
                await drive(call, callers, CALLS)
                made = sum(size for size, _, _ in watch.batches)
                written, changes = written + log_bytes() - log, changes + made
                used = time.thread_time() - cpu[1]
                server.append((server_cpu() - cpu[0]) / made)
                outside.append((used - sum(one for _, one, _ in watch.batches)) / made)
                sizes.append(len(watch.batches) / made)
                batches += watch.batches
    change, batch = linear_regression([size for size, _, _ in batches], [used for _, used, _ in batches])
    server_batch, server_change = linear_regression(sizes, server)
    turns, outside_call = linear_regression(sizes, outside)  # the event loop itself works for each transaction
    return Parts(
        call=2 * max(outside_call, 0.0),
        batch=max(batch, 0.0) + max(turns, 0.0),
        change=max(change, 0.0),
        server_batch=max(server_batch, 0.0),
        server_change=max(server_change, 0.0),
        sync=disk.sync,
        log_byte=disk.byte,
        log=written / changes,
        wake=wake,
    )


# ---------------------------------------------------------------------------------------------- the disk, the way


def _disk(write: Callable[[int], float]) -> Disk:
    small, large = median(write(0) for _ in range(25)), median(write(LARGE) for _ in range(7))
    return Disk(small, max(large - small, 0.0) / LARGE)


def disk_of_server(own: psycopg.Connection[Any]) -> Disk:
    """Measure flushes of PostgreSQL's log: a commit that waits for the disk, less the same one that does not."""

    def commit(size: int, waits: str) -> float:
        began = time.perf_counter()
        with own.transaction():
            own.execute(f"SET LOCAL synchronous_commit = {waits}".encode())
            own.execute("SELECT pg_logical_emit_message(true, 'callgate', repeat('x', %s))", [size])
        return time.perf_counter() - began

    return _disk(lambda size: max(commit(size, "on") - commit(size, "off"), 0.0))


def disk_of_folder() -> Disk:
    """Measure flushes of a file where the SQLite files of the benchmark are."""
    with TemporaryDirectory() as folder, Path(folder, "log").open("wb", buffering=0) as file:

        def write(size: int) -> float:
            began = time.perf_counter()
            file.write(b"x" * max(size, 4_096))
            os.fdatasync(file.fileno())
            return time.perf_counter() - began

        return _disk(write)


def wake_of(own: psycopg.Connection[Any]) -> float:
    """Measure an empty round trip, less the CPU of both its ends."""
    row = own.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    counter = Path(f"/proc/{row[0]}/schedstat")

    def used() -> float:
        return int(counter.read_text().split()[0]) / 1e9 + time.thread_time()

    began, cpu = time.perf_counter(), used()
    for _ in range(200):
        own.execute("SELECT 1")
    return max(time.perf_counter() - began - (used() - cpu), 0.0) / 200


def wake_of_thread() -> float:
    """Measure the hand-over to a thread and back, less its CPU."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(200):
            thread.submit(int).result()
        return max(time.perf_counter() - began - (time.process_time() - cpu), 0.0) / 200


async def trips_of(address: str, delay: float) -> tuple[float, float]:
    """Return the round trips of a transaction, and the seconds of one with so many seconds of delay in each direction."""
    near = await _alone(address)
    with delayed(address, delay) as far:
        trip = await round_trip_ms(far) / 1e3
        return max(1.0, round((await _alone(far) - near) / trip)), trip


async def _alone(address: str) -> float:
    """Return the seconds of a transaction of one caller: the median, for a busy machine."""
    store = store_of(address)
    async with paying_on(store) as call:
        await drive(call, 1, 10)
        watch = Watch(store)
        await drive(call, 1, 40)
    return median(wall for _, _, wall in watch.batches)
