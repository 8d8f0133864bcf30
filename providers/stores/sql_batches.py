"""Transactions for group commit: set-based statements on psycopg, and one thread with ``sqlite3``."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

from callgate.errors import StoreError
from callgate.providers.stores.base import AuditTip
from callgate.providers.stores.group_commit import ASIDE_WAIT_MS, LOCK_WAIT_MS, RETRY_WAIT_MS, RolledBack
from callgate.providers.stores.ledger_writes import RowChain
from callgate.providers.stores.namespaces import from_table, range_of
from callgate.providers.stores.sql_audit import APPEND, TIPS, append_values
from callgate.providers.stores.sql_connections import postgres_error
from callgate.providers.stores.sql_database import Database
from callgate.providers.stores.sql_statements import Statement
from callgate.providers.stores.sql_states import (
    READ_ONLY,
    SessionLost,
    is_cut,
    is_read_only,
    is_session_lost,
    retried,
    wrote_nothing,
)

ANSWER_LIMIT = 10.0
"""Seconds until a server that does not answer is given up, and with it the connection."""

T = TypeVar("T")
Values: TypeAlias = Mapping[str, Any]
SealedBody: TypeAlias = tuple[str, RowChain, Mapping[str, Any], str]
"""A tenant, and the body of an audit row with its chain."""
Step: TypeAlias = tuple[Statement, Sequence[Values]]
"""A statement, and the values for each time that it runs. Without values it does not run."""


class Batch(ABC):
    """One transaction with the changes of several callers. ``committing``: the COMMIT may have been sent."""

    committing = False

    @abstractmethod
    async def run_all(self, steps: Sequence[Step]) -> list[list[Any]]:
        """Run statements in order, in one round trip. Return the rows of each."""

    async def run(self, statement: Statement, values: Sequence[Values]) -> list[Any]:
        """Run a statement for each of *values*, and return all its rows. Without values it does nothing."""
        return (await self.run_all([(statement, values)]))[0]

    @abstractmethod
    async def run_alone(self, statement: Statement, values: Sequence[Values]) -> list[Any]:
        """Run a statement for each of *values*, commit, and return its rows: the only one of its transaction."""

    @abstractmethod
    async def commit(self, statement: Statement, values: Sequence[Values]) -> None:
        """Run a statement for each of *values*, and commit."""

    @abstractmethod
    async def exchange(
        self, reads: Sequence[Step], compute: Callable[[list[list[Any]]], Sequence[Step]], *, writes: bool
    ) -> None:
        """Run *reads*, and then the steps that *compute* returns for their rows; commit.

        The only method that is called on its transaction. A crash of the server may lose the commit. Unless it *writes*,
        it needs no transaction, and *compute* returns no steps that have values.
        """

    async def seal_and_commit(self, rows: Sequence[SealedBody]) -> None:
        """Give the audit rows their places in their chains, write them, and commit.

        The chains are locked here and not earlier: a transaction that waits for a row must hold no chain.
        """
        bodies: dict[RowChain, list[Mapping[str, Any]]] = {}
        names: dict[RowChain, str] = {}
        for _, chain, body, namespace in rows:
            bodies.setdefault(chain, []).append(body)
            names[chain] = namespace
        async with AsyncExitStack() as locks:
            for chain in sorted(bodies, key=id):
                await locks.enter_async_context(chain.lock)
                if chain.links is None:
                    chain.links = await self._tips(names[chain])
            sealed = {chain: chain.seal(given) for chain, given in bodies.items()}
            places = {chain: iter(given) for chain, given in sealed.items()}
            values = [append_values(tenant, next(places[chain]), namespace) for tenant, chain, _, namespace in rows]
            try:
                await self.commit(APPEND, values)
            except BaseException:
                for chain in bodies:
                    chain.doubtful()
                raise
            for chain, given in sealed.items():
                chain.written(given)

    async def _tips(self, namespace: str) -> list[AuditTip]:
        low, high = range_of(namespace)
        found = await self.run(TIPS, [{"low": low, "high": high}])
        return [(from_table(namespace, segment), number, hash) for segment, number, hash in found]


class Batches(Protocol):
    """Opens transactions for batches."""

    def begin(self, *, aside: bool = False, retry: bool = False) -> AbstractAsyncContextManager[Batch]:
        """Open a transaction; with *aside* on a connection of its own. With *retry* it hardly waits for rows.

        Raises:
            RolledBack: the transaction was rolled back because of a change in it.
            StoreError: the database cannot be reached, or it is unknown whether the transaction was committed.
        """
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


async def run_batch(
    batches: Batches, work: Callable[[Batch], Awaitable[T]], *, aside: bool = False, retry: bool = False
) -> T:
    """Return the result of *work* on a transaction, which runs again as ``retried`` says; see ``Batches.begin``."""

    async def once() -> T:
        async with batches.begin(aside=aside, retry=retry) as batch:
            return await work(batch)

    return await retried(once)


# ---------------------------------------------------------------------- PostgreSQL


class PostgresBatches:
    """Batches on one connection of psycopg, apart from the pools."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Any = None
        self._settings: tuple[str, ...] = ()

    @asynccontextmanager
    async def begin(self, *, aside: bool = False, retry: bool = False) -> AsyncGenerator[Batch, None]:
        """See ``Batches``."""
        import psycopg

        connection: Any = None
        batch: _PostgresBatch | None = None
        try:
            async with asyncio.timeout(ANSWER_LIMIT + ASIDE_WAIT_MS / 1000 * aside):
                connection, settings, fresh = await self._connected(aside=aside)
                if retry:
                    settings = (*settings, f"SET LOCAL lock_timeout = {RETRY_WAIT_MS}")
                batch = _PostgresBatch(connection, settings, fresh=fresh)
                yield batch
        except (TimeoutError, asyncio.CancelledError) as error:
            if connection is not None:
                await connection.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise StoreError(f"postgresql: no answer in {ANSWER_LIMIT:.0f} seconds") from error
        except Exception as error:
            failure = postgres_error(error) if isinstance(error, psycopg.Error | UnicodeError) else error
            is_lost = is_session_lost(error)
            is_there = not is_lost and await _roll_back(connection)
            if not is_there and connection is not None:
                await connection.close()
            # An error of a server that is still there has a code. Without one it is unknown whether it got the COMMIT.
            if is_there and ((batch is not None and not batch.committing) or getattr(error, "sqlstate", None)):
                waited = isinstance(error, psycopg.errors.LockNotAvailable)
                raise RolledBack(as_store_error(failure), waited=waited) from error
            is_lost = is_lost or isinstance(error, psycopg.OperationalError)
            if is_lost and batch is not None and batch.may_run_again(getattr(error, "sqlstate", None)):
                raise SessionLost(str(failure), sqlstate=getattr(error, "sqlstate", None)) from error
            raise failure from error
        finally:
            if aside and connection is not None:
                await connection.close()

    async def _connected(self, *, aside: bool) -> tuple[Any, tuple[str, ...], bool]:
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
        """See ``Batches``."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def _roll_back(connection: Any) -> bool:
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


class _PostgresBatch(Batch):
    def __init__(self, connection: Any, settings: Sequence[str], *, fresh: bool) -> None:
        self._connection, self._settings, self._fresh = connection, settings, fresh
        self._begun = self._alone = False

    def may_run_again(self, code: str | None) -> bool:
        """Return True if nothing was written before the session was lost, and a new session may differ."""
        return wrote_nothing(code, sent=self.committing, alone=self._alone) and not (code == READ_ONLY and self._fresh)

    async def run_all(self, steps: Sequence[Step]) -> list[list[Any]]:
        given = [(one.postgres, one.parameters(values)) if values else None for one, values in steps]
        if not any(given):
            return [[] for _ in steps]
        async with self._connection.pipeline():
            await self._begin()
            cursors = [None if one is None else await self._connection.execute(*one) for one in given]
        return [[] if cursor is None else list(await cursor.fetchall()) for cursor in cursors]

    async def run_alone(self, statement: Statement, values: Sequence[Values]) -> list[Any]:
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
        self, reads: Sequence[Step], compute: Callable[[list[list[Any]]], Sequence[Step]], *, writes: bool
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

    async def commit(self, statement: Statement, values: Sequence[Values]) -> None:
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


# ---------------------------------------------------------------------- SQLite
