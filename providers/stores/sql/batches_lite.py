"""The batches of a SQLite file: one connection, used by one thread; see ``batches``."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, TypeVar, cast

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.group_commit import RolledBack
from callgate.providers.stores.ledger_writes import RowChain
from callgate.providers.stores.sql.audit_statements import APPEND
from callgate.providers.stores.sql.batches import (
    Exchange,
    PostgresBatches,
    Script,
    Values,
    Written,
    as_store_error,
    links,
    sealed,
    unlinked,
)
from callgate.providers.stores.sql.database.connections import advised, after, until_over
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.database.engines import MOVED
from callgate.providers.stores.sql.database.rows import Row
from callgate.providers.stores.sql.database.statements import Statement
from callgate.providers.stores.turns import Turns

T = TypeVar("T")
Batches: TypeAlias = "LiteBatches | PostgresBatches"


class LiteBatches:
    """Batches on one connection of ``sqlite3``, in a thread of its own; *durable* ones survive a crash of the machine.

    Each is one visit to the thread, which commits or rolls back. SQLite has one writer and no locked rows, so *wait*
    changes nothing. ``committing``: the COMMIT of this batch may have taken place.
    """

    committing = False

    def __init__(self, database: Database, *, durable: bool = True) -> None:
        self._database, self._durable = database, durable
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    def write(
        self, script: Callable[[], Script], chains: Collection[RowChain], wait: int
    ) -> Awaitable[Sequence[object]]:
        """See ``PostgresBatches``. The whole script runs in one visit to the thread, so the chains are locked before.

        That is safe: this process has no other open transaction, and none of another process waits for a chain of this one.
        """
        return self._visit(chains, self._write, script)

    def run_alone(
        self, statement: Statement, values: Callable[[], Sequence[Values]], wait: int
    ) -> Awaitable[list[Row]]:
        """See ``PostgresBatches``."""
        return self._visit((), self._run_alone, statement, values)

    def exchange(self, requests: Callable[[], Exchange], wait: int, *, writes: bool) -> Awaitable[None]:
        """See ``PostgresBatches``."""
        return self._visit((), self._exchange, requests, writes)

    async def close(self) -> None:
        """See ``PostgresBatches``."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.get_running_loop().run_in_executor(thread, connection.close)
        thread.shutdown()

    async def _visit(self, chains: Collection[RowChain], work: Callable[..., T], *given: object) -> T:
        """Run *work* in the thread, in a turn of the writers of this process and with the locks of *chains*.

        A visit is not stopped halfway: a cancellation is raised after it, and a closed caller leaves the locks to it.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "callgate group commit")
        turn, held, step = self._database.turn, list[Turns](), None
        try:
            await turn.acquire()
            held.append(turn)
            for chain in sorted(chains, key=id):
                await chain.lock.acquire()
                held.append(chain.lock)
            step = asyncio.get_running_loop().run_in_executor(self._thread, self._commit, work, *given)
            try:  # as ``shielded`` does; a further coroutine would be resumed for each batch
                await asyncio.wait([step])
            except asyncio.CancelledError:
                await until_over(step)
                raise
            return step.result()
        finally:
            if step is None or step.done():
                for lock in held:
                    lock.release()
            else:
                for lock in held:
                    after(step, lock.release)

    # ------------------------------------------------------------------ in the thread

    def _commit(self, work: Callable[..., T], *given: object) -> T:
        """Run *work*, which commits; after an error roll back."""
        self.committing = False
        try:
            return work(*given)
        except Exception as error:
            rolled_back = self._roll_back()
            failure = _lite_error(error) if isinstance(error, sqlite3.Error | UnicodeError | OverflowError) else error
            if (rolled_back or not self.committing) and not _is_outage(error):
                raise RolledBack(as_store_error(failure)) from error
            raise failure from error

    def _roll_back(self) -> bool:
        """Return False if there was no open transaction, or if the rollback failed."""
        connection = self._connection
        if connection is None or not connection.in_transaction:
            return False
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    def _write(self, begin: Callable[[], Script]) -> Sequence[object]:
        results, rows = self._play(begin())
        for chain, (namespace, step) in unlinked(rows).items():
            chain.links = links(namespace, self._run(*step))
        with sealed(rows) as values:
            self._run(APPEND, values)
            self._commit_now()
        return results

    def _play(self, script: Script) -> Written:
        steps = next(script)
        while True:
            try:
                steps = script.send([self._run(*step) if step[1] else [] for step in steps])
            except StopIteration as end:
                return cast(Written, end.value)

    def _exchange(self, begin: Callable[[], Exchange], writes: bool) -> None:
        reads, compute = begin()
        if not writes:
            connection = self._open()
            compute([statement.run_lite(connection, values) for statement, values in reads])
            return
        for statement, values in compute([self._run(*step) for step in reads]):
            self._run(statement, values)
        self._commit_now()

    def _run_alone(self, statement: Statement, begin: Callable[[], Sequence[Values]]) -> list[Row]:
        values = begin()
        if len(values) == 1:
            self.committing = True  # a statement without a transaction is committed by itself
            return statement.run_lite(self._open(), values)
        rows = self._run(statement, values)
        self._commit_now()
        return rows

    def _run(self, statement: Statement, values: Sequence[Values]) -> list[Row]:
        connection = self._connection
        if connection is None or not connection.in_transaction:
            connection = self._open()  # it asks the file system, as does the commit
            connection.execute("BEGIN IMMEDIATE")
        return statement.run_lite(connection, values)

    def _commit_now(self) -> None:
        self.committing = True
        self._open().execute("COMMIT")

    def _open(self) -> sqlite3.Connection:
        """Return the connection.

        Raises:
            OperationalError: its file was removed or replaced.
        """
        if not self._database.engines.file.is_there():
            raise sqlite3.OperationalError(MOVED)
        connection = self._connection
        if connection is None:
            connection = self._connection = self._database.engines.connect_lite(durable=self._durable)
        return connection


def _is_outage(error: Exception) -> bool:
    """Return True if each change would meet this error, so that trying them alone is of no use."""
    return isinstance(error, sqlite3.OperationalError)


def _lite_error(error: Exception) -> StoreError:
    if isinstance(error, sqlite3.IntegrityError):
        return StoreConflict("sqlite: a row with that key exists already")
    if isinstance(error, sqlite3.OperationalError):
        return StoreError(f"sqlite: {advised(str(error))}")
    return StoreError(f"sqlite: {type(error).__name__}")
