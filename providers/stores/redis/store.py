"""A store in Redis, for data that many machines share and may lose. Extra ``redis``."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from copy import copy

from callgate.errors import StoreUnsupported
from callgate.providers.kinds import Count, checks_kinds
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import AuditStore, Transaction
from callgate.providers.stores.effects import EffectStore, PinStore, SuspensionStore
from callgate.providers.stores.jobs import JobStore
from callgate.providers.stores.partial import missing_part
from callgate.providers.stores.redis.client import RedisConnection
from callgate.providers.stores.redis.parts import RedisCache, RedisConsents, RedisQuotas, RedisSemaphores
from callgate.providers.stores.redis.versions import RedisVersions
from callgate.providers.stores.signed_rows import RowSigner

_DURABLE = "use a store at sqlite:// or postgresql:// for them"


class RedisStore:
    """The cache, rate limits, concurrency limits and consents in Redis 6 or newer.

    The other parts and transactions raise ``StoreUnsupported``. Rate limits and concurrency limits use the clock of Redis.

    Args:
        url: ``redis://user:password@host:port/database``, or ``rediss://`` for TLS.
        now: the clock of cache and consents, in seconds since the epoch.
        prefix: the first part of every key.
        pool_size: the number of connections; a caller waits up to 10 seconds for one.
        client: a client of ``redis.asyncio`` to use instead, for a cluster or sentinels; the caller closes it.

    Raises:
        StoreError: the URL is not of Redis, or the extra is not installed.
        TypeError: a setting is of another type, or *pool_size* below 1.
    """

    name = "redis"
    durable = False

    @checks_kinds(TypeError)
    def __init__(
        self,
        url: str,
        now: Callable[[], float] = time.time,
        *,
        prefix: str = "callgate",
        pool_size: Count = 20,
        client: object = None,
    ) -> None:
        self._connection, self._now = RedisConnection(url, prefix, pool_size, client), now
        self._namespaces: dict[tuple[str, tuple[str, ...]], RedisStore] = {}
        self.origin = self  # the same for all namespaces, which share the connections
        self._bind("", None)

    def _bind(self, namespace: str, keys: SigningKeys | None) -> None:
        self.namespace, self._keys = namespace, keys
        self._namespaces[namespace, () if keys is None else tuple(keys.ids)] = self
        signed = None if keys is None else RedisVersions(self._connection, namespace, RowSigner(keys, namespace))
        self.cache = RedisCache(self._connection, self._now, namespace, signed)
        self.quotas = RedisQuotas(self._connection, namespace)
        self.semaphores = RedisSemaphores(self._connection, namespace)
        self.consents = RedisConsents(self._connection, self._now, namespace, signed)

    def __repr__(self) -> str:
        return f"RedisStore({self._connection.shown!r})"

    # A failover loses the last writes: an effect would run twice, and a record would be missing.
    audit: AuditStore = missing_part(f"Redis stores no audit records: {_DURABLE}")
    effects: EffectStore = missing_part(f"Redis stores no effects: {_DURABLE}")
    suspensions: SuspensionStore = missing_part(f"Redis stores no suspended calls: {_DURABLE}")
    pins: PinStore = missing_part(f"Redis stores no pins of outside tools: {_DURABLE}")
    jobs: JobStore = missing_part(f"Redis stores no jobs: {_DURABLE}")

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Raise ``StoreUnsupported``: Redis does not roll back."""
        raise StoreUnsupported("Redis has no transactions that roll back: use a store at sqlite:// or postgresql://")

    def in_namespace(self, namespace: str) -> RedisStore:
        """Return this store with the records of one application, over the same connections; see ``Options``."""
        return self._bound(namespace, self._keys)

    def signed(self, keys: SigningKeys) -> RedisStore:
        """Return this store with signatures of cached values and consents; see ``signed_rows``."""
        return self._bound(self.namespace, keys)

    def _bound(self, namespace: str, keys: SigningKeys | None) -> RedisStore:
        ids = () if keys is None else tuple(keys.ids)
        if (namespace, ids) not in self._namespaces:
            copy(self)._bind(namespace, keys)
        return self._namespaces[namespace, ids]

    async def open(self) -> None:
        """Connect.

        Raises:
            StoreError: the server cannot be reached.
        """
        await self._connection.open()

    async def ping(self) -> None:
        """Ask the server.

        Raises:
            StoreError: it does not answer.
        """
        await self._connection.run("PING")

    async def close(self) -> None:
        """Disconnect. The store can be opened again."""
        await self._connection.close()
