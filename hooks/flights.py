"""Single flight: of the calls that look for one value at one time, one gets it and the others wait.

The one that leads has a release on the ledger of its call, so the runtime ends its flight exactly once, on every path.
Flights are of one process and one event loop; nested calls never wait, so that no call waits for itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from callgate.errors import DeadlineExceeded
from callgate.hooks.stages import Stage
from callgate.hooks.step import ASYNC, Step
from callgate.providers.stores.base import CacheEntry, CacheStore

_LEAD: Any = object()
"""What a waiter gets that is to lead from now on."""


class Flight:
    """One value under way, and the calls that wait for it."""

    __slots__ = ("loop", "waiters")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.waiters: deque[asyncio.Future[Any]] = deque()

    def tell_all(self, value: bytes | None) -> None:
        """Wake everybody: with the value, or with None to get it themselves."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(value)

    def hand_over(self) -> bool:
        """Let the first who still waits lead; False when nobody does."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(_LEAD)
                return True
        return False


class Flights:
    """The flights of one cache hook. ``round`` counts, for each tenant, how often entries were dropped."""

    def __init__(self) -> None:
        self._under_way: dict[Any, Flight] = {}
        self._rounds: dict[str, int] = {}

    def round(self, tenant: str) -> int:
        """How often entries of this tenant were dropped."""
        return self._rounds.get(tenant, 0) if self._rounds else 0

    def forget(self, tenant: str) -> None:
        """Entries are dropped: nothing that is under way for this tenant is kept, and nobody joins it any more."""
        self._rounds[tenant] = self.round(tenant) + 1

    def has(self, host: Any, tenant: str, key: str) -> bool:
        """Whether somebody is getting this value."""
        return (host, tenant, key, self.round(tenant)) in self._under_way

    def join(self, ctx: Any, miss: Miss) -> Flight | None:
        """Lead, and get None; or the flight to wait for. Nested calls and other loops do neither."""
        place = miss.place = _place(ctx, miss)
        flight = self._under_way.get(place)
        if flight is None:
            miss.flight, miss.flights = Flight(), self
            self._under_way[place] = miss.flight
            return None
        alone = ctx.depth > 0 or flight.loop is not asyncio.get_running_loop()
        return None if alone else flight

    async def wait(self, miss: Miss, flight: Flight) -> bytes | None:
        """The value; None to run the tool oneself, as the leader or alone."""
        waiter: asyncio.Future[Any] = flight.loop.create_future()
        flight.waiters.append(waiter)
        try:
            answer = await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.result() is _LEAD:
                self._pass_on(miss, flight)
            elif not waiter.done():
                waiter.cancel()
            raise
        if answer is not _LEAD:
            return answer  # type: ignore[no-any-return]
        miss.flight, miss.flights = flight, self
        return None

    def _pass_on(self, miss: Miss, flight: Flight) -> None:
        if not flight.hand_over():
            self.end(miss, flight)

    def end(self, miss: Miss, flight: Flight) -> None:
        """The flight is over: who comes now begins another."""
        if self._under_way.get(miss.place) is flight:
            del self._under_way[miss.place]


class Miss:
    """A call that found nothing: what it looked for, and what it will keep. Its ``settle`` is a release."""

    __slots__ = ("cache", "flight", "flights", "key", "place", "round", "store", "tags", "tenant", "value")

    def __init__(self, cache: Any, store: CacheStore, tenant: str, key: str) -> None:
        self.cache, self.store, self.tenant, self.key = cache, store, tenant, key
        self.round = cache._flights.round(tenant)
        self.flight: Flight | None = None
        self.flights: Flights | None = None
        self.place: Any = None
        self.value: bytes | None = None
        self.tags: frozenset[str] = frozenset()

    def board(self, ctx: Any) -> None:
        """Have the runtime call ``settle`` once, when the call is over, whatever becomes of it."""
        ctx.leases = ((ASYNC, self.settle, _STEP), ctx.leases)

    async def settle(self, ctx: Any) -> None:
        """Keep the value of a call that succeeded; give it to those who wait, or let one of them lead."""
        value = self.value if ctx.error is None else None
        try:
            if value is not None and self.round == self.cache._flights.round(self.tenant):
                now = ctx.host.monotonic() + ctx.host.wall_offset
                fresh = now + self.cache.ttl
                entry = CacheEntry(value, now, fresh, fresh + self.cache.stale, self.tags)
                await self.store.put(self.tenant, self.key, entry)
        finally:
            if self.flight is not None and self.flights is not None:
                self._land(ctx, value, self.flight, self.flights)

    def _land(self, ctx: Any, value: bytes | None, flight: Flight, flights: Flights) -> None:
        gone = isinstance(ctx.error, asyncio.CancelledError | DeadlineExceeded)  # of the leader alone: not of the tool
        if value is None and gone and flight.hand_over():
            return
        flights.end(self, flight)
        flight.tell_all(value)


def _place(ctx: Any, miss: Miss) -> Any:
    return ctx.host, miss.tenant, miss.key, miss.round


_STEP = Step(Stage.WILL_READ_CACHE, "Cache")
