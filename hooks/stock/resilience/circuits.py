"""Circuits of the circuit breaker in a shared store; see ``callgate.providers.circuits`` for their states."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.keys import Key
from callgate.providers.circuits import BUSY_PROBING, MAX_CIRCUITS, Refused, Settings
from callgate.providers.stores.base import CacheEntry, Limit, Store

STORE_LIMIT = 2.0
"""Seconds that the store may take to record an outcome."""


class SharedCircuits:
    """Circuits in a store, built from its quotas, cache and semaphores.

    Failures are units of a quota, and the failure that takes the last unit opens the circuit. An open circuit is a cache
    entry: fresh while open, stale while half open. Probes hold permits of a semaphore. A process reads a circuit at most
    once in *refresh* seconds, and knows its own failures at once. When the store fails, calls pass.
    """

    def __init__(self, settings: Settings, refresh: float) -> None:
        self.settings = settings
        self.refresh = refresh
        self.limit = Limit(settings.failures, settings.window)
        self.seen: dict[Key, tuple[float, CacheEntry | None]] = {}

    async def enter(self, ctx: InvokeContext, store: Store, key: Key) -> bool:
        """Return True if this call is a probe.

        Raises:
            Refused: the circuit is open.
        """
        now = ctx.run.plan.host.monotonic()
        at, entry = self.seen.get(key, (0.0, None))
        if key not in self.seen or now - at >= self.refresh:
            entry = await self._look(ctx, store, key)
        if entry is None:
            return False
        self._refuse_if_open(ctx, entry)
        try:
            await ctx.lease(self._probe(store, key))
        except _NoPermit:
            raise Refused(min(BUSY_PROBING, self.settings.open_for)) from None
        entry = await self._look(ctx, store, key)  # another probe may have closed it meanwhile
        if entry is not None:
            self._refuse_if_open(ctx, entry)
        return entry is not None

    async def leave(self, ctx: InvokeContext, store: Store, key: Key, *, probed: bool, failed: bool) -> None:
        """Record the outcome of a call."""
        async with asyncio.timeout(STORE_LIMIT):
            if probed and not failed:
                self.seen.pop(key, None)
                await store.cache.drop(*key)
                await store.quotas.give_back(*key, self.limit, self.settings.failures)
            elif probed:
                await self._open(ctx, store, key)
            elif failed:
                taken = await store.quotas.take(*key, self.limit)
                if not taken.ok or not taken.remaining:
                    await self._open(ctx, store, key)

    async def _look(self, ctx: InvokeContext, store: Store, key: Key) -> CacheEntry | None:
        entry = await store.cache.get(*key)
        if len(self.seen) >= MAX_CIRCUITS:
            self.seen.clear()
        self.seen[key] = (ctx.run.plan.host.monotonic(), entry)
        return entry

    async def _open(self, ctx: InvokeContext, store: Store, key: Key) -> None:
        now = _wall(ctx)
        until = now + self.settings.open_for
        lasts = until + max(self.settings.window, self.settings.open_for)  # without a probe the circuit closes here
        entry = CacheEntry(json.dumps({"open_until": until}).encode(), now, until, lasts)
        self.seen[key] = (ctx.run.plan.host.monotonic(), entry)
        await store.cache.put(*key, entry)

    @staticmethod
    def _refuse_if_open(ctx: InvokeContext, entry: CacheEntry) -> None:
        left = entry.fresh_until - _wall(ctx)
        if left > 0.0:
            raise Refused(left)

    @asynccontextmanager
    async def _probe(self, store: Store, key: Key) -> AsyncGenerator[None, None]:
        """Hold a probe's permit. It has a token, and expires when its process dies."""
        token = secrets.token_hex(16)
        try:
            if not await store.semaphores.acquire(*key, self.settings.probes, token, self.settings.open_for):
                raise _NoPermit
            yield
        finally:
            await store.semaphores.release(*key, token)


class _NoPermit(Exception):
    pass


def _wall(ctx: InvokeContext) -> float:
    wall: Any = ctx.run.plan.host.monotonic() + ctx.run.plan.host.clock.offset
    return float(wall)
