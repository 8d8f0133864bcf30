"""Access to a SQL database: connections, transactions, errors and the schema."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from callgate.errors import StoreError
from callgate.providers.stores.sql_connections import (
    ShieldedConnection,
    begin,
    commit,
    roll_back,
    run_statement,
    shielded,
    shielded_connection,
    sql_errors,
)

HEAD = "0004"
"""The newest revision in ``migrations/versions``."""

_MIGRATING = 0x63616C6C67617465
"""The advisory lock of PostgreSQL for migrations."""

_KEEPALIVES = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
"""Parameters of libpq for a server or network that stops responding: the connection fails after half a minute, and not
after 15 minutes or more. Parameters in the address win."""

_EXTRA = 'this store needs packages that are not installed: pip install "callgate[sql]"'
_CLOCK_SKEW = 60.0  # seconds; the clock of another process may be behind

_SWEEPS = (
    "DELETE FROM callgate_cache WHERE stale_until < :before",
    "DELETE FROM callgate_quotas WHERE ends < :before",
    "DELETE FROM callgate_places WHERE ends < :before",
    "DELETE FROM callgate_consents WHERE expires_at < :before",
)


class Database:
    """One database with two connection pools; commits with ``durable=True`` are on the disk when they return.

    Cache, rate limits and concurrency limits may lose their last writes when the machine crashes; other records may not.
    """

    def __init__(self, url: str, now: Callable[[], float] = time.time, *, pool_size: int = 10) -> None:
        if not all(find_spec(name) for name in ("sqlalchemy", "alembic", "aiosqlite", "psycopg")):
            raise StoreError(_EXTRA)
        self.url = read_url(url)
        self.lite = self.url.get_backend_name() == "sqlite"
        self.in_memory = self.lite and self.url.database in {None, "", ":memory:"}
        self.now = now
        self.pool_size = 1 if self.in_memory else pool_size
        self._usual: Any = None
        self._durable: Any = None
        self._keeper: Any = None
        self._write_lock = asyncio.Lock()
        self._writer: Any = None
        self._writes = 0

    def __repr__(self) -> str:
        return f"<database {self.shown}>"

    @property
    def shown(self) -> str:
        """The URL without secrets: without the password and the options of the driver."""
        return str(self.url.set(query={}).render_as_string(hide_password=True))

    async def open(self) -> None:
        """Connect, and migrate the schema if it is not up to date."""
        if self._usual is not None:
            return
        try:
            self._connect()
            await self._migrate()
            await self.sweep()
        except BaseException:
            await self.close()
            raise

    def _connect(self) -> None:
        url = self.url
        if self.lite and not self.in_memory and not Path(url.database).absolute().parent.is_dir():
            raise StoreError("sqlite: unable to open database file: its folder does not exist; create the folder first")
        self._write_lock = asyncio.Lock()  # belongs to this event loop
        if self.in_memory:
            import sqlite3

            name = f"file:callgate-{uuid.uuid4().hex}?mode=memory&cache=shared"
            self._keeper = sqlite3.connect(name, uri=True)  # the database exists as long as a connection is open
            url = read_url(f"sqlite:///{name}&uri=true")
        self._durable = self._engine(url, durable=True)
        self._usual = self._durable if self.in_memory else self._engine(url, durable=False)

    def _engine(self, url: Any, *, durable: bool) -> Any:
        from sqlalchemy import AsyncAdaptedQueuePool, event
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(
            url,
            isolation_level="AUTOCOMMIT",  # one statement is one round trip; transactions are begun by hand
            poolclass=AsyncAdaptedQueuePool,
            pool_size=1 if self.lite and durable else self.pool_size,
            max_overflow=0,
            pool_timeout=10.0,
            hide_parameters=True,
            connect_args={}
            if self.lite
            else {key: value for key, value in _KEEPALIVES.items() if key not in url.query},
        )
        settings = (_lite_settings if self.lite else _postgres_settings)(durable=durable)

        def configure(connection: Any, _: Any) -> None:
            cursor = connection.cursor()
            for setting in settings:
                cursor.execute(setting)
            cursor.close()

        event.listen(engine.sync_engine, "connect", configure)
        return engine

    async def close(self) -> None:
        """Disconnect. The database can be opened again."""
        usual, durable, keeper = self._usual, self._durable, self._keeper
        self._usual = self._durable = self._keeper = None
        try:
            for engine in {usual, durable} - {None}:
                await engine.dispose()
        finally:
            if keeper is not None:
                keeper.close()

    @asynccontextmanager
    async def reading(self, *, durable: bool = False) -> AsyncGenerator[Any, None]:
        """Open a connection in autocommit mode."""
        if self.in_memory:
            self._refuse_nesting()
        async with self._lend(durable=durable) as connection:
            yield connection

    @asynccontextmanager
    async def writing(self, *, durable: bool = False) -> AsyncGenerator[Any, None]:
        """Open a transaction that is committed at the end and rolled back on any error.

        SQLite has one writer at a time. The writers of this process queue here in order of arrival; ``BEGIN IMMEDIATE``
        keeps other processes from changing a row between its read and its write.
        """
        from sqlalchemy.ext.asyncio import AsyncConnection

        async with self._writing_alone():
            engine, connections = self._engine_for(durable=durable), list[Any]()
            with sql_errors(self.url.get_backend_name()):
                try:
                    await self._step(
                        begin, engine.sync_engine, connections, "BEGIN IMMEDIATE" if self.lite else "BEGIN"
                    )
                    connection = AsyncConnection(engine, connections[0])
                    yield ShieldedConnection(connection) if self.lite else connection
                    await self._step(commit, connections[0])
                except BaseException:
                    await shielded(roll_back(connections))
                    raise

    async def rows(self, statement: Any, values: Mapping[str, Any]) -> list[Any]:
        """Run one reading statement and return its rows. It is retried once if the server has dropped the connection."""
        if self.in_memory:
            self._refuse_nesting()
        for last in (False, True):
            try:
                return list(await self._run(statement, values, _all, durable=False))
            except StoreError as error:
                if last or not getattr(error.__cause__, "connection_invalidated", False):
                    raise
        raise AssertionError  # the second attempt returns or raises

    async def write(self, statement: Any, values: Mapping[str, Any], *, durable: bool = False) -> Any:
        """Run one writing statement. Return its first row, or the number of changed rows."""
        async with self._writing_alone():
            return await self._run(statement, values, _first, durable=durable)

    async def write_rows(self, statement: Any, values: Mapping[str, Any], *, durable: bool = False) -> list[Any]:
        """Run one writing statement. Return all its rows."""
        async with self._writing_alone():
            return list(await self._run(statement, values, _all, durable=durable))

    async def _run(
        self, statement: Any, values: Mapping[str, Any], read: Callable[[Any], Any], *, durable: bool
    ) -> Any:
        engine = self._engine_for(durable=durable)
        with sql_errors(self.url.get_backend_name()):
            return await self._step(run_statement, engine.sync_engine, statement, values, read)

    async def _step(self, work: Callable[..., Any], *given: Any) -> Any:
        """Run *work* on a connection; with SQLite it is shielded from cancellation (see ``shielded_connection``)."""
        from sqlalchemy.util import greenlet_spawn

        step = greenlet_spawn(work, *given)
        return await (shielded(step) if self.lite else step)

    async def sweep(self) -> None:
        """Delete expired rows of all tenants."""
        from sqlalchemy import text

        for statement in _SWEEPS:
            await self.write(text(statement), {"before": self.now() - _CLOCK_SKEW})

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
    async def _writing_alone(self) -> AsyncGenerator[None, None]:
        if not self.lite:
            yield
            return
        self._refuse_nesting()
        async with self._write_lock:
            self._writer = asyncio.current_task()
            try:
                yield
            finally:
                self._writer = None

    def _refuse_nesting(self) -> None:
        if self._writer is not None and self._writer is asyncio.current_task():
            raise StoreError(
                "this task has an open transaction on the store, and SQLite has one writer; use the parts of the transaction instead"
            )

    @asynccontextmanager
    async def _lend(self, *, durable: bool) -> AsyncGenerator[Any, None]:
        engine = self._engine_for(durable=durable)
        with sql_errors(self.url.get_backend_name()):
            async with shielded_connection(engine) if self.lite else engine.connect() as connection:
                yield connection

    def _engine_for(self, *, durable: bool) -> Any:
        engine = self._durable if durable else self._usual
        if engine is None:
            raise StoreError(
                "the store is not open; use it in `async with Gate(store=...)`, or call `await store.open()`"
            )
        return engine

    async def _migrate(self) -> None:
        from sqlalchemy import text

        with sql_errors(self.url.get_backend_name()):
            if self.lite and not self.in_memory:
                await self._to_wal()
            if await self._revision() == HEAD:
                return
        async with self.writing(durable=True) as connection:
            if not self.lite:
                await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATING})
            await connection.run_sync(upgrade_schema)

    async def revision(self) -> str | None:
        """Return the revision of the schema, or None without a schema. Connects if needed, and changes nothing.

        Raises:
            StoreError: the database cannot be reached.
        """
        if self._has_no_file():
            return None
        opens = self._usual is None
        try:
            with sql_errors(self.url.get_backend_name()):
                if opens:
                    self._connect()
                return await self._revision()
        finally:
            if opens:
                await self.close()

    def _has_no_file(self) -> bool:
        """Return True when the SQLite file does not exist: connecting would create it."""
        plain = self.lite and not self.in_memory and "uri" not in self.url.query
        return plain and not Path(self.url.database).exists()

    async def _revision(self) -> str | None:
        from sqlalchemy import text
        from sqlalchemy.exc import DBAPIError

        async with self._usual.connect() as connection:
            try:
                return str((await connection.execute(text("SELECT version_num FROM callgate_schema"))).scalar())
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise
                return None  # no such table; the migration reports any other error

    async def _to_wal(self) -> None:
        """Set the journal mode. Retries, since SQLite does not wait for other processes that set it."""
        from sqlalchemy.exc import OperationalError

        for pause in (0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, None):
            try:
                async with self._durable.connect() as connection:
                    mode = (await connection.exec_driver_sql("PRAGMA journal_mode=WAL")).scalar()
                if mode == "wal" or pause is None:
                    return
            except OperationalError:
                if pause is None:
                    raise
            await asyncio.sleep(pause)


def read_url(url: str) -> Any:
    """Parse a URL and set its driver.

    Raises:
        StoreError: the URL cannot be parsed or names another database; the message shows its scheme at most.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError(
            "the address of a SQL store is not a valid URL; write it as postgresql://user:password@host/database or sqlite:///file.db"
        ) from None
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
    driver = drivers.get(parsed.get_backend_name())
    if driver is None or parsed.drivername not in {driver, parsed.get_backend_name()}:
        raise StoreError(f"a SQL store supports sqlite:// and postgresql:// addresses, not {parsed.drivername}://")
    return parsed.set(drivername=driver)


def upgrade_schema(connection: Any) -> None:
    """Migrate the schema to ``HEAD`` within the open transaction."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(
            f"the schema cannot be migrated: {error}; a newer Callgate may have written it, so upgrade Callgate"
        ) from None


def _all(done: Any) -> Any:
    return done.all()


def _first(done: Any) -> Any:
    return done.first() if done.returns_rows else done.rowcount


def _postgres_settings(*, durable: bool) -> tuple[str, ...]:
    jit = "SET jit = off"  # PostgreSQL would compile for 100 ms what runs in 1 ms
    return (jit,) if durable else (jit, "SET synchronous_commit = off")


def _lite_settings(*, durable: bool) -> tuple[str, ...]:
    return (
        "PRAGMA busy_timeout=15000",  # waiting processes poll in no order: 5 s were too short on a busy machine
        "PRAGMA foreign_keys=ON",
        f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}",
    )
