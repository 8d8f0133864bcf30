"""A store in a SQL database: SQLite for one machine, PostgreSQL for many. Extra ``sql``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from copy import copy
from dataclasses import dataclass
from typing import Any

from callgate.providers.exits import PlainThreads
from callgate.providers.kinds import Count, checks_kinds
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import StoreFigures
from callgate.providers.stores.ledger_writes import TransactionWriter
from callgate.providers.stores.signed_rows import RowSigner
from callgate.providers.stores.sql.audit import SqlAudit
from callgate.providers.stores.sql.capacity import SqlQuotas, SqlSemaphores
from callgate.providers.stores.sql.database.database import POOL_SIZE, Database
from callgate.providers.stores.sql.database.joined import joined_transaction
from callgate.providers.stores.sql.database.part import statement
from callgate.providers.stores.sql.effects import SqlEffects
from callgate.providers.stores.sql.figures import figures_of
from callgate.providers.stores.sql.jobs import SqlJobs
from callgate.providers.stores.sql.kept import SqlCache, SqlConsents
from callgate.providers.stores.sql.ledger import SqlLedgerWriter
from callgate.providers.stores.sql.notices import JobNotices
from callgate.providers.stores.sql.shared import SharedWriter
from callgate.providers.stores.sql.suspensions import SqlPins, SqlSuspensions
from callgate.providers.stores.turns import Entered


class SqlStore:
    """A ``Store`` in SQLite or PostgreSQL. Opening it creates or migrates the tables; processes may open at once.

    Args:
        url: ``sqlite:///file.db``, ``sqlite://`` (in memory, for this object only) or
            ``postgresql://user:password@host/database``. PostgreSQL connections are closed when the server does not
            respond for half a minute, or after the time that libpq's parameters in the URL set.
        now: a clock in seconds since the epoch. Default: the clock of the PostgreSQL server. For SQLite the clock of
            the machine when the file is opened, and a monotonic clock from then on.
        pool_size: the number of connections for calls. With PostgreSQL there are two more for renewals and sweeps, four
            for group commit, and one for notices of jobs: 15 connections at most by default.
        migrate: False leaves the tables as they are: opening refuses tables that are older than this version.

    Raises:
        StoreError: the URL names another database, or the extra is not installed.
        TypeError: a setting is of another type, or *pool_size* below 1.
    """

    @checks_kinds(TypeError)
    def __init__(
        self, url: str, now: Callable[[], float] | None = None, *, pool_size: Count = POOL_SIZE, migrate: bool = True
    ) -> None:
        self._database = Database(url, now, pool_size=pool_size, migrate=migrate)
        self.name = "sqlite" if self._database.lite else "postgresql"
        self.durable = not self._database.in_memory
        self._shared = SharedWriter(self._database)
        self._namespaces: dict[tuple[str, tuple[str, ...]], SqlStore] = {}
        self.origin = self  # the same for all namespaces, which share the connections
        self._bind("", None)
        self.notices = None if self._database.lite else JobNotices(self._database)
        self.ledger = SqlLedgerWriter(self._database, self.effects)

    def _bind(self, namespace: str, keys: SigningKeys | None) -> None:
        self.namespace, self._keys = namespace, keys
        self._signer = signer = None if keys is None else RowSigner(keys, namespace)
        self._namespaces[namespace, () if keys is None else tuple(keys.ids)] = self
        self.cache = SqlCache(self._database, self._shared, namespace, signer)
        self.quotas = SqlQuotas(self._database, self._shared, namespace)
        self.semaphores = SqlSemaphores(self._database, self._shared, namespace)
        self.audit = SqlAudit(self._database, namespace=namespace)
        self.consents = SqlConsents(self._database, None, namespace, signer)
        self.pins = SqlPins(self._database, None, namespace, signer)
        self.effects = SqlEffects(self._database, None, namespace, signer)
        self.suspensions = SqlSuspensions(self._database, None, namespace, signer)
        self.jobs = SqlJobs(self._database, None, namespace, signer)

    def in_namespace(self, namespace: str) -> SqlStore:
        """Return this store with the records of one application, in every part; see ``Options``.

        Both stores have the same connections. Keys and ids of effects, suspended calls and jobs are unique in all
        namespaces together.
        """
        return self._bound(namespace, self._keys)

    def signed(self, keys: SigningKeys) -> SqlStore:
        """Return this store with signatures: its rows are signed, and checked when they are read. See ``signed_rows``."""
        return self._bound(self.namespace, keys)

    def _bound(self, namespace: str, keys: SigningKeys | None) -> SqlStore:
        known = self._namespaces.get((namespace, () if keys is None else tuple(keys.ids)))
        if known is not None:
            return known
        bound = copy(self)
        bound._bind(namespace, keys)
        bound.ledger = bound.ledger.bound(bound.effects, TransactionWriter(bound))
        return bound

    def __repr__(self) -> str:
        return f"SqlStore({self._database.shown!r})"

    def transaction(self) -> AbstractAsyncContextManager[SqlTransaction]:
        """Open a unit of work: its writes are committed together at the end, and rolled back on any error.

        SQLite has one writer: other writes of this process wait until the end, and the same task must write through the
        transaction.
        """

        async def begin(stack: AsyncExitStack) -> SqlTransaction:
            connection = await stack.enter_async_context(self._database.writing())
            return self._parts(connection, connection)

        return Entered(begin)

    def _parts(self, within: object, connection: object) -> SqlTransaction:
        return SqlTransaction(
            SqlAudit(self._database, within, self.namespace),
            SqlEffects(self._database, within, self.namespace, self._signer),
            SqlSuspensions(self._database, within, self.namespace, self._signer),
            SqlJobs(self._database, within, self.namespace, self._signer),
            connection,
        )

    def effects_in(self, connection: object, threads: PlainThreads | None = None) -> SqlEffects:
        """Return the effect ledger as a part of the application's own transaction.

        Args:
            connection: a ``Session``, ``AsyncSession``, ``Connection`` or ``AsyncConnection`` of SQLAlchemy.
            threads: run the statements of a sync connection; the event loop does without them.

        Raises:
            StoreError: the connection is of another kind, or its database of another kind than the store's.
        """
        joined = joined_transaction(connection, self.name, threads)
        return SqlEffects(self._database, joined, self.namespace, self._signer)

    async def joined(self, connection: object) -> SqlTransaction:
        """Return the parts of the store within a transaction of the application, which commits them.

        Args:
            connection: see ``effects_in``.

        Raises:
            StoreError: see ``effects_in``.
        """
        joined = joined_transaction(connection, self.name, None)
        return self._parts(joined, await joined.connection())

    def refuse_nesting(self) -> None:
        """Refuse a write in another task that the current task waits for, if it would wait for this one.

        Raises:
            StoreError: the current task has an open transaction, and SQLite has one writer.
        """
        if self._database.lite:
            self._database.refuse_nesting()

    async def open(self) -> None:
        """Connect, and bring the schema up to date.

        A newer schema is used as it is if it serves this version.

        Raises:
            StoreError: the database cannot be reached, its schema does not serve this version, or it is older and the
                store was made with ``migrate=False``, or processes of its version could not use it afterwards: stop them,
                and call ``upgrade``.
        """
        await self._database.open()

    async def upgrade(self) -> None:
        """Connect, and bring any older schema up to date, also if processes of its version cannot use it afterwards.

        Raises:
            StoreError: the database cannot be reached, or a newer Callgate has written it.
        """
        await self._database.open(upgrade=True)

    def time(self) -> float:
        """Return the time that the records have, in seconds since the epoch."""
        return self._database.now()

    async def synchronise(self) -> None:
        """Read the clock of the PostgreSQL server again; a gate does so twice a minute.

        Raises:
            StoreError: the server did not answer.
        """
        await self._database.synchronise()

    async def ping(self) -> None:
        """Read from the tables, with a connection for calls.

        Raises:
            StoreError: the database does not answer, or no connection becomes free.
        """
        await self._database.rows(statement("SELECT version_num FROM callgate_schema"), {})

    async def figures(self) -> StoreFigures:
        """Return what operators watch: of this namespace, and of the connections of this process.

        Raises:
            StoreError: the database does not answer.
        """
        return await figures_of(self._database, self.ledger, self.namespace)

    async def revision(self) -> str | None:
        """Return the revision of the tables, or None without tables. Changes nothing; the store need not be open.

        Raises:
            StoreError: the database cannot be reached.
        """
        return await self._database.revision()

    async def close(self) -> None:
        """Disconnect, in every namespace. The store can be opened again."""
        try:
            if self.notices is not None:
                await self.notices.close()
            for store in self._namespaces.values():
                await store.jobs.close()
            await self.ledger.close()
            await self._shared.close()
        finally:
            await self._database.close()


_TAKE_TURN = "SELECT pg_advisory_xact_lock(CAST(:lock AS bigint))"


@dataclass(frozen=True, slots=True)
class SqlTransaction:
    """See ``Transaction``."""

    audit: SqlAudit
    effects: SqlEffects
    suspensions: SqlSuspensions
    jobs: SqlJobs
    _connection: Any

    async def turn_of(self, tenant: str, user: str) -> bool:
        """Wait for the transactions that took this user's turn; those that take it later wait until this one ends.

        Return False on SQLite, where each transaction that writes has a turn: what it has read is still so.
        """
        if self.jobs.is_lite:
            return False
        from callgate.providers.stores.sql.shared_limits import lock_of  # few transactions come near a limit

        await self.jobs.fetch(_TAKE_TURN, {"lock": lock_of(tenant, f"{self.jobs.namespace} turn of {user}")})
        return True

    def driver(self) -> Any:
        """Return psycopg's ``AsyncConnection``, for a job engine with tables in the same database.

        None on SQLite, and in a sync transaction of the application. Writes on it are part of this transaction. The
        caller must not commit, roll back or close it, nor use it after the transaction has ended.
        """
        if self._connection is None or self._connection.dialect.name == "sqlite":
            return None
        return self._connection.sync_connection.connection.driver_connection
