"""SQL connections: errors, cancellation and rollback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.sql.database.engines import FRESH, OPENING
from callgate.providers.stores.sql.database.rows import Row
from callgate.providers.stores.sql.database.schema import SERVES
from callgate.providers.stores.sql.database.states import (
    READ_ONLY,
    SessionLost,
    code_in,
    give_up,
    is_read_only,
    shown_message,
    wrote_nothing,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Engine, TextClause
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

T = TypeVar("T")
Read: TypeAlias = "Callable[[CursorResult[*tuple[object, ...]]], T]"
"""Reads the result of a statement while its connection is open."""
_EXISTS = "a row with that key exists already"
_ADVICE = {
    "database or disk is full": "; free space on the disk of its file and try again: committed data is intact",
    "too many connections": "; each process opens 15 connections: raise the limit, or lower pool_size or the number of processes",
    "too many clients": "; raise max_connections, or lower pool_size or the number of processes",
    "remaining connection slots": "; raise max_connections, or lower pool_size or the number of processes",
    "UntranslatableCharacter": "; the encoding of the database lacks a character of it: use one with ENCODING 'UTF8'",
    "unsupported startup parameter": "; the pooler refuses options=... in the address: set them with ALTER ROLE ... SET",
    "unable to open database file": "; give a file that this user may read and write",
    '" does not exist': "; check the address",
    "file is not a database": "; give the address of a store",
    "disk image is malformed": "; the file is damaged: restore it from a backup",
    "disk I/O error": "; check the disk; if the file with -wal was removed, close all processes that have the store open",
    "readonly database": "; give a file that this user may write, as each store is written to when it opens",
    "permission denied for": "; grant this role what the application's role has",
    "in statement pooling mode": "; the store needs transactions: set pool_mode = transaction in the pooler",
}
"""Advice for errors whose text from the driver has none, by a part of that text."""


def advised(text: str) -> str:
    """Return the first line of an error's text, with advice if there is any."""
    line = text.strip().partition("\n")[0]
    return line + next((advice for part, advice in _ADVICE.items() if part in line), "")


class Attempt:
    """The connection of one statement or transaction, once it is open.

    ``fresh``: it was opened for this attempt. ``sent`` and ``alone``: see ``wrote_nothing``. ``step`` is its newest
    shielded step, which goes on when its caller is closed.
    """

    __slots__ = ("alone", "connection", "fresh", "loop", "sent", "step")

    def __init__(self) -> None:
        self.connection: Any = None
        self.loop = asyncio.get_running_loop()
        self.step: asyncio.Future[Any] | None = None
        self.fresh = self.sent = self.alone = False

    def is_lost(self, error: StoreError) -> bool:
        """Return True if the session was lost and nothing was written. A new session that is read-only is not lost."""
        if self.connection is None or not getattr(error.__cause__, "connection_invalidated", False):
            return False
        if error.sqlstate == READ_ONLY and self.fresh:
            return False
        return wrote_nothing(error.sqlstate, sent=self.sent, alone=self.alone)

    async def shielded(self, work: Awaitable[T]) -> T:
        """Return the result of *work*. A cancellation is raised after it has ended.

        Each connection of SQLite has a thread. A step that is cancelled halfway would leave the thread running, with its
        lock on the file. No step takes longer than the wait for that lock (``busy_timeout``).
        """
        self.step = step = asyncio.ensure_future(work)
        return await shielded(step)

    async def end(self, error: BaseException | None, work: Coroutine[object, None, None]) -> None:
        """Run the last step. A closed caller cannot wait for it: it runs in a task, after the step that is under way."""
        if not isinstance(error, GeneratorExit):
            await self.shielded(work)
        elif _running_loop() is self.loop:
            self.step = self.loop.create_task(_after(self.step, work))
        else:  # the loop has ended, and its connections with it
            work.close()

    def afterwards(self, release: Callable[[], None]) -> None:
        """Call *release* once no step is under way, which is now unless the caller was closed."""
        after(self.step, release)


async def shielded(step: asyncio.Future[T]) -> T:
    """Return the result of *step*. A cancellation is raised after it has ended."""
    try:
        await asyncio.wait([step])
    except asyncio.CancelledError:
        await until_over(step)
        raise
    return step.result()


async def until_over(step: asyncio.Future[T]) -> None:
    """Wait for the end of a step whose caller was cancelled, also if that is cancelled again. Ignore its error."""
    while not step.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([step])
    _retrieve(step)


def after(step: asyncio.Future[Any] | None, release: Callable[[], object]) -> None:
    """Call *release* once *step* is over, which is now unless its caller was closed."""

    def ended(step: asyncio.Future[object]) -> None:
        _retrieve(step)
        release()

    if step is None or step.done():
        release()
    else:
        step.add_done_callback(ended)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _after(step: asyncio.Future[object] | None, work: Coroutine[object, None, None]) -> None:
    if step is not None:
        await asyncio.wait([step])
        _retrieve(step)
    await work


def _retrieve(step: asyncio.Future[Any]) -> None:
    """Retrieve the error of a step whose caller was closed, so that asyncio logs no warning."""
    if not step.cancelled():
        step.exception()


@contextmanager
def attempt_errors(backend: str, attempt: Attempt) -> Generator[None, None, None]:
    """Raise errors as ``sql_errors`` does, and ``SessionLost`` where another connection may succeed."""
    try:
        with sql_errors(backend):
            yield
    except StoreError as error:
        if attempt.is_lost(error):
            raise SessionLost(str(error), sqlstate=error.sqlstate) from error.__cause__
        raise


@contextmanager
def sql_errors(backend: str) -> Generator[None, None, None]:
    """Raise errors of the driver as errors of the store. Texts that may quote values stay in the cause only."""
    from sqlalchemy.exc import (
        DatabaseError,
        DBAPIError,
        IntegrityError,
        InterfaceError,
        OperationalError,
        ProgrammingError,
        SQLAlchemyError,
    )

    try:
        yield
    except (SQLAlchemyError, UnicodeError) as error:
        original = getattr(error, "orig", None)
        if isinstance(error, DBAPIError) and getattr(original, "sqlstate", None):
            raise postgres_error(original) from error
        if isinstance(error, IntegrityError):
            raise StoreConflict(f"{backend}: {_EXISTS}") from error
        text = str(original or "")
        # These two quote names at most: of tables and roles in PostgreSQL; a plain error of SQLite is about its file.
        names = isinstance(error, ProgrammingError) or (backend == "sqlite" and type(error) is DatabaseError)
        shown = names and any(part in text for part in _ADVICE)
        shown = shown or isinstance(error, OperationalError | InterfaceError)
        raise StoreError(
            f"{backend}: {advised(text) if shown else type(error).__name__}", sqlstate=code_in(text)
        ) from error


def postgres_error(error: object) -> StoreError:
    """Return an error of psycopg as one of the store, with its SQLSTATE and a message without values."""
    import psycopg

    known = StoreConflict if isinstance(error, psycopg.IntegrityError) else StoreError
    code: str | None = getattr(error, "sqlstate", None)
    if code is not None:
        text = _EXISTS if code == "23505" else advised(shown_message(error) or type(error).__name__)
        return known(f"postgresql: {text} (SQLSTATE {code})", sqlstate=code)
    shown = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return known(f"postgresql: {advised(str(error)) if shown else type(error).__name__}", sqlstate=code_in(str(error)))


class ShieldedConnection:
    """A connection whose statements are shielded from cancellation; see ``Attempt.shielded``."""

    def __init__(self, connection: AsyncConnection, attempt: Attempt) -> None:
        self._connection, self._attempt = connection, attempt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, *args: Any) -> CursorResult[*tuple[Any, ...]]:
        """Run a statement."""
        return await self._attempt.shielded(self._connection.execute(*args))

    async def exec_driver_sql(self, *args: Any) -> CursorResult[*tuple[Any, ...]]:
        """Run a statement with the driver."""
        return await self._attempt.shielded(self._connection.exec_driver_sql(*args))


Connected: TypeAlias = "AsyncConnection | ShieldedConnection"
"""A connection of SQLAlchemy, for statements."""


async def open_reader(engine: AsyncEngine, attempt: Attempt, opening: str | None, stack: AsyncExitStack) -> Connected:
    """Return a connection of the pool until *stack* is left; with *opening*, in the transaction that this begins."""
    opened, lite = engine.connect(), engine.dialect.name == "sqlite"

    async def closed() -> None:
        if opened.sync_connection is not None:
            await opened.close()

    async def close(_: object, error: BaseException | None, __: object) -> None:
        await attempt.end(error, closed())

    async def end_transaction(_: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, GeneratorExit):  # else the pool ends it
            await attempt.shielded(opened.exec_driver_sql("ROLLBACK"))

    stack.push_async_exit(close)
    await (attempt.shielded(opened.start()) if lite else opened.start())
    connection = ShieldedConnection(opened, attempt) if lite else opened
    if opening is not None:
        await connection.exec_driver_sql(opening)
        stack.push_async_exit(end_transaction)  # also of a cancelled caller: a pooled connection has none
    return connection


async def roll_back(attempt: Attempt) -> None:
    """Roll back an open transaction and return the connection to the pool; a connection that fails is discarded."""
    from sqlalchemy.util import greenlet_spawn

    connection = attempt.connection
    if connection is None or connection.closed:
        return
    try:
        if not connection.invalidated:
            await asyncio.wait_for(connection.connection.driver_connection.rollback(), 10.0)
    except Exception:  # noqa: BLE001  (the caller raises the first error; this connection is not used again)
        await greenlet_spawn(connection.invalidate)
    await greenlet_spawn(connection.close)


def disconnect(attempt: Attempt) -> bool:
    """End the request of a connection to PostgreSQL that does not answer. Return False without a connection.

    A cancelled request would wait for the server: psycopg asks it to cancel the statement.
    """
    connection = attempt.connection
    if connection is None or connection.closed or connection.invalidated:
        return False
    give_up(connection.connection.driver_connection)
    return True


def connect(engine: Engine, attempt: Attempt, *, writes: bool) -> Connection:
    """Take a connection from the pool for an attempt.

    Sessions that were opened in a read-only phase are dropped where the attempt writes. A session that is read-only and
    new shows that the phase is not over, and the server refuses the write.
    """
    while True:
        attempt.connection = connection = engine.connect()
        attempt.fresh = bool(connection.info.get(FRESH))
        if not writes or attempt.fresh or connection.dialect.name == "sqlite" or OPENING in connection.info:
            return connection
        driver: Any = connection.connection.driver_connection
        if not is_read_only(driver):
            return connection
        connection.invalidate()
        connection.close()


def run_statement(
    engine: Engine,
    attempt: Attempt,
    statement: TextClause,
    values: Mapping[str, object],
    read: Read[T],
    *,
    writes: bool,
) -> T:
    """Run one statement on its own connection, and return ``read(result)``. Call it within ``greenlet_spawn``.

    SQLAlchemy's async connection would switch greenlets three times and create a task, which doubles the cost of a small
    statement. A writing statement through a pooler is a transaction, because its settings need one.
    """
    with connect(engine, attempt, writes=writes) as connection:
        opening = connection.info.get(OPENING) if writes else None
        if opening is None:
            attempt.sent = attempt.alone = writes
            return read(connection.execute(statement, values))
        connection.exec_driver_sql(opening)
        result = read(connection.execute(statement, values))
        attempt.sent = True
        connection.exec_driver_sql("COMMIT")
        return result


def begin(engine: Engine, attempt: Attempt, lock_wait: int | None = None) -> None:
    """Begin a transaction, on another connection if the session of the first was lost; see ``run_statement``.

    *lock_wait* is the time that its statements wait for a locked row, in milliseconds.
    """
    from sqlalchemy.exc import DBAPIError

    waits = "" if lock_wait is None else f"; SET LOCAL lock_timeout = {lock_wait}"
    for last in (False, True):
        connection = connect(engine, attempt, writes=True)
        lite = connection.dialect.name == "sqlite"
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if lite else connection.info.get(OPENING, "BEGIN") + waits)
        except DBAPIError as error:
            if last or not error.connection_invalidated:
                raise
            connection.close()
        else:
            return


def commit(attempt: Attempt) -> None:
    """Commit a transaction and return its connection to the pool; see ``run_statement``.

    After a failed statement PostgreSQL treats ``COMMIT`` as ``ROLLBACK``, without an error.

    Raises:
        StoreError: a statement failed, and the caller continued the transaction.
    """
    connection = attempt.connection
    if connection.dialect.name == "postgresql":
        status = connection.connection.driver_connection.info.transaction_status
        if status.name == "INERROR":
            raise StoreError(
                "postgresql: a statement of the transaction failed, so it was rolled back; end the transaction on the first error"
            )
    attempt.sent = True
    connection.exec_driver_sql("COMMIT")
    connection.close()


def outdated(backend: str, file: Path | None, revision: str | None, head: str) -> StoreError:
    """Return the error of tables that are missing or old, where they may not be created or migrated."""
    found = f"the tables are at revision {revision}, not {head}; let their owner migrate them:"
    if revision is None:
        place = "" if file is None else f" in {file.absolute()}"
        found = f"there are no tables{place}; check the address, or let their owner create them:"
    elif revision < SERVES:
        found = (
            f"the tables are at revision {revision}, and its processes cannot use {head}; stop them all, and then run"
        )
    return StoreError(f"{backend}: {found} `callgate stores upgrade --store ADDRESS`")


def all_rows(done: CursorResult[*tuple[object, ...]]) -> Sequence[Row]:
    """Return all rows of a result."""
    return done.all()


def first_row(done: CursorResult[*tuple[object, ...]]) -> Row | int | None:
    """Return the first row of a result, or the number of changed rows."""
    return done.first() if done.returns_rows else done.rowcount
