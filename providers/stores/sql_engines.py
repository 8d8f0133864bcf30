"""The connections to a SQL database: three pools with fair queues, and single connections beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from callgate.errors import StoreError

_KEEPALIVES = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
"""Parameters of libpq for a server or network that stops responding: the connection fails after half a minute, and not
after 15 minutes or more. Parameters in the address win."""

_TURN_LIMIT = 10.0
"""Seconds that a caller waits for a connection."""
_UPKEEP_SIZE = 2
"""Connections for renewals and sweeps, which must not wait for calls."""


class Engines:
    """The engines of one database.

    ``usual`` commits may be lost when the machine crashes, ``durable`` ones may not. ``upkeep`` is durable, too, and
    apart, so that leases are renewed while calls use all other connections.
    """

    def __init__(self, url: Any, pool_size: int, *, in_memory: bool) -> None:
        self._url = url
        self._lite: bool = url.get_backend_name() == "sqlite"
        self._turns: dict[Any, asyncio.Semaphore] = {}
        self.durable = self._engine(1 if self._lite else pool_size, durable=True)
        self.upkeep = self.durable if self._lite else self._engine(_UPKEEP_SIZE, durable=True)
        self.usual = self.durable if in_memory else self._engine(pool_size, durable=False)

    def _engine(self, size: int, *, durable: bool) -> Any:
        from sqlalchemy import AsyncAdaptedQueuePool, event
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(
            self._url,
            isolation_level="AUTOCOMMIT",  # one statement is one round trip; transactions are begun by hand
            poolclass=AsyncAdaptedQueuePool,
            pool_size=size,
            max_overflow=0,
            pool_timeout=_TURN_LIMIT,
            hide_parameters=True,
            connect_args=self._connect_args(),
        )
        settings = (_lite_settings if self._lite else _postgres_settings)(durable=durable)

        def configure(connection: Any, _: Any) -> None:
            cursor = connection.cursor()
            for setting in settings:
                cursor.execute(setting)
            cursor.close()

        event.listen(engine.sync_engine, "connect", configure)
        self._turns[engine] = asyncio.Semaphore(size)
        return engine

    def is_exhausted(self, engine: Any) -> bool:
        """Return True if a caller would wait for a connection."""
        return self._turns[engine].locked()

    @asynccontextmanager
    async def turn(self, engine: Any) -> AsyncGenerator[None, None]:
        """Wait for a connection of an engine, in order of arrival.

        The pool of SQLAlchemy alone is not fair: who returns a connection and asks again at once gets it before those
        who wait.

        Raises:
            StoreError: no connection became free in time.
        """
        turns = self._turns[engine]
        if self.is_exhausted(engine):
            try:
                async with asyncio.timeout(_TURN_LIMIT):
                    await turns.acquire()
            except TimeoutError:
                raise StoreError(
                    f"no connection became free within {_TURN_LIMIT:.0f} seconds; raise pool_size, or end transactions earlier"
                ) from None
        else:
            await turns.acquire()
        try:
            yield
        finally:
            turns.release()

    async def dispose(self) -> None:
        """Close all connections of the pools."""
        for engine in self._turns:
            await engine.dispose()

    async def connect_driver(self) -> Any:
        """Open a connection of psycopg beside the pools, in autocommit mode.

        Raises:
            Error: an error of psycopg.
        """
        import psycopg

        engine = self.durable
        given, named = engine.dialect.create_connect_args(self._url)
        connection = await psycopg.AsyncConnection.connect(*given, **{**self._connect_args(), **named}, autocommit=True)
        try:
            for setting in _postgres_settings(durable=True):
                await connection.execute(setting.encode())
        except BaseException:
            await connection.close()
            raise
        return connection

    def connect_lite(self) -> Any:
        """Open a connection of ``sqlite3`` beside the pools, in autocommit mode.

        Raises:
            Error: an error of ``sqlite3``.
        """
        import sqlite3

        given, named = self.durable.dialect.create_connect_args(self._url)
        connection = sqlite3.connect(*given, **{**named, "isolation_level": None, "check_same_thread": False})
        for setting in _lite_settings(durable=True):
            connection.execute(setting)
        return connection

    def _connect_args(self) -> dict[str, Any]:
        if self._lite:
            return {}
        return {key: value for key, value in _KEEPALIVES.items() if key not in self._url.query}


def _postgres_settings(*, durable: bool) -> tuple[str, ...]:
    jit = "SET jit = off"  # PostgreSQL would compile for 100 ms what runs in 1 ms
    return (jit,) if durable else (jit, "SET synchronous_commit = off")


def _lite_settings(*, durable: bool) -> tuple[str, ...]:
    return (
        "PRAGMA busy_timeout=15000",  # waiting processes poll in no order: 5 s were too short on a busy machine
        "PRAGMA foreign_keys=ON",
        f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}",
    )
