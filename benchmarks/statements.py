"""What a submitted call sends to its database, counted as it is sent: ``python -m benchmarks.statements`` prints the table
of ``docs/scale.md``, which a test compares with what it counts itself.

Some calls are submitted, then run by a worker, and, where they ask for approval, decided and run on. What is sent as often as there
are calls, or a multiple of that, belongs to a call; the rest (connections, polls, heartbeats, leases) to the worker.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.workers_place import ANN, KEY, NoPostgres, schemas
from callgate import Approve, Gate, Jobs, ToolCall, User, tool
from callgate.hooks import Audit
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.sql.database.engines import Engines
from callgate.runtime.hosts.procrastinate import ProcrastinateJobs
from callgate.runtime.options.job_engine import JobBackend, Tally

CALLS = 16
LEA = User("lea", "acme")
HEAD = ("Engine and store", "The call", "Submit", "Run", "Decide", "Run on", "Waits for the disk")
ENGINES: Mapping[str, tuple[str, Callable[[], JobBackend]]] = {
    "embedded, SQLite": ("sqlite", lambda: EmbeddedJobs(0)),
    "embedded, PostgreSQL": ("postgresql", lambda: EmbeddedJobs(0)),
    "Procrastinate": ("postgresql", ProcrastinateJobs),
}


@tool(effect="read")
async def look(n: int) -> int:
    """Look something up."""
    return n


@tool(effect="irreversible")
async def pay(n: int) -> int:
    """Pay somebody."""
    return n


@tool(effect="irreversible", requires_approval=True)
async def approved(n: int) -> int:
    """Pay somebody, once a person has agreed."""
    return n


KINDS = {
    "reads": (look, ()),
    "has an effect": (pay, ()),
    "has an effect, with `Audit`": (pay, (Audit,)),
    "has an effect, is approved": (approved, ()),
}
"""Tool and classes of hooks of each kind of call."""


@dataclass
class Sent:
    """What was sent: how often each statement that stood alone, and each transaction, as the texts in it."""

    times: Counter[tuple[str, ...]] = field(default_factory=Counter)
    hasty: set[int] = field(default_factory=set)
    """Connections that do not wait for the disk."""

    _open: dict[int, list[str]] = field(default_factory=dict)

    def note(self, connection: int, text: str) -> None:
        """One text that is about to be sent."""
        said = " ".join(text.split())
        if "synchronous_commit = off" in said:
            self.hasty.add(connection)
        elif said.startswith("BEGIN"):
            self._open[connection] = [said]
        elif connection in self._open:
            self._open[connection].append(said)
            if said == "COMMIT":
                self._end(connection, tuple(self._open.pop(connection)))
        elif said:
            self._end(connection, (said,))

    def _end(self, connection: int, texts: tuple[str, ...]) -> None:
        self.times[("hasty", *texts) if connection in self.hasty else texts] += 1

    def take(self) -> Counter[tuple[str, ...]]:
        """What was sent since it was last asked."""
        times, self.times = self.times, Counter()
        return times


@dataclass(frozen=True)
class Cost:
    """Of one call: texts that are sent, transactions that write, and of these those that wait for the disk."""

    sent: int = 0
    wrote: int = 0
    flushed: int = 0

    def __str__(self) -> str:
        return f"{self.sent} / {self.wrote}" if self.sent else ""


def cost(times: Counter[tuple[str, ...]]) -> Cost:
    """What belongs to one of ``CALLS``."""
    sent = wrote = flushed = 0
    for texts, number in times.items():
        a_call = number // CALLS
        said = [text for text in texts if text != "hasty"]
        writes = any(not _only_reads(text) for text in said)
        sent += a_call * len(said)
        wrote += a_call * writes
        flushed += a_call * (writes and "hasty" not in texts)
    return Cost(sent, wrote, flushed)


def _only_reads(text: str) -> bool:
    told = text.startswith(("BEGIN", "COMMIT", "SELECT", "PRAGMA", "SHOW"))
    return told and "procrastinate_" not in text  # its functions write


@contextmanager
def watching() -> Generator[Sent]:
    """Everything that this process sends to a database within, by whatever connection."""
    import psycopg
    from sqlalchemy import Engine, event

    sent, execute, connect = Sent(), psycopg.AsyncCursor.execute, Engines.connect_lite

    async def noting(cursor: Any, query: Any, *more: Any, **options: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else query if isinstance(query, str) else query.as_string()
        sent.note(id(cursor.connection), text)
        return await execute(cursor, query, *more, **options)

    def note(connection: Any, cursor: Any, text: str, *more: Any) -> None:
        if connection.dialect.name == "sqlite":
            sent.note(id(connection.connection.dbapi_connection), text)

    def connecting(self: Engines, **given: Any) -> Any:
        """The connection of group commit, which has no engine. Its texts have values; their beginnings have none."""
        made = connect(self, **given)
        made.set_trace_callback(lambda text: None if text.startswith("--") else sent.note(id(made), text[:50]))
        return made

    Engines.connect_lite = connecting  # type: ignore[method-assign]
    psycopg.AsyncCursor.execute = noting  # type: ignore[method-assign, assignment]
    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        psycopg.AsyncCursor.execute = execute  # type: ignore[method-assign]
        Engines.connect_lite = connect  # type: ignore[method-assign]
        event.remove(Engine, "before_cursor_execute", note)


async def work(engine: JobBackend, tally: Tally) -> None:
    """Run a worker until each call has ended or is suspended."""
    stop = asyncio.Event()
    working = asyncio.create_task(engine.work(1, (), stop, 10.0, tally))
    while tally.done + tally.suspended < CALLS:  # noqa: ASYNC110  (the store says so, and is not to be asked)
        await asyncio.sleep(0.01)
    stop.set()
    await working


async def phases(engine: JobBackend, store: str, kind: str) -> list[Cost]:
    """Submit, run, decide, run on."""
    used, hooks = KINDS[kind]
    tally = Tally()
    options: dict[str, Any] = {"jobs": Jobs(engine=engine, lease=3_600.0), "signing_keys": [KEY]}
    with watching() as sent:
        made = [make() for make in hooks]
        async with Gate([used], made, allow_unguarded=True, store=store, **options) as gate, asyncio.timeout(60.0):
            name = gate.registry.list()[0].id
            sent.take()
            jobs = [
                await gate.submit(ToolCall(id=f"c{n}", name=name, arguments={"n": n}), user=ANN) for n in range(CALLS)
            ]
            found = [cost(sent.take())]
            await work(engine, tally)
            found.append(cost(sent.take()))
            waiting = await gate.waits.pending(LEA, limit=CALLS)
            sent.take()
            for one in waiting:
                await gate.waits.decide(one.handle, Approve(), LEA)
            found.append(cost(sent.take()))
            tally.suspended = 0
            await work(engine, tally)
            found.append(cost(sent.take()))
            if tally.dead or {(await job.settled()).outcome for job in jobs} != {"success"}:
                raise SystemExit("the benchmark is broken: a call did not end as it should")
    return found


async def rows(database: str, make: Callable[[], str]) -> list[tuple[str, ...]]:
    """The lines of the table for one database; *make* gives the address of an empty one."""
    found = []
    for engine, (needed, backend) in ENGINES.items():
        store = make() if needed == database else ""
        for kind in KINDS if store else ():
            costs = await phases(backend(), store, kind)
            found.append((engine, kind, *map(str, costs), str(sum(each.flushed for each in costs))))
    return found


def as_table(lines: Iterable[tuple[str, ...]], head: tuple[str, ...] = HEAD) -> str:
    """As it stands in the page."""
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ("---",) * len(head), *lines])


def main() -> int:
    with TemporaryDirectory() as folder:
        found = asyncio.run(rows("sqlite", lambda: f"sqlite:///{folder}/store.db"))
    try:
        with schemas() as make:
            found += asyncio.run(rows("postgresql", make))
    except NoPostgres as error:
        print(f"SQLite alone: {error}", file=sys.stderr)
    print(as_table(found), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
