"""What circuit breakers know: failures, until when a circuit is open, and who probes it; here or in a shared store.

A circuit is closed, and counts failures; open, and lets nothing through; or half open, once its time is over, and lets
a few probes through: one that succeeds closes it, one that fails opens it again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.keys import Key
from callgate.providers.stores.base import CacheEntry, Limit, Store

BUSY_PROBING = 1.0
"""Seconds after which a call is told to come back while others probe."""
STORE_LIMIT = 2.0
"""Seconds that the store may take to note how a call ended."""
MANY = 10_000
"""Circuits that are kept before those without recent failures are dropped."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a breaker was given: *failures* in *window* seconds open it for *open_for*; then *probes* at a time."""

    failures: int
    window: float
    open_for: float
    probes: int


class Refused(Exception):
    """The circuit lets nothing through; come back in *seconds*."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Circuit:
    """One circuit in this process: the times of its last failures, and until when it is open (None: closed)."""

    __slots__ = ("failed", "open_until", "probing")

    def __init__(self, settings: Settings) -> None:
        self.failed: deque[float] = deque(maxlen=settings.failures)
        self.open_until: float | None = None
        self.probing = 0


class LocalCircuits:
    """Circuits in this process. Those that had no failure are not kept, and cost nothing."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.known: dict[Key, Circuit] = {}

    def enter(self, key: Key, now: float) -> Circuit | None:
        """The circuit, if this call probes it; None for any other call that may pass.

        Raises:
            Refused: it is open.
        """
        circuit = self.known.get(key)
        if circuit is None or circuit.open_until is None:
            return None
        if now < circuit.open_until:
            raise Refused(circuit.open_until - now)
        if circuit.probing >= self.settings.probes:
            raise Refused(min(BUSY_PROBING, self.settings.open_for))
        circuit.probing += 1
        return circuit

    def leave(self, key: Key, probed: Circuit | None, failed: bool | None, now: float) -> None:
        """How a call ended: failed, well, or None for neither. A probe's place is given back."""
        if probed is not None:
            probed.probing -= 1
            if self.known.get(key) is probed and probed.open_until is not None:
                if failed:
                    probed.open_until = now + self.settings.open_for
                elif failed is False:
                    del self.known[key]
                return
        if failed:
            self._count(key, now)

    def _count(self, key: Key, now: float) -> None:
        circuit = self.known.get(key)
        if circuit is None:
            if len(self.known) >= MANY:
                self._sweep(now)
            circuit = self.known[key] = Circuit(self.settings)
        if circuit.open_until is not None:  # it opened while this call ran
            return
        circuit.failed.append(now)
        if len(circuit.failed) == self.settings.failures and now - circuit.failed[0] <= self.settings.window:
            circuit.open_until = now + self.settings.open_for
            circuit.failed.clear()

    def _sweep(self, now: float) -> None:
        old = now - self.settings.window
        for key, circuit in list(self.known.items()):
            if circuit.open_until is None and circuit.failed[-1] < old:
                del self.known[key]


class SharedCircuits:
    """Circuits in a store, made of what every store has.

    Failures are units of a quota; the one that takes the last opens the circuit, which is a cache entry: fresh while it
    is open, stale while it is half open. Probes are places of a semaphore. What a circuit is, is asked at most once in
    *refresh* seconds; a failure here is seen here at once. When the store fails, calls pass.
    """

    def __init__(self, settings: Settings, refresh: float) -> None:
        self.settings = settings
        self.refresh = refresh
        self.limit = Limit(settings.failures, settings.window)
        self.seen: dict[Key, tuple[float, CacheEntry | None]] = {}

    async def enter(self, ctx: InvokeContext, store: Store, key: Key) -> bool:
        """Whether this call probes.

        Raises:
            Refused: the circuit is open.
        """
        now = ctx.host.monotonic()
        at, entry = self.seen.get(key, (0.0, None))
        if key not in self.seen or now - at >= self.refresh:
            entry = await self._look(ctx, store, key)
        if entry is None:
            return False
        self._refuse_if_open(ctx, entry)
        try:
            await ctx.lease(self._probe(store, key))
        except _NoPlace:
            raise Refused(min(BUSY_PROBING, self.settings.open_for)) from None
        entry = await self._look(ctx, store, key)  # another probe may have settled it meanwhile
        if entry is not None:
            self._refuse_if_open(ctx, entry)
        return entry is not None

    async def leave(self, ctx: InvokeContext, store: Store, key: Key, *, probed: bool, failed: bool) -> None:
        """How a call ended."""
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
        if len(self.seen) >= MANY:
            self.seen.clear()
        self.seen[key] = (ctx.host.monotonic(), entry)
        return entry

    async def _open(self, ctx: InvokeContext, store: Store, key: Key) -> None:
        now = _wall(ctx)
        until = now + self.settings.open_for
        lasts = until + max(self.settings.window, self.settings.open_for)  # nobody probes: it closes by itself
        entry = CacheEntry(json.dumps({"open_until": until}).encode(), now, until, lasts)
        self.seen[key] = (ctx.host.monotonic(), entry)
        await store.cache.put(*key, entry)

    @staticmethod
    def _refuse_if_open(ctx: InvokeContext, entry: CacheEntry) -> None:
        left = entry.fresh_until - _wall(ctx)
        if left > 0.0:
            raise Refused(left)

    @asynccontextmanager
    async def _probe(self, store: Store, key: Key) -> AsyncGenerator[None, None]:
        """A probe's place: by token, and free again by itself when its process dies."""
        token = secrets.token_hex(16)
        try:
            if not await store.semaphores.acquire(*key, self.settings.probes, token, self.settings.open_for):
                raise _NoPlace
            yield
        finally:
            await store.semaphores.release(*key, token)


class _NoPlace(Exception):
    pass


def _wall(ctx: InvokeContext) -> float:
    wall: Any = ctx.host.monotonic() + ctx.host.wall_offset
    return float(wall)
