"""Single flight: of concurrent calls that need the same value, one computes it and the others wait for it.

The leading call has a release on the ledger of its call, so the runtime ends its flight exactly once on every path.
A single flight spans one process and one event loop. Nested calls never wait, so a call cannot wait for itself.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections import deque
from collections.abc import Awaitable
from typing import Any

from callgate.errors import DeadlineExceeded
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage
from callgate.hooks.state.step import SYNC, plan_step
from callgate.hooks.stock.store_time import store_time
from callgate.providers.stores.base import CacheEntry, CacheStore
from callgate.providers.stores.memory.changes import MemoryKey
from callgate.providers.stores.memory.store import MemoryCache
from callgate.providers.stores.server_answers import GRACE

_COUNTERS = 1024
"""Two keys with one counter cost a lookup that was not needed."""

_LEAD: object = object()
"""The response to a waiter that takes over as leader."""


class SingleFlight:
    """The in-flight values of one cache hook.

    ``rounds`` counts, by the hash of a tenant, how often entries were dropped. ``ended`` counts the flights that have
    ended, by the hash of their key: a call whose lookup missed looks again if a flight of its key has ended since.
    """

    def __init__(self) -> None:
        self.in_flight: dict[object, Miss] = {}  # the calls that began the flights
        self.rounds = [0] * _COUNTERS
        self.ended = [0] * _COUNTERS

    def forget(self, tenant: str) -> None:
        """Detach the tenant's in-flight values after a drop: they are not stored, and no further call joins them."""
        self.rounds[hash(tenant) % _COUNTERS] += 1

    def round_of(self, tenant: str) -> int:
        """Return how often entries were dropped of this tenant, or of one with the same hash."""
        return self.rounds[hash(tenant) % _COUNTERS]

    def has(self, host: object, key: MemoryKey) -> bool:
        """Return True while a call computes this value."""
        return (host, key, self.round_of(key[0])) in self.in_flight

    def join(self, ctx: InvokeContext, miss: Miss) -> Miss | None:
        """Return the flight to wait for; None when this call leads, or runs alone (nested, or in another event loop)."""
        run = ctx.run
        host = run.plan.host
        miss.place = place = (host, miss.key, miss.round)
        miss.loop = loop = host.under_way.loop or get_running_loop()  # to ask asyncio is a system call
        flight = self.in_flight.get(place)
        if flight is None:
            self.in_flight[place] = miss.leads = miss
        elif run.depth == 0 and flight.loop is loop:
            return flight
        run.leases = ((SYNC, miss.settle, _STEP), run.leases)
        return None

    async def wait(self, miss: Miss, flight: Miss) -> bytes | None:
        """Wait for the value; None means that this call runs the tool itself, as the leader or alone."""
        waiter = flight.wait()
        try:
            response: bytes | None = await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.result() is _LEAD:
                miss.leads = flight
                miss.finish(None, error)
            elif not waiter.done():
                waiter.cancel()
            raise
        if response is not _LEAD:
            return response
        miss.leads = flight
        return None


class Miss:
    """A call without a cache entry: the key that it looked up, and the value that it will store.

    It is made before the lookup. If it ``leads``, it is a flight as well: one value that a call computes, and the calls
    that wait for it. When the call hands the flight over, another call leads it.
    """

    __slots__ = (
        *("cache", "ended", "key", "leads", "loop", "number"),
        *("place", "round", "store", "tags", "value", "waiters"),
    )

    loop: asyncio.AbstractEventLoop
    place: object  # of the flight

    def __init__(self, cache: Any, store: CacheStore, key: MemoryKey) -> None:
        self.cache, self.store, self.key = cache, store, key
        flights: SingleFlight = cache.single_flight
        self.number = number = hash(key) % _COUNTERS
        self.ended = flights.ended[number]
        self.round = flights.rounds[hash(key[0]) % _COUNTERS]
        self.leads: Miss | None = None
        self.waiters: deque[asyncio.Future[Any]] | None = None  # most flights end without a waiter
        self.value: bytes | None = None
        self.tags: frozenset[str] = _NONE

    @property
    def outdated(self) -> bool:
        """Return True when a flight of this key has ended since the lookup: it may have stored the value."""
        return bool(self.ended != self.cache.single_flight.ended[self.number])

    def wait(self) -> asyncio.Future[Any]:
        """Join the wait queue."""
        if self.waiters is None:
            self.waiters = deque()
        waiter: asyncio.Future[Any] = self.loop.create_future()
        self.waiters.append(waiter)
        return waiter

    def wake_all(self, value: bytes | None) -> None:
        """Wake all waiters with the value; with None each of them runs the tool itself."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(value)

    def hand_over(self) -> bool:
        """Make the first waiter the leader; return False when there is no waiter."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(_LEAD)
                return True
        return False

    def register(self, ctx: InvokeContext) -> None:
        """Have the runtime call ``settle`` once when the call is over, whatever its outcome."""
        ctx.run.leases = ((SYNC, self.settle, _STEP), ctx.run.leases)

    def settle(self, ctx: InvokeContext) -> Awaitable[None] | None:
        """Store the value of a successful call and wake the waiters with it; after an error, hand over or wake them."""
        cache, value = self.cache, self.value
        if ctx.run.error is not None:
            self.finish(None, ctx.run.error)
            return None
        if value is not None and self.round == cache.single_flight.round_of(self.key[0]):
            host = ctx.run.plan.host
            now = host.monotonic() + host.clock.offset
            fresh = now + cache.ttl
            entry = CacheEntry(value, now, fresh, fresh + cache.stale, self.tags)
            if type(self.store) is not MemoryCache:
                return self._put(ctx, entry)
            self.store.put_now(self.key, entry)  # in memory: it does not wait, and does not fail
        self.finish(value)
        return None

    async def _put(self, ctx: InvokeContext, entry: CacheEntry) -> None:
        try:
            with store_time(ctx, self.cache.store_timeout, least=GRACE):
                await self.store.put(*self.key, entry)
        finally:
            self.finish(entry.value)

    def finish(self, value: bytes | None, error: BaseException | None = None) -> None:
        """End the flight that this call leads, if any.

        Args:
            value: the value for the waiters; None makes each of them run the tool itself.
            error: the error that ended this call.
        """
        flight, self.leads = self.leads, None  # or a call that leads its own flight would be garbage in a circle
        if flight is None:
            return
        if error is not None and isinstance(error, asyncio.CancelledError | DeadlineExceeded) and flight.hand_over():
            return  # the error belongs to the leader's call, not to the tool
        flights = self.cache.single_flight
        if flights.in_flight.get(flight.place) is flight:  # later calls begin another flight
            del flights.in_flight[flight.place]
            flights.ended[self.number] += 1
        if flight.waiters:
            flight.wake_all(value)


_NONE: frozenset[str] = frozenset()
_STEP = plan_step(Stage.WILL_READ_CACHE, "Cache", stays=False)
