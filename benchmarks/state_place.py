"""Where ``make bench-state`` runs: the stores, the state before, and how both are timed in turn."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from benchmarks.workers_place import NoPostgres, schemas
from callgate import Gate, Outcome, User, tool
from callgate.hooks import Audit
from callgate.providers.stores.address import store_at
from callgate.providers.stores.ledger_writes import TransactionWriter
from callgate.providers.stores.sql.batches import Step
from callgate.providers.stores.sql.shared import SharedRequest

REDIS = os.environ.get("CALLGATE_TEST_REDIS", "redis://127.0.0.1:6379/0")
PREFIX = f"callgate-bench-{uuid.uuid4().hex[:12]}"
"""The first part of every key in Redis."""
_STORES = itertools.count()
"""Numbers of the stores in Redis: a store must not find what another one has cached."""

ANN = User("ann", tenant="acme", scopes={"math"})


class Apart(TransactionWriter):
    """Writes of a SQL store without group commit: each change and request has a transaction and a pooled connection."""

    append = None
    """Rows that are about no effect are written by their chain."""

    def bound(self, _effects: Any) -> Apart:
        """Return the writer of a namespace; the benchmark uses one."""
        return self

    async def ask(self, request: SharedRequest, *, withdraw: bool = False) -> Any:
        """Serve a request as ``SharedWriter`` does."""
        database = self._store._database  # type: ignore[attr-defined]

        async def run(connection: Any, step: Step) -> Any:
            statement, values = step
            given: Sequence[Any] = values if database.lite or not values else [statement.parameters(values)]
            sql, rows = statement.lite if database.lite else statement.postgres, list[Any]()
            for one in given if sql else ():
                done = await connection.exec_driver_sql(sql, one)
                rows += done.all() if done.returns_rows else []
            return rows

        async def work(connection: Any) -> Any:
            if not database.lite:
                await connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
            part = request.of([request], float(database.now()))
            for step in part.compute([await run(connection, step) for step in part.reads()]):
                await run(connection, step)
            return request.result

        return await database.transact(work)

    async def close(self) -> None:
        """Do nothing."""


BEFORE: dict[str, Callable[[Any], Any]] = {
    "ledger": Apart,
    "quotas.shared": Apart,
    "semaphores.shared": Apart,
    "cache.shared": Apart,
    "_connection.shared": lambda store: None,
}
"""Switches to the state before: attributes of a store, such as ``quotas.queue``, and what makes their values there. A
switch that a store does not have is left out. They are set before the gate opens."""

Make = Callable[[], str]
"""Gives the address of an empty store."""
Call = Callable[[], Awaitable[None]]
"""One call; it stops the benchmark if the call fails."""


class NoRedis(Exception):
    """The server of Redis is absent; the message names its address."""


@tool(effect="irreversible")
async def pay(n: int) -> dict[str, int]:
    """Pay."""
    return {"n": n}


# ---------------------------------------------------------------------------------------------- the stores


def switches(store: Any) -> list[tuple[Any, str, Any]]:
    """Return the switches that a store has: the object, its attribute, and the value before."""
    found = []
    for path, make in BEFORE.items():
        parts, _, name = path.rpartition(".")
        part = attrgetter(parts)(store) if parts and hasattr(store, parts.partition(".")[0]) else store
        if hasattr(part, name):
            found.append((part, name, make(store)))
    return found


def store_of(address: str, *, before: bool = False) -> Any:
    """Return the store at an address, now or as it was *before*."""
    if address.startswith("redis"):
        from callgate.providers.stores.redis.store import RedisStore

        store: Any = RedisStore(address, prefix=f"{PREFIX}-{next(_STORES)}")
    else:
        store = store_at(address)
    for part, name, value in switches(store) if before else ():
        setattr(part, name, value)
    return store


@contextmanager
def _files() -> Generator[Make]:
    with TemporaryDirectory() as folder:
        numbers = itertools.count()
        yield lambda: f"sqlite:///{folder}/{next(numbers)}.db"


@contextmanager
def _redis() -> Generator[Make]:
    import redis

    parts = urlsplit(REDIS)
    server = redis.Redis.from_url(REDIS, socket_connect_timeout=5)
    try:
        server.ping()
    except redis.RedisError as error:
        shown = f"{parts.scheme}://{parts.hostname}:{parts.port or 6379}"
        raise NoRedis(f"no Redis at {shown} (set CALLGATE_TEST_REDIS): {type(error).__name__}") from None
    try:
        yield lambda: REDIS
    finally:
        for key in server.scan_iter(f"{PREFIX}*", count=1_000):
            server.delete(key)
        server.close()


OPENERS = {"sqlite": _files, "postgresql": schemas, "redis": _redis}


@contextmanager
def places(kinds: Collection[str]) -> Generator[tuple[dict[str, Make], dict[str, str]]]:
    """Open the places of these kinds. Give those that are there, and for the others the reason."""
    found: dict[str, Make] = {}
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        for kind, opener in OPENERS.items():
            if kind not in kinds:
                absent[kind] = f"{kind} was not asked for"
                continue
            try:
                found[kind] = stack.enter_context(opener())
            except (NoPostgres, NoRedis) as error:
                absent[kind] = str(error).strip().partition("\n")[0]
        yield found, absent


# ---------------------------------------------------------------------------------------------- calls


@asynccontextmanager
async def paying(address: str, *, before: bool = False, keys: Sequence[str] = ()) -> AsyncGenerator[Call]:
    """Open a gate with ``Audit``, and give effectful calls through it."""
    async with paying_on(store_of(address, before=before), keys) as call:
        yield call


@asynccontextmanager
async def paying_on(store: Any, keys: Sequence[str] = ()) -> AsyncGenerator[Call]:
    """The same, on a store that the caller has made."""
    numbers = itertools.count()
    async with Gate([pay], [Audit()], store=store, signing_keys=keys, allow_unguarded=True) as gate:

        async def call() -> None:
            result = await gate.call("pay", {"n": next(numbers)}, user=ANN)
            if result.outcome != Outcome.SUCCESS:
                raise SystemExit(f"the benchmark is broken: a call ended as {result.outcome}")

        yield call


@dataclass(frozen=True)
class Load:
    """How long a comparison takes: concurrent callers, calls of each side in a round, and rounds."""

    callers: int
    reference: int
    now: int
    rounds: int


@dataclass(frozen=True)
class Pace:
    """Calls a second, and CPU milliseconds of this process a call."""

    calls_s: float
    cpu_ms: float


@dataclass(frozen=True)
class Compared:
    """Medians of the rounds; ``x`` is the throughput now over that of the reference, ``cpu_x`` the same of CPU time."""

    x: float
    cpu_x: float
    now: Pace
    reference: Pace


async def drive(call: Call, callers: int, calls: int) -> Pace:
    """Make so many calls, by so many concurrent callers."""
    left = iter(range(calls))

    async def caller() -> None:
        for _ in left:
            await call()

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Pace(calls / wall, cpu / calls * 1e3)


async def compare(reference: Call, now: Call, load: Load) -> Compared:
    """Time both sides in turn, in random order, and take the ratio of each round."""
    sides = [("reference", reference, load.reference), ("now", now, load.now)]
    for _, call, _ in sides:
        await drive(call, load.callers, max(load.callers // 4, 1))  # warm up
    chance, found = random.Random(1), dict[str, list[Pace]](reference=[], now=[])
    for _ in range(load.rounds):
        chance.shuffle(sides)
        for name, call, calls in sides:
            found[name].append(await drive(call, load.callers, calls))
    rounds = list(zip(found["reference"], found["now"], strict=True))
    return Compared(
        median(b.calls_s / a.calls_s for a, b in rounds),
        median(b.cpu_ms / a.cpu_ms for a, b in rounds),
        *(
            Pace(median(one.calls_s for one in found[name]), median(one.cpu_ms for one in found[name]))
            for name in ("now", "reference")
        ),
    )


async def against_before(make: Make, load: Load) -> Compared:
    """Compare effectful calls with ``Audit`` with the state before, each on a store of its own."""
    async with paying(make(), before=True) as before, paying(make()) as now:
        return await compare(before, now, load)
