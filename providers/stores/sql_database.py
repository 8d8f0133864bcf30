"""The way to a SQL database: connections, transactions, errors, and the schema."""

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
from callgate.providers.stores.sql_connections import Unhurried, begin, commit, failing, finished, run, undo, unhurried

HEAD = "0003"
"""The newest revision in ``migrations/versions``."""

MIGRATING = 0x63616C6C67617465
"""The advisory lock of PostgreSQL under which the schema is changed."""

PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
"""What libpq does about a server that vanished without a word, its machine or the way to it: a connection on which nothing
has come back for half a minute is lost. By itself it waits for a quarter of an hour or two. An address may say otherwise."""

EXTRA = 'this store needs packages that are not installed: pip install "callgate[sql]"'
SLACK = 60.0  # clocks differ: what another process may still count is not swept

SWEEPS = (
    "DELETE FROM callgate_cache WHERE stale_until < :before",
    "DELETE FROM callgate_quotas WHERE ends < :before",
    "DELETE FROM callgate_places WHERE ends < :before",
    "DELETE FROM callgate_consents WHERE expires_at < :before",
)


class Database:
    """One database, with two sets of connections: those of ``durable=True`` have a commit on the disk when it returns.

    What only bounds or speeds up (cache, quotas, places) may lose its last moments when the machine or the server
    crashes; records and consents may not.
    """

    def __init__(self, url: str, now: Callable[[], float] = time.time, *, pool_size: int = 10) -> None:
        if not all(find_spec(name) for name in ("sqlalchemy", "alembic", "aiosqlite", "psycopg")):
            raise StoreError(EXTRA)
        self.url = read_url(url)
        self.lite = self.url.get_backend_name() == "sqlite"
        self.in_memory = self.lite and self.url.database in {None, "", ":memory:"}
        self.now = now
        self.pool_size = 1 if self.in_memory else pool_size
        self._usual: Any = None
        self._durable: Any = None
        self._keeper: Any = None
        self._turns = asyncio.Lock()
        self._writer: Any = None
        self._writes = 0

    def __repr__(self) -> str:
        return f"<database {self.shown}>"

    @property
    def shown(self) -> str:
        """The URL without what may be secret: the password, and the options of the driver, which may hold one."""
        return str(self.url.set(query={}).render_as_string(hide_password=True))

    async def open(self) -> None:
        """Connect, and bring the schema up to date; nothing else when it is."""
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
            raise StoreError("sqlite: unable to open database file: its folder is not there")
        self._turns = asyncio.Lock()  # of this event loop
        if self.in_memory:
            import sqlite3

            name = f"file:callgate-{uuid.uuid4().hex}?mode=memory&cache=shared"
            self._keeper = sqlite3.connect(name, uri=True)  # what no connection holds is gone
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
            connect_args={} if self.lite else {key: value for key, value in PATIENCE.items() if key not in url.query},
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
        """Disconnect; may be opened again."""
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
        """A connection; each statement stands alone."""
        if self.in_memory:
            self._refuse_nesting()
        async with self._lent(durable=durable) as connection:
            yield connection

    @asynccontextmanager
    async def writing(self, *, durable: bool = False) -> AsyncGenerator[Any, None]:
        """A connection in a transaction, committed at the end, rolled back on any error.

        SQLite has one writer at a time: those of this process queue here, first come, first served, and what is read
        was not changed before it is written (``BEGIN IMMEDIATE``).
        """
        from sqlalchemy.ext.asyncio import AsyncConnection

        async with self._turn():
            engine, held = self._engine_for(durable=durable), list[Any]()
            with failing(self.url.get_backend_name()):
                try:
                    await self._step(begin, engine.sync_engine, held, "BEGIN IMMEDIATE" if self.lite else "BEGIN")
                    connection = AsyncConnection(engine, held[0])
                    yield Unhurried(connection) if self.lite else connection
                    await self._step(commit, held[0])
                except BaseException:
                    await finished(undo(held))
                    raise

    async def rows(self, statement: Any, values: Mapping[str, Any]) -> list[Any]:
        """What one statement that only reads gives. Where the server has dropped the connection it is asked once more."""
        if self.in_memory:
            self._refuse_nesting()
        for last in (False, True):
            try:
                return list(await self._run(statement, values, _all, durable=False))
            except StoreError as error:
                if last or not getattr(error.__cause__, "connection_invalidated", False):
                    raise
        raise AssertionError  # the second answer is the last

    async def write(self, statement: Any, values: Mapping[str, Any], *, durable: bool = False) -> Any:
        """Run one statement, which is atomic by itself; the first row that it returns, or how many rows it changed."""
        async with self._turn():
            return await self._run(statement, values, _first, durable=durable)

    async def write_rows(self, statement: Any, values: Mapping[str, Any], *, durable: bool = False) -> list[Any]:
        """Run one statement that writes; all rows that it returns."""
        async with self._turn():
            return list(await self._run(statement, values, _all, durable=durable))

    async def _run(
        self, statement: Any, values: Mapping[str, Any], read: Callable[[Any], Any], *, durable: bool
    ) -> Any:
        engine = self._engine_for(durable=durable)
        with failing(self.url.get_backend_name()):
            return await self._step(run, engine.sync_engine, statement, values, read)

    async def _step(self, work: Callable[..., Any], *given: Any) -> Any:
        """Something on a connection that no cancellation tears apart where that would hurt (see ``unhurried``)."""
        from sqlalchemy.util import greenlet_spawn

        doing = greenlet_spawn(work, *given)
        return await (finished(doing) if self.lite else doing)

    async def sweep(self) -> None:
        """Forget what is over for everybody."""
        from sqlalchemy import text

        for statement in SWEEPS:
            await self.write(text(statement), {"before": self.now() - SLACK})

    async def wrote(self) -> None:
        """Count one write that leaves something behind, and sweep at times."""
        self._writes += 1
        if self._writes >= 5_000:
            self._writes = 0
            try:
                await self.sweep()
            except StoreError:  # the write that was counted is done, whatever becomes of the sweep
                pass

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None, None]:
        if not self.lite:
            yield
            return
        self._refuse_nesting()
        async with self._turns:
            self._writer = asyncio.current_task()
            try:
                yield
            finally:
                self._writer = None

    def _refuse_nesting(self) -> None:
        if self._writer is not None and self._writer is asyncio.current_task():
            raise StoreError("this task has a transaction open on the store: write through the transaction")

    @asynccontextmanager
    async def _lent(self, *, durable: bool) -> AsyncGenerator[Any, None]:
        engine = self._engine_for(durable=durable)
        with failing(self.url.get_backend_name()):
            async with unhurried(engine) if self.lite else engine.connect() as connection:
                yield connection

    def _engine_for(self, *, durable: bool) -> Any:
        engine = self._durable if durable else self._usual
        if engine is None:
            raise StoreError("the store is not open: use it in `async with Gate(store=...)`, or await store.open()")
        return engine

    async def _migrate(self) -> None:
        from sqlalchemy import text

        with failing(self.url.get_backend_name()):
            if self.lite and not self.in_memory:
                await self._to_wal()
            if await self._revision() == HEAD:
                return
        async with self.writing(durable=True) as connection:
            if not self.lite:
                await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATING})
            await connection.run_sync(upgrade)

    async def revision(self) -> str | None:
        """The revision that the schema is at, None where there is none; connects if need be, and changes nothing.

        Raises:
            StoreError: there is no connection.
        """
        if self._has_no_file():
            return None
        opens = self._usual is None
        try:
            with failing(self.url.get_backend_name()):
                if opens:
                    self._connect()
                return await self._revision()
        finally:
            if opens:
                await self.close()

    def _has_no_file(self) -> bool:
        """Whether connecting would make the file of SQLite."""
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
                return None  # no such table: what else is wrong, the migration will say

    async def _to_wal(self) -> None:
        """Change the file's journal; SQLite does not wait for others that do the same."""
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
    """The URL with the driver that is used.

    Raises:
        StoreError: it is none, or of another database; the message holds nothing of it but its scheme.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError("the address of a SQL store is not a URL that can be read") from None
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
    driver = drivers.get(parsed.get_backend_name())
    if driver is None or parsed.drivername not in {driver, parsed.get_backend_name()}:
        raise StoreError(f"a SQL store speaks sqlite:// and postgresql://, not {parsed.drivername}://")
    return parsed.set(drivername=driver)


def upgrade(connection: Any) -> None:
    """Bring the schema of a connection to ``HEAD``, within the transaction that is open."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(f"the schema cannot be brought up to date; is it of a newer Callgate? {error}") from None


def _all(done: Any) -> Any:
    return done.all()


def _first(done: Any) -> Any:
    return done.first() if done.returns_rows else done.rowcount


def _postgres_settings(*, durable: bool) -> tuple[str, ...]:
    jit = "SET jit = off"  # what looks expensive and takes a millisecond would be compiled, which takes a hundred
    return (jit,) if durable else (jit, "SET synchronous_commit = off")


def _lite_settings(*, durable: bool) -> tuple[str, ...]:
    return (
        "PRAGMA busy_timeout=15000",  # its waiters poll and are not served in turn: on a busy machine 5 s were too few
        "PRAGMA foreign_keys=ON",
        f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}",
    )
