"""A store in Redis: what many machines share and may lose. Extra ``redis``."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from callgate.errors import StoreUnsupported
from callgate.providers.stores.base import AuditStore, Transaction
from callgate.providers.stores.effects import EffectStore, PinStore, WaitStore
from callgate.providers.stores.jobs import JobStore
from callgate.providers.stores.redis_client import Connection
from callgate.providers.stores.redis_parts import RedisCache, RedisConsents, RedisQuotas, RedisSemaphores

KEPT = "take a store at sqlite:// or postgresql:// for them"


class RedisStore:
    """Cache, quotas, places and consents in Redis 6 or newer; no audit, effects, waits, pins, jobs or transactions.

    *url* is ``redis://user:password@host:port/database``, or ``rediss://`` for TLS; *prefix* begins every key;
    *pool_size* is the number of connections, for which callers wait 10 seconds. *client*, a client of
    ``redis.asyncio``, takes the place of these connections, for a cluster or sentinels, and stays the caller's to close.
    Quotas and places go by Redis's clock; *now*, in seconds since the epoch, is that of cache and consents.

    Raises:
        StoreError: the URL is not of Redis, or the extra is not installed.
    """

    name = "redis"
    durable = False

    def __init__(
        self,
        url: str,
        now: Callable[[], float] = time.time,
        *,
        prefix: str = "callgate",
        pool_size: int = 20,
        client: Any = None,
    ) -> None:
        self._connection = Connection(url, prefix, pool_size, client)
        self.cache = RedisCache(self._connection, now)
        self.quotas = RedisQuotas(self._connection)
        self.semaphores = RedisSemaphores(self._connection)
        self.consents = RedisConsents(self._connection, now)

    def __repr__(self) -> str:
        return f"RedisStore({self._connection.shown!r})"

    @property
    def audit(self) -> AuditStore:
        """Redis promises no record: a failover loses what was just written.

        Raises:
            StoreUnsupported: always.
        """
        raise StoreUnsupported(f"Redis keeps no audit records: {KEPT}")

    @property
    def effects(self) -> EffectStore:
        """Redis promises no ledger: a failover loses what was just written, and an effect would run twice.

        Raises:
            StoreUnsupported: always.
        """
        raise StoreUnsupported(f"Redis keeps no effects: {KEPT}")

    @property
    def waits(self) -> WaitStore:
        """The same for suspended calls.

        Raises:
            StoreUnsupported: always.
        """
        raise StoreUnsupported(f"Redis keeps no calls that wait: {KEPT}")

    @property
    def pins(self) -> PinStore:
        """The same for what was agreed to.

        Raises:
            StoreUnsupported: always.
        """
        raise StoreUnsupported(f"Redis keeps no pins of outside tools: {KEPT}")

    @property
    def jobs(self) -> JobStore:
        """The same for what a worker is to run.

        Raises:
            StoreUnsupported: always.
        """
        raise StoreUnsupported(f"Redis keeps no jobs: {KEPT}")

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Redis rolls nothing back.

        Raises:
            StoreUnsupported: always.
        """
        raise StoreUnsupported("Redis has no transactions that roll back: take a store at sqlite:// or postgresql://")

    async def open(self) -> None:
        """Connect.

        Raises:
            StoreError: there is no connection.
        """
        await self._connection.open()

    async def close(self) -> None:
        """Disconnect; it may be opened again."""
        await self._connection.close()
