"""``CircuitBreaker``: refuses calls of a tool that keeps failing, until a probe succeeds."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeAlias, Unpack

from callgate.errors import CallgateError, Control, DeadlineExceeded, HookError, OutcomeUnknown, RetryLater, ToolFailed
from callgate.hooks.base import Hook, Next
from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.keys import By, Key, key_of
from callgate.hooks.stock.options import (
    HookOptions,
    check_count,
    check_seconds,
    checked,
    selectors_of,
    set_options,
)
from callgate.hooks.stock.resilience.circuits import SharedCircuits
from callgate.providers.circuits import LocalCircuits, Probe, Refused, Settings
from callgate.providers.kinds import truth
from callgate.providers.stores.base import Store

On: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[Exception], bool]
OPEN = "circuit_open"
"""The error code of a call that an open circuit refuses."""


class CircuitBreaker(Hook):
    """Circuit breaker: after repeated failures calls end as ``retry_later`` at once, until a probe succeeds.

    The breaker runs outside of ``Retry``: a call that fails in all its attempts is one failure. A deadline that expires
    while the tool runs is a failure. A call that is cancelled, refused by an inner hook, or ended by the tool's own
    ``RetryLater`` counts neither as a failure nor as a success; a probe with this outcome returns its permit. A probe that
    hangs loses its permit after *open_for* seconds, and another call probes.

    Args:
        failure_threshold: failures within *window* that open the circuit.
        window: the time window of the failures, in seconds.
        open_for: seconds until an open circuit lets probes through.
        max_probes: how many probes may run at a time.
        on: errors that count as failures: types, or a function of the error. Default: every exception of the tool except
            ``ToolError``, and expired time limits.
        by: the key of a circuit, as with ``Quota``; default: one circuit per tool, for all tenants.
        store: share circuits through this store.
        shared: True shares circuits through the store of the gate.
        refresh: seconds for which the state of a shared circuit is cached in the process.
        name: separates circuits in a store; default: text made of the settings.
        options: the options of every hook, except ``mode``.

    Raises:
        HookError: a setting has an invalid value.
    """

    concern = "breaker"
    keeps_state = True
    priority = 300

    @checked
    def __init__(
        self,
        failure_threshold: int = 5,
        *,
        window: float = 60.0,
        open_for: float = 30.0,
        max_probes: int = 1,
        on: On | None = None,
        by: By = "tool",
        store: Store | None = None,
        shared: bool = False,
        refresh: float = 1.0,
        name: str | None = None,
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        check_count("CircuitBreaker", "failure_threshold", failure_threshold)
        check_count("CircuitBreaker", "max_probes", max_probes)
        check_seconds("CircuitBreaker", "window", window, least=1e-3)
        check_seconds("CircuitBreaker", "open_for", open_for, least=1e-3)
        check_seconds("CircuitBreaker", "refresh", refresh, least=0.0)
        settings = Settings(failure_threshold, window, open_for, max_probes)
        self.local = None if shared or store is not None else LocalCircuits(settings)
        self.shared = SharedCircuits(settings, refresh)
        self._store = store
        self._counts = _predicate(on)
        kind = f"circuit {failure_threshold}/{window:g} {open_for:g} {selectors_of(self)}"
        self._key_of = key_of("CircuitBreaker", by, name, kind)

    async def around_execute(self, ctx: InvokeContext, next: Next) -> object:
        """Call the tool, unless the circuit is open."""
        key = self._key_of(ctx)
        if self.local is None:
            return await self._shared(ctx, next, key)
        try:
            probe = self.local.enter(key, ctx.run.plan.host.monotonic())
        except Refused as refused:
            raise _later(ctx, refused) from None
        return await self._local(ctx, next, key, self.local, probe)

    async def _local(
        self, ctx: InvokeContext, next: Next, key: Key, circuits: LocalCircuits, probe: Probe | None
    ) -> object:
        try:
            output = await next()
        except BaseException as error:
            circuits.leave(key, probe, self._failed(ctx, error), ctx.run.plan.host.monotonic())
            raise
        if probe is not None:
            circuits.leave(key, probe, False, ctx.run.plan.host.monotonic())
        return output

    async def _shared(self, ctx: InvokeContext, next: Next, key: Key) -> object:
        host = ctx.run.plan.host
        store = host.store if self._store is None else host.own_store(self._store)
        probed = False
        try:
            probed = await self.shared.enter(ctx, store, key)
        except Refused as refused:
            raise _later(ctx, refused) from None
        except Exception as error:  # noqa: BLE001  (without the state of the circuit the call passes)
            ctx.suppress(error)
        failed: bool | None = False
        try:
            return await next()
        except BaseException as error:
            failed = self._failed(ctx, error)
            raise
        finally:
            if failed or (probed and failed is False):
                await self._note(ctx, store, key, probed=probed, failed=failed)

    async def _note(self, ctx: InvokeContext, store: Store, key: Key, *, probed: bool, failed: bool) -> None:
        try:
            await self.shared.leave(ctx, store, key, probed=probed, failed=failed)
        except Exception as error:  # noqa: BLE001  (the store must not change the outcome of the call)
            ctx.suppress(error)

    def _failed(self, ctx: InvokeContext, error: BaseException) -> bool | None:
        """Return True for a failure of the tool, False for a success, None for an outcome that shows neither."""
        if isinstance(error, Control):
            return False
        if isinstance(error, asyncio.CancelledError):
            left = ctx.remaining()
            return True if left is not None and left <= 0.0 else None
        if not isinstance(error, Exception):
            return None
        if self._is_counted(ctx, error):
            return True
        decided = isinstance(error, CallgateError) and not isinstance(error, ToolFailed)
        return None if decided else False

    def _is_counted(self, ctx: InvokeContext, error: Exception) -> bool:
        """Ask the function *on*. When it fails, the error counts: a probe whose outcome is unknown closes no circuit."""
        try:
            return truth("CircuitBreaker", "on", self._counts(error))
        except Exception as failure:  # noqa: BLE001  (the error of the tool is the one to raise)
            ctx.suppress(failure)
            return True


def _later(ctx: InvokeContext, refused: Refused) -> RetryLater:
    wait = max(1, math.ceil(refused.seconds * 1000))
    return RetryLater(wait, f"the circuit of {ctx.tool_id} is open", code=OPEN)


def _predicate(on: On | None) -> Callable[[Exception], bool]:
    if on is None:
        return _is_failure
    if isinstance(on, type | tuple):
        types = on if isinstance(on, tuple) else (on,)
        if not all(isinstance(one, type) and issubclass(one, Exception) for one in types):
            raise HookError(f"CircuitBreaker: on is {on!r}; give exception types, or a function of the error")
        return lambda error: isinstance(error, types)
    if not callable(on):
        raise HookError(f"CircuitBreaker: on is {on!r}; give exception types, or a function of the error")
    return on


def _is_failure(error: Exception) -> bool:
    """Return True for an exception of the tool; False for a decision of the gate, or a ``ToolError``."""
    if isinstance(error, DeadlineExceeded | OutcomeUnknown):
        return True
    if isinstance(error, ToolFailed):
        return type(error) is ToolFailed  # the tool crashed
    return not isinstance(error, CallgateError)
