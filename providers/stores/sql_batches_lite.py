"""The batches of a SQLite file: one connection, used by one thread; see ``sql_batches``."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.group_commit import RolledBack
from callgate.providers.stores.sql_batches import Batch, Step, Values, as_store_error
from callgate.providers.stores.sql_connections import advised
from callgate.providers.stores.sql_database import Database
from callgate.providers.stores.sql_statements import Statement


class LiteBatches:
    """Batches on one connection of ``sqlite3``, in a thread of its own; *durable* ones survive a crash of the machine."""

    def __init__(self, database: Database, *, durable: bool = True) -> None:
        self._database, self._durable = database, durable
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    @asynccontextmanager
    async def begin(self, *, aside: bool = False, retry: bool = False) -> AsyncGenerator[Batch, None]:
        """See ``Batches``. SQLite has one writer and no locked rows, so *aside* and *retry* change nothing."""
        del aside, retry
        async with self._database.writing_alone():
            batch = _LiteBatch(self)
            try:
                yield batch
            except BaseException as error:
                rolled_back = await self.run(self._roll_back)
                if not isinstance(error, Exception):
                    raise
                failure = (
                    _lite_error(error) if isinstance(error, sqlite3.Error | UnicodeError | OverflowError) else error
                )
                if (rolled_back or not batch.committing) and not _is_outage(error):
                    raise RolledBack(as_store_error(failure)) from error
                raise failure from error

    async def run(self, work: Any, *given: Any) -> Any:
        """Run *work* in the thread of the connection."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "callgate group commit")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)

    def connection(self) -> sqlite3.Connection:
        """Return the connection; call it in its thread."""
        connection = self._connection
        if connection is None:
            connection = self._connection = self._database.engines.connect_lite(durable=self._durable)
        return connection

    def _roll_back(self) -> bool:
        """Roll back. Return False if there was no open transaction, or if that failed."""
        connection = self._connection
        if connection is None or not connection.in_transaction:
            return False
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    async def close(self) -> None:
        """See ``Batches``."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.get_running_loop().run_in_executor(thread, connection.close)
        thread.shutdown()


class _LiteBatch(Batch):
    def __init__(self, batches: LiteBatches) -> None:
        self._batches = batches

    async def run_all(self, steps: Sequence[Step]) -> list[list[Any]]:
        if not any(values for _, values in steps):
            return [[] for _ in steps]
        rows: list[list[Any]] = await self._batches.run(lambda: [self._run(*step) for step in steps])
        return rows

    async def commit(self, statement: Statement, values: Sequence[Values]) -> None:
        await self._batches.run(self._commit, statement, values)

    async def run_alone(self, statement: Statement, values: Sequence[Values]) -> list[Any]:
        rows: list[Any] = await self._batches.run(self._run_alone, statement, values)
        return rows

    async def exchange(
        self, reads: Sequence[Step], compute: Callable[[list[list[Any]]], Sequence[Step]], *, writes: bool
    ) -> None:
        await self._batches.run(self._exchange, reads, compute, writes)

    def _exchange(
        self, reads: Sequence[Step], compute: Callable[[list[list[Any]]], Sequence[Step]], writes: bool
    ) -> None:
        if not writes:
            compute([self._rows(*step) for step in reads])
            return
        for statement, values in compute([self._run(*step) for step in reads]):
            self._run(statement, values)
        self._commit_now()

    def _run_alone(self, statement: Statement, values: Sequence[Values]) -> list[Any]:
        if len(values) > 1:
            rows = self._run(statement, values)
            self._commit_now()
            return rows
        self.committing = True  # a statement without a transaction is committed by itself
        return self._batches.connection().execute(statement.lite, values[0]).fetchall()

    def _run(self, statement: Statement, values: Sequence[Values]) -> list[Any]:
        connection = self._batches.connection()
        if not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")
        return self._rows(statement, values)

    def _rows(self, statement: Statement, values: Sequence[Values]) -> list[Any]:
        connection, rows = self._batches.connection(), list[Any]()
        if statement.lite:
            for one in values:
                rows += connection.execute(statement.lite, one).fetchall()
        return rows

    def _commit(self, statement: Statement, values: Sequence[Values]) -> None:
        self._run(statement, values)
        self._commit_now()

    def _commit_now(self) -> None:
        self.committing = True
        self._batches.connection().execute("COMMIT")


def _is_outage(error: Exception) -> bool:
    """Return True if each change would meet this error, so that trying them alone is of no use."""
    return isinstance(error, sqlite3.OperationalError)


def _lite_error(error: Exception) -> StoreError:
    if isinstance(error, sqlite3.IntegrityError):
        return StoreConflict("sqlite: a row with that key exists already")
    if isinstance(error, sqlite3.OperationalError):
        return StoreError(f"sqlite: {advised(str(error))}")
    return StoreError(f"sqlite: {type(error).__name__}")
