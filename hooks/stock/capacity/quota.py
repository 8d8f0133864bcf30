"""``Quota``: so many calls, or units of whatever a call costs, in a window of time."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Unpack

from callgate.errors import Denied, HookError, RetryLater
from callgate.hooks.base import Hook, Step, not_overridden
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage
from callgate.hooks.stock.keys import By, Key, key_of
from callgate.hooks.stock.options import HookOptions, is_number, selectors_of, set_options
from callgate.providers.stores.base import Limit, QuotaStore, Store
from callgate.providers.stores.memory import MemoryQuotas
from callgate.tools.calls import Outcome

Reason = Literal["not_executed", "cache_hit", "error", "cancelled"]
_EARLY = (Stage.WILL_ACQUIRE_QUOTA, Stage.DID_RELEASE_QUOTA)
_LATE = (Stage.WILL_AUTHORIZE_INPUT,)
REASONS = ("not_executed", "cache_hit", "error", "cancelled")
"""Why units may be given back; see ``Quota``."""
NOT_EXECUTED: tuple[Reason, ...] = ("not_executed",)

_LIMIT = re.compile(r"(\d+)\s*(?:/|\bper\b)\s*(\d*)\s*([a-z]+)", re.ASCII)
_UNITS = {
    unit: seconds
    for seconds, units in {
        1: "s sec second seconds",
        60: "m min minute minutes",
        3600: "h hour hours",
        86_400: "d day days",
        604_800: "w week weeks",
    }.items()
    for unit in units.split()
}


def parse_limits(text: str) -> tuple[Limit, ...]:
    """``"100/minute; 1000/day"`` as limits; ``"10 per 30 s"`` and commas are understood, too.

    Raises:
        HookError: it cannot be read, or means nothing; the message says which part.
    """
    return tuple(_parse(part.strip().lower()) for part in re.split(r"[;,]", text))


def _parse(part: str) -> Limit:
    found = _LIMIT.fullmatch(part)
    if found is None or found[3] not in _UNITS:
        raise HookError(f"cannot read the limit {part!r}; write it like 100/minute, 10/30s or 1000 per day")
    return Limit(int(found[1]), float(int(found[2] or 1) * _UNITS[found[3]]))


def _checked(limits: str | Limit | Sequence[Limit]) -> tuple[Limit, ...]:
    if isinstance(limits, str):
        found = parse_limits(limits)
    else:
        found = (limits,) if isinstance(limits, Limit) else tuple(limits)
    if not found:
        raise HookError("Quota needs a limit, such as 100/minute")
    for limit in found:
        if not (is_number(limit.amount, least=1, whole=True) and is_number(limit.seconds, least=1e-3)):
            raise HookError(f"{limit} allows nothing, or has no window; give an amount and seconds above 0")
    if len({limit.seconds for limit in found}) < len(found):
        raise HookError("two limits have the same window: they would be counted as one; keep the smaller")
    return tuple(sorted(found, key=lambda limit: limit.seconds))  # the shortest refuses most, and then none is taken


class _Held:
    """What one call has taken: the limits that gave their units."""

    __slots__ = ("cost", "key", "limits", "quotas")

    def __init__(self, quotas: QuotaStore, key: Key, cost: int, limits: list[Limit]) -> None:
        self.quotas, self.key, self.cost, self.limits = quotas, key, cost, limits

    async def give_back(self) -> None:
        """Return all of it, each at most once: one that fails stays counted until its window is over."""
        failed: Exception | None = None
        while self.limits:
            limit = self.limits.pop()
            try:
                await self.quotas.give_back(*self.key, limit, self.cost)
            except Exception as error:  # noqa: BLE001  (the others are given back all the same)
                failed = error
        if failed is not None:
            raise failed


class Quota(Hook):
    """A call over the limit ends as ``retry_later``, with the time after which it fits.

    Units are reserved as the call comes in, given back where *refund_on* says so, and otherwise spent. Several limits
    count together: a call gets its units from all of them or from none.

    Args:
        limits: ``"100/minute"``, ``"100/minute; 1000/day"``, or ``Limit`` objects.
        by: whom it counts for: any of ``"user"``, ``"tenant"``, ``"tool"``, ``"session"`` (by user where there is
            none), and functions of the context. Users, sessions and what functions say are told apart by tenant; ``by=
            "tool"`` and ``by=()`` count all tenants together.
        cost: units of a call: a number, or a function of the context; of the validated arguments with ``at="input"``.
            A call that costs nothing is not counted, one that costs more than a limit allows is denied.
        at: ``"acquire"`` counts before the arguments are read, ``"input"`` once they are valid and frozen.
        refund_on: when units are given back: ``"not_executed"`` (the tool did not begin: denied, invalid, cancelled
            before), ``"cache_hit"`` (answered from a cache), ``"error"`` and ``"cancelled"`` (it began, and ended so);
            or a function of the context.
        on_store_failure: ``"deny"`` refuses calls while the store fails, ``"allow"`` lets them pass uncounted.
        store: where it counts; the gate's own unless given.
        name: tells its counts apart from others in the store; by default its limits, key and selectors.
        options: those of ``Hook``: ``priority``, ``tools``, ``tags``, ``tenants``, ``timeout``, ``mode``, ``filter``.

    Raises:
        HookError: a setting that means nothing.
        StoreUnsupported: the store cannot count one of the limits.
    """

    concern = "quota"
    releases_by_token = True

    def __init__(
        self,
        limits: str | Limit | Sequence[Limit],
        *,
        by: By = ("user", "tool"),
        cost: int | Callable[[Any], int] = 1,
        at: Literal["acquire", "input"] = "acquire",
        refund_on: Collection[Reason] | Callable[[InvokeContext], bool] = NOT_EXECUTED,
        on_store_failure: Literal["deny", "allow"] = "deny",
        store: Store | None = None,
        name: str | None = None,
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        self.limits = _checked(limits)
        self.at = at
        self._most = min(limit.amount for limit in self.limits)
        self._cost_of: Callable[[Any], int] | None = cost if callable(cost) else None
        self._cost = 1 if callable(cost) else cost
        self._store = store
        self._allows = on_store_failure == "allow"
        self._refund_if = refund_on if callable(refund_on) else None
        self._refund_on = frozenset(() if callable(refund_on) else refund_on)
        self._spends = self._refund_if is None and self._refund_on.isdisjoint(("error", "cancelled"))
        self._check(on_store_failure)
        self.leaves_out = not_overridden(self, Quota, _EARLY if at == "input" else _LATE)
        self._only = self.limits[0] if len(self.limits) == 1 and self._cost_of is None and self._cost else None
        self._key_of = key_of("Quota", by, name, self._kind())

    def _check(self, on_store_failure: str) -> None:
        if self.at not in ("acquire", "input"):
            raise HookError(f"Quota: at={self.at!r}; choose 'acquire' or 'input'")
        if on_store_failure not in ("deny", "allow"):
            raise HookError(f"Quota: on_store_failure={on_store_failure!r}; choose 'deny' or 'allow'")
        if not self._refund_on.issubset(REASONS):
            raise HookError(f"Quota: refund_on has {sorted(self._refund_on.difference(REASONS))}; choose of {REASONS}")
        if self._cost_of is None and not is_number(self._cost, least=0, whole=True):
            raise HookError(f"Quota: cost={self._cost!r}; give a whole number from 0 on, or a function")
        if self._cost > self._most:
            raise HookError(f"Quota: a call costs {self._cost}, and a limit is {self._most}: none would ever pass")
        if self._cost_of is not None and inspect.iscoroutinefunction(self._cost_of):
            raise HookError("Quota: the cost function is async; give a plain one")
        check_limit: Any = getattr(self._store, "check_limit", None)
        if check_limit is not None:  # with on_store_failure="allow" nobody would hear of it later
            for limit in self.limits:
                check_limit(limit)

    def _kind(self) -> str:
        told = [f"{limit.amount}/{limit.seconds:g}" for limit in self.limits]
        return " ".join(["quota", self.mode, self.at, *told, selectors_of(self)])

    # ------------------------------------------------------------------ stages

    def will_acquire_quota(self, ctx: InvokeContext) -> Step:
        """Reserve; what is taken is settled at ``did_release_quota``."""
        only, cost = self._only, self._cost
        if only is not None:
            quotas = (self._store or ctx.plan.host.store).quotas
            if type(quotas) is MemoryQuotas:  # it does not wait: most calls need no coroutine
                key = self._key_of(ctx)
                if quotas.take_now(key, only, cost):
                    ctx.data[self] = key
                    return None
        return self._reserve(ctx, cost if self._cost_of is None else self._asked(ctx))

    def did_release_quota(self, ctx: InvokeContext) -> Step:
        """Spent, or given back."""
        if ctx.executed and self._spends:
            return None
        held: _Held | Key | None = ctx.data.pop(self, None)
        if held is None or not self._refunds(ctx):
            return None
        if isinstance(held, tuple):  # the units of the one limit, taken without waiting
            quotas: Any = (self._store or ctx.plan.host.store).quotas
            quotas.give_back_now(held, self.limits[0], self._cost)
            return None
        return held.give_back()

    async def will_authorize_input(self, ctx: InvokeContext) -> None:
        """Reserve with ``at="input"``, as a lease: the arguments are valid and frozen, so the cost can read them."""
        cost = self._cost if self._cost_of is None else self._asked(ctx.input)
        await ctx.host.lease(ctx, _Reservation(self, ctx, cost))  # not ctx.lease: it counts in shadow mode, too

    # ------------------------------------------------------------------ counting

    def _asked(self, of: Any) -> int:
        """What the cost function says."""
        cost: Any = self._cost_of(of) if self._cost_of is not None else self._cost
        if cost.__class__ is not int or cost < 0:
            kind = type(cost).__name__
            raise TypeError(f"the cost function of a Quota gave a {kind}; a cost is a whole number from 0 on")
        if cost > self._most:
            raise Denied(f"it costs {cost}, and the limit is {self._most}", code="over_limit")
        return cost

    async def _reserve(self, ctx: InvokeContext, cost: int) -> None:
        if not cost:
            return
        quotas = (self._store or ctx.host.store).quotas
        tenant, key = at = self._key_of(ctx)
        held = ctx.data[self] = _Held(quotas, at, cost, [])
        wait = -1.0
        try:
            for limit in self.limits:  # all are asked: the longest wait is the right one
                only_look = wait >= 0.0 and cost == 1
                taken = await (quotas.look(tenant, key, limit) if only_look else quotas.take(tenant, key, limit, cost))
                if not taken.ok:
                    wait = max(wait, taken.retry_after)
                elif not only_look:
                    held.limits.append(limit)
        except asyncio.CancelledError:
            await self._drop(ctx, held)
            raise
        except Exception as error:
            if not self._allows:
                await self._drop(ctx, held)
                raise Denied("the quota's store failed", code="quota_unavailable", http_status=503) from error
            ctx.suppress(error)
            return
        if wait >= 0.0:
            await self._drop(ctx, held)
            raise RetryLater(max(1, math.ceil(wait * 1000)), f"over the quota of {self._named()}", code="over_quota")

    @staticmethod
    async def _drop(ctx: InvokeContext, held: _Held) -> None:
        try:
            await held.give_back()
        except Exception as error:  # noqa: BLE001  (why the call is refused is the news)
            ctx.suppress(error)

    def _named(self) -> str:
        return "; ".join(f"{limit.amount} in {limit.seconds:g} s" for limit in self.limits)

    def _refunds(self, ctx: InvokeContext) -> bool:
        if self._refund_if is not None:
            return bool(self._refund_if(ctx))
        if not _began(ctx):
            return ("cache_hit" if ctx.cache_hit and ctx.error is None else "not_executed") in self._refund_on
        if ctx.error is None:
            return False
        return ("cancelled" if ctx.outcome is Outcome.CANCELLED else "error") in self._refund_on


class _Reservation(AbstractAsyncContextManager[None]):
    """The units of one call."""

    def __init__(self, quota: Quota, ctx: InvokeContext, cost: int) -> None:
        self.quota, self.ctx, self.cost = quota, ctx, cost

    async def __aenter__(self) -> None:
        await self.quota._reserve(self.ctx, self.cost)

    async def __aexit__(self, *error: object) -> None:
        settling = Quota.did_release_quota(self.quota, self.ctx)
        if settling is not None:
            await settling


def _began(ctx: InvokeContext) -> bool:
    """Whether the tool's body was reached; yes where that cannot be told."""
    if ctx.executed or ctx.abandoned:
        return True
    if ctx.error is not None:
        failed = ctx.failed_in
        refused = failed is not None and failed.stage is Stage.WILL_EXECUTE  # by a hook, at the last attempt
        return failed is ctx.plan.running or ctx.tries > refused
    log = ctx._output_log
    return ctx.tries > 0 or bool(log and log[0].stage is Stage.WILL_EXECUTE)  # a body may respond, too
