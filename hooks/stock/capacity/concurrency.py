"""``Concurrency``: so many calls at a time, and a line for those that can wait."""

from __future__ import annotations

import math
from typing import Literal, NoReturn, Unpack

from callgate.errors import Denied, HookError, InvocationError, RetryLater
from callgate.hooks.base import Hook, Step
from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.capacity.permits import LocalPlaces, SharedPlaces
from callgate.hooks.stock.keys import By, Key, key_of
from callgate.hooks.stock.options import HookOptions, is_number, selectors_of, set_options
from callgate.providers.stores.base import SemaphoreStore, Store

BUSY = "semaphore_full"
"""The code of a call that found no place."""


class Concurrency(Hook):
    """A call that finds no place waits in line, if there is one, and then ends as ``retry_later``.

    In one process lines are first come, first served. With a store the limit holds for all processes together: each
    place is a lease that is renewed while the call runs and is free again *ttl* seconds after its process died.

    Args:
        places: how many calls may run at a time.
        by: whom they count for, as with ``Quota``: ``"tool"`` (for all tenants), ``("tenant", "tool")``, ``"user"``, …
        queue: how many more may wait in line.
        wait: the most seconds that one waits; never beyond the call's own deadline.
        ttl: seconds that a place in a store is held without being renewed; it is renewed every third of it.
        store: share the limit through this store.
        shared: share it through the gate's store.
        retry_after: seconds after which a call that found no place is told to try again.
        on_store_failure: ``"deny"`` refuses calls while the store fails, ``"allow"`` lets them pass uncounted.
        name: tells its places apart from others in the store; by default its settings.
        options: those of ``Hook``: ``priority``, ``tools``, ``tags``, ``tenants``, ``timeout``, ``mode``, ``filter``.

    Raises:
        HookError: a setting that means nothing.
    """

    concern = "concurrency"
    releases_by_token = True

    def __init__(
        self,
        places: int,
        *,
        by: By = "tool",
        queue: int = 0,
        wait: float = 0.0,
        ttl: float = 30.0,
        store: Store | None = None,
        shared: bool = False,
        retry_after: float = 1.0,
        on_store_failure: Literal["deny", "allow"] = "deny",
        name: str | None = None,
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        self.places, self.queue, self.wait = places, queue, wait
        _check(places, queue, wait, ttl, retry_after, on_store_failure)
        self._key_of = key_of("Concurrency", by, name, f"places {places} {selectors_of(self)}")
        self._local = None if shared or store is not None else LocalPlaces(places)
        self._shared = SharedPlaces("Concurrency", places, ttl)
        self._store = store
        self._retry_ms = max(1, math.ceil(retry_after * 1000))
        self._allows = on_store_failure == "allow"

    # ------------------------------------------------------------------ stages

    def will_acquire_semaphore(self, ctx: InvokeContext) -> Step:
        """Take a place, or wait for one."""
        key = self._key_of(ctx)
        local = self._local
        if local is None:
            return self._take_shared(ctx, key)
        if not local.take(key):
            return self._queue(ctx, local, key)
        ctx.data[self] = key
        return None

    def did_release_semaphore(self, ctx: InvokeContext) -> Step:
        """Give it back, to the first in line if there is one."""
        held = ctx.data.pop(self, None)
        if held is None:
            return None
        if self._local is None:
            return self._shared.give(*held)
        self._local.give(held)
        return None

    # ------------------------------------------------------------------ taking

    def in_use(self, key: Key | None = None) -> int:
        """Places that this process holds now: of one key, or of all."""
        if self._local is None:
            return sum(key in (None, of) for _, of in self._shared.held.values())
        return sum(self._local.used.values()) if key is None else self._local.used.get(key, 0)

    async def _queue(self, ctx: InvokeContext, local: LocalPlaces, key: Key) -> None:
        seconds = self._may_wait(ctx, local.waiting(key))
        if not await local.queue(key, seconds):
            self._refuse()
        ctx.data[self] = key

    async def _take_shared(self, ctx: InvokeContext, key: Key) -> None:
        places, token = self._shared, self._shared.token()
        store: SemaphoreStore = (self._store or ctx.host.store).semaphores
        ctx.data[self] = (store, key, token)  # before it is taken: the release is harmless without
        try:
            if not places.waiting(key) and await places.take(ctx.host, store, key, token):
                return
            if await places.queue(ctx.host, store, key, token, self._may_wait(ctx, places.waiting(key))):
                return
        except InvocationError:
            raise
        except Exception as error:
            if not self._allows:
                raise Denied("the store of the places failed", code="semaphore_unavailable", http_status=503) from error
            ctx.suppress(error)
            return
        self._refuse()

    def _may_wait(self, ctx: InvokeContext, waiting: int) -> float:
        if waiting >= self.queue or ctx.step.shadow:  # a hook in shadow mode holds nobody up
            self._refuse()
        left = ctx.remaining()
        return self.wait if left is None else min(self.wait, left)

    def _refuse(self) -> NoReturn:
        raise RetryLater(self._retry_ms, f"all {self.places} places are taken", code=BUSY)


def _check(places: int, queue: int, wait: float, ttl: float, retry_after: float, on_store_failure: str) -> None:
    if not is_number(places, least=1, whole=True):
        raise HookError(f"Concurrency: places={places!r}; give a whole number from 1 on")
    if not (is_number(queue, least=0, whole=True) and is_number(wait, least=0)):
        raise HookError(f"Concurrency: queue={queue!r} and wait={wait!r}; give a whole number and seconds, from 0 on")
    if bool(queue) is not bool(wait):
        raise HookError("Concurrency: a line needs both queue= (how many may wait) and wait= (how long, in seconds)")
    if not (is_number(ttl, least=0.1) and is_number(retry_after, least=0)):
        raise HookError(f"Concurrency: ttl={ttl!r}, retry_after={retry_after!r}; give seconds, ttl at least 0.1")
    if on_store_failure not in ("deny", "allow"):
        raise HookError(f"Concurrency: on_store_failure={on_store_failure!r}; choose 'deny' or 'allow'")
