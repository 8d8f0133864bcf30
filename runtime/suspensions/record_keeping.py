"""The records that outlive a call, in the effect ledger and of suspended calls; and the resumption of a suspended call."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from callgate.errors import (
    Denied,
    GateClosed,
    InFlight,
    InvocationError,
    NotPending,
    RegistrationError,
    Stale,
    Suspended,
)
from callgate.hooks.context import InvokeContext
from callgate.hooks.facts import Suspension
from callgate.hooks.plan import plan_of
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import MeasuredStore, Store
from callgate.providers.stores.effects import EffectRecord, SuspensionRecord
from callgate.runtime.call.calls import refuse_user
from callgate.runtime.call.failure import error_info
from callgate.runtime.call.invoke import run
from callgate.runtime.call.options import CallOptions, apply_options, check_deadline
from callgate.runtime.call.results import result_of
from callgate.runtime.effects.ledger import Effects, Ledger
from callgate.runtime.effects.reconciling import reconcile, reconcilers_of
from callgate.runtime.effects.steps import effect_step
from callgate.runtime.engine import Engine
from callgate.runtime.lifespan.background import KEPT, PRUNE_EVERY, BackgroundTask, prune_and_log
from callgate.runtime.plans import Plans
from callgate.runtime.suspensions.decisions import Decision, Pending
from callgate.runtime.suspensions.resumption import Resumed, SuspendedCall, context_of_resumed, refused_context
from callgate.runtime.suspensions.suspensions import SuspensionManager
from callgate.tools.calls import Outcome, ToolResult

RefreshUser: TypeAlias = Callable[[User], User | Awaitable[User | None] | None]
"""Returns the current roles and scopes of a user, who may have changed since the call. None: the user exists no more."""

KEPT_IN_MEMORY = 2 * 86_400.0
"""Seconds after the call that a store in memory keeps its record: longer than a call waits, for a job that looks it up."""
SWEEP_EVERY = 30.0
"""Seconds between two searches for suspended calls that have expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspensions:
    """The suspended calls of a gate: ``Gate(suspensions=Suspensions(policy_version="2026-03"))``.

    Args:
        policy_version: the version of your policies. A suspended call is bound to it and to the hooks that authorise.
        refresh_user: returns the current roles and scopes of a user when a suspended call or a job of theirs runs.
            None from it means that the user exists no more. Default: the user as of the call.
        keep: seconds from a call until its record is deleted, if it waits no more. None keeps the records for ever.

    Raises:
        RegistrationError: ``keep`` is not above 0.
    """

    policy_version: str = ""
    refresh_user: RefreshUser | None = None
    keep: float | None = KEPT

    def __post_init__(self) -> None:
        if self.keep is not None and not self.keep > 0:
            raise RegistrationError("Suspensions: keep is seconds, above 0, or None")


class CallRecords:
    """The effect ledger and the suspended calls of one gate, with their background tasks."""

    def __init__(
        self,
        engine: Engine,
        plans: Plans,
        options: Effects,
        signing_keys: Iterable[str | bytes],
        suspensions: Suspensions,
        namespace: str = "",
    ) -> None:
        keys = SigningKeys(signing_keys, namespace)
        self.options, self.refresh_user, self._keep_suspensions = options, suspensions.refresh_user, suspensions.keep
        self.plans = plans
        self.keys = keys
        self.ledger = Ledger(engine.store, engine.now, options, self._ask, namespace)
        self.waits = SuspensionManager(
            lambda: self.ledger.store, keys, self.ledger.now, plans.of, suspensions.policy_version
        )
        engine.claim, engine.waits = partial(effect_step, self.ledger), self.waits
        self.tasks = [
            BackgroundTask("leases of effects", options.every, self.ledger.renew, urgent=True),
            BackgroundTask("effects", options.every, lambda: self.ledger.keep_up(self._reconcilers)),
            BackgroundTask("waits", SWEEP_EVERY, self._sweep_suspensions),
            BackgroundTask("retention", PRUNE_EVERY, self._prune),
        ]
        if isinstance(store := self.ledger.store, MeasuredStore):
            self.tasks.append(BackgroundTask("figures of the store", SWEEP_EVERY, partial(self._measure, store)))
        if engine.has_time_of_store:
            self.tasks.append(BackgroundTask("clock of the store", SWEEP_EVERY, engine.synchronise))

    @property
    def durable(self) -> bool | None:
        """False where the gate accepts a store that forgets its effects."""
        return self.options.durable

    @property
    def resumable(self) -> bool:
        """True if another process can resume a suspended call: the application passed signing keys."""
        return self.keys.lasting

    @property
    def store(self) -> Store:
        """The store of the records: the gate's, or a store in memory where that one keeps no effects."""
        return self.ledger.store

    def with_plans(self, engine: Engine, plans: Plans) -> CallRecords:
        """Return these records with other plans, for calls of *engine*; the ledger and the rows are shared."""
        made = copy.copy(self)
        waits = self.waits
        made.plans = plans
        made.waits = engine.waits = SuspensionManager(
            waits.store, waits.keys, waits.now, plans.of, waits.policy_version
        )
        made.waits.deliver = waits.deliver
        return made

    async def _sweep_suspensions(self) -> None:
        await self.waits.sweep()
        if not self.store.durable:  # memory is finite
            await self.store.suspensions.prune(self.ledger.now() - KEPT_IN_MEMORY)

    async def _measure(self, store: MeasuredStore) -> None:
        """Give the figures of the store to the hooks that note them, such as ``Metrics``."""
        hooks = {one.hook for hooked in self.plans.hooked() for one in hooked.registrations if not one.is_class}
        if noting := [note for hook in hooks if (note := getattr(hook, "note_figures", None)) is not None]:
            figures = await store.figures()
            for note in noting:
                note(figures)

    async def _prune(self) -> None:
        now = self.ledger.now()
        if self.options.keep is not None:  # a tool may answer repeats for longer
            keep = max([self.options.keep, *(one.within or 0.0 for one in self.plans.registry.list())])
            await prune_and_log("effects", self.ledger.effects.prune, now - keep)
        if self._keep_suspensions is not None:
            await prune_and_log("suspensions", self.store.suspensions.prune, now - self._keep_suspensions)

    async def _ask(self, tenant: str, effect: EffectRecord, hooks: Sequence[object]) -> EffectRecord:
        return await reconcile(self.ledger.effects, self.ledger.now, tenant, effect, hooks)

    def _reconcilers(self) -> dict[str, list[Any]]:
        found = {one.record.id: reconcilers_of(one.registrations, one.definition) for one in self.plans.hooked()}
        return {tool: hooks for tool, hooks in found.items() if hooks}


async def resume(
    gate: Any,
    records: CallRecords,
    handle: str,
    decision: Decision,
    approver: User,
    options: CallOptions,
    *,
    trace: bool,
) -> ToolResult:
    """See ``Gate.resume``."""
    refuse_user(approver, "approver")
    if not gate.is_open:
        raise GateClosed("the gate is not open; use it inside `async with gate:`")
    if own := [
        name for name in ("idempotency_key", "request_id", "session_id", "task") if options.get(name) is not None
    ]:
        raise TypeError(
            f"resume: the suspended call has its own {', '.join(own)}; leave them out, what was approved runs"
        )
    check_deadline(options.get("deadline"))  # before the decision is used up
    lost: SuspensionRecord | None = None
    while True:
        bound, decided = await records.waits.decide(handle, decision, approver, lost)
        if isinstance(decided, Pending):
            return _still_waits(bound, decided)
        if bound.job is not None:
            return await _of_worker(gate, records, bound, options.get("deadline"))
        ctx = await _context(records, bound, decided, trace=trace)
        apply_options(ctx, options)
        if trace:
            ctx.run.trace = []
        if await _ran(records, ctx):
            result = result_of(ctx)
            if isinstance(decided, Resumed):
                from callgate.runtime.suspensions.reads import keep_result  # few calls wait

                await keep_result(records.waits, decided.tenant, decided.wait, plan_of(ctx), decided.bound, result)
            return result
        assert ctx.run.resumed is not None
        lost = ctx.run.resumed.wait


async def _of_worker(gate: Any, records: CallRecords, bound: SuspendedCall, limit: float | None) -> ToolResult:
    """Return the outcome of a decided job, or ``in_flight`` when it has none within *limit* seconds."""
    try:
        async with asyncio.timeout(records.options.wait if limit is None else limit):
            result: ToolResult = await gate.job(bound.job, user=bound.user).settled()
            return result
    except TimeoutError:
        error = InFlight(f"{bound.tool}: the decision is recorded, and a worker runs the call")
        return ToolResult(bound.call_id or "", bound.tool, Outcome.IN_FLIGHT, error=error_info(error))


async def _ran(records: CallRecords, ctx: InvokeContext) -> bool:
    """Run a decided call; return False if another decision has replaced its record, so that the tool did not run."""
    resumed = ctx.run.resumed
    if isinstance(resumed, Resumed) and not await records.waits.use(plan_of(ctx), resumed):
        return False
    try:
        await run(ctx.run.plan, ctx)
    except NotPending:
        return ctx.run.resumed is None or ctx.run.failed_in is ctx.run.plan.running
    except InvocationError:
        pass
    return True


async def _context(
    records: CallRecords, bound: SuspendedCall, decided: Resumed | Denied, *, trace: bool
) -> InvokeContext:
    """Return the context of a decided call, for its user with their current roles."""
    user = await current_user(records.refresh_user, bound.user)
    if isinstance(decided, Resumed) and user is not None:
        return _again(records, replace(bound, user=user), decided, trace=trace)
    refused = (
        decided if isinstance(decided, Denied) else Denied(f"the user {bound.user.id} exists no more", code="no_user")
    )
    return refused_context(records.plans.of_refusal(bound.tool), bound, refused)


def _again(records: CallRecords, bound: SuspendedCall, decided: Resumed, *, trace: bool) -> InvokeContext:
    plan = records.plans.of(bound.tool, trace=trace)
    if not records.waits.is_bound_to(plan, bound):
        raise Stale(f"{bound.tool} or its policies are others since its user was looked up")
    return context_of_resumed(plan, bound, decided)


async def current_user(refresh: RefreshUser | None, known: User) -> User | None:
    """Return the user with their current roles; None when the user exists no more."""
    if refresh is None:
        return known
    user = refresh(known)
    user = await user if inspect.isawaitable(user) else user
    return user if user is not None and (user.id, user.tenant) == (known.id, known.tenant) else None


def _still_waits(bound: SuspendedCall, pending: Pending) -> ToolResult:
    waits = Suspension(
        pending.kind,
        bound.prompt,
        bound.schema,
        None,
        pending.handle,
        rules=bound.rules,
        place=bound.place,
        name=bound.name,
    )
    return ToolResult(
        bound.call_id or "", bound.tool, Outcome.SUSPENDED, error=error_info(Suspended(waits)), pending=waits
    )
