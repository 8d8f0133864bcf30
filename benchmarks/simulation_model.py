"""A discrete-event model of effectful calls: callers, event loops, the writer of each process, and the database.

Callers of a process share its event loop, which is one core. Each call makes two changes: the claim before its tool runs and
the outcome after it. The writer takes all changes that wait, and writes them in one transaction; the next one starts when
that has ended. All processes share the cores of the database, and the flushes of its log.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

MAX_BATCH = 256
"""The maximum number of changes in one transaction, as in Callgate."""
WARM_UP_S, SPAN_S = 0.5, 2.0
"""Simulated seconds before calls are counted, and in which they are counted."""


@dataclass(frozen=True)
class Parts:
    """What the parts of a call take, in seconds, and what it writes, in bytes.

    ``call`` is CPU of a call outside of transactions. ``batch`` and ``change`` are CPU of the process for a transaction
    and for each change in it; ``server_batch`` and ``server_change`` are those of the database. A flush of the log takes
    ``sync``, and ``log_byte`` for each byte. A change writes ``log`` bytes. A transaction has ``trips`` round trips;
    each takes ``wake`` beside its CPU: the time until a process that waits runs again.
    """

    call: float
    batch: float
    change: float
    server_batch: float
    server_change: float
    sync: float
    log_byte: float = 0.0
    log: float = 0.0
    trips: float = 2.0
    wake: float = 0.0


@dataclass(frozen=True)
class Site:
    """Where calls run: processes, callers in each, cores of both machines, and seconds of a round trip between them.

    With ``server_cores`` 0 the database shares the cores of the processes. Without ``grouped`` each change is a
    transaction of its own.
    """

    callers: int
    processes: int = 1
    cores: int = 2
    server_cores: int = 0
    trip: float = 0.0
    grouped: bool = True


@dataclass(frozen=True)
class Answer:
    """Calls a second, and the used share of a process's core, of the database's cores and of the disk of its log."""

    calls_s: float
    process_share: float
    server_share: float
    log_share: float


class Log:
    """The log of the database on its disk. Commits that arrive while it is flushed share the next flush."""

    def __init__(self, env: simpy.Environment, parts: Parts) -> None:
        self.env, self.parts = env, parts
        self.waiting: list[tuple[simpy.Event, float]] = []
        self.flushing = False
        self.busy = 0.0

    def commit(self, size: float) -> simpy.Event:
        """Write so many bytes; the event is the end of their flush."""
        done = self.env.event()
        self.waiting.append((done, size))
        if not self.flushing:
            self.flushing = True
            self.env.process(self.flush())
        return done

    def flush(self) -> Generator[Any, Any, None]:
        """Flush what waits until nothing does."""
        while self.waiting:
            taken, self.waiting = self.waiting, []
            took = self.parts.sync + self.parts.log_byte * sum(size for _, size in taken)
            yield self.env.timeout(took)
            self.busy += took
            for done, _ in taken:
                done.succeed()
        self.flushing = False


class Process:
    """One worker process: its event loop, its callers and its writer."""

    def __init__(
        self, env: simpy.Environment, parts: Parts, site: Site, cores: simpy.Resource, server: Any, log: Log
    ) -> None:
        self.env, self.parts, self.site, self.cores, self.server, self.log = env, parts, site, cores, server, log
        self.loop = simpy.Resource(env, 1)
        self.waiting: list[simpy.Event] = []
        self.idle: simpy.Event | None = None
        self.done = 0
        self.busy = self.server_busy = 0.0
        env.process(self.writer())
        for _ in range(site.callers):
            env.process(self.caller())

    def caller(self) -> Generator[Any, Any, None]:
        """Call again and again."""
        while True:
            for _ in range(2):
                yield from self.compute(self.parts.call / 2)
                yield self.put()
            self.done += 1

    def put(self) -> simpy.Event:
        """Hand a change to the writer; the event is its end."""
        done = self.env.event()
        self.waiting.append(done)
        if self.idle is not None:
            self.idle.succeed()
            self.idle = None
        return done

    def compute(self, seconds: float) -> Generator[Any, Any, None]:
        """Use the event loop, and a core."""
        with self.loop.request() as turn:
            yield turn
            with self.cores.request() as core:
                yield core
                yield self.env.timeout(seconds)
        self.busy += seconds

    def writer(self) -> Generator[Any, Any, None]:
        """Write what waits, one transaction after another."""
        parts, limit = self.parts, MAX_BATCH if self.site.grouped else 1
        while True:
            if not self.waiting:
                self.idle = self.env.event()
                yield self.idle
            batch, self.waiting = self.waiting[:limit], self.waiting[limit:]
            yield from self.compute(parts.batch + parts.change * len(batch))
            work = parts.server_batch + parts.server_change * len(batch)
            with self.server.request() as core:
                yield core
                yield self.env.timeout(work)
            self.server_busy += work
            yield self.log.commit(parts.log * len(batch))
            yield self.env.timeout(parts.trips * (self.site.trip + parts.wake))
            for done in batch:
                done.succeed()
            if len(batch) > 1:  # those that were answered ask for their turns first, as in Callgate
                yield self.env.timeout(0)
                yield from self.compute(0.0)


def simulate(parts: Parts, site: Site) -> Answer:
    """Return the throughput of a site. The same arguments give the same answer."""
    env = simpy.Environment()
    cores = simpy.Resource(env, site.cores)
    server = simpy.Resource(env, site.server_cores) if site.server_cores else cores
    log = Log(env, parts)
    workers = [Process(env, parts, site, cores, server, log) for _ in range(site.processes)]

    def so_far() -> tuple[float, float, float, float]:
        done, busy, of_server = (sum(getattr(one, name) for one in workers) for name in ("done", "busy", "server_busy"))
        return done, busy, of_server, log.busy

    env.run(until=WARM_UP_S)
    before = so_far()
    env.run(until=WARM_UP_S + SPAN_S)
    done, busy, of_server, of_log = ((late - early) / SPAN_S for early, late in zip(before, so_far(), strict=True))
    return Answer(done, busy / site.processes, of_server / (site.server_cores or site.cores), of_log)


def plan(
    parts: Parts, wanted: float, *, trip: float, server_cores: int, callers: int = 64
) -> tuple[Site, Answer] | None:
    """Return the fewest processes that reach *wanted* calls a second, one core each; None if the database does not."""
    for processes in range(1, 65):
        site = Site(callers, processes, processes, server_cores, trip)
        found = simulate(parts, site)
        if found.calls_s >= wanted:
            return site, found
        if found.server_share > 0.98 or parts.log_byte * parts.log * 2 * wanted > 1:
            return None
    return None
