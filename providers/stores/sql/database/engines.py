"""The connections to a SQL database: two pools with fair queues, and single connections beside them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callgate.errors import StoreError
from callgate.providers.stores.server_answers import time_left
from callgate.providers.stores.sql.database.states import READ_ONLY, TURN_LIMIT, give_up, is_cut, is_session_lost
from callgate.providers.stores.turns import Turns

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from sqlalchemy import URL, Connection
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.pool import ConnectionPoolEntry


_CONNECTION = {
    "client_encoding": "utf8",  # the environment, the role or the database may name another one
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
"""Parameters of libpq for a server or network that stops responding: the connection fails after half a minute, and not
after 15 minutes or more. Parameters in the address win."""

ANSWER_LIMIT = 30.0
"""Seconds that a statement of a pool may take. The parameters above do not help where a server that is stuck, or a proxy
before it, keeps its connections: then a statement would wait for ever."""
_TIMER, UNLIMITED = "callgate timer", "callgate unlimited"
"""Keys in the info of a connection: the timer of its statement; and True if its statements may take longer."""
_SERVER = "SELECT pg_backend_pid(), current_setting('extra_float_digits')::int > 0"
"""Asks for the process of the session, and whether it shows times as they are kept."""
OPENING = "callgate opening"
"""Key in the info of a connection through a pooler: the statement that begins a transaction with its settings."""
# The statements lock the rows that they depend on: with a stricter isolation the server would only end more of them.
# With jit, the server would compile for 100 ms what runs in 1 ms.
# Without a digit more, the server rounds times, which are signed: each signed row would seem to be changed.
_POSTGRES_SETTINGS = (
    "SET default_transaction_isolation = 'read committed'",
    "SET jit = off",
    "SET extra_float_digits = 1",
)
_LOCAL_SETTINGS = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET LOCAL jit = off",
    "SET LOCAL extra_float_digits = 1",
    "SET LOCAL synchronous_commit = DEFAULT",
)
"""The settings of a transaction through a pooler. Another client may have left its own in the session."""
FRESH = "callgate fresh"
"""Key in the info of a connection: True while its first user has it."""
_UPKEEP_SIZE = 2
"""Connections for renewals and sweeps, which must not wait for calls."""


MOVED = (
    "the file, or the file beside it with -wal or -shm, was removed or replaced while the store had it open, and nothing is "
    "written to either; put it back, or close the store and open it again"
)


class OpenedFile:
    """The file of a SQLite database; *path* is None for a database in memory.

    A process may write to an open file that was removed or replaced. The next process does not find what it wrote, and
    runs its effects again.
    """

    def __init__(self, path: Path | None) -> None:
        path = path and path.absolute()  # the process may change its folder
        self._paths = [] if path is None else [str(path)]
        self._opened = [_identity(each) for each in self._paths]

    def hold(self) -> None:
        """Watch the files beside it, too. A connection has read them, so SQLite keeps them until the last one closes.

        A process that does not find them makes new ones: it finds none of the latest records.
        """
        for beside in [f"{path}{end}" for path in self._paths[:1] for end in ("-wal", "-shm")]:
            if (found := _identity(beside)) is not None:  # none where the file system allows no WAL
                self._paths.append(beside)
                self._opened.append(found)

    def is_there(self) -> bool:
        """Return True if the paths still lead to the files that were opened."""
        found = [_identity(each) for each in self._paths]
        if self._opened[:1] == [None]:
            self._opened[0] = found[0]
        return found == self._opened


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  (each statement asks; a Path costs as much again)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Waits:
    """The requests that had to wait for a connection of a pool: their number, and their time in seconds."""

    def __init__(self) -> None:
        self.number, self.seconds = 0, 0.0


class Engines:
    """The engines of one database. What they commit is on the disk.

    ``upkeep`` is apart from ``calls``, so that leases are renewed while calls use all other connections.
    """

    def __init__(self, url: URL, pool_size: int, file: Path | None = None) -> None:
        self._url = url
        self.file = OpenedFile(file)
        self._lite: bool = url.get_backend_name() == "sqlite"
        self._turns: dict[AsyncEngine, Turns] = {}
        self.waits = Waits()
        self.calls = self._engine(pool_size)
        self.upkeep = self.calls if self._lite else self._engine(_UPKEEP_SIZE)

    def _engine(self, size: int) -> AsyncEngine:
        from sqlalchemy import AsyncAdaptedQueuePool, event
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(
            self._url,
            isolation_level="AUTOCOMMIT",  # one statement is one round trip; transactions are begun by hand
            poolclass=AsyncAdaptedQueuePool,
            pool_size=size,
            max_overflow=0,
            pool_timeout=TURN_LIMIT,
            hide_parameters=True,
            connect_args=self._connect_args(),
        )
        settings = _lite_settings() if self._lite else _POSTGRES_SETTINGS

        def configure(connection: Any, record: ConnectionPoolEntry) -> None:
            cursor = connection.cursor()
            if not self._lite:
                _start_timer(connection.driver_connection, record.info)
                cursor.execute(_SERVER)
                server = cursor.fetchone()
                if is_pooled(connection.driver_connection, server):
                    self._refuse_pooled(server)
                    record.info[OPENING] = "; ".join(("BEGIN", *_LOCAL_SETTINGS))
            for setting in () if OPENING in record.info else settings:
                cursor.execute(setting)
            cursor.close()
            _stop_timer(record.info)

        event.listen(engine.sync_engine, "connect", configure)
        if not self._lite:
            event.listen(engine.sync_engine, "checkout", _check_out)
            event.listen(engine.sync_engine, "handle_error", _drop_lost)
            event.listen(engine.sync_engine, "before_cursor_execute", _begin_statement)
            event.listen(engine.sync_engine, "after_cursor_execute", _end_statement)
        self._turns[engine] = Turns(size)
        return engine

    def is_exhausted(self, engine: AsyncEngine) -> bool:
        """Return True if a caller would wait for a connection."""
        return self._turns[engine].locked()

    async def turn(self, engine: AsyncEngine) -> Callable[[], None]:
        """Wait for a connection of an engine, in order of arrival. Return the function that gives it to the next.

        The pool of SQLAlchemy alone is not fair: who returns a connection and asks again at once gets it before those
        who wait.

        Raises:
            StoreError: no connection became free in time, or the file was moved.
        """
        if not self.file.is_there():
            raise StoreError(f"sqlite: {MOVED}")
        turns = self._turns[engine]
        if self.is_exhausted(engine):
            limit, began = time_left(TURN_LIMIT), time.monotonic()
            self.waits.number += 1
            try:
                async with asyncio.timeout(limit):
                    await turns.acquire()
            except TimeoutError:
                raise StoreError(
                    f"no connection became free within {limit:.1f} seconds; raise pool_size, or end transactions earlier"
                ) from None
            finally:
                self.waits.seconds += time.monotonic() - began
        else:
            await turns.acquire()
        return turns.release

    async def dispose(self) -> None:
        """Close all connections of the pools."""
        for engine in self._turns:
            await engine.dispose()

    async def connect_driver(self, lock_wait: int) -> tuple[AsyncConnection, tuple[str, ...]]:
        """Open a connection of psycopg beside the pools, in autocommit mode.

        Args:
            lock_wait: milliseconds that a statement waits for a row.

        Returns:
            The connection, and the settings for each of its transactions: through a pooler it cannot keep them.

        Raises:
            Error: an error of psycopg.
            StoreError: the address has options that a pooler does not keep.
        """
        import psycopg

        given, named = self.calls.dialect.create_connect_args(self._url)
        connection = await psycopg.AsyncConnection.connect(*given, **{**self._connect_args(), **named}, autocommit=True)
        lock_timeout = f"lock_timeout = {lock_wait}"
        try:
            server = await (await connection.execute(_SERVER)).fetchone()
            if is_pooled(connection, server):
                self._refuse_pooled(server)
                return connection, (*_LOCAL_SETTINGS, f"SET LOCAL {lock_timeout}")
            for setting in (*_POSTGRES_SETTINGS, f"SET {lock_timeout}"):
                await connection.execute(setting.encode())
        except BaseException:
            await connection.close()
            raise
        return connection, ()

    def connect_lite(self, *, durable: bool = True) -> Any:
        """Open a connection of ``sqlite3`` beside the pools, in autocommit mode.

        Raises:
            Error: an error of ``sqlite3``.
        """
        import sqlite3

        given, named = self.calls.dialect.create_connect_args(self._url)
        (path,) = given
        options: dict[str, Any] = {**named, "isolation_level": None, "check_same_thread": False}
        connection = sqlite3.connect(path, **options)
        for setting in _lite_settings(durable=durable):
            connection.execute(setting)
        return connection

    def _connect_args(self) -> dict[str, Any]:
        if self._lite:
            return {}
        return {key: value for key, value in _CONNECTION.items() if key not in self._url.query}

    def _refuse_pooled(self, server: Sequence[object] | None) -> None:
        """Refuse a session behind a pooler that reads wrong times, since reads set nothing there. *server*: see ``_SERVER``.

        Refuse ``options`` in the address, too: a pooler ignores them, or gives their settings to other clients.

        Raises:
            StoreError: the role rounds times, or the address has options.
        """
        if server is not None and not server[1]:
            raise StoreError(
                "postgresql: extra_float_digits of the role is not above 0, and the address leads to a connection pooler; "
                "set it with ALTER ROLE ... SET extra_float_digits = 1"
            )
        if "options" in self._url.query:
            raise StoreError(
                "postgresql: the address leads to a connection pooler, which does not keep options=...; "
                "set them with ALTER ROLE ... SET, or in the pooler, and remove them from the address"
            )


def _check_out(connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
    """Note whether a connection is new. Refuse it if the server has closed it; the pool opens another."""
    from sqlalchemy.exc import InvalidatePoolError

    record.info[FRESH] = fresh = FRESH not in record.info
    record.info.pop(UNLIMITED, None)
    if not fresh and is_cut(connection.driver_connection):
        raise InvalidatePoolError


def _start_timer(driver: AsyncConnection, info: dict[str, object]) -> None:
    """Close a connection unless ``_stop_timer`` is called in time: its statement then fails."""

    def abandon() -> None:
        info[_TIMER] = None
        give_up(driver)

    info[_TIMER] = asyncio.get_running_loop().call_later(ANSWER_LIMIT, abandon)


def _stop_timer(info: dict[str, object]) -> bool:
    """Stop the timer of a statement. Return True if it has closed the connection."""
    timer = info.pop(_TIMER, UNLIMITED)
    if isinstance(timer, asyncio.TimerHandle):
        timer.cancel()
    return timer is None


def _begin_statement(connection: Connection, *_: object) -> None:
    driver = connection.connection.driver_connection
    if driver is not None and UNLIMITED not in connection.info:
        _start_timer(driver, connection.info)


def _end_statement(connection: Connection, *_: object) -> None:
    _stop_timer(connection.info)


def _drop_lost(context: Any) -> StoreError | None:
    """Drop a connection whose error says that its session is of no further use, and with it all that are older.

    Return the error to raise in its place if the connection was closed by its timer.
    """
    error, connection = context.original_exception, context.connection
    if connection is None or connection.invalidated:
        connection = None
    if connection is not None and _stop_timer(connection.info):
        return StoreError(f"postgresql: no answer within {ANSWER_LIMIT:.0f} seconds")
    if is_session_lost(error):
        context.is_disconnect = True
        if error.sqlstate == READ_ONLY and connection is not None:
            context.invalidate_pool_on_disconnect = not connection.info.get(FRESH)  # the phase is not over
    return None


def is_pooled(connection: Any, server: Sequence[object] | None) -> bool:
    """Return True if a pooler gives each transaction another session of the server; then prepare no statements.

    A pooler answers a login itself, so the process that it names is not the process that runs a statement.

    Args:
        connection: a connection of psycopg.
        server: the row of ``_SERVER``.
    """
    pooled: bool = server is None or connection.info.backend_pid != server[0]
    if pooled:
        connection.prepare_threshold = None
    return pooled


def _lite_settings(*, durable: bool = True) -> tuple[str, ...]:
    return (
        "PRAGMA busy_timeout=15000",  # waiting processes poll in no order: 5 s were too short on a busy machine
        "PRAGMA foreign_keys=ON",
        f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}",
    )
