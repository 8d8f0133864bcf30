"""Transactions for group commit: set-based statements on psycopg, and one thread with ``sqlite3``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from callgate.errors import StoreError
from callgate.providers.stores.base import AuditTip
from callgate.providers.stores.group_commit import ASIDE_WAIT_MS, LOCK_WAIT_MS, RETRY_WAIT_MS, RolledBack
from callgate.providers.stores.ledger_writes import RowChain
from callgate.providers.stores.namespaces import from_table, range_of
from callgate.providers.stores.sql.audit_statements import APPEND, TIPS, append_values
from callgate.providers.stores.sql.database.connections import postgres_error
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.database.rows import Row
from callgate.providers.stores.sql.database.statements import Statement
from callgate.providers.stores.sql.database.states import (
    READ_ONLY,
    CommitLost,
    SessionLost,
    is_cut,
    is_read_only,
    is_session_lost,
    retried,
    server_error,
    wrote_nothing,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection

T = TypeVar("T")

ANSWER_LIMIT = 10.0
"""Seconds until a server that does not answer is given up, and with it the connection."""

Values: TypeAlias = Mapping[str, object]
SealedBody: TypeAlias = tuple[str, RowChain, Mapping[str, object], str]
"""A tenant, and the body of an audit row with its chain."""
Step: TypeAlias = tuple[Statement, Sequence[Values]]
"""A statement, and the values for each time that it runs. Without values it does not run."""
Written: TypeAlias = tuple[Sequence[object], Sequence[SealedBody]]
"""The results of a batch, and the audit rows to write with it."""
Script: TypeAlias = Generator[Sequence[Step], list[list[Row]], Written]
"""The steps of a batch: it yields some, is sent the rows of each, and returns the results."""
Exchange: TypeAlias = tuple[Sequence[Step], Callable[[list[list[Row]]], Sequence[Step]]]
"""Steps that read, and a function that returns the steps to write for their rows."""


@contextmanager
def sealed(rows: Sequence[SealedBody]) -> Generator[list[Values]]:
    """Give the audit rows their places in their chains, which the caller has locked, and write them in this context.

    Yields the values of ``APPEND``.
    """
    bodies: dict[RowChain, list[Mapping[str, object]]] = {}
    for _, chain, body, _ in rows:
        bodies.setdefault(chain, []).append(body)
    made = {chain: chain.seal(given) for chain, given in bodies.items()}
    places = {chain: iter(given) for chain, given in made.items()}
    try:
        yield [append_values(tenant, next(places[chain]), namespace) for tenant, chain, _, namespace in rows]
    except BaseException:
        for chain, given in made.items():
            chain.doubtful(bodies[chain], given)
        raise
    for chain, given in made.items():
        chain.written(given)


def unlinked(rows: Sequence[SealedBody]) -> dict[RowChain, tuple[str, Step]]:
    """Return the chains of rows whose links are not known: the namespace of each, and the step that reads them."""
    found: dict[RowChain, tuple[str, Step]] = {}
    for _, chain, _, namespace in rows:
        if chain.links is None:
            low, high = range_of(namespace)
            found[chain] = namespace, (TIPS, [{"low": low, "high": high}])
    return found


def links(namespace: str, rows: Sequence[Row]) -> list[AuditTip]:
    """Return the links of a chain as the step of ``unlinked`` has read them."""
    return [(from_table(namespace, segment), number, hash) for segment, number, hash in rows]


# ---------------------------------------------------------------------- PostgreSQL


class PostgresBatches:
    """Transactions with the changes of several callers, on one connection of psycopg, apart from the pools.

    ``write``, ``run_alone`` and ``exchange`` are one transaction each. What they are given to call begins when it does: a
    new one when it runs again. *wait* is the time that a statement waits for a locked row, in milliseconds; with
    ``ASIDE_WAIT_MS`` the transaction has its own connection.

    Raises:
        RolledBack: the transaction was rolled back because of a change in it.
        StoreError: the database cannot be reached, or it is unknown whether the transaction was committed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: AsyncConnection | None = None
        self._settings: tuple[str, ...] = ()

    def write(
        self, script: Callable[[], Script], chains: Collection[RowChain], wait: int
    ) -> Awaitable[Sequence[object]]:
        """Run a script, write its audit rows, whose chains are among *chains*, commit, and return its results.

        A chain is locked from the sealing of its rows to the end of the transaction.
        """
        del chains  # each is locked last: a transaction that waits for a row must hold no chain
        return self._transact(lambda batch: batch.write(script()), wait)

    def run_alone(
        self, statement: Statement, values: Callable[[], Sequence[Values]], wait: int
    ) -> Awaitable[list[Row]]:
        """Run a statement for each of *values*, commit, and return its rows."""
        return self._transact(lambda batch: batch.run_alone(statement, values()), wait)

    def exchange(self, requests: Callable[[], Exchange], wait: int, *, writes: bool) -> Awaitable[None]:
        """Run the steps that read, and those for their rows; commit. A crash of the server may lose the commit.

        Unless it *writes*, it needs no transaction, and there are no steps for the rows that have values.
        """
        return self._transact(lambda batch: batch.exchange(*requests(), writes=writes), wait)

    async def _transact(self, work: Callable[[_PostgresBatch], Awaitable[T]], wait: int) -> T:
        async def once() -> T:
            async with self.begin(wait) as batch:
                return await work(batch)

        return await retried(once)

    @asynccontextmanager
    async def begin(self, wait: int = LOCK_WAIT_MS) -> AsyncGenerator[_PostgresBatch, None]:
        """Open a transaction."""
        import psycopg

        aside = wait == ASIDE_WAIT_MS

        connection: AsyncConnection | None = None
        batch: _PostgresBatch | None = None
        try:
            async with asyncio.timeout(ANSWER_LIMIT + ASIDE_WAIT_MS / 1000 * aside):
                connection, settings, fresh = await self._connected(aside=aside)
                if wait == RETRY_WAIT_MS:
                    settings = (*settings, f"SET LOCAL lock_timeout = {RETRY_WAIT_MS}")
                batch = _PostgresBatch(connection, settings, fresh=fresh)
                yield batch
        except (TimeoutError, asyncio.CancelledError) as error:
            if connection is not None:
                await connection.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise StoreError(f"postgresql: no answer in {ANSWER_LIMIT:.0f} seconds") from error
        except Exception as shown:  # noqa: BLE001  (raised again as an error of the store)
            cause = server_error(shown)
            failure = postgres_error(cause) if isinstance(cause, psycopg.Error | UnicodeError) else cause
            is_lost = is_session_lost(cause)
            is_there = not is_lost and await _roll_back(connection)
            if not is_there and connection is not None:
                await connection.close()
            # An error of a server that is still there has a code. Without one it is unknown whether it got the COMMIT.
            if is_there and ((batch is not None and not batch.committing) or getattr(cause, "sqlstate", None)):
                waited = isinstance(cause, psycopg.errors.LockNotAvailable)
                raise RolledBack(as_store_error(failure), waited=waited) from cause
            if batch is not None and (is_lost or isinstance(cause, psycopg.OperationalError)):
                raise batch.lost(as_store_error(failure)) from cause
            raise failure from cause
        finally:
            if aside and connection is not None:
                await connection.close()

    async def _connected(self, *, aside: bool) -> tuple[AsyncConnection, tuple[str, ...], bool]:
        """Return a connection, the settings for each of its transactions, and whether it is new."""
        connect = self._database.engines.connect_driver
        if aside:
            return (*await connect(ASIDE_WAIT_MS), True)
        old = self._connection
        if old is not None and not is_cut(old) and (self._settings or not is_read_only(old)):
            return old, self._settings, False
        self._connection = None
        if old is not None:
            await old.close()
        self._connection, self._settings = await connect(LOCK_WAIT_MS)
        return self._connection, self._settings, True

    async def close(self) -> None:
        """Disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def _roll_back(connection: AsyncConnection | None) -> bool:
    """Roll back. Return False if the server is not there; then the connection is closed."""
    if connection is None or connection.closed:
        return False
    try:
        async with asyncio.timeout(10.0):
            await connection.rollback()
    except Exception:  # noqa: BLE001  (the caller raises the first error; this connection is not used again)
        await connection.close()
        return False
    return True


class _PostgresBatch:
    """One transaction. ``committing``: the COMMIT may have been sent."""

    committing = False

    def __init__(self, connection: Any, settings: Sequence[str], *, fresh: bool) -> None:
        self._connection, self._settings, self._fresh = connection, settings, fresh
        self._begun = self._alone = False

    def lost(self, failure: StoreError) -> StoreError:
        """Return the error of a lost session: it says whether the transaction may run again, on another connection."""
        code = failure.sqlstate
        if code == READ_ONLY and self._fresh:  # a new session would be read-only, too
            return failure
        known = wrote_nothing(code, sent=self.committing, alone=self._alone)
        return (SessionLost if known else CommitLost)(str(failure), sqlstate=code)

    async def write(self, script: Script) -> Sequence[object]:
        results, rows = await self._play(script)
        async with AsyncExitStack() as locks:  # not earlier: a transaction that waits for a row must hold no chain
            written = {chain for _, chain, _, _ in rows}
            for chain in sorted(written, key=id):
                await locks.enter_async_context(chain.lock)
            for chain, (namespace, step) in unlinked(rows).items():
                chain.links = links(namespace, (await self._run_all([step]))[0])
            with sealed(rows) as values:
                await self._commit(APPEND, values)
        return results

    async def _play(self, script: Script) -> Written:
        steps = next(script)
        while True:
            rows = await self._run_all(steps)
            try:
                steps = script.send(rows)
            except StopIteration as end:
                return cast(Written, end.value)

    async def _run_all(self, steps: Sequence[Step]) -> list[list[Row]]:
        given = [(one.postgres, one.parameters(values)) if values else None for one, values in steps]
        if not any(given):
            return [[] for _ in steps]
        async with self._connection.pipeline():
            await self._begin()
            cursors = [None if one is None else await self._connection.execute(*one) for one in given]
        return [[] if cursor is None else list(await cursor.fetchall()) for cursor in cursors]

    async def run_alone(self, statement: Statement, values: Sequence[Values]) -> list[Row]:
        given = statement.parameters(values)
        self.committing = True
        if not self._settings:
            self._alone = True
            return list(await (await self._connection.execute(statement.postgres, given)).fetchall())
        async with self._connection.pipeline():
            await self._begin()
            cursor = await self._connection.execute(statement.postgres, given)
            await self._connection.execute("COMMIT")
        self._begun = False
        return list(await cursor.fetchall())

    async def exchange(
        self, reads: Sequence[Step], compute: Callable[[list[list[Row]]], Sequence[Step]], *, writes: bool
    ) -> None:
        execute = self._connection.execute
        async with self._connection.pipeline():
            if writes:
                await self._begin()
                await execute("SET LOCAL synchronous_commit = off")
            cursors = [await execute(one.postgres, one.parameters(values)) if values else None for one, values in reads]
        steps = compute([await cursor.fetchall() if cursor and cursor.description else [] for cursor in cursors])
        # Made before: a value that has no text in a statement is known not to be written.
        written = [(one.postgres, one.parameters(values)) for one, values in steps if values]
        if not writes:
            return
        self.committing = True
        async with self._connection.pipeline():
            for sql, given in written:
                await execute(sql, given)
            await execute("COMMIT")

    async def _commit(self, statement: Statement, values: Sequence[Values]) -> None:
        given = statement.parameters(values)  # before: a failure here is known to have written nothing
        self.committing = True
        async with self._connection.pipeline():
            await self._begin()
            if values:
                await self._connection.execute(statement.postgres, given)
            await self._connection.execute("COMMIT")

    async def _begin(self) -> None:
        if not self._begun:
            for statement in ("BEGIN", *self._settings):
                await self._connection.execute(statement)
            self._begun = True


def as_store_error(error: Exception) -> StoreError:
    """Return the error of a store as it is, and another one as a change that was not written."""
    return error if isinstance(error, StoreError) else StoreError(f"the change was not written: {type(error).__name__}")
