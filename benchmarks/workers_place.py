"""Where the benchmark of the workers runs: schemas of its own in PostgreSQL, its tools, and the count of what ran."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from callgate import Gate, Outcome, User, tool
from callgate.providers.stores.jobs import Job
from callgate.runtime.hosts.procrastinate import ProcrastinateJobs
from callgate.runtime.hosts.procrastinate.rows import TASK
from callgate.runtime.jobs.records import JobRequest, signed
from callgate.runtime.options.job_engine import JobBackend
from callgate.stores import JobState

POSTGRES = os.environ.get("CALLGATE_TEST_POSTGRES", "postgresql://127.0.0.1:5432/test")
STORE, FOLDER = "CALLGATE_BENCH_STORE", "CALLGATE_BENCH_FOLDER"
"""Where workers that are processes find their store, and the files that they note in what they ran."""

ANN = User("ann", "acme")
KEY = "a key of the benchmark"
NAP = 0.02
RAN: list[int] = []
"""What ``look`` was called with, in this process."""


class NoPostgres(Exception):
    """There is none; the message says where it was looked for."""


# ---------------------------------------------------------------------------------------------- the application


async def looked(n: int) -> int:
    """Look something up."""
    RAN.append(n)
    return n


look = tool(effect="read", name="look")(looked)


@tool(effect="read")
async def nap(n: int) -> int:
    """Take 20 ms, as one that asks somebody else does."""
    path = Path(os.environ[FOLDER]) / f"ran.{os.getpid()}"
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(number, b"%8d\n" % n)
    os.close(number)
    await asyncio.sleep(NAP)
    return n


def napped(folder: Path) -> list[int]:
    """What ``nap`` was called with, in all processes."""
    return [int(line) for path in folder.glob("ran.*") for line in path.read_bytes().split()]


def gate(store: str, jobs: JobBackend) -> Gate:
    """A gate of one process."""
    return Gate([look, nap], allow_unguarded=True, store=store, signing_keys=[KEY], jobs=jobs)


def worker() -> Gate:
    """For ``callgate worker``."""
    return gate(os.environ[STORE], ProcrastinateJobs())


# ---------------------------------------------------------------------------------------------- the database


@contextmanager
def schemas() -> Generator[Callable[[], str]]:
    """A function that makes a schema and gives its address; all of them are gone afterwards.

    Raises:
        NoPostgres: there is no server.
    """
    import psycopg
    from sqlalchemy.engine import make_url

    made: list[str] = []
    try:
        server = psycopg.connect(POSTGRES, autocommit=True, connect_timeout=5)
    except psycopg.OperationalError as error:
        shown = make_url(POSTGRES).render_as_string(hide_password=True)
        raise NoPostgres(f"no PostgreSQL at {shown} (set CALLGATE_TEST_POSTGRES): {error}") from None

    def make() -> str:
        name = f"callgate_bench_{uuid.uuid4().hex[:12]}"
        server.execute(f'CREATE SCHEMA "{name}"'.encode())
        made.append(name)
        return f"{POSTGRES}{'&' if '?' in POSTGRES else '?'}options=-csearch_path%3D{name}&application_name={name}"

    with server:
        try:
            yield make
        finally:
            for name in made:
                server.execute(f'DROP SCHEMA "{name}" CASCADE'.encode())


def written(owner: Gate, tool: str, queue: str, numbers: Iterable[int]) -> list[Job]:
    """Jobs as ``gate.submit`` writes them down, one a number; the number is the id."""
    keys, version, now = owner.jobs.keys, owner.registry.get(tool).definition.binding_digest, time.time()
    found = []
    for n in numbers:
        order = JobRequest(tool, version, keys.ids[0], {"n": n}, ANN, f"c{n}", f"{n:032x}")
        job = Job(f"{n:032x}", tool, ANN.id, order.dump(), "", now, now, queue=queue, sent_at=now)
        found.append(signed(keys, ANN.tenant or "", job))
    return found


async def copy(owner: Gate, jobs: Collection[Job], *, engine: bool) -> None:
    """Have them wait, all at once: 10⁵ by ``submit`` take minutes. With rows for Procrastinate, or without."""
    columns = ("id", "tool", "person", "body", "mac", "made_at", "run_at", "queue", "sent_at")
    store: Any = owner.store
    async with store.transaction() as within:
        driver = within.driver()
        listed = ", ".join(("tenant", "version", *columns, "priority", "max_attempts", "state", "attempts", "token"))
        async with driver.cursor().copy(f"COPY callgate_jobs ({listed}) FROM STDIN") as rows:
            for job in jobs:
                told = (getattr(job, "user" if name == "person" else name) for name in columns)
                await rows.write_row((ANN.tenant, 1, *told, 0, job.max_attempts, "queued", 0, 0))
        if engine:
            listed = "queue_name, task_name, queueing_lock, args"
            async with driver.cursor().copy(f"COPY procrastinate_jobs ({listed}) FROM STDIN") as rows:
                for job in jobs:
                    await rows.write_row((job.queue, TASK, job.id, f'{{"id": "{job.id}"}}'))


async def sql(owner: Gate, text: str, *values: Any) -> list[Any]:
    """The rows that a statement gives, on a connection of the store."""
    store: Any = owner.store
    async with store.transaction() as within:
        done = await within.driver().execute(text, values)
        return list(await done.fetchall()) if done.description else []


# ---------------------------------------------------------------------------------------------- what became of them


async def account(owner: Gate, asked: Mapping[str, int], ran: Iterable[int], *, may_wait: bool = False) -> Counter[str]:
    """How many of the jobs that were *asked* for, ids and numbers, are ``lost``, and how often one ran once more.

    One is lost that did not run, or has no result that says so. Where only a part was to run, others wait untouched.
    """
    times, found = Counter(ran), Counter[str]()
    outcome = "convert_from(result, 'UTF8')::json ->> 'outcome'"
    kept = {id: row for id, *row in await sql(owner, f"SELECT id, state, {outcome} FROM callgate_jobs")}
    for id, n in asked.items():
        state, outcome = kept.get(id, (None, None))
        fine = times[n] and state == JobState.DONE and outcome == Outcome.SUCCESS
        waits = may_wait and state == JobState.QUEUED and not times[n]
        found["lost"] += not (fine or waits)
        found["doubled"] += max(times[n] - 1, 0)
    return found
