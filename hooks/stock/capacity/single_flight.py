"""Single flight: of the calls that look for one value at one time, one gets it and the others wait.

The one that leads has a release on the ledger of its call, so the runtime ends its flight exactly once, on every path.
Flights are of one process and one event loop; nested calls never wait, so that no call waits for itself.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections import deque
from collections.abc import Awaitable
from typing import Any

from callgate.errors import DeadlineExceeded
from callgate.hooks.stages import Stage
from callgate.hooks.step import SYNC, Step
from callgate.providers.stores.base import CacheEntry, CacheStore
from callgate.providers.stores.memory import Key, MemoryCache

_LEAD: Any = object()
"""What a waiter gets that is to lead from now on."""


class Flight:
    """One value under way, and the calls that wait for it."""

    __slots__ = ("loop", "waiters", "what")

    def __init__(self, what: Any) -> None:
        self.what = what  # it is known by
        self.loop = get_running_loop()
        self.waiters: deque[asyncio.Future[Any]] | None = None  # most land with nobody waiting

    def wait(self) -> asyncio.Future[Any]:
        """A place in line."""
        if self.waiters is None:
            self.waiters = deque()
        waiter: asyncio.Future[Any] = self.loop.create_future()
        self.waiters.append(waiter)
        return waiter

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
    """The flights of one cache hook. ``rounds`` counts, for each tenant, how often entries were dropped."""

    def __init__(self) -> None:
        self.under_way: dict[Any, Flight] = {}
        self.rounds: dict[str, int] = {}

    def forget(self, tenant: str) -> None:
        """Entries are dropped: nothing that is under way for this tenant is kept, and nobody joins it any more."""
        self.rounds[tenant] = self.rounds.get(tenant, 0) + 1

    def has(self, host: Any, place: Key) -> bool:
        """Whether somebody is getting this value."""
        return (host, place, self.rounds.get(place[0], 0)) in self.under_way

    def join(self, ctx: Any, miss: Miss) -> Flight | None:
        """The flight to wait for, or None: this call leads. Nested calls and other loops run alone."""
        what = (ctx.plan.host, miss.place, miss.round)
        flight = self.under_way.get(what)
        if flight is None:
            self.under_way[what] = miss.flight = Flight(what)
        elif ctx.depth == 0 and flight.loop is get_running_loop():
            return flight
        ctx.leases = ((SYNC, miss.settle, _STEP), ctx.leases)
        return None

    async def wait(self, miss: Miss, flight: Flight) -> bytes | None:
        """The value; None to run the tool oneself, as the leader or alone."""
        waiter = flight.wait()
        try:
            answer: bytes | None = await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.result() is _LEAD:
                miss.flight = flight
                miss.land(None, error)
            elif not waiter.done():
                waiter.cancel()
            raise
        if answer is not _LEAD:
            return answer
        miss.flight = flight
        return None


class Miss:
    """A call that found nothing: what it looked for, and what it will keep. Its ``settle`` is a release."""

    __slots__ = ("cache", "flight", "place", "round", "store", "tags", "value")

    def __init__(self, cache: Any, store: CacheStore, place: Key) -> None:
        self.cache, self.store, self.place = cache, store, place
        self.round: int = cache.flights.rounds.get(place[0], 0)
        self.flight: Flight | None = None
        self.value: bytes | None = None
        self.tags: frozenset[str] = _NONE

    def board(self, ctx: Any) -> None:
        """Have the runtime call ``settle`` once, when the call is over, whatever becomes of it."""
        ctx.leases = ((SYNC, self.settle, _STEP), ctx.leases)

    def settle(self, ctx: Any) -> Awaitable[None] | None:
        """Keep the value of a call that succeeded; give it to those who wait, or let one of them lead."""
        cache, value = self.cache, self.value
        if ctx._error is not None:
            self.land(None, ctx._error)
            return None
        if value is not None and self.round == cache.flights.rounds.get(self.place[0], 0):
            host = ctx.plan.host
            now = host.monotonic() + host.wall_offset
            fresh = now + cache.ttl
            entry = CacheEntry(value, now, fresh, fresh + cache.stale, self.tags)
            if type(self.store) is not MemoryCache:
                return self._keep(entry)
            self.store.put_now(self.place, entry)  # it does not wait, and does not fail
        self.land(value)
        return None

    async def _keep(self, entry: CacheEntry) -> None:
        try:
            await self.store.put(*self.place, entry)
        finally:
            self.land(entry.value)

    def land(self, value: bytes | None, error: BaseException | None = None) -> None:
        """End the flight that this call leads, if any: *value* is for those who wait, *error* what ended the call."""
        flight = self.flight
        if flight is None:
            return
        if isinstance(error, asyncio.CancelledError | DeadlineExceeded) and flight.hand_over():
            return  # what ended the leader's call is not the tool's answer
        under_way = self.cache.flights.under_way
        if under_way.get(flight.what) is flight:  # who comes now begins another
            del under_way[flight.what]
        if flight.waiters:
            flight.tell_all(value)


_NONE: frozenset[str] = frozenset()
_STEP = Step(Stage.WILL_READ_CACHE, "Cache")
