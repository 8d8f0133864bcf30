"""A store in a SQL database: SQLite for one machine, PostgreSQL for many. Extra ``sql``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from callgate.providers.stores.sql_audit import SqlAudit
from callgate.providers.stores.sql_capacity import SqlQuotas, SqlSemaphores
from callgate.providers.stores.sql_database import Database
from callgate.providers.stores.sql_effects import SqlEffects
from callgate.providers.stores.sql_jobs import SqlJobs
from callgate.providers.stores.sql_kept import SqlCache, SqlConsents
from callgate.providers.stores.sql_suspensions import SqlPins, SqlWaits


class SqlStore:
    """Every part of a ``Store``, in SQLite or PostgreSQL.

    *url* is ``sqlite:///file.db``, ``sqlite://`` (in memory, of this object alone) or
    ``postgresql://user:password@host/database``; *now* is a clock in seconds since the epoch, which processes that share
    a database must agree on; *pool_size* is the number of connections, for PostgreSQL of each of two pools. A connection
    whose server has vanished without a word is given up after half a minute, or as libpq's parameters in the URL say.

    Opening makes the tables and brings them up to date; processes may open at once.

    Raises:
        StoreError: the URL is of no such database, or the extra is not installed.
    """

    def __init__(self, url: str, now: Callable[[], float] = time.time, *, pool_size: int = 10) -> None:
        self._database = Database(url, now, pool_size=pool_size)
        self.name = "sqlite" if self._database.lite else "postgresql"
        self.durable = not self._database.in_memory
        self.cache = SqlCache(self._database)
        self.quotas = SqlQuotas(self._database)
        self.semaphores = SqlSemaphores(self._database)
        self.audit = SqlAudit(self._database)
        self.consents = SqlConsents(self._database)
        self.effects = SqlEffects(self._database)
        self.waits = SqlWaits(self._database)
        self.pins = SqlPins(self._database)
        self.jobs = SqlJobs(self._database)

    def __repr__(self) -> str:
        return f"SqlStore({self._database.shown!r})"

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[SqlTransaction, None]:
        """What is written through it is committed at its end, all of it, and rolled back on any error.

        SQLite has one writer: other writes of this process wait meanwhile, and the same task must write through the
        transaction.
        """
        async with self._database.writing(durable=True) as connection:
            yield SqlTransaction(
                SqlAudit(self._database, connection),
                SqlEffects(self._database, connection),
                SqlWaits(self._database, connection),
                SqlJobs(self._database, connection),
                connection,
            )

    async def open(self) -> None:
        """Connect, and bring the schema up to date.

        Raises:
            StoreError: there is no connection, or the schema is newer than this version.
        """
        await self._database.open()

    async def revision(self) -> str | None:
        """The revision of the tables, None where there are none yet; changes nothing, open or not.

        Raises:
            StoreError: there is no connection.
        """
        return await self._database.revision()

    async def close(self) -> None:
        """Disconnect; it may be opened again."""
        await self._database.close()


@dataclass(frozen=True, slots=True)
class SqlTransaction:
    """See ``Transaction``."""

    audit: SqlAudit
    effects: SqlEffects
    waits: SqlWaits
    jobs: SqlJobs
    _connection: Any

    def driver(self) -> Any:
        """psycopg's ``AsyncConnection``, for an engine whose own tables lie in the same PostgreSQL; None on SQLite.

        What is written on it is part of this transaction. Whoever has it neither commits, rolls back nor closes it, and
        lets go of it before the transaction ends.
        """
        if self._connection.dialect.name == "sqlite":
            return None
        return self._connection.sync_connection.connection.driver_connection
