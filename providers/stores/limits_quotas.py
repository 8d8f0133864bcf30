"""Rate limits that the package ``limits`` counts, with its strategies and storages. Extra ``limits``.

``limits`` decides in one atomic step and returns no units. The remaining units and the time until a refused cost fits are
read afterwards. The times are computed here: those of ``get_window_stats`` are right for some cases only.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from copy import copy
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from callgate.errors import StoreError, StoreUnsupported
from callgate.providers.stores.base import Limit, QuotaStore, Taken
from callgate.providers.stores.partial import missing_part
from callgate.providers.stores.redis_client import pool_at

Strategy = Literal["fixed-window", "moving-window", "sliding-window-counter"]
_Left: TypeAlias = tuple[int, float]
_LeftOf: TypeAlias = Callable[[Any, str, int, int, int], Awaitable[_Left]]

_EXTRA = 'this store needs a package that is not installed: pip install "callgate[limits]"'
_ONLY_QUOTAS = "limits counts rate limits and nothing else: pass it to Quota(store=...), and another store to the gate"
_ONE_REDIS = ("async+redis://", "async+rediss://", "async+redis+unix://")
_MARGIN = 0.002
"""Seconds added to every time to wait: storages refuse at the very end of a window, too, and round to milliseconds."""
_ROUNDING = 0.5
"""Seconds added for Redis, which rounds the end of a fixed window to whole seconds."""


class LimitsQuotas:
    """A store of rate limits only, counted by ``limits``; for ``Quota(..., store=LimitsQuotas(...))``.

    It connects on first use. Windows are whole seconds. A limit with another amount is counted separately. ``limits``
    cannot return units safely, so ``give_back`` does nothing: units stay taken until their window ends.

    Args:
        storage: an asyncio address of ``limits`` (``async+memory://``, ``async+redis://host:6379/0``,
            ``async+redis+cluster://…``, ``async+mongodb://…``), or a storage of ``limits.aio.storage``, which the caller
            closes. Redis needs the extra ``redis``, too.
        strategy: ``"fixed-window"`` (a window begins with its first call), ``"moving-window"`` (exact: every unit is
            stored), or ``"sliding-window-counter"`` (two counters).
        prefix: the first part of every key; the tenant is the second.
        pool_size: the number of connections to one Redis; a caller waits up to 10 seconds for one.

    Raises:
        StoreError: the strategy or storage is unknown, the storage does not support the strategy, or an extra is not
            installed. The message shows only the scheme of an address.
    """

    name = "limits"
    namespace = ""
    durable = False
    cache = semaphores = audit = consents = effects = suspensions = pins = jobs = missing_part(_ONLY_QUOTAS)

    def __init__(self, storage: object, *, strategy: Strategy, prefix: str = "callgate", pool_size: int = 20) -> None:
        if find_spec("limits") is None:
            raise StoreError(_EXTRA)
        from limits import RateLimitItemPerSecond
        from limits.aio.strategies import STRATEGIES

        if strategy not in STRATEGIES or strategy not in _LEFT:
            raise StoreError(f"limits has no strategy {strategy!r}; there are {', '.join(_LEFT)}")
        self._pool: Any = None
        self._storage: Any = self._make(storage, pool_size) if isinstance(storage, str) else _checked(storage)
        try:
            counter: Any = STRATEGIES[strategy]
            self._limiter: Any = counter(self._storage)
        except NotImplementedError:
            raise StoreError(f"{type(self._storage).__name__} of limits cannot count by {strategy}") from None
        self._item = RateLimitItemPerSecond
        self._strategy, self._prefix = strategy, prefix
        self._left_of = _LEFT[strategy]

    def in_namespace(self, namespace: str) -> LimitsQuotas:
        """Return these limits with counters of one application; see ``Options``. Both have the same connections."""
        bound = copy(self)
        bound._prefix, bound.namespace = f"{self._prefix}@{namespace}", namespace
        return bound

    def __repr__(self) -> str:
        return f"LimitsQuotas({type(self._storage).__name__}, strategy={self._strategy!r})"

    def _make(self, address: str, pool_size: int) -> Any:
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
        except Exception:  # the text of the error may quote the address  # noqa: BLE001
            raise StoreError(
                f"limits has no storage for this {scheme[:40]}:// address: the scheme is unknown, host or port is "
                "missing, or the package for it is not installed"
            ) from None

    @property
    def quotas(self) -> QuotaStore:
        """This object, which is the only part."""
        return self

    async def take(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> Taken:
        """Take *cost* units, or none. ``remaining`` is read afterwards, so it may include the units of other callers.

        With ``"fixed-window"``, concurrent costs above 1 may be refused near the limit and spend the last units.

        Raises:
            StoreUnsupported: the window is not a whole number of seconds.
            StoreError: the storage failed; the units may be spent.
        """
        item, where = self._named(tenant, key, limit)
        with _storage_errors():
            if cost > limit.amount:
                left, _ = await self._left(item, where, 0)
                return Taken(False, left, limit.seconds)
            if cost > 1 and self._strategy == "fixed-window":  # that strategy counts a refused hit, too
                left, wait = await self._left(item, where, cost)
                if left < cost:
                    return Taken(False, left, wait)
            ok = await self._limiter.hit(item, *where, cost=cost)
            left, wait = await self._left(item, where, 0 if ok else cost)
        return Taken(True, left) if ok else Taken(False, left, wait)

    async def give_back(self, tenant: str, key: str, limit: Limit, cost: int = 1) -> None:
        """Do nothing: ``limits`` has no return of units that keeps the limit."""

    async def look(self, tenant: str, key: str, limit: Limit) -> Taken:
        """Return what ``take`` would return for one unit, and take nothing. Raises as ``take`` does."""
        item, where = self._named(tenant, key, limit)
        with _storage_errors():
            left, wait = await self._left(item, where, 1)
        return Taken(True, left) if left >= 1 else Taken(False, left, wait)

    @staticmethod
    def check_limit(limit: Limit) -> None:
        """Check that a limit can be counted; ``Quota`` calls this when it is made.

        Raises:
            StoreUnsupported: the window is not a whole number of seconds.
        """
        if limit.seconds < 1 or limit.seconds % 1:
            raise StoreUnsupported(
                f"limits counts windows of whole seconds, not of {limit.seconds:g} s: "
                "use a MemoryStore, SqlStore or RedisStore instead"
            )

    def _named(self, tenant: str, key: str, limit: Limit) -> tuple[Any, tuple[str, str]]:
        """Return the limit and the key parts for ``limits``; parts are quoted, since it joins them with slashes."""
        self.check_limit(limit)
        names = quote(tenant, safe="", errors="surrogatepass"), quote(key, safe="", errors="surrogatepass")
        return self._item(limit.amount, int(limit.seconds), namespace=self._prefix), names

    async def _left(self, item: Any, where: tuple[str, str], cost: int) -> _Left:
        left, wait = await self._left_of(self._storage, item.key_for(*where), item.amount, item.get_expiry(), cost)
        return max(0, left), max(0.0, wait) + _MARGIN

    async def open(self) -> None:
        """Check that the storage responds.

        Raises:
            StoreError: it does not.
        """
        with _storage_errors():  # storage.check() gives no reason and swallows a cancellation
            await self._storage.get(self._prefix)

    async def close(self) -> None:
        """Disconnect from a Redis that was given by address. The store can be used again."""
        if self._pool is not None:
            with _storage_errors():
                await self._pool.disconnect()

    def transaction(self) -> Any:
        """Raise ``StoreUnsupported``."""
        raise StoreUnsupported(_ONLY_QUOTAS)


def _checked(storage: object) -> object:
    from limits.aio.storage import Storage

    if not isinstance(storage, Storage):
        raise StoreError(
            f"LimitsQuotas takes an address or a storage of limits.aio.storage, not {type(storage).__name__}"
        )
    return storage


@contextmanager
def _storage_errors() -> Generator[None, None, None]:
    """Raise errors of a storage as errors of the store. Their text stays in the cause only."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(f"limits: {type(error).__name__}") from error


# ---------------------------------------------------------------------- remaining units
# For a key with *amount* units in *window* seconds: the remaining units, and the seconds until *cost* fits.


async def _left_fixed(storage: Any, key: str, amount: int, _window: int, cost: int) -> _Left:
    from limits.aio.storage import MemoryStorage

    left = amount - int(await storage.get(key))
    if left >= cost:
        return left, 0.0
    ends = await storage.get_expiry(key)
    return left, ends - time.time() + (0.0 if isinstance(storage, MemoryStorage) else _ROUNDING)


async def _left_moving(storage: Any, key: str, amount: int, window: int, cost: int) -> _Left:
    oldest, used = await storage.get_moving_window(key, amount, window)
    left = amount - used
    if left >= cost:
        return left, 0.0
    if left + 1 < cost:  # more than the oldest must expire: only Redis returns the newest of them
        newest = amount - cost + 1
        oldest, used = await storage.get_moving_window(key, newest, window)
        if used != newest:
            return left, float(window)
    return left, oldest + window - time.time()


async def _left_sliding(storage: Any, key: str, amount: int, window: int, cost: int) -> _Left:
    """Of the window before, the whole units of the part that overlaps the last *window* seconds count."""
    before, before_ends, used, used_ends = await storage.get_sliding_window(key, window)
    left = amount - used - int(before * before_ends / window)
    if left >= cost:
        return left, 0.0
    room = amount - cost
    if used <= room:  # until the window before counts less than one unit too many
        return left, before_ends - (room - used + 1) * window / before
    until_next = max(0.0, used_ends - window)  # then this window becomes the one before
    return left, until_next + window - (room + 1) * window / used


_LEFT: dict[Strategy, _LeftOf] = {
    "fixed-window": _left_fixed,
    "moving-window": _left_moving,
    "sliding-window-counter": _left_sliding,
}
