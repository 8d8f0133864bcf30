"""Circuits of the circuit breaker, in this process or in a shared store.

A closed circuit counts failures. An open circuit refuses calls. After ``open_for`` seconds it is half open and lets a
few probes through: a successful probe closes it, a failed probe opens it again.
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
"""Retry-after in seconds while other calls probe."""
STORE_LIMIT = 2.0
"""Seconds that the store may take to record an outcome."""
MAX_CIRCUITS = 10_000
"""Circuits in memory; above it, those without recent failures are dropped."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a breaker: *failures* in *window* seconds open it for *open_for* seconds; then *probes* at a time."""

    failures: int
    window: float
    open_for: float
    probes: int


class Refused(Exception):
    """The circuit is open; try again in *seconds*."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Circuit:
    """One circuit in this process: the times of its last failures, and the end of its open state (None: closed)."""

    __slots__ = ("failed", "open_until", "probing")

    def __init__(self, settings: Settings) -> None:
        self.failed: deque[float] = deque(maxlen=settings.failures)
        self.open_until: float | None = None
        self.probing = 0


class LocalCircuits:
    """Circuits in this process. A circuit without failures uses no memory."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.known: dict[Key, Circuit] = {}

    def enter(self, key: Key, now: float) -> Circuit | None:
        """Return the circuit if this call is its probe; None for any other call that may pass.

        Raises:
            Refused: the circuit is open.
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
        """Record an outcome: True for a failure, False for a success, None for neither. A probe returns its permit."""
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
            if len(self.known) >= MAX_CIRCUITS:
                self._sweep(now)
            circuit = self.known[key] = Circuit(self.settings)
        if circuit.open_until is not None:  # the circuit opened while this call ran
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
    wall: Any = ctx.run.plan.host.monotonic() + ctx.run.plan.host.wall_offset
    return float(wall)
