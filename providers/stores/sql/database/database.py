"""Access to a SQL database: transactions, statements and the schema."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, nullcontext, suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from callgate.errors import StoreError
from callgate.providers.concurrency import refuse_other_loop, refuse_trio
from callgate.providers.stores.server_answers import LOCK_WAIT, ServerAnswers
from callgate.providers.stores.sql.database.clock import FileClock, ServerClock
from callgate.providers.stores.sql.database.connections import (
    Attempt,
    Connected,
    Read,
    ShieldedConnection,
    all_rows,
    attempt_errors,
    begin,
    commit,
    disconnect,
    first_row,
    open_reader,
    outdated,
    roll_back,
    run_statement,
    sql_errors,
)
from callgate.providers.stores.sql.database.engines import UNLIMITED, Engines
from callgate.providers.stores.sql.database.rows import Row
from callgate.providers.stores.sql.database.schema import SERVES, alone, sweeps, to_wal, upgrade_schema, without_waiting
from callgate.providers.stores.sql.database.statements import leased
from callgate.providers.stores.sql.database.states import retried
from callgate.providers.stores.sql.database.urls import located, prepare, read_url, shown_url, sqlite_file
from callgate.providers.stores.turns import Entered, Turns

if TYPE_CHECKING:
    from sqlalchemy import TextClause
    from sqlalchemy.ext.asyncio import AsyncEngine

HEAD = "0007"
"""The newest revision in ``migrations/versions``."""

POOL_SIZE = 8
"""Connections for calls, by default. Most writes of calls need none of them: see ``GroupCommit``."""
_MIGRATING = 0x63616C6C67617465
"""The advisory lock of PostgreSQL for migrations."""

_EXTRA = 'this store needs packages that are not installed: pip install "callgate[sql]"'
_NOT_OPEN = "the store is not open; use it in `async with Gate(store=...)`, or call `await store.open()`"
_CLOCK_SKEW = 60.0  # seconds; the clock of another process may be behind

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
        self._file = sqlite_file(self.url) if self.lite else None
        self.in_memory = self.lite and self._file is None
        own = None if now not in {None, time.time} else FileClock() if self.lite else ServerClock()
        self._clock: ServerClock | FileClock | None = own
        self.now: Callable[[], float] = self._clock or now or time.time
        self.pool_size = 1 if self.in_memory else pool_size
        self._engines: Engines | None = None
        self._home: asyncio.AbstractEventLoop | None = None
        self._keeper: Any = None
        self.turn = Turns()
        """The turn of the tasks of this process that write to SQLite."""
        self._holders = set[asyncio.Task[object] | None]()
        self._writes, self._answers = 0, ServerAnswers("postgresql")

    def __repr__(self) -> str:
        return f"<database {self.shown}>"

    @property
    def shown(self) -> str:
        """The URL without secrets: without the user, the password and the options of the driver."""
        return shown_url(self.url)

    async def open(self, *, upgrade: bool = False) -> None:
        """Connect, and migrate the schema if it is not up to date, or refuse it; with *upgrade* migrate it always."""
        refuse_trio()
        if self._engines is not None:
            refuse_other_loop(self._home)
            return
        if self._has_no_file() and not (self.migrates or upgrade):
            raise self._outdated(None)
        try:
            self._connect()
            await self._migrate(upgrade)
            self.engines.file.hold()
            await self.synchronise()
            await self.sweep()
        except BaseException:
            await self.close()
            raise

    def _connect(self) -> None:
        url = located(self.url, self._file)
        prepare(url, self._file)
        self._home, self.turn = asyncio.get_running_loop(), Turns()  # both belong to this event loop
        self._answers = ServerAnswers("postgresql")  # silence of earlier is no reason not to ask
        if self.in_memory:
            import sqlite3

            name = f"file:callgate-{uuid.uuid4().hex}?mode=memory&cache=shared"
            self._keeper = sqlite3.connect(name, uri=True)  # the database exists as long as a connection is open
            url = read_url(f"sqlite:///{name}&uri=true")
        self._engines = Engines(url, self.pool_size, self._file)

    async def close(self) -> None:
        """Disconnect. The database can be opened again."""
        try:
            if isinstance(self._clock, FileClock):
                await self._clock.leave(self)
        finally:
            engines, keeper = self._engines, self._keeper
            self._engines = self._keeper = None
            try:
                if engines is not None:
                    await engines.dispose()
            finally:
                if keeper is not None:
                    keeper.close()

    def reading(self, opening: str | None = None) -> AbstractAsyncContextManager[Connected]:
        """Open a connection in autocommit mode; with *opening*, in a transaction that this statement begins."""
        return Entered(partial(self._read, opening))

    async def _read(self, opening: str | None, stack: AsyncExitStack) -> Connected:
        engine, attempt = self.engines.calls, Attempt()
        await self._visit(attempt, engine, stack, alone=self.in_memory)
        stack.enter_context(sql_errors(self.url.get_backend_name()))
        return await open_reader(engine, attempt, opening, stack)

    def writing(self) -> AbstractAsyncContextManager[Connected]:
        """Open a transaction that is committed at the end and rolled back on any error.

        SQLite has one writer at a time. The writers of this process queue here in order of arrival; ``BEGIN IMMEDIATE``
        keeps other processes from changing a row between its read and its write.
        """
        return Entered(self._begin)

    async def _begin(self, stack: AsyncExitStack) -> Connected:
        from sqlalchemy.ext.asyncio import AsyncConnection

        engine, attempt = self.engines.calls, Attempt()
        await self._visit(attempt, engine, stack, alone=True)
        await stack.enter_async_context(self.answered(attempt))
        stack.enter_context(attempt_errors(self.url.get_backend_name(), attempt))
        stack.enter_context(self._holding())

        async def end(_: object, error: BaseException | None, __: object) -> None:
            try:
                if error is None:
                    await self._step(attempt, commit, attempt)
                    return
            except BaseException as failed:
                await attempt.end(failed, roll_back(attempt))
                raise
            await attempt.end(error, roll_back(attempt))

        stack.push_async_exit(end)
        await self._step(attempt, begin, engine.sync_engine, attempt, LOCK_WAIT.get())
        connection = AsyncConnection(engine, attempt.connection)
        return ShieldedConnection(connection, attempt) if self.lite else connection

    async def transact(self, work: Callable[[Connected], Awaitable[T]]) -> T:
        """Run *work* with the connection of a transaction, and again as ``retried`` says."""

        async def once() -> T:
            async with self.writing() as connection:
                return await work(connection)

        return await retried(once)

    async def rows(self, statement: TextClause, values: Mapping[str, object]) -> list[Row]:
        """Run one reading statement and return its rows; see ``retried``."""
        read = partial(self._run, self.engines.calls, statement, values, all_rows, alone=self.in_memory)
        return list(await retried(read))

    async def write(self, statement: TextClause, values: Mapping[str, object], *, upkeep: bool = False) -> Any:
        """Run one writing statement. Return its first row, or the number of changed rows.

        With *upkeep* it does not wait for the connections of calls.
        """
        return await self._write(statement, values, first_row, upkeep=upkeep)

    async def write_rows(
        self, statement: TextClause, values: Mapping[str, object], *, upkeep: bool = False
    ) -> list[Row]:
        """Run one writing statement. Return all its rows."""
        return list(await self._write(statement, values, all_rows, upkeep=upkeep))

    async def _write(self, statement: TextClause, values: Mapping[str, object], read: Read[T], *, upkeep: bool) -> T:
        engine, asked = self.engines.upkeep if upkeep else self.engines.calls, self.now()
        return await retried(partial(self._run, engine, statement, values, read, asked, alone=True))

    async def _run(
        self,
        engine: AsyncEngine,
        statement: TextClause,
        values: Mapping[str, object],
        read: Read[T],
        asked: float | None = None,
        *,
        alone: bool = False,
    ) -> T:
        """Run a statement; *asked* is the time at which a writing one was asked for."""
        held, writes = Attempt(), asked is not None
        async with Entered(partial(self._visit, held, engine, alone=alone)), self.answered(held):
            given = values if asked is None else leased(values, self.now() - asked)
            with attempt_errors(self.url.get_backend_name(), held):
                return await self._step(
                    held, run_statement, engine.sync_engine, held, statement, given, read, writes=writes
                )

    def answered(self, attempt: Attempt | None = None) -> AbstractAsyncContextManager[None]:
        """Wait for the server of PostgreSQL; see ``ServerAnswers``. SQLite has none."""
        if self.lite:
            return nullcontext()
        return self._answers.awaited(None if attempt is None else partial(disconnect, attempt))

    async def _step(self, attempt: Attempt, work: Callable[..., T], *given: object, **named: Any) -> T:
        """Run *work* on a connection; with SQLite it is shielded from cancellation (see ``Attempt.shielded``)."""
        from sqlalchemy.util import greenlet_spawn

        step = greenlet_spawn(work, *given, **named)
        return await (attempt.shielded(step) if self.lite else step)

    async def synchronise(self) -> None:
        """Set the clock by the server or the SQLite file. With a clock of the caller it does nothing.

        Raises:
            StoreError: the server did not answer.
        """
        if isinstance(self._clock, FileClock):
            await self._clock.keep(self)
        elif self._clock is not None:
            from sqlalchemy import text

            sql, asked = text("SELECT extract(epoch FROM clock_timestamp())"), time.perf_counter()
            rows = await self._run(self.engines.upkeep, sql, {}, all_rows)
            self._clock.set(float(rows[0][0]), asked, time.perf_counter())

    async def sweep(self) -> None:
        """Delete expired rows of all tenants."""
        from sqlalchemy import text

        for sweep in sweeps(lite=self.lite):
            await self.write(text(sweep), {"before": self.now() - _CLOCK_SKEW}, upkeep=True)

    async def wrote(self) -> None:
        """Count one write that adds a row, and delete expired rows from time to time."""
        self._writes += 1
        if self._writes >= 5_000:
            self._writes = 0
            with suppress(StoreError):  # the counted write has succeeded; a failed sweep must not fail it
                await self.sweep()

    async def _wait_alone(self, attempt: Attempt, stack: AsyncExitStack) -> None:
        if self.lite:
            self.refuse_nesting()
            await self.turn.acquire()
            stack.callback(attempt.afterwards, self.turn.release)
            stack.enter_context(self._holding())

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

    @property
    def admission(self) -> Callable[[], None]:
        """The check of a task that wants to write. With PostgreSQL a task with a transaction gets another connection."""
        return self.refuse_nesting if self.lite else lambda: refuse_other_loop(self._home)

    def refuse_nesting(self) -> None:
        """Refuse what would wait for the open transaction of the same task, or for another event loop.

        Raises:
            StoreError: the current task has an open transaction, or is in another event loop.
        """
        if self._home is not asyncio.get_running_loop():
            refuse_other_loop(self._home)
        if self._holders and asyncio.current_task() in self._holders:
            raise StoreError("this task has an open transaction on the store; use the parts of the transaction instead")

    async def _visit(self, attempt: Attempt, engine: AsyncEngine, stack: AsyncExitStack, *, alone: bool) -> None:
        """Wait for the permits of an attempt, unless the task has a transaction: it would wait for itself.

        *alone*: it writes, or reads a database in memory, whose connections lock each other's tables.
        """
        if alone:
            await self._wait_alone(attempt, stack)
        if not self.lite and self.engines.is_exhausted(engine):
            self.refuse_nesting()
        stack.callback(attempt.afterwards, await self.engines.turn(engine))

    @property
    def engines(self) -> Engines:
        """The connections.

        Raises:
            StoreError: the store is not open, or not in this event loop.
        """
        if self._engines is None:
            raise StoreError(_NOT_OPEN)
        refuse_other_loop(self._home)
        return self._engines

    async def _migrate(self, upgrade: bool) -> None:
        with sql_errors(self.url.get_backend_name()):
            if self.migrates:
                await self._use_wal()
            at, oldest = await self._schema()
            if not upgrade and ((at or SERVES) < SERVES if self.migrates else (at or "") < HEAD):
                raise self._outdated(at)
            if not self.migrates:
                await self._use_wal()  # only now: the file may be another application's
        if at != HEAD and not (at is not None and oldest is not None and oldest <= HEAD < at):  # newer, and serves us
            await without_waiting(self._upgrade)

    async def _upgrade(self, lock_wait: int) -> None:
        from sqlalchemy import text

        async with alone(), self.writing() as connection:
            connection.info[UNLIMITED] = True  # a large table takes minutes
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
