"""Access to a SQL database: transactions, statements and the schema."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

from callgate.errors import StoreError
from callgate.providers.stores.server_answers import LOCK_WAIT, ServerAnswers
from callgate.providers.stores.sql_clock import NEWEST, FileClock, ServerClock
from callgate.providers.stores.sql_connections import (
    Attempt,
    ShieldedConnection,
    all_rows,
    attempt_errors,
    begin,
    commit,
    disconnect,
    first_row,
    outdated,
    read_url,
    refuse_unusable,
    roll_back,
    run_statement,
    shielded,
    shielded_connection,
    sql_errors,
    sqlite_file,
)
from callgate.providers.stores.sql_engines import Engines
from callgate.providers.stores.sql_schema import alone, to_wal, upgrade_schema, without_waiting
from callgate.providers.stores.sql_statements import sql_float
from callgate.providers.stores.sql_states import retried

HEAD = "0006"
"""The newest revision in ``migrations/versions``."""

POOL_SIZE = 8
"""Connections for calls, by default. Most writes of calls need none of them: see ``GroupCommit``."""
_MIGRATING = 0x63616C6C67617465
"""The advisory lock of PostgreSQL for migrations."""

_EXTRA = 'this store needs packages that are not installed: pip install "callgate[sql]"'
_CLOCK_SKEW = 60.0  # seconds; the clock of another process may be behind

_SWEPT = {
    "callgate_cache": "stale_until < :before",
    "callgate_quotas": "ends < :before",
    "callgate_places": "ends < :before",
    "callgate_consents": "expires_at < :before",
}
"""The condition of expired rows by table."""
_SWEEP = "DELETE FROM {table} WHERE {condition}"
# Rows that another transaction has locked are left to the next sweep, so that sweeps never wait, nor cause deadlocks.
_SWEEP_POSTGRES = (
    "DELETE FROM {table} WHERE ctid IN (SELECT ctid FROM {table} WHERE {condition} FOR UPDATE SKIP LOCKED)"
)

T = TypeVar("T")


class Database:
    """One database. Its commits are on the disk when they return."""

    def __init__(
        self, url: str, now: Callable[[], float] | None = None, *, pool_size: int = POOL_SIZE, migrate: bool = True
    ) -> None:
        if not all(find_spec(name) for name in ("sqlalchemy", "alembic", "aiosqlite", "psycopg")):
            raise StoreError(_EXTRA)
        self.url = read_url(url)
        self.migrates = migrate
        self.lite = self.url.get_backend_name() == "sqlite"
        self.in_memory = self.lite and self.url.database in {None, "", ":memory:"}
        self._file = sqlite_file(self.url) if self.lite else None
        own = None if now not in {None, time.time} else FileClock() if self.lite else ServerClock()
        self._clock: ServerClock | FileClock | None = own
        self.now: Callable[[], float] = self._clock or now or time.time
        self.pool_size = 1 if self.in_memory else pool_size
        self._engines: Engines | None = None
        self._keeper: Any = None
        self._write_lock = asyncio.Lock()
        self._holders = set[Any]()
        self._writes = 0
        self._answers = ServerAnswers("postgresql")

    def __repr__(self) -> str:
        return f"<database {self.shown}>"

    @property
    def shown(self) -> str:
        """The URL without secrets: without the password and the options of the driver."""
        return str(self.url.set(query={}).render_as_string(hide_password=True))

    async def open(self) -> None:
        """Connect, and migrate the schema if it is not up to date, or refuse it."""
        if self._engines is not None:
            return
        if self._has_no_file() and not self.migrates:
            raise self._outdated(None)
        try:
            self._connect()
            await self._migrate()
            await self.synchronise()
            await self.sweep()
        except BaseException:
            await self.close()
            raise

    def _connect(self) -> None:
        url = self.url
        refuse_unusable(self._file)
        self._write_lock = asyncio.Lock()  # belongs to this event loop
        if self.in_memory:
            import sqlite3

            name = f"file:callgate-{uuid.uuid4().hex}?mode=memory&cache=shared"
            self._keeper = sqlite3.connect(name, uri=True)  # the database exists as long as a connection is open
            url = read_url(f"sqlite:///{name}&uri=true")
        self._engines = Engines(url, self.pool_size)

    async def close(self) -> None:
        """Disconnect. The database can be opened again."""
        engines, keeper = self._engines, self._keeper
        self._engines = self._keeper = None
        try:
            if engines is not None:
                await engines.dispose()
        finally:
            if keeper is not None:
                keeper.close()

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[Any, None]:
        """Open a connection in autocommit mode."""
        engine = self.engines.calls
        async with self.reading_alone(), self._turn(engine):
            with sql_errors(self.url.get_backend_name()):
                async with shielded_connection(engine) if self.lite else engine.connect() as connection:
                    yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[Any, None]:
        """Open a transaction that is committed at the end and rolled back on any error.

        SQLite has one writer at a time. The writers of this process queue here in order of arrival; ``BEGIN IMMEDIATE``
        keeps other processes from changing a row between its read and its write.
        """
        from sqlalchemy.ext.asyncio import AsyncConnection

        engine, attempt = self.engines.calls, Attempt()
        async with self.writing_alone(), self._turn(engine), self.answered(attempt):
            with attempt_errors(self.url.get_backend_name(), attempt), self._holding():
                try:
                    await self._step(begin, engine.sync_engine, attempt, LOCK_WAIT.get())
                    connection = AsyncConnection(engine, attempt.connection)
                    yield ShieldedConnection(connection) if self.lite else connection
                    await self._step(commit, attempt)
                except BaseException:
                    await shielded(roll_back(attempt))
                    raise

    async def transact(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run *work* with the connection of a transaction, and again as ``retried`` says."""

        async def once() -> T:
            async with self.writing() as connection:
                return await work(connection)

        return await retried(once)

    async def rows(self, statement: Any, values: Mapping[str, Any]) -> list[Any]:
        """Run one reading statement and return its rows; see ``retried``."""

        async def read() -> Any:
            async with self.reading_alone():
                return await self._run(self.engines.calls, statement, values, all_rows)

        return list(await retried(read))

    async def write(self, statement: Any, values: Mapping[str, Any], *, upkeep: bool = False) -> Any:
        """Run one writing statement. Return its first row, or the number of changed rows.

        With *upkeep* it does not wait for the connections of calls.
        """
        return await self._write(statement, values, first_row, upkeep=upkeep)

    async def write_rows(self, statement: Any, values: Mapping[str, Any], *, upkeep: bool = False) -> list[Any]:
        """Run one writing statement. Return all its rows."""
        return list(await self._write(statement, values, all_rows, upkeep=upkeep))

    async def _write(
        self, statement: Any, values: Mapping[str, Any], read: Callable[[Any], Any], *, upkeep: bool
    ) -> Any:
        engine, asked = self.engines.upkeep if upkeep else self.engines.calls, self.now()

        async def write() -> Any:
            async with self.writing_alone():
                return await self._run(engine, statement, values, read, asked)

        return await retried(write)

    async def _run(
        self,
        engine: Any,
        statement: Any,
        values: Mapping[str, Any],
        read: Callable[[Any], Any],
        asked: float | None = None,
    ) -> Any:
        """Run a statement; *asked* is the time at which a writing one was asked for."""
        held, writes = Attempt(), asked is not None
        async with self._turn(engine), self.answered(held):
            given = values if asked is None else leased(values, self.now() - asked)
            with attempt_errors(self.url.get_backend_name(), held):
                return await self._step(run_statement, engine.sync_engine, held, statement, given, read, writes=writes)

    def answered(self, attempt: Attempt | None = None) -> AbstractAsyncContextManager[None]:
        """Wait for the server of PostgreSQL; see ``ServerAnswers``. SQLite has none."""
        if self.lite:
            return nullcontext()
        return self._answers.awaited(None if attempt is None else partial(disconnect, attempt))

    async def _step(self, work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Run *work* on a connection; with SQLite it is shielded from cancellation (see ``shielded_connection``)."""
        from sqlalchemy.util import greenlet_spawn

        step = greenlet_spawn(work, *given, **named)
        return await (shielded(step) if self.lite else step)

    async def synchronise(self) -> None:
        """Set the clock by the server, or once by the SQLite file. With a clock of the caller it does nothing.

        Raises:
            StoreError: the server did not answer.
        """
        if self._clock is None:
            return
        from sqlalchemy import text

        if isinstance(self._clock, FileClock):
            if not self._clock.begun:
                self._clock.begin((await self.rows(text(NEWEST), {}))[0][0])
            return
        asked = time.perf_counter()
        rows = await self._run(self.engines.upkeep, text("SELECT extract(epoch FROM clock_timestamp())"), {}, all_rows)
        self._clock.set(float(rows[0][0]), asked, time.perf_counter())

    async def sweep(self) -> None:
        """Delete expired rows of all tenants."""
        from sqlalchemy import text

        sweep = _SWEEP if self.lite else _SWEEP_POSTGRES
        for table, condition in _SWEPT.items():
            values = {"before": self.now() - _CLOCK_SKEW}
            await self.write(text(sweep.format(table=table, condition=condition)), values, upkeep=True)

    async def wrote(self) -> None:
        """Count one write that adds a row, and delete expired rows from time to time."""
        self._writes += 1
        if self._writes >= 5_000:
            self._writes = 0
            try:
                await self.sweep()
            except StoreError:  # the counted write has succeeded; a failed sweep must not fail it
                pass

    @asynccontextmanager
    async def writing_alone(self) -> AsyncGenerator[None, None]:
        """Wait until no other task of this process writes to SQLite. PostgreSQL needs no such order."""
        if not self.lite:
            yield
            return
        self.refuse_nesting()
        async with self._write_lock:
            with self._holding():
                yield

    def reading_alone(self) -> AbstractAsyncContextManager[None]:
        """Wait for the writer of a database in memory, whose connections lock each other's tables. Others need not."""
        return self.writing_alone() if self.in_memory else nullcontext()

    @contextmanager
    def _holding(self) -> Generator[None, None, None]:
        task = asyncio.current_task()
        first = task not in self._holders
        self._holders.add(task)
        try:
            yield
        finally:
            if first:
                self._holders.discard(task)

    def refuse_nesting(self) -> None:
        """Refuse what would wait for the open transaction of the same task.

        Raises:
            StoreError: the current task has an open transaction.
        """
        if asyncio.current_task() in self._holders:
            raise StoreError("this task has an open transaction on the store; use the parts of the transaction instead")

    @asynccontextmanager
    async def _turn(self, engine: Any) -> AsyncGenerator[None, None]:
        """Wait for a connection, unless the task has a transaction: tasks that have all connections would wait for ever."""
        if not self.lite and self.engines.is_exhausted(engine):
            self.refuse_nesting()
        async with self.engines.turn(engine):
            yield

    @property
    def engines(self) -> Engines:
        """The connections.

        Raises:
            StoreError: the store is not open.
        """
        if self._engines is None:
            raise StoreError(
                "the store is not open; use it in `async with Gate(store=...)`, or call `await store.open()`"
            )
        return self._engines

    async def _migrate(self) -> None:
        with sql_errors(self.url.get_backend_name()):
            if self.migrates:
                await self._use_wal()
            at, oldest = await self._schema()
            if not self.migrates:
                if at is None or at < HEAD:
                    raise self._outdated(at)
                await self._use_wal()  # only now: the file may be another application's
        if at != HEAD and not (at is not None and oldest is not None and oldest <= HEAD < at):  # newer, and serves us
            await without_waiting(self._upgrade)

    async def _upgrade(self, lock_wait: int) -> None:
        from sqlalchemy import text

        async with alone(), self.writing() as connection:
            if not self.lite:  # other migrations are waited for: they hold no lock that the service needs meanwhile
                await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATING})
                await connection.execute(text(f"SET LOCAL lock_timeout = {lock_wait}"))
            await connection.run_sync(upgrade_schema)

    async def _use_wal(self) -> None:
        if self._file is not None:
            await to_wal(self.engines.calls)

    def _outdated(self, revision: str | None) -> StoreError:
        return outdated(self.url.get_backend_name(), self._file, revision, HEAD)

    async def revision(self) -> str | None:
        """Return the revision of the schema, or None without a schema. Connects if needed, and changes nothing.

        Raises:
            StoreError: the database cannot be reached.
        """
        if self._has_no_file():
            return None
        opens = self._engines is None
        try:
            with sql_errors(self.url.get_backend_name()):
                if opens:
                    self._connect()
                return (await self._schema())[0]
        finally:
            if opens:
                await self.close()

    def _has_no_file(self) -> bool:
        """Return True when the SQLite file does not exist: connecting would create it."""
        return self._file is not None and not self._file.exists()

    async def _schema(self) -> tuple[str | None, str | None]:
        """Return the revision of the schema, and the oldest one whose code it serves; None where there is none."""
        from sqlalchemy import text
        from sqlalchemy.exc import DBAPIError

        async with self.engines.calls.connect() as connection:
            try:
                row = (await connection.execute(text("SELECT * FROM callgate_schema"))).mappings().first()
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) == "42P01" or "no such table" in str(error.orig):
                    return None, None
                raise
            return (None, None) if row is None else (row["version_num"], row.get("serves"))


def leased(values: Mapping[str, Any], waited: float) -> Mapping[str, Any]:
    """Return the values of a statement that has waited for so many seconds. The lease that ends ``until`` begins now."""
    until: float | None = values.get("until")
    return values if until is None or waited <= 0.0 else {**values, "until": sql_float(until + waited)}
