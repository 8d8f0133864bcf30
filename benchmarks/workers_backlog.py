"""What a call costs with 10³ and with 10⁵ jobs waiting, on Procrastinate and on the embedded engine.

Four places, each a schema of its own with as many jobs waiting as its name says. A round drains a batch in each, in random
order, and fills it up again, which is not measured. The cost is the CPU time of this process and of the servers behind its
connections, and the time on the clock; from the moment when the worker is at work to that when the batch is done.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.workers_place import POSTGRES, RAN, account, copy, gate, sql, written
from callgate import Gate
from callgate.jobs import EmbeddedJobs
from callgate.runtime.hosts.procrastinate import ProcrastinateJobs
from callgate.runtime.options.job_engine import JobBackend, Tally
from callgate.stores import JobState

CONCURRENCY = 4
ENGINES: dict[str, Callable[[], JobBackend]] = {"procrastinate": ProcrastinateJobs, "embedded": lambda: EmbeddedJobs(0)}
WARM_UP = 12
"""Jobs of a batch that are done before the clock starts: the worker has connected by then."""

CHUNK = 10_000
SERVERS = b"SELECT pid FROM pg_stat_activity WHERE application_name = %s"


@dataclass
class Place:
    """A schema, and what a call in it cost: seconds of CPU, of which at the server, and on the clock."""

    engine: str
    owner: Gate
    name: str
    asked: dict[str, int] = field(default_factory=dict)
    ran: list[int] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    async def fill(self, number: int) -> None:
        """So many more wait."""
        first, last = len(self.asked), len(self.asked) + number
        for begin in range(first, last, CHUNK):
            numbers = range(begin, min(begin + CHUNK, last))
            jobs = written(self.owner, "look", "default", numbers)
            await copy(self.owner, jobs, engine=self.engine == "procrastinate")
            self.asked |= {job.id: n for job, n in zip(jobs, numbers, strict=True)}

    async def analyze(self) -> None:
        """As autovacuum does within a minute of such a change."""
        tables = ["callgate_jobs"] + ["procrastinate_jobs"] * (self.engine == "procrastinate")
        await sql(self.owner, f"ANALYZE {', '.join(tables)}")

    async def drain(self, number: int, servers: Callable[[str], dict[int, float]]) -> int:
        """Have a worker run so many, and note what one costs. How many it ran: a few more, until it ends."""
        stop = asyncio.Event()
        watch = Watch(number, stop, lambda: servers(self.name))
        async with asyncio.timeout(120.0):
            await self.owner.jobs.backend.work(CONCURRENCY, (), stop, 10.0, watch)
        self.cpu.append((watch.cpu + watch.server) / number)
        self.server.append(watch.server / number)
        self.wall.append(watch.wall / number)
        return watch.done


class Watch(Tally):
    """Starts the clocks once the worker is at work, and so many jobs later stops them, and the worker."""

    def __init__(self, number: int, stop: asyncio.Event, servers: Callable[[], dict[int, float]]) -> None:
        super().__init__()
        self.cpu = self.server = self.wall = 0.0
        self._last, self._stop, self._servers = WARM_UP + number, stop, servers
        self._before: dict[int, float] = {}

    def count(self, state: JobState | None) -> None:
        super().count(state)
        if self.done == WARM_UP:
            self._before = self._servers()
            self.cpu, self.wall = -time.process_time(), -time.perf_counter()
        elif self.done == self._last:
            self.cpu, self.wall = self.cpu + time.process_time(), self.wall + time.perf_counter()
            self.server = sum(cpu - self._before.get(pid, 0.0) for pid, cpu in self._servers().items())
            self._stop.set()


@contextmanager
def servers_of() -> Generator[Callable[[str], dict[int, float]]]:
    """Seconds of CPU of each server process behind connections of a name; nothing where they are on another machine."""
    import psycopg

    with psycopg.connect(POSTGRES, autocommit=True) as watcher:

        def servers(name: str) -> dict[int, float]:
            found = {}
            for (pid,) in watcher.execute(SERVERS, (name,)).fetchall():
                process = Path(f"/proc/{pid}")
                if process.joinpath("comm").exists() and process.joinpath("comm").read_text() == "postgres\n":
                    found[pid] = int(process.joinpath("schedstat").read_text().split()[0]) / 1e9
            return found

        yield servers


def spread(places: dict[tuple[str, str], Place], engine: str, clock: str) -> float:
    """How far the costs with many waiting are from those with few: the median of the rounds' ratios, less 1."""
    few, many = (getattr(places[engine, level], clock) for level in ("few", "many"))
    return float(median(b / a for a, b in zip(few, many, strict=True)) - 1.0)


async def measure(
    make: Callable[[], str], levels: dict[str, int], rounds: int, calls: int, step: Callable[[], None]
) -> dict[str, float]:
    """The spread of each engine by each clock, the largest of them, and what was lost or ran twice."""
    chance, lost = random.Random(1), Counter[str]()
    places: dict[tuple[str, str], Place] = {}
    async with AsyncExitStack() as stack:
        servers = stack.enter_context(servers_of())
        for engine, jobs in ENGINES.items():
            for level, number in levels.items():
                address = make()
                owner = await stack.enter_async_context(gate(address, jobs()))
                place = places[engine, level] = Place(engine, owner, address.rpartition("=")[2])
                await place.fill(number)
                await place.analyze()
                step()
        order = list(places.values())
        for number in range(rounds + 1):
            chance.shuffle(order)
            for place in order:
                begun = len(RAN)
                await place.fill(await place.drain(calls, servers))
                place.ran += RAN[begun:]
            if not number:  # the first round warms up
                for place in order:
                    for taken in (place.cpu, place.server, place.wall):
                        taken.clear()
            step()
        for place in order:
            lost += await account(place.owner, place.asked, place.ran, may_wait=True)
    found = {
        f"spread_{engine}_{clock}": spread(places, engine, clock) for engine in ENGINES for clock in ("cpu", "wall")
    }
    costs = {
        f"{engine}_{level}_{clock}_ms": median(getattr(place, clock)) * 1e3
        for (engine, level), place in places.items()
        for clock in ("cpu", "server", "wall")
    }
    return {
        "cost_spread_1e3_1e5": max(found.values(), key=abs),
        **found,
        **costs,
        **{name: float(lost[name]) for name in ("lost", "doubled")},
    }
