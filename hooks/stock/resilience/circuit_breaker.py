"""``CircuitBreaker``: a tool that keeps failing is left alone for a while."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, TypeAlias, Unpack

from callgate.errors import CallgateError, Control, DeadlineExceeded, HookError, OutcomeUnknown, RetryLater, ToolFailed
from callgate.hooks.base import Hook, Next
from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.keys import By, Key, key_of
from callgate.hooks.stock.options import HookOptions, is_number, selectors_of, set_options
from callgate.hooks.stock.resilience.circuits import Circuit, LocalCircuits, Refused, Settings, SharedCircuits
from callgate.providers.stores.base import Store

On: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[Exception], bool]
OPEN = "circuit_open"
"""The code of a call that an open circuit refused."""


class CircuitBreaker(Hook):
    """After so many failures in a window calls end as ``retry_later`` at once; then a few probes find out whether it is well.

    Outside of ``Retry``: a call that fails after all its attempts is one failure. A call that is cancelled, refused by a
    hook further inside, or put off by the tool is neither failure nor success; a probe that ends so gives its place
    back. A deadline that passes while the tool runs is a failure.

    Args:
        failures: how many open the circuit.
        window: seconds in which they must fall.
        open_for: seconds that it stays open; then probes may pass.
        half_open: how many probes may run at a time.
        on: what counts as a failure: types of errors, or a function of the error. By default whatever the tool lets out
            but for ``ToolError``, which is an answer, and time limits.
        by: whose circuit it is, as with ``Quota``; by default one a tool, for all tenants.
        store: share circuits through this store.
        shared: share them through the gate's store.
        refresh: seconds for which a circuit read from the store is believed.
        name: tells its circuits apart from others in the store; by default its settings.
        options: those of ``Hook``, but for ``mode``.

    Raises:
        HookError: a setting that means nothing.
    """

    concern = "breaker"
    priority = 300

    def __init__(
        self,
        failures: int = 5,
        *,
        window: float = 60.0,
        open_for: float = 30.0,
        half_open: int = 1,
        on: On | None = None,
        by: By = "tool",
        store: Store | None = None,
        shared: bool = False,
        refresh: float = 1.0,
        name: str | None = None,
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        if not (is_number(failures, least=1, whole=True) and is_number(half_open, least=1, whole=True)):
            raise HookError(f"CircuitBreaker: failures={failures!r}, half_open={half_open!r}; whole numbers from 1 on")
        if not (is_number(window, least=1e-3) and is_number(open_for, least=1e-3) and is_number(refresh, least=0)):
            raise HookError("CircuitBreaker: window, open_for and refresh are seconds, the first two above 0")
        settings = Settings(failures, window, open_for, half_open)
        self.local = None if shared or store is not None else LocalCircuits(settings)
        self.shared = SharedCircuits(settings, refresh)
        self._store = store
        self._counts = _as_question(on)
        kind = f"circuit {failures}/{window:g} {open_for:g} {selectors_of(self)}"
        self._key_of = key_of("CircuitBreaker", by, name, kind)

    async def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
        """Go on, unless the circuit is open."""
        key = self._key_of(ctx)
        if self.local is None:
            return await self._shared(ctx, next, key)
        try:
            probed = self.local.enter(key, ctx.host.monotonic())
        except Refused as refused:
            raise _later(ctx, refused) from None
        return await self._local(ctx, next, key, self.local, probed)

    async def _local(
        self, ctx: InvokeContext, next: Next, key: Key, circuits: LocalCircuits, probed: Circuit | None
    ) -> Any:
        try:
            answer = await next()
        except BaseException as error:
            circuits.leave(key, probed, self._failed(ctx, error), ctx.host.monotonic())
            raise
        if probed is not None:
            circuits.leave(key, probed, False, ctx.host.monotonic())
        return answer

    async def _shared(self, ctx: InvokeContext, next: Next, key: Key) -> Any:
        store = self._store or ctx.host.store
        probed = False
        try:
            probed = await self.shared.enter(ctx, store, key)
        except Refused as refused:
            raise _later(ctx, refused) from None
        except Exception as error:  # noqa: BLE001  (a breaker that does not know lets calls pass)
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
        except Exception as error:  # noqa: BLE001  (the call has ended; how, is not the store's to say)
            ctx.suppress(error)

    def _failed(self, ctx: InvokeContext, error: BaseException) -> bool | None:
        """Whether the tool failed (True), answered (False), or nothing can be said of it (None)."""
        if isinstance(error, Control):
            return False
        if isinstance(error, asyncio.CancelledError):
            left = ctx.remaining()
            return True if left is not None and left <= 0.0 else None
        if not isinstance(error, Exception):
            return None
        if self._counts(error):
            return True
        decided = isinstance(error, CallgateError) and not isinstance(error, ToolFailed)
        return None if decided else False


def _later(ctx: InvokeContext, refused: Refused) -> RetryLater:
    wait = max(1, math.ceil(refused.seconds * 1000))
    return RetryLater(wait, f"the circuit of {ctx.tool_id} is open", code=OPEN)


def _as_question(on: On | None) -> Callable[[Exception], bool]:
    if on is None:
        return _is_failure
    if isinstance(on, type | tuple):
        types = on if isinstance(on, tuple) else (on,)
        if not all(isinstance(one, type) and issubclass(one, Exception) for one in types):
            raise HookError(f"CircuitBreaker: on={on!r}; give types of exceptions, or a function of the error")
        return lambda error: isinstance(error, types)
    if not callable(on):
        raise HookError(f"CircuitBreaker: on={on!r}; give types of exceptions, or a function of the error")
    return on


def _is_failure(error: Exception) -> bool:
    """What the tool lets out; a decision, or an answer for the model, is none."""
    if isinstance(error, DeadlineExceeded | OutcomeUnknown):
        return True
    if isinstance(error, ToolFailed):
        return type(error) is ToolFailed  # the tool crashed
    return not isinstance(error, CallgateError)
