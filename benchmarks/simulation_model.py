"""A discrete-event model of effectful calls: callers, event loops, the writer of each process, and the database.

Callers of a process share its event loop, which is one core. Each call makes two changes: the claim before its tool runs and
the outcome after it. The writer takes all changes that wait, and writes them in one transaction; the next one starts when
that has ended.
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
    """What the parts of a call take, in seconds.

    ``call`` is CPU of a call outside of transactions. ``batch`` and ``change`` are CPU of the process for a transaction
    and for each change in it; ``server_batch`` and ``server_change`` are those of the database. ``commit`` is the wait
    for the disk. ``trips`` is the number of round trips of a transaction.
    """

    call: float
    batch: float
    change: float
    server_batch: float
    server_change: float
    commit: float
    trips: float = 2.0


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
    """Calls a second, and the used share of a process's core and of the database's cores."""

    calls_s: float
    process_share: float
    server_share: float


class Process:
    """One worker process: its event loop, its callers and its writer."""

    def __init__(self, env: simpy.Environment, parts: Parts, site: Site, cores: simpy.Resource, server: Any) -> None:
        self.env, self.parts, self.site, self.cores, self.server = env, parts, site, cores, server
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
            yield self.env.timeout(parts.commit + parts.trips * self.site.trip)
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
    workers = [Process(env, parts, site, cores, server) for _ in range(site.processes)]
    env.run(until=WARM_UP_S)
    before = sum(one.done for one in workers), sum(one.busy for one in workers), sum(one.server_busy for one in workers)
    env.run(until=WARM_UP_S + SPAN_S)
    done, busy, server_busy = (
        sum(one.done for one in workers) - before[0],
        sum(one.busy for one in workers) - before[1],
        sum(one.server_busy for one in workers) - before[2],
    )
    shared = site.server_cores or site.cores
    return Answer(done / SPAN_S, busy / SPAN_S / site.processes, server_busy / SPAN_S / shared)


def plan(
    parts: Parts, wanted: float, *, trip: float, server_cores: int, callers: int = 64
) -> tuple[Site, Answer] | None:
    """Return the fewest processes that reach *wanted* calls a second, one core each; None if the database does not."""
    for processes in range(1, 65):
        site = Site(callers, processes, processes, server_cores, trip)
        found = simulate(parts, site)
        if found.calls_s >= wanted:
            return site, found
        if found.server_share > 0.98:
            return None
    return None
