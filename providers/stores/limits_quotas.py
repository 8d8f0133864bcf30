"""Quotas that the package ``limits`` counts: by its strategies, on its storages. Extra ``limits``.

``limits`` says yes or no in one atomic step, and takes nothing back. What is left, and when a refused cost fits, is
asked for afterwards; the times are worked out here, since those of ``get_window_stats`` are right for some cases only.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from callgate.errors import StoreError, StoreUnsupported
from callgate.providers.stores.base import (
    AuditStore,
    CacheStore,
    ConsentStore,
    Limit,
    QuotaStore,
    SemaphoreStore,
    Taken,
    Transaction,
)
from callgate.providers.stores.effects import EffectStore, PinStore, WaitStore
from callgate.providers.stores.jobs import JobStore
from callgate.providers.stores.redis_client import pool_at

Strategy = Literal["fixed-window", "moving-window", "sliding-window-counter"]
_Left: TypeAlias = tuple[int, float]
_LeftOf: TypeAlias = Callable[[Any, str, int, int, int], Awaitable[_Left]]

EXTRA = 'this store needs a package that is not installed: pip install "callgate[limits]"'
_ONE_REDIS = ("async+redis://", "async+rediss://", "async+redis+unix://")
_PAST = 0.002
"""Storages refuse at the very end of a window, too, and round to milliseconds: what is told is a little later."""
_ROUNDED = 0.5
"""Redis tells the end of a fixed window in whole seconds, the nearest ones."""


class LimitsQuotas:
    """A store of quotas alone, counted by ``limits``; for ``Quota(..., store=LimitsQuotas(...))``.

    *storage* is an address as ``limits`` has them for asyncio (``async+memory://``, ``async+redis://host:6379/0``,
    ``async+redis+cluster://…``, ``async+mongodb://…``), or one of its storage objects (``limits.aio.storage``), which
    stays the caller's to close. *strategy* is how it counts: ``"fixed-window"`` (a window begins with its first call),
    ``"moving-window"`` (exact: every unit is remembered), or ``"sliding-window-counter"`` (two counters). *prefix*
    begins every key, the tenant follows it. *pool_size* is the number of connections to one Redis, for which callers
    wait 10 seconds; Redis needs the extra ``redis``, too.

    It connects when it is first used. ``open`` sees that the storage answers, ``close`` disconnects what was made for
    one Redis. Windows are whole seconds, and a limit with another amount is counted anew.

    **Units never come back**: ``limits`` has no safe way to return them, so ``give_back`` does nothing, and what was
    taken is spent until its window is over.

    Raises:
        StoreError: there is no such strategy or storage, the storage cannot count so, or an extra is not installed;
            nothing of the address but its scheme is shown.
    """

    name = "limits"
    durable = False

    def __init__(self, storage: object, *, strategy: Strategy, prefix: str = "callgate", pool_size: int = 20) -> None:
        if find_spec("limits") is None:
            raise StoreError(EXTRA)
        from limits import RateLimitItemPerSecond
        from limits.aio.strategies import STRATEGIES

        if strategy not in STRATEGIES or strategy not in _LEFT:
            raise StoreError(f"limits has no strategy {strategy!r}; there are {', '.join(_LEFT)}")
        self._pool: Any = None
        self._storage: Any = self._made(storage, pool_size) if isinstance(storage, str) else _checked(storage)
        try:
            counter: Any = STRATEGIES[strategy]
            self._limiter: Any = counter(self._storage)
        except NotImplementedError:
            raise StoreError(f"{type(self._storage).__name__} of limits cannot count by {strategy}") from None
        self._item = RateLimitItemPerSecond
        self._strategy, self._prefix = strategy, prefix
        self._left_of = _LEFT[strategy]

    def __repr__(self) -> str:
        return f"LimitsQuotas({type(self._storage).__name__}, strategy={self._strategy!r})"

    def _made(self, address: str, pool_size: int) -> Any:
        from limits.storage import storage_from_string

        scheme = address.partition("://")[0]
        if not scheme.startswith("async+"):
            raise StoreError("the address of a storage of limits begins with async+, such as async+memory://")
        options: dict[str, Any] = {}
        if scheme.startswith("async+redis"):
            options["implementation"] = "redispy"
        if address.startswith(_ONE_REDIS):
            self._pool = pool_at(address.removeprefix("async+").replace("redis+unix", "unix", 1), pool_size)
            options["connection_pool"] = self._pool
        try:
            return _checked(storage_from_string(address, **options))
        except StoreError:
            raise
        except Exception:  # its text may quote the address  # noqa: BLE001
            raise StoreError(
                f"limits makes no storage of this {scheme[:40]}:// address: the scheme is unknown, host or port is "
                "missing, or the package for it is not installed"
            ) from None

    # ------------------------------------------------------------------ quotas

    @property
    def quotas(self) -> QuotaStore:
        """This object: it is the store, and its one part."""
        return self

    async def take(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> Taken:
        """Take *cost* units, or none at all; what is left is asked for afterwards, so others may have taken of it.

        With ``"fixed-window"``, costs above 1 that race for the last units may be refused and spend them all the same.

        Raises:
            StoreUnsupported: the window is not of whole seconds.
            StoreError: the storage failed; the units may be spent.
        """
        item, where = self._named(tenant, key, limit)
        with _failing():
            if cost > limit.amount:
                left, _ = await self._left(item, where, 0)
                return Taken(False, left, limit.seconds)
            if cost > 1 and self._strategy == "fixed-window":  # a refused hit counts there: look before
                left, wait = await self._left(item, where, cost)
                if left < cost:
                    return Taken(False, left, wait)
            ok = await self._limiter.hit(item, *where, cost=cost)
            left, wait = await self._left(item, where, 0 if ok else cost)
        return Taken(True, left) if ok else Taken(False, left, wait)

    async def give_back(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> None:
        """Nothing: what was taken is spent. ``limits`` knows no return that could not open a window too wide."""

    async def look(self, tenant: str, key: str, limit: Limit) -> Taken:
        """What taking one unit would answer; takes nothing.

        Raises:
            StoreUnsupported: the window is not of whole seconds.
            StoreError: the storage failed.
        """
        item, where = self._named(tenant, key, limit)
        with _failing():
            left, wait = await self._left(item, where, 1)
        return Taken(True, left) if left >= 1 else Taken(False, left, wait)

    @staticmethod
    def check_limit(limit: Limit) -> None:
        """Whether a limit can be counted at all; a ``Quota`` asks when it is made.

        Raises:
            StoreUnsupported: the window is not of whole seconds.
        """
        if limit.seconds < 1 or limit.seconds % 1:
            raise StoreUnsupported(
                f"limits counts windows of whole seconds, and {limit.seconds:g} s is none: "
                "take a MemoryStore, SqlStore or RedisStore for it"
            )

    def _named(self, tenant: str, key: str, limit: Limit) -> tuple[Any, tuple[str, str]]:
        """The limit and the names as ``limits`` has them: quoted, since it joins them with slashes."""
        self.check_limit(limit)
        names = quote(tenant, safe="", errors="surrogatepass"), quote(key, safe="", errors="surrogatepass")
        return self._item(limit.amount, int(limit.seconds), namespace=self._prefix), names

    async def _left(self, item: Any, where: tuple[str, str], cost: int) -> _Left:
        left, wait = await self._left_of(self._storage, item.key_for(*where), item.amount, item.get_expiry(), cost)
        return max(0, left), max(0.0, wait) + _PAST

    # ------------------------------------------------------------------ the store

    async def open(self) -> None:
        """See that the storage answers.

        Raises:
            StoreError: it does not.
        """
        with _failing():  # not storage.check(), which says no more than no, and swallows a cancellation
            await self._storage.get(self._prefix)

    async def close(self) -> None:
        """Disconnect from the one Redis it was given the address of; it may be used again."""
        if self._pool is not None:
            with _failing():
                await self._pool.disconnect()

    @property
    def cache(self) -> CacheStore:
        """Raises StoreUnsupported, always."""
        raise _only_quotas()

    @property
    def semaphores(self) -> SemaphoreStore:
        """Raises StoreUnsupported, always."""
        raise _only_quotas()

    @property
    def audit(self) -> AuditStore:
        """Raises StoreUnsupported, always."""
        raise _only_quotas()

    @property
    def consents(self) -> ConsentStore:
        """Raises StoreUnsupported, always."""
        raise _only_quotas()

    @property
    def effects(self) -> EffectStore:
        """Raises StoreUnsupported, always."""
        raise _only_quotas()

    @property
    def waits(self) -> WaitStore:
        """Raises StoreUnsupported, always."""
        raise _only_quotas()

    @property
    def pins(self) -> PinStore:
        """Raises StoreUnsupported, always."""
        raise _only_quotas()

    @property
    def jobs(self) -> JobStore:
        """Raises StoreUnsupported, always."""
        raise _only_quotas()

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Raises StoreUnsupported, always."""
        raise _only_quotas()


def _only_quotas() -> StoreUnsupported:
    return StoreUnsupported("limits keeps quotas and nothing else: give it to Quota(store=...), and the gate another")


def _checked(storage: object) -> Any:
    from limits.aio.storage import Storage

    if not isinstance(storage, Storage):
        raise StoreError(
            f"LimitsQuotas takes an address or a storage of limits.aio.storage, not {type(storage).__name__}"
        )
    return storage


@contextmanager
def _failing() -> Generator[None, None, None]:
    """What a storage raises is of its own library: it becomes the store's error, with its text only as the cause."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(f"limits: {type(error).__name__}") from error


# ---------------------------------------------------------------------- what is left
# Of a key with *amount* units in *window* seconds: the units that are left, and in how many seconds *cost* fits.


async def _left_fixed(storage: Any, key: str, amount: int, _window: int, cost: int) -> _Left:
    from limits.aio.storage import MemoryStorage

    left = amount - int(await storage.get(key))
    if left >= cost:
        return left, 0.0
    ends = await storage.get_expiry(key)
    return left, ends - time.time() + (0.0 if isinstance(storage, MemoryStorage) else _ROUNDED)


async def _left_moving(storage: Any, key: str, amount: int, window: int, cost: int) -> _Left:
    oldest, used = await storage.get_moving_window(key, amount, window)
    left = amount - used
    if left >= cost:
        return left, 0.0
    if left + 1 < cost:  # the oldest is not enough: Redis tells of the newest that must go, others do not
        newest = amount - cost + 1
        oldest, used = await storage.get_moving_window(key, newest, window)
        if used != newest:
            return left, float(window)
    return left, oldest + window - time.time()


async def _left_sliding(storage: Any, key: str, amount: int, window: int, cost: int) -> _Left:
    """Of the window before, the whole units of its part that still reaches back count."""
    before, before_ends, used, used_ends = await storage.get_sliding_window(key, window)
    left = amount - used - int(before * before_ends / window)
    if left >= cost:
        return left, 0.0
    room = amount - cost
    if used <= room:  # once less than one more than fits is counted of the window before
        return left, before_ends - (room - used + 1) * window / before
    until_next = max(0.0, used_ends - window)  # then this window is the one before
    return left, until_next + window - (room + 1) * window / used


_LEFT: dict[Strategy, _LeftOf] = {
    "fixed-window": _left_fixed,
    "moving-window": _left_moving,
    "sliding-window-counter": _left_sliding,
}
