"""``Quota``: a rate limit, in calls or in cost units per time window."""

from __future__ import annotations

import asyncio
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
from callgate.hooks.stock.options import (
    HookOptions,
    check_choice,
    check_count,
    checked,
    is_number,
    selectors_of,
    set_options,
)
from callgate.hooks.stock.store_time import store_time
from callgate.providers.kinds import refuse_result, truth
from callgate.providers.stores.base import Limit, QuotaStore, Store
from callgate.providers.stores.memory.store import MemoryQuotas
from callgate.providers.stores.server_answers import GRACE
from callgate.tools.calls import Outcome

Reason = Literal["not_executed", "cache_hit", "error", "cancelled"]
_EARLY = (Stage.WILL_ACQUIRE_QUOTA, Stage.DID_RELEASE_QUOTA)
_LATE = (Stage.WILL_AUTHORIZE_INPUT,)
REASONS = ("not_executed", "cache_hit", "error", "cancelled")
"""The reasons for a refund; see ``Quota``."""
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
    """Parse a text such as ``"100/minute; 1000/day"`` or ``"10 per 30 s, 5000/week"``.

    Raises:
        HookError: a part cannot be parsed; the message names it.
    """
    return tuple(_parse(part.strip().lower()) for part in re.split(r"[;,]", text))


def _parse(part: str) -> Limit:
    found = _LIMIT.fullmatch(part)
    if found is None or found[3] not in _UNITS:
        raise HookError(f"Quota: cannot parse the limit {part!r}; write 100/minute, 10/30s or 1000 per day")
    return Limit(int(found[1]), float(int(found[2] or 1) * _UNITS[found[3]]))


def _limits_of(given: str | Limit | Sequence[str | Limit]) -> tuple[Limit, ...]:
    if isinstance(given, int | float):
        raise HookError(f"Quota: limit is {given!r}, without a time window; write Quota('{given}/minute')")
    parts = (given,) if isinstance(given, str | Limit) else tuple(given)
    found = [limit for part in parts for limit in (parse_limits(part) if isinstance(part, str) else (part,))]
    if not found:
        raise HookError("Quota needs a limit; write Quota('100/minute')")
    for limit in found:
        if not (is_number(limit.amount, least=1, whole=True) and is_number(limit.seconds, least=1e-3)):
            raise HookError(f"Quota: {limit} has no amount or no window; give a whole number and seconds above 0")
    if len({limit.seconds for limit in found}) < len(found):
        raise HookError("Quota: two limits have the same window, so they would share one counter; keep the smaller")
    return tuple(
        sorted(found, key=lambda limit: limit.seconds)
    )  # the shortest window refuses most calls: first, it saves round trips


class _Held:
    """The units that one call holds, by limit."""

    __slots__ = ("cost", "key", "limits", "quotas")

    def __init__(self, quotas: QuotaStore, key: Key, cost: int, limits: list[Limit]) -> None:
        self.quotas, self.key, self.cost, self.limits = quotas, key, cost, limits

    async def give_back(self, ctx: InvokeContext) -> None:
        """Return all units, each at most once. Units whose return fails stay spent until their window is over."""
        failed: Exception | None = None
        while self.limits:
            limit = self.limits.pop()
            try:
                with store_time(ctx, least=GRACE):
                    await self.quotas.give_back(*self.key, limit, self.cost)
            except Exception as error:  # noqa: BLE001  (the other limits still get their units)
                failed = error
        if failed is not None:
            raise failed


class Quota(Hook):
    """Rate limit: a call over the limit ends as ``retry_later``, with the time after which to try again.

    A call reserves its units at the start. Units are refunded for the reasons in *refund_on*, and otherwise spent. With
    several limits a call gets its units from all of them, or from none.

    Args:
        limit: ``"100/minute"``, ``"100/minute; 1000/day"``, a ``Limit``, or several of them.
        by: the key that it counts by: ``"user"``, ``"tenant"``, ``"tool"``, ``"session"`` (by user for a call without a
            session), a function of the context, or several of them. Each tenant has its own counters, except with
            ``by="tool"`` and ``by=()``, which count all tenants together.
        cost: units of a call: a number, or a function of the context; with ``at="input"``, of the validated arguments.
            A call of cost 0 is not counted. A call that costs more than a limit is denied.
        at: ``"acquire"`` counts before the arguments are parsed, ``"input"`` when they are valid and frozen.
        refund_on: reasons for a refund, or a function of the context. ``"not_executed"``: the tool did not start
            (denied, invalid, cancelled before). ``"cache_hit"``: a cache answered. ``"error"``, ``"cancelled"``: the
            tool started, and the call ended in that way.
        on_store_failure: ``"deny"`` refuses calls while the store fails, ``"allow"`` lets them pass uncounted.
        store: the store that counts; default: the store of the gate.
        name: separates counters in the store; default: text made of limits, key and selectors.
        options: the options of every hook: ``priority``, ``tools``, ``tags``, ``tenants``, ``mode``, ``filter``, ...

    Raises:
        HookError: a setting has an invalid value.
        StoreUnsupported: the store cannot count one of the limits.
    """

    concern = "quota"
    releases_by_token = True
    whole = True
    keeps_state = True

    @checked
    def __init__(
        self,
        limit: str | Limit | Sequence[str | Limit],
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
        self.limits = _limits_of(limit)
        self.at = at
        self._maximum = min(one.amount for one in self.limits)
        self._cost_of: Callable[[object], int] | None = cost if callable(cost) else None
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
        check_choice("Quota", "at", self.at, ("acquire", "input"))
        check_choice("Quota", "on_store_failure", on_store_failure, ("deny", "allow"))
        if not self._refund_on.issubset(REASONS):
            unknown = sorted(self._refund_on.difference(REASONS))
            raise HookError(f"Quota: refund_on has {unknown}; choose from {', '.join(REASONS)}")
        if self._cost_of is None:
            check_count("Quota", "cost", self._cost, least=0)
        if self._cost > self._maximum:
            raise HookError(f"Quota: a call costs {self._cost} and a limit is {self._maximum}, so no call could pass")

    def _kind(self) -> str:
        limits = [f"{limit.amount}/{limit.seconds:g}" for limit in self.limits]
        return " ".join(["quota", self.mode, self.at, *limits, selectors_of(self)])

    # ------------------------------------------------------------------ stages

    def will_acquire_quota(self, ctx: InvokeContext) -> Step:
        """Reserve units; ``did_release_quota`` settles them."""
        only, cost = self._only, self._cost
        if only is not None:
            quotas = ctx.run.plan.host.store.quotas if self._store is None else self._quotas(ctx)
            if type(quotas) is MemoryQuotas:  # in memory: no await, so no coroutine
                key = self._key_of(ctx)
                if quotas.take_now(key, only, cost):
                    ctx.data[self] = key
                    return None
        return self._reserve(ctx, cost if self._cost_of is None else self._computed_cost(ctx))

    def did_release_quota(self, ctx: InvokeContext) -> Step:
        """Refund the units, or leave them spent."""
        if ctx.run.executed and self._spends:
            return None
        held: _Held | Key | None = ctx.data.pop(self, None)
        if held is None or not self._refunds(ctx):
            return None
        if isinstance(held, tuple):  # the units of a single limit in memory
            quotas: Any = ctx.run.plan.host.store.quotas if self._store is None else self._quotas(ctx)
            quotas.give_back_now(held, self.limits[0], self._cost)
            return None
        return held.give_back(ctx)

    async def will_authorize_input(self, ctx: InvokeContext) -> None:
        """Reserve units with ``at="input"``: the arguments are valid and frozen, so the cost function can read them."""
        cost = self._cost if self._cost_of is None else self._computed_cost(ctx.input)
        await ctx.run.plan.host.lease(ctx, _Reservation(self, ctx, cost))  # not ctx.lease: a shadow counts too

    # ------------------------------------------------------------------ counting

    def _quotas(self, ctx: InvokeContext) -> QuotaStore:
        host = ctx.run.plan.host
        return (host.store if self._store is None else host.own_store(self._store)).quotas

    def _computed_cost(self, argument: object) -> int:
        """Call the cost function and check the result."""
        cost: object = self._cost_of(argument) if self._cost_of is not None else self._cost
        if cost.__class__ is not int or cost < 0:
            refuse_result("Quota", "cost", cost, "a whole number, at least 0")
        if cost > self._maximum:
            raise Denied(f"the call costs {cost}, and the limit is {self._maximum}", code="over_limit")
        return cost

    async def _reserve(self, ctx: InvokeContext, cost: int) -> None:
        if not cost:
            return
        quotas = self._quotas(ctx)
        tenant, key = at = self._key_of(ctx)
        held = ctx.data[self] = _Held(quotas, at, cost, [])
        wait = -1.0
        try:
            for limit in self.limits:  # also after a refusal: the caller gets the longest wait
                only_look = wait >= 0.0 and cost == 1
                with store_time(ctx):
                    taken = await (
                        quotas.look(tenant, key, limit) if only_look else quotas.take(tenant, key, limit, cost)
                    )
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
                raise Denied("the store of the quota failed", code="quota_unavailable", http_status=503) from error
            ctx.suppress(error)
            return
        if wait >= 0.0:
            await self._drop(ctx, held)
            raise RetryLater(max(1, math.ceil(wait * 1000)), f"over the quota of {self._named()}", code="over_quota")

    @staticmethod
    async def _drop(ctx: InvokeContext, held: _Held) -> None:
        try:
            await held.give_back(ctx)
        except Exception as error:  # noqa: BLE001  (the refusal is the error to raise)
            ctx.suppress(error)

    def _named(self) -> str:
        return "; ".join(f"{limit.amount} in {limit.seconds:g} s" for limit in self.limits)

    def _refunds(self, ctx: InvokeContext) -> bool:
        if self._refund_if is not None:
            return truth("Quota", "refund_on", self._refund_if(ctx))
        if not _began(ctx):
            return ("cache_hit" if ctx.run.cache_hit and ctx.run.error is None else "not_executed") in self._refund_on
        if ctx.run.error is None:
            return False
        return ("cancelled" if ctx.run.outcome is Outcome.CANCELLED else "error") in self._refund_on


class _Reservation(AbstractAsyncContextManager[None]):
    """The units of one call, as a context manager."""

    def __init__(self, quota: Quota, ctx: InvokeContext, cost: int) -> None:
        self.quota, self.ctx, self.cost = quota, ctx, cost

    async def __aenter__(self) -> None:
        await self.quota._reserve(self.ctx, self.cost)

    async def __aexit__(self, *error: object) -> None:
        settling = Quota.did_release_quota(self.quota, self.ctx)
        if settling is not None:
            await settling


def _began(ctx: InvokeContext) -> bool:
    """Return True when the tool's body started, or when that is unknown."""
    if ctx.run.executed or ctx.run.abandoned:
        return True
    if ctx.run.error is not None:
        failed = ctx.run.failed_in
        refused = failed is not None and failed.stage is Stage.WILL_EXECUTE  # a hook refused the last attempt
        return failed is ctx.run.plan.running or ctx.run.tries > refused
    log = ctx.run.output_log  # the body of a tool may respond as well
    return ctx.run.tries > 0 or bool(log and log[0].step is ctx.run.plan.running)
