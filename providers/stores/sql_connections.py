"""Connections of SQL: their errors, and how their steps end, are cancelled and rolled back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from callgate.errors import StoreConflict, StoreError

HELP = {
    "database or disk is full": "; make room on the disk of its file, and all goes on: what was written before is kept",
}
"""What to do, where the driver does not say it."""


@contextmanager
def failing(backend: str) -> Generator[None, None, None]:
    """Errors of the driver become the store's; the text of those that may quote values stays in the cause."""
    from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError

    try:
        yield
    except IntegrityError as error:
        raise StoreConflict(f"{backend}: a row with that key is there already") from error
    except (OperationalError, InterfaceError) as error:
        said = str(error.orig).strip().partition("\n")[0]
        raise StoreError(f"{backend}: {said}{HELP.get(said, '')}") from error
    except (SQLAlchemyError, UnicodeError) as error:
        raise StoreError(f"{backend}: {type(error).__name__}") from error


@asynccontextmanager
async def unhurried(engine: Any) -> AsyncGenerator[Any, None]:
    """A connection of SQLite's, whose every step ends before a cancellation is heard.

    Each has a thread. What is cancelled in the middle of a step would be thrown away with the thread still at it, and
    hold its lock on the file for as long. No step takes longer than the wait for that lock (``busy_timeout``).
    """
    connection = engine.connect()
    try:
        await finished(connection.start())
        yield Unhurried(connection)
    finally:
        if connection.sync_connection is not None:
            await finished(connection.close())


class Unhurried:
    """See ``unhurried``."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, *args: Any) -> Any:
        """Run a statement."""
        return await finished(self._connection.execute(*args))

    async def exec_driver_sql(self, *args: Any) -> Any:
        """Run a statement of the driver."""
        return await finished(self._connection.exec_driver_sql(*args))


async def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """What *work* gives; a cancellation is heard when it has ended."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled():
            task.exception()  # looked at, so that nobody warns
        raise asyncio.CancelledError
    return task.result()


async def undo(held: Sequence[Any]) -> None:
    """Roll back what may be open, and give the connection back; one that cannot do that is thrown away."""
    from sqlalchemy.util import greenlet_spawn

    for connection in held:
        if connection.closed:
            continue
        try:
            if not connection.invalidated:
                await asyncio.wait_for(connection.connection.driver_connection.rollback(), 10.0)
        except Exception:  # noqa: BLE001  (what ended the transaction is raised; this connection serves nobody any more)
            await greenlet_spawn(connection.invalidate)
        await greenlet_spawn(connection.close)


def run(engine: Any, statement: Any, values: Mapping[str, Any], read: Callable[[Any], Any]) -> Any:
    """One statement on a connection of its own, and what *read* makes of its result; within a ``greenlet_spawn``.

    SQLAlchemy's way for async code, a connection that is entered, executes and is left, switches greenlets three times
    and makes a task: as dear as the rest of a small statement.
    """
    with engine.connect() as connection:
        return read(connection.execute(statement, values))


def begin(engine: Any, held: list[Any], statement: str) -> None:
    """Begin a transaction, and leave its connection in *held* as soon as there is one; see ``run``."""
    held.append(engine.connect())
    held[0].exec_driver_sql(statement)


def commit(connection: Any) -> None:
    """End it, and give its connection back; see ``run``.

    After a failed statement PostgreSQL takes ``COMMIT`` for ``ROLLBACK``, and says nothing.

    Raises:
        StoreError: a statement failed, and whoever ran it went on all the same.
    """
    if connection.dialect.name == "postgresql":
        status = connection.connection.driver_connection.info.transaction_status
        if status.name == "INERROR":
            raise StoreError("postgresql: a statement of the transaction failed, so that nothing of it is kept")
    connection.exec_driver_sql("COMMIT")
    connection.close()
