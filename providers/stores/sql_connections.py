"""SQL connections: errors, cancellation and rollback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from callgate.errors import StoreConflict, StoreError

_ADVICE = {
    "database or disk is full": "; free space on the disk of its file and try again: committed data is intact",
}
"""Advice for errors whose text from the driver has none."""
_ENDED_BY_OTHERS = frozenset({"40001", "40P01"})
"""SQLSTATE codes of serialization failures and deadlocks."""
_ATTEMPTS = 5

T = TypeVar("T")


def advised(text: str) -> str:
    """Return the first line of an error's text, with advice if there is any."""
    line = text.strip().partition("\n")[0]
    return line + _ADVICE.get(line, "")


@contextmanager
def sql_errors(backend: str) -> Generator[None, None, None]:
    """Raise errors of the driver as errors of the store. Texts that may quote values stay in the cause only."""
    from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError

    try:
        yield
    except IntegrityError as error:
        raise StoreConflict(f"{backend}: a row with that key exists already") from error
    except (OperationalError, InterfaceError) as error:
        raise StoreError(f"{backend}: {advised(str(error.orig))}") from error
    except (SQLAlchemyError, UnicodeError) as error:
        raise StoreError(f"{backend}: {type(error).__name__}") from error


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


def run_statement(engine: Any, statement: Any, values: Mapping[str, Any], read: Callable[[Any], Any]) -> Any:
    """Run one statement on its own connection, and return ``read(result)``. Call it within ``greenlet_spawn``.

    SQLAlchemy's async connection would switch greenlets three times and create a task, which doubles the cost of a small
    statement.
    """
    with engine.connect() as connection:
        return read(connection.execute(statement, values))


def begin(engine: Any, connections: list[Any], statement: str) -> None:
    """Begin a transaction, and add its connection to *connections* as soon as it is open; see ``run_statement``."""
    connections.append(engine.connect())
    connections[0].exec_driver_sql(statement)


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
