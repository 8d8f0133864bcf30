"""The batches of a SQLite file: one connection, used by one thread; see ``batches``."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack
from types import TracebackType
from typing import TypeVar, cast

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.group_commit import RolledBack
from callgate.providers.stores.ledger_writes import RowChain
from callgate.providers.stores.sql.audit_statements import APPEND
from callgate.providers.stores.sql.batches import (
    Batch,
    Script,
    SealedBody,
    Step,
    Values,
    as_store_error,
    links,
    sealed,
    unlinked,
)
from callgate.providers.stores.sql.database.connections import Attempt, advised
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.database.engines import MOVED
from callgate.providers.stores.sql.database.rows import Row
from callgate.providers.stores.sql.database.statements import Statement

T = TypeVar("T")


class LiteBatches:
    """Batches on one connection of ``sqlite3``, in a thread of its own; *durable* ones survive a crash of the machine."""

    def __init__(self, database: Database, *, durable: bool = True) -> None:
        self._database, self._durable = database, durable
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    def begin(self, *, aside: bool = False, retry: bool = False) -> AbstractAsyncContextManager[Batch]:
        """See ``Batches``. SQLite has one writer and no locked rows, so *aside* and *retry* change nothing."""
        del aside, retry
        return _LiteBatch(self, self._database)

    def visit(self, work: Callable[..., T], *given: object) -> asyncio.Future[T]:
        """Run *work* in the thread of the connection."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "callgate group commit")
        return asyncio.get_running_loop().run_in_executor(self._thread, work, *given)

    def connection(self) -> sqlite3.Connection:
        """Return the connection; call it in its thread.

        Raises:
            OperationalError: its file was removed or replaced.
        """
        if not self._database.engines.file.is_there():
            raise sqlite3.OperationalError(MOVED)
        connection = self._connection
        if connection is None:
            connection = self._connection = self._database.engines.connect_lite(durable=self._durable)
        return connection

    def roll_back(self) -> bool:
        """Roll back, in the thread of the connection. Return False if there was no open transaction, or if that failed."""
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
    """A transaction, and its turn among the writers of this process."""

    def __init__(self, batches: LiteBatches, database: Database) -> None:
        self._batches, self._database, self._attempt = batches, database, Attempt()

    async def __aenter__(self) -> Batch:
        self._end_turn = await self._database.begin_turn()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                await self._roll_back(error)
        finally:
            self._attempt.afterwards(self._end_turn)

    async def _roll_back(self, error: BaseException) -> None:
        rolling_back = self._batches.visit(self._batches.roll_back)
        if isinstance(error, GeneratorExit):  # a closed coroutine cannot wait
            return
        rolled_back = await rolling_back
        if not isinstance(error, Exception):
            return
        failure = _lite_error(error) if isinstance(error, sqlite3.Error | UnicodeError | OverflowError) else error
        if (rolled_back or not self.committing) and not _is_outage(error):
            raise RolledBack(as_store_error(failure)) from error
        raise failure from error

    async def write(self, script: Script, chains: Collection[RowChain]) -> None:
        """See ``Batch``. The whole script runs in one visit to the thread, so the chains are locked before.

        That is safe: this process has no other open transaction, and none of another process waits for a chain of this one.
        """
        with ExitStack() as locks:
            for chain in sorted(chains, key=id):
                await chain.lock.acquire()
                locks.callback(chain.lock.release)
            await self._attempt.shielded(self._batches.visit(self._write, script))

    def _write(self, script: Script) -> None:
        rows = self._play(script)
        for chain, (namespace, step) in unlinked(rows).items():
            chain.links = links(namespace, self._run(*step))
        with sealed(rows) as values:
            self._run(APPEND, values)
            self._commit_now()

    def _play(self, script: Script) -> Sequence[SealedBody]:
        steps = next(script)
        while True:
            try:
                steps = script.send([self._run(*step) if step[1] else [] for step in steps])
            except StopIteration as end:
                return cast(Sequence[SealedBody], end.value)

    async def run_alone(self, statement: Statement, values: Sequence[Values]) -> list[Row]:
        return await self._batches.visit(self._run_alone, statement, values)

    async def exchange(
        self, reads: Sequence[Step], compute: Callable[[list[list[Row]]], Sequence[Step]], *, writes: bool
    ) -> None:
        await self._batches.visit(self._exchange, reads, compute, writes)

    def _exchange(
        self, reads: Sequence[Step], compute: Callable[[list[list[Row]]], Sequence[Step]], writes: bool
    ) -> None:
        if not writes:
            connection = self._batches.connection()
            compute([_rows(connection, *step) for step in reads])
            return
        for statement, values in compute([self._run(*step) for step in reads]):
            self._run(statement, values)
        self._commit_now()

    def _run_alone(self, statement: Statement, values: Sequence[Values]) -> list[Row]:
        if len(values) > 1:
            rows = self._run(statement, values)
            self._commit_now()
            return rows
        self.committing = True  # a statement without a transaction is committed by itself
        return self._batches.connection().execute(statement.lite, values[0]).fetchall()

    def _run(self, statement: Statement, values: Sequence[Values]) -> list[Row]:
        connection = self._batches.connection()
        if not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")
        return _rows(connection, statement, values)

    def _commit_now(self) -> None:
        self.committing = True
        self._batches.connection().execute("COMMIT")


def _rows(connection: sqlite3.Connection, statement: Statement, values: Sequence[Values]) -> list[Row]:
    rows = list[Row]()
    if statement.lite:
        for one in values:
            rows += connection.execute(statement.lite, one).fetchall()
    return rows


def _is_outage(error: Exception) -> bool:
    """Return True if each change would meet this error, so that trying them alone is of no use."""
    return isinstance(error, sqlite3.OperationalError)


def _lite_error(error: Exception) -> StoreError:
    if isinstance(error, sqlite3.IntegrityError):
        return StoreConflict("sqlite: a row with that key exists already")
    if isinstance(error, sqlite3.OperationalError):
        return StoreError(f"sqlite: {advised(str(error))}")
    return StoreError(f"sqlite: {type(error).__name__}")
