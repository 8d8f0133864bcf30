"""``Concurrency``: a concurrency limit with a wait queue."""

from __future__ import annotations

import math
from typing import Literal, NoReturn, Unpack

from callgate.errors import Denied, HookError, InvocationError, RetryLater
from callgate.hooks.base import Hook, Step
from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.capacity.permits import LocalPermits, SharedPermits
from callgate.hooks.stock.keys import By, Key, key_of
from callgate.hooks.stock.options import (
    HookOptions,
    check_choice,
    check_count,
    check_seconds,
    checked,
    selectors_of,
    set_options,
)
from callgate.hooks.stock.store_time import store_time
from callgate.providers.stores.base import SemaphoreStore, Store
from callgate.providers.stores.server_answers import GRACE

BUSY = "semaphore_full"
"""The error code of a call that gets no permit."""
_STORE_FAILED = "the store of the concurrency limit failed"


class Concurrency(Hook):
    """Concurrency limit: at most *limit* calls run at a time. Further calls wait in a queue, or end as ``retry_later``.

    In one process the wait queue is first come, first served. With a shared store the limit holds for all processes
    together: each permit is a lease, renewed while its call runs. A process that dies loses its permits after *ttl*.

    Args:
        limit: how many calls may run at a time.
        by: the key that the limit counts by, as with ``Quota``: ``"tool"`` (all tenants together), ``("tenant", "tool")``,
            ``"user"``, ...
        queue: how many further calls may wait, in each process.
        queue_timeout: the longest time in the queue, in seconds; the call's own deadline may end it earlier.
        ttl: seconds after which a lease in a store expires unless it is renewed; a third of it is the renewal interval.
        store: share the limit through this store.
        shared: True shares the limit through the store of the gate.
        retry_after: seconds after which the caller of a refused call should try again.
        on_store_failure: ``"deny"`` refuses calls while the store fails, ``"allow"`` lets them pass uncounted.
        name: separates limits in a store; default: text made of the settings.
        options: the options of every hook: ``priority``, ``tools``, ``tags``, ``tenants``, ``mode``, ``filter``, ...

    Raises:
        HookError: a setting has an invalid value.
    """

    concern = "concurrency"
    releases_by_token = True
    whole = True
    keeps_state = True

    @checked
    def __init__(
        self,
        limit: int,
        *,
        by: By = "tool",
        queue: int = 0,
        queue_timeout: float = 0.0,
        ttl: float = 30.0,
        store: Store | None = None,
        shared: bool = False,
        retry_after: float = 1.0,
        on_store_failure: Literal["deny", "allow"] = "deny",
        name: str | None = None,
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        check_count("Concurrency", "limit", limit)
        check_count("Concurrency", "queue", queue, least=0)
        check_seconds("Concurrency", "queue_timeout", queue_timeout, least=0.0)
        if bool(queue) is not bool(queue_timeout):
            raise HookError("Concurrency: queue= (how many calls may wait) and queue_timeout= (seconds) go together")
        check_seconds("Concurrency", "ttl", ttl, least=0.1)
        check_seconds("Concurrency", "retry_after", retry_after, least=0.0)
        check_choice("Concurrency", "on_store_failure", on_store_failure, ("deny", "allow"))
        self.limit, self.queue, self.queue_timeout = limit, queue, queue_timeout
        self._key_of = key_of("Concurrency", by, name, f"permits {limit} {selectors_of(self)}")
        self._local = None if shared or store is not None else LocalPermits(limit)
        self._shared = SharedPermits("Concurrency", limit, ttl)
        self._store = store
        self._retry_ms = max(1, math.ceil(retry_after * 1000))
        self._allows = on_store_failure == "allow"

    # ------------------------------------------------------------------ stages

    def will_acquire_semaphore(self, ctx: InvokeContext) -> Step:
        """Take a permit, or wait for one."""
        key = self._key_of(ctx)
        local = self._local
        if local is None:
            return self._take_shared(ctx, key)
        if not local.take(key):
            return self._wait(ctx, local, key)
        ctx.data[self] = key
        return None

    def did_release_semaphore(self, ctx: InvokeContext) -> Step:
        """Return the permit; the first waiter gets it."""
        held = ctx.data.pop(self, None)
        if held is None:
            return None
        if self._local is None:
            return self._give_shared(ctx, held)
        self._local.give(held)
        return None

    # ------------------------------------------------------------------ taking

    def in_use(self, key: Key | None = None) -> int:
        """Return the permits that this process holds: of one key, or of all keys."""
        if self._local is None:
            return sum(key in (None, of) for _, of in self._shared.held.values())
        return sum(self._local.used.values()) if key is None else self._local.used.get(key, 0)

    async def _wait(self, ctx: InvokeContext, local: LocalPermits, key: Key) -> None:
        seconds = self._may_wait(ctx, local.waiting(key))
        if not await local.wait(key, seconds):
            self._refuse()
        ctx.data[self] = key

    async def _take_shared(self, ctx: InvokeContext, key: Key) -> None:
        permits, token = self._shared, self._shared.token()
        host = ctx.run.plan.host
        kept = host.store if self._store is None else host.own_store(self._store)
        store: SemaphoreStore = kept.semaphores
        ctx.data[self] = (store, key, token)  # before the acquire: a release without a permit has no effect
        try:
            with store_time(ctx):
                if not permits.waiting(key) and await permits.take(ctx.run.plan.host, store, key, token):
                    return
                if await permits.wait(ctx.run.plan.host, store, key, token, self._may_wait(ctx, permits.waiting(key))):
                    return
        except InvocationError:
            raise
        except Exception as error:
            if not self._allows:
                raise Denied(_STORE_FAILED, code="semaphore_unavailable", http_status=503) from error
            ctx.suppress(error)
            return
        self._refuse()

    async def _give_shared(self, ctx: InvokeContext, held: tuple[SemaphoreStore, Key, str]) -> None:
        with store_time(ctx, least=GRACE):
            await self._shared.give(*held)

    def _may_wait(self, ctx: InvokeContext, waiting: int) -> float:
        if waiting >= self.queue or ctx.run.step.shadow:  # a hook in shadow mode delays no call
            self._refuse()
        left = ctx.remaining()
        return self.queue_timeout if left is None else min(self.queue_timeout, left)

    def _refuse(self) -> NoReturn:
        raise RetryLater(self._retry_ms, f"all {self.limit} permits are taken", code=BUSY)
