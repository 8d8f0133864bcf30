"""Places that calls take and give back: counted in this process, or held by token in a store that processes share."""

from __future__ import annotations

import asyncio
import contextvars
import random
import secrets
from collections import OrderedDict
from typing import TypeAlias

from callgate.hooks.host import Host
from callgate.hooks.stock.keys import Key
from callgate.providers.logs import Event, emit
from callgate.providers.stores.base import SemaphoreStore


class Turn(asyncio.Future[bool]):
    """Whoever waits for a place waits for this. Nothing is taken meanwhile: a cancellation need not wait for it."""

    may_be_left = True


Line: TypeAlias = OrderedDict[Turn, None]
"""Who waits for a place, the first first."""

POLL = (0.05, 0.5)
"""Seconds between two looks of the first in line at a shared store: at first, and at most."""
AT_ONCE = 32
"""Leases that are renewed at the same time."""


async def wait_for(turn: Turn, seconds: float) -> bool:
    """True when the turn has come; False when the time is over."""

    def give_up() -> None:
        if not turn.done():
            turn.set_result(False)

    timer = asyncio.get_running_loop().call_later(seconds, give_up, context=contextvars.Context())
    try:
        return await turn
    finally:
        timer.cancel()


class LocalPlaces:
    """Counters, and lines in front of them. Whoever waits gets the next place that is given back: nobody overtakes."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.used: dict[Key, int] = {}
        self.lines: dict[Key, Line] = {}

    def take(self, key: Key) -> bool:
        """A place, if one is free; while anybody waits none is."""
        used = self.used.get(key, 0)
        if used >= self.places:
            return False
        self.used[key] = used + 1
        return True

    def give(self, key: Key) -> None:
        """To the first in line, else back."""
        line = self.lines.get(key)
        while line:
            turn, _ = line.popitem(last=False)
            if not turn.done():
                turn.set_result(True)
                return
        if used := self.used[key] - 1:
            self.used[key] = used
        else:
            del self.used[key]

    def waiting(self, key: Key) -> int:
        """How many are in line."""
        return len(self.lines.get(key, ()))

    async def queue(self, key: Key, seconds: float) -> bool:
        """Wait in line, so long; whether a place was got."""
        line = self.lines.setdefault(key, OrderedDict())
        turn = Turn()
        line[turn] = None
        try:
            return await wait_for(turn, seconds)
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.result():  # it came just before the cancellation
                self.give(key)
            raise
        finally:
            line.pop(turn, None)
            if not line and self.lines.get(key) is line:
                del self.lines[key]


class SharedPlaces:
    """Leases in a store, one token a call. Those that are held are renewed every third of their time, all in one task.

    No task runs while nothing is held. Lines are this process's own; between processes the first to look wins.
    """

    def __init__(self, name: str, places: int, ttl: float) -> None:
        self.name, self.places, self.ttl = name, places, ttl
        self.held: dict[str, tuple[SemaphoreStore, Key]] = {}
        self.lines: dict[Key, Line] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @staticmethod
    def token() -> str:
        """One that no other process makes, a fork of this one included."""
        return secrets.token_hex(16)

    async def take(self, host: Host, store: SemaphoreStore, key: Key, token: str) -> bool:
        """A place, if one is free. What fails half-way is given back, or is free when its time is over."""
        try:
            taken = await store.acquire(*key, self.places, token, self.ttl)
        except GeneratorExit:
            raise
        except BaseException:  # perhaps it was taken all the same
            try:
                await store.release(*key, token)
            except Exception as error:  # noqa: BLE001  (why it failed is the news)
                emit(Event.HOOK_FAILED, hook=self.name, error=error)
            raise
        if taken:
            self.held[token] = (store, key)
            self._keep_up(host)
        return taken

    async def give(self, store: SemaphoreStore, key: Key, token: str) -> None:
        """Back to the store; harmless when the token has no place."""
        self.held.pop(token, None)
        try:
            await store.release(*key, token)
        finally:
            self._call_up(key)

    def waiting(self, key: Key) -> int:
        """How many are in line, in this process."""
        return len(self.lines.get(key, ()))

    async def queue(self, host: Host, store: SemaphoreStore, key: Key, token: str, seconds: float) -> bool:
        """Wait in line, so long; whether a place was got. Only the first in line asks the store."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + seconds, POLL[0]
        line = self.lines.setdefault(key, OrderedDict())
        turn = Turn()
        line[turn] = None
        try:
            while (left := until - loop.time()) > 0.0:
                if next(iter(line)) is turn:
                    if await self.take(host, store, key, token):
                        return True
                    left, pause = min(left, pause * random.uniform(0.75, 1.25)), min(POLL[1], pause * 2)  # noqa: S311
                await wait_for(turn, left)
                if turn.done():
                    turn = self._again(line, turn)
            return False
        finally:
            line.pop(turn, None)
            if not line and self.lines.get(key) is line:
                del self.lines[key]
            self._call_up(key)

    @staticmethod
    def _again(line: Line, spent: Turn) -> Turn:
        """A new future in the place of one that is spent; its owner keeps his place in line."""
        turn = Turn()
        first = next(iter(line)) is spent
        del line[spent]
        line[turn] = None
        if first:
            line.move_to_end(turn, last=False)
        return turn

    def _call_up(self, key: Key) -> None:
        line = self.lines.get(key)
        if line and not (first := next(iter(line))).done():
            first.set_result(True)

    # ------------------------------------------------------------------ renewal

    def _keep_up(self, host: Host) -> None:
        """See to it that what is held is renewed in time."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the first time, or the loop of another gate is gone
            self._loop, self._timer, self._task = loop, None, None
            host.at_close(self.stop)
        if self._timer is None and self._task is None:
            self._timer = loop.call_later(self.ttl / 3, self._due, context=contextvars.Context())

    def _due(self) -> None:
        self._timer = None
        if self.held and self._loop is not None:
            self._task = self._loop.create_task(self._renew(), name=f"{self.name} renews its leases")

    async def _renew(self) -> None:
        try:
            tokens = list(self.held)
            for start in range(0, len(tokens), AT_ONCE):
                await asyncio.gather(*map(self._renew_one, tokens[start : start + AT_ONCE]))
        finally:
            self._task = None
            if self.held and self._loop is not None:
                self._timer = self._loop.call_later(self.ttl / 3, self._due)

    async def _renew_one(self, token: str) -> None:
        found = self.held.get(token)
        if found is None:
            return
        store, key = found
        try:
            await store.acquire(*key, self.places, token, self.ttl)
            if token not in self.held:  # given back meanwhile: what was renewed is nobody's
                await store.release(*key, token)
        except Exception as error:  # noqa: BLE001  (the next round tries again; the lease ends by itself)
            emit(Event.HOOK_FAILED, hook=self.name, error=error)

    async def stop(self) -> None:
        """The gate closes: nothing is renewed any more."""
        if self._timer is not None:
            self._timer.cancel()
        task, self._loop, self._timer, self._task = self._task, None, None, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
