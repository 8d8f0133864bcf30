"""Permits of a concurrency limit: counted in this process, or held by token in a store that processes share."""

from __future__ import annotations

import asyncio
import contextvars
import random
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from callgate.hooks.context import InvokeContext
from callgate.hooks.state.host import Host
from callgate.hooks.stock.keys import Key
from callgate.providers.logs import LogEvent, emit
from callgate.providers.stores.base import SemaphoreStore


class Waiter(asyncio.Future[bool]):
    """The future of a call in the wait queue. It holds nothing, so a cancellation need not wait for it."""

    may_be_left = True


WaitQueue: TypeAlias = OrderedDict[Waiter, None]
"""Waiters in the order of their arrival."""

POLL = (0.05, 0.5)
"""Seconds between two attempts of the first waiter on a shared store: at first, and at most."""
RENEWED_TOGETHER = 32
"""Leases that are renewed concurrently."""


async def wait_for(waiter: Waiter, seconds: float) -> bool:
    """Wait for a permit; return False when the time is over."""

    def expire() -> None:
        if not waiter.done():
            waiter.set_result(False)

    timer = asyncio.get_running_loop().call_later(seconds, expire, context=contextvars.Context())
    try:
        return await waiter
    finally:
        timer.cancel()


class LocalPermits:
    """Counters with wait queues. A returned permit goes to the first waiter, so no call overtakes another."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used: dict[Key, int] = {}
        self.queues: dict[Key, WaitQueue] = {}

    def take(self, key: Key) -> bool:
        """Take a permit if one is free; none is free while calls wait."""
        used = self.used.get(key, 0)
        if used >= self.limit:
            return False
        self.used[key] = used + 1
        return True

    def give(self, key: Key) -> None:
        """Hand the permit to the first waiter, or return it."""
        queue = self.queues.get(key)
        while queue:
            waiter, _ = queue.popitem(last=False)
            if not waiter.done():
                waiter.set_result(True)
                return
        if used := self.used[key] - 1:
            self.used[key] = used
        else:
            del self.used[key]

    def waiting(self, key: Key) -> int:
        """Return the length of the wait queue."""
        return len(self.queues.get(key, ()))

    async def wait(self, key: Key, seconds: float) -> bool:
        """Join the wait queue for at most *seconds*; return True with a permit."""
        queue = self.queues.setdefault(key, OrderedDict())
        waiter = Waiter()
        queue[waiter] = None
        try:
            return await wait_for(waiter, seconds)
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.result():  # the permit came before the cancellation
                self.give(key)
            raise
        finally:
            queue.pop(waiter, None)
            if not queue and self.queues.get(key) is queue:
                del self.queues[key]


class SharedPermits:
    """Permits as leases in a store, with one token per call. One task renews all held leases every third of the TTL.

    No task runs while no permit is held. Wait queues are per process; between processes the first to ask wins.
    """

    def __init__(self, name: str, limit: int, ttl: float) -> None:
        self.name, self.limit, self.ttl = name, limit, ttl
        self.held: dict[str, tuple[SemaphoreStore, Key]] = {}
        self.queues: dict[Key, WaitQueue] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._forget: Callable[[], object] = lambda: None

    @staticmethod
    def token() -> str:
        """Make a random token. No other process makes the same one, also not a fork of this process."""
        return secrets.token_hex(16)

    async def take(self, host: Host[InvokeContext], store: SemaphoreStore, key: Key, token: str) -> bool:
        """Take a permit if one is free. After a failure the permit is released, or expires with its TTL."""
        try:
            taken = await store.acquire(*key, self.limit, token, self.ttl)
        except GeneratorExit:
            raise
        except BaseException:  # the store may have granted it before the failure
            try:
                await store.release(*key, token)
            except Exception as error:  # noqa: BLE001  (the first error is the one to raise)
                emit(LogEvent.HOOK_FAILED, hook=self.name, error=error)
            raise
        if taken:
            self.held[token] = (store, key)
            self._schedule_renewal(host)
        return taken

    async def give(self, store: SemaphoreStore, key: Key, token: str) -> None:
        """Release the permit in the store; no effect for a token without a permit."""
        self.held.pop(token, None)
        try:
            await store.release(*key, token)
        finally:
            self._wake_first(key)

    def waiting(self, key: Key) -> int:
        """Return the length of this process's wait queue."""
        return len(self.queues.get(key, ()))

    async def wait(
        self, host: Host[InvokeContext], store: SemaphoreStore, key: Key, token: str, seconds: float
    ) -> bool:
        """Join the wait queue for at most *seconds*; return True with a permit. Only the first waiter asks the store."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + seconds, POLL[0]
        queue = self.queues.setdefault(key, OrderedDict())
        waiter = Waiter()
        queue[waiter] = None
        try:
            while (left := until - loop.time()) > 0.0:
                if next(iter(queue)) is waiter:
                    if await self.take(host, store, key, token):
                        return True
                    left, pause = min(left, pause * random.uniform(0.75, 1.25)), min(POLL[1], pause * 2)  # noqa: S311
                await wait_for(waiter, left)
                if waiter.done():
                    waiter = self._replaced(queue, waiter)
            return False
        finally:
            queue.pop(waiter, None)
            if not queue and self.queues.get(key) is queue:
                del self.queues[key]
            self._wake_first(key)

    @staticmethod
    def _replaced(queue: WaitQueue, done: Waiter) -> Waiter:
        """Replace a finished waiter by a new one; the first waiter stays first."""
        waiter = Waiter()
        first = next(iter(queue)) is done
        del queue[done]
        queue[waiter] = None
        if first:
            queue.move_to_end(waiter, last=False)
        return waiter

    def _wake_first(self, key: Key) -> None:
        queue = self.queues.get(key)
        if queue and not (first := next(iter(queue))).done():
            first.set_result(True)

    # ------------------------------------------------------------------ renewal

    def _schedule_renewal(self, host: Host[InvokeContext]) -> None:
        """Start the timer of the next renewal, unless it runs."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the first permit, or the event loop of an earlier gate is closed
            self._loop, self._timer, self._task = loop, None, None
            self._forget = host.at_close(self.stop)
        if self._timer is None and self._task is None:
            self._timer = loop.call_later(self.ttl / 3, self._due, context=contextvars.Context())

    def _due(self) -> None:
        self._timer = None
        if self.held and self._loop is not None:
            self._task = self._loop.create_task(self._renew(), name=f"{self.name} renews its leases")
        else:
            self._forget()
            self._loop = None

    async def _renew(self) -> None:
        try:
            tokens = list(self.held)
            for start in range(0, len(tokens), RENEWED_TOGETHER):
                await asyncio.gather(*map(self._renew_one, tokens[start : start + RENEWED_TOGETHER]))
        finally:
            self._task = None
            if self._loop is not None:
                self._timer = self._loop.call_later(self.ttl / 3, self._due)

    async def _renew_one(self, token: str) -> None:
        found = self.held.get(token)
        if found is None:
            return
        store, key = found
        try:
            await store.acquire(*key, self.limit, token, self.ttl)
            if token not in self.held:  # the call ended during the renewal: release the renewed lease
                await store.release(*key, token)
        except Exception as error:  # noqa: BLE001  (the next round renews it, or the lease expires)
            emit(LogEvent.HOOK_FAILED, hook=self.name, error=error)

    async def stop(self) -> None:
        """Stop the renewal when the gate closes."""
        self._forget()
        if self._timer is not None:
            self._timer.cancel()
        task, self._loop, self._timer, self._task = self._task, None, None, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
