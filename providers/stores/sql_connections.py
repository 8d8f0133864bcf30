"""SQL connections: errors, cancellation and rollback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.server_answers import shut_socket
from callgate.providers.stores.sql_engines import OPENING

_ADVICE = {
    "database or disk is full": "; free space on the disk of its file and try again: committed data is intact",
    "unsupported startup parameter": "; the pooler refuses options=... in the address: set them with ALTER ROLE ... SET",
    "unable to open database file": "; give a file that this user may read and write",
    '" does not exist': "; check the address",
    "file is not a database": "; give the address of a store",
    "disk image is malformed": "; the file is damaged: restore it from a backup",
    "readonly database": "; give a file that this user may write, as each store is written to when it opens",
    "permission denied for": "; grant this role what the application's role has",
    "in statement pooling mode": "; the store needs transactions: set pool_mode = transaction in the pooler",
}
"""Advice for errors whose text from the driver has none, by a part of that text."""
_ENDED_BY_OTHERS = frozenset({"40001", "40P01"})
"""SQLSTATE codes of serialization failures and deadlocks."""
_ATTEMPTS = 5

T = TypeVar("T")


def advised(text: str) -> str:
    """Return the first line of an error's text, with advice if there is any."""
    line = text.strip().partition("\n")[0]
    return line + next((advice for part, advice in _ADVICE.items() if part in line), "")


@contextmanager
def sql_errors(backend: str) -> Generator[None, None, None]:
    """Raise errors of the driver as errors of the store. Texts that may quote values stay in the cause only."""
    from sqlalchemy.exc import (
        DatabaseError,
        IntegrityError,
        InterfaceError,
        OperationalError,
        ProgrammingError,
        SQLAlchemyError,
    )

    try:
        yield
    except IntegrityError as error:
        raise StoreConflict(f"{backend}: a row with that key exists already") from error
    except (OperationalError, InterfaceError) as error:
        raise StoreError(f"{backend}: {advised(str(error.orig))}") from error
    except (SQLAlchemyError, UnicodeError) as error:
        text = str(getattr(error, "orig", ""))
        # These two quote names at most: of tables and roles in PostgreSQL; a plain error of SQLite is about its file.
        names = isinstance(error, ProgrammingError) or (backend == "sqlite" and type(error) is DatabaseError)
        shown = names and any(part in text for part in _ADVICE)
        raise StoreError(f"{backend}: {advised(text) if shown else type(error).__name__}") from error


@asynccontextmanager
async def shielded_connection(engine: Any) -> AsyncGenerator[Any, None]:
    """Open a SQLite connection whose steps are shielded from cancellation.

    Each connection has a thread. A step that is cancelled halfway would leave the thread running, with its lock on the
    file. No step takes longer than the wait for that lock (``busy_timeout``).
    """
    connection = engine.connect()
    try:
        await shielded(connection.start())
        yield ShieldedConnection(connection)
    finally:
        if connection.sync_connection is not None:
            await shielded(connection.close())


class ShieldedConnection:
    """A connection whose statements are shielded from cancellation; see ``shielded_connection``."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, *args: Any) -> Any:
        """Run a statement."""
        return await shielded(self._connection.execute(*args))

    async def exec_driver_sql(self, *args: Any) -> Any:
        """Run a statement with the driver."""
        return await shielded(self._connection.exec_driver_sql(*args))


async def retried(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of *work*, a transaction. It runs again when the server ended it because of other transactions.

    Raises:
        StoreError: *work* failed, or was ended so too often.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return await work()
        except StoreError as error:
            if getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) not in _ENDED_BY_OTHERS:
                raise
    return await work()


async def shielded(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of *work*. A cancellation is raised after it has ended."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio logs no warning
        raise asyncio.CancelledError
    return task.result()


async def roll_back(connections: Sequence[Any]) -> None:
    """Roll back open transactions and return the connections to the pool; a connection that fails is discarded."""
    from sqlalchemy.util import greenlet_spawn

    for connection in connections:
        if connection.closed:
            continue
        try:
            if not connection.invalidated:
                await asyncio.wait_for(connection.connection.driver_connection.rollback(), 10.0)
        except Exception:  # noqa: BLE001  (the caller raises the first error; this connection is not used again)
            await greenlet_spawn(connection.invalidate)
        await greenlet_spawn(connection.close)


def disconnect(connections: Sequence[Any]) -> bool:
    """End the request of a connection to PostgreSQL that does not answer. Return False without a connection.

    A cancelled request would wait for the server: psycopg asks it to cancel the statement.
    """
    if not connections or connections[0].closed:
        return False
    shut_socket(connections[0].connection.driver_connection.fileno())
    return True


def run_statement(
    engine: Any,
    connections: list[Any],
    statement: Any,
    values: Mapping[str, Any],
    read: Callable[[Any], Any],
    *,
    writes: bool,
) -> Any:
    """Run one statement on its own connection, and return ``read(result)``. Call it within ``greenlet_spawn``.

    The connection is in *connections* while it is open.

    SQLAlchemy's async connection would switch greenlets three times and create a task, which doubles the cost of a small
    statement. A writing statement through a pooler is a transaction, because its settings need one.
    """
    with engine.connect() as connection:
        connections.append(connection)
        opening = connection.info.get(OPENING) if writes else None
        if opening is None:
            return read(connection.execute(statement, values))
        connection.exec_driver_sql(opening)
        result = read(connection.execute(statement, values))
        connection.exec_driver_sql("COMMIT")
        return result


def begin(engine: Any, connections: list[Any]) -> None:
    """Begin a transaction, and add its connection to *connections* as soon as it is open; see ``run_statement``."""
    connection = engine.connect()
    connections.append(connection)
    lite = connection.dialect.name == "sqlite"
    connection.exec_driver_sql("BEGIN IMMEDIATE" if lite else connection.info.get(OPENING, "BEGIN"))


def commit(connection: Any) -> None:
    """Commit a transaction and return its connection to the pool; see ``run_statement``.

    After a failed statement PostgreSQL treats ``COMMIT`` as ``ROLLBACK``, without an error.

    Raises:
        StoreError: a statement failed, and the caller continued the transaction.
    """
    if connection.dialect.name == "postgresql":
        status = connection.connection.driver_connection.info.transaction_status
        if status.name == "INERROR":
            raise StoreError(
                "postgresql: a statement of the transaction failed, so it was rolled back; end the transaction on the first error"
            )
    connection.exec_driver_sql("COMMIT")
    connection.close()


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


def sqlite_file(url: Any) -> Path | None:
    """Return the file that a URL of SQLite names, also as ``file:...?uri=true``; None for a database in memory."""
    name = url.database or ":memory:"
    if name.startswith("file:") and "uri" in url.query:
        name = unquote(urlsplit(name).path)
    return None if name == ":memory:" or url.query.get("mode") == "memory" else Path(name)


def refuse_unusable(file: Path | None) -> None:
    """Refuse a path that cannot be the file of a database.

    Raises:
        StoreError: its folder does not exist, or it is a folder.
    """
    if file is None:
        return
    if not file.absolute().parent.is_dir():
        raise StoreError("sqlite: unable to open database file: its folder does not exist; create the folder first")
    if file.is_dir():
        raise StoreError(f"sqlite: {file.absolute()} is a folder; give the address of a file")


def outdated(backend: str, file: Path | None, revision: str | None, head: str) -> StoreError:
    """Return the error of tables that are missing or old, where they may not be created or migrated."""
    found = f"the tables are at revision {revision}, not {head}; let their owner migrate them:"
    if revision is None:
        place = "" if file is None else f" in {file.absolute()}"
        found = f"there are no tables{place}; check the address, or let their owner create them:"
    return StoreError(f"{backend}: {found} `callgate stores upgrade --store ADDRESS`")


def all_rows(done: Any) -> Any:
    """Return all rows of a result."""
    return done.all()


def first_row(done: Any) -> Any:
    """Return the first row of a result, or the number of changed rows."""
    return done.first() if done.returns_rows else done.rowcount
