"""The records that outlive a call, in the effect ledger and of suspended calls; and the resumption of a suspended call."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from callgate.errors import (
    Denied,
    GateClosed,
    InFlight,
    InvocationError,
    NotPending,
    Stale,
    Suspended,
)
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan, plan_of
from callgate.providers.clock import GateClock
from callgate.providers.kinds import fault_of_kind
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.address import signed_by
from callgate.providers.stores.base import MeasuredStore, Store
from callgate.providers.stores.effects import EffectRecord, SuspensionRecord
from callgate.runtime.effects.ledger import Ledger
from callgate.runtime.effects.reconciling import reconcile, reconcilers_of
from callgate.runtime.lifespan.background import PRUNE_EVERY, BackgroundTask, prune_and_log
from callgate.runtime.options.gate import Effects, RefreshUser, Suspensions
from callgate.runtime.pipeline.calls import refuse_user
from callgate.runtime.pipeline.failure import error_info
from callgate.runtime.pipeline.options import CallOptions, apply_options, check_limits
from callgate.runtime.pipeline.plans import Plans
from callgate.runtime.pipeline.results import result_of
from callgate.runtime.pipeline.run import run
from callgate.runtime.pipeline.shield import under_shield
from callgate.runtime.suspensions.decisions import Decision, Pending, suspension_of
from callgate.runtime.suspensions.resumption import (
    Resumed,
    SuspendedCall,
    context_of_resumed,
    refused_context,
)
from callgate.runtime.suspensions.suspensions import SuspensionManager
from callgate.tools.calls import Outcome, ToolResult

KEPT_IN_MEMORY = 2 * 86_400.0
"""Seconds after the call that a store in memory keeps its record: longer than a call waits, for a job that looks it up."""
SWEEP_EVERY = 30.0
"""Seconds between two searches for suspended calls that have expired."""


class CallRecords:
    """The effect ledger and the suspended calls of one gate, with their background tasks."""

    def __init__(
        self,
        store: Store,
        clock: GateClock,
        plans: Callable[[], Plans],
        options: Effects,
        signing_keys: Iterable[str | bytes],
        suspensions: Suspensions,
        namespace: str = "",
    ) -> None:
        signing_keys = list(signing_keys)
        keys = SigningKeys(signing_keys, namespace)
        self.audit_keys = SigningKeys(signing_keys) if signing_keys else None  # bound to the namespace of its store
        self.gate_store = store = signed_by(store, self.audit_keys)
        self.options, self.refresh_user, self._keep_suspensions = options, suspensions.refresh_user, suspensions.keep
        self._plans = plans
        self.keys = keys
        self.ledger = Ledger(store, clock.now, options, self._ask, namespace)
        self.refuse_foreign: Callable[[], None] = lambda: None
        self.waits = SuspensionManager(
            self.reach_store,
            keys,
            self.ledger.now,
            self.plan_of,
            suspensions.policy_version,
            suspensions.max_per_user,
        )
        self.tasks = [
            BackgroundTask("leases of effects", options.every, self.ledger.renew, urgent=True),
            BackgroundTask("effects", options.every, lambda: self.ledger.maintain(self._reconcilers)),
            BackgroundTask("waits", SWEEP_EVERY, self._sweep_suspensions),
            BackgroundTask("retention", PRUNE_EVERY, self._prune),
        ]
        if isinstance(kept := self.ledger.store, MeasuredStore):
            self.tasks.append(BackgroundTask("figures of the store", SWEEP_EVERY, partial(self._measure, kept)))
        if clock.follows_store:
            self.tasks.append(BackgroundTask("clock of the store", SWEEP_EVERY, clock.synchronise))

    @property
    def plans(self) -> Plans:
        """The plans of the gate, which is made after its records."""
        return self._plans()

    def plan_of(self, tool: object) -> Plan:
        """Return the plan of a tool, by its name or its object."""
        return self.plans.of(tool)

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

    def reach_store(self) -> Store:
        """Return the store of the records for one use.

        Raises:
            GateClosed: the gate is open in another event loop, or was opened before a fork.
        """
        self.refuse_foreign()
        return self.ledger.store

    def with_plans(self, plans: Callable[[], Plans]) -> CallRecords:
        """Return these records with other plans; the ledger and the rows are shared."""
        made = copy.copy(self)
        waits = self.waits
        made._plans = plans
        made.waits = SuspensionManager(
            waits.store, waits.keys, waits.now, made.plan_of, waits.policy_version, waits.max_per_user
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

    def _reconcilers(self) -> dict[str, list[object]]:
        found = {one.record.id: reconcilers_of(one.registrations, one.definition) for one in self.plans.hooked()}
        return {tool: hooks for tool, hooks in found.items() if hooks}


async def resume(
    gate: RunningGate,
    records: CallRecords,
    handle: str,
    decision: Decision,
    approver: User,
    options: CallOptions,
    *,
    trace: bool,
    here: bool,
) -> ToolResult:
    """See ``Gate.resume``."""
    refuse_user(approver, "approver")
    if isinstance(handle, ToolResult | Pending):
        raise TypeError(
            f"resume takes the handle of a suspended call, not {type(handle).__name__}; write "
            "await gate.resume(result.pending.handle, Approve(), approver=user)"
        )
    check_run(gate, "resume", options)
    if (fault := fault_of_kind(here, bool)) is not None:
        raise TypeError(f"resume: here {fault}")
    if not here and (options or trace):
        raise TypeError("resume(here=False) runs nothing: give the options of the run to gate.proceed")
    lost: SuspensionRecord | None = None
    while True:
        bound, decided = await records.waits.decide(handle, decision, approver, lost, here=here)
        if isinstance(decided, Pending):
            return still_waits(bound, decided.kind, decided.handle)
        if isinstance(decided, Resumed) and not here:
            return in_flight(bound, "its requester or a worker runs the call")
        if bound.job is not None:
            return await of_worker(gate, records, bound, options.get("deadline"))
        result = await run_decided(records, bound, decided, options, trace=trace)
        if result is not None:
            return result
        assert isinstance(decided, Resumed)
        lost = decided.wait


class _Job(Protocol):
    """A job that runs a suspended call."""

    async def settled(self) -> ToolResult:
        """Wait for its end."""
        ...


class RunningGate(Protocol):
    """The parts of a gate that runs a decided call."""

    @property
    def is_open(self) -> bool:
        """True while it takes calls."""
        ...

    def job(self, id: str, *, user: User) -> _Job:
        """Return the job that runs a call."""
        ...


def check_run(gate: RunningGate, method: str, options: CallOptions) -> None:
    """Check that a suspended call may run with these options, before its decision is used up.

    Raises:
        GateClosed: the gate is not open.
        TypeError: an option would replace one of the suspended call, or a limit is no time in seconds.
    """
    if not gate.is_open:
        raise GateClosed("the gate is not open; use it inside `async with gate:`")
    if own := [
        name for name in ("idempotency_key", "request_id", "session_id", "task") if options.get(name) is not None
    ]:
        raise TypeError(
            f"{method}: the suspended call has its own {', '.join(own)}; leave them out, what was approved runs"
        )
    check_limits(options.get("deadline"), options.get("idle"))


async def run_decided(
    records: CallRecords, bound: SuspendedCall, decided: Resumed | Denied, options: CallOptions, *, trace: bool
) -> ToolResult | None:
    """Run a decided call, and keep what its requester may ask for; None if another process has replaced its record.

    A call that was put off waits again under its handle, as before the decision: the result has it as ``pending``.
    """
    from callgate.runtime.suspensions.put_off import is_put_off, wait_again  # few calls wait
    from callgate.runtime.suspensions.reads import keep_result

    ctx = await _context(records, bound, decided, trace=trace)
    apply_options(ctx, options)
    if trace:
        ctx.run.trace = []
    try:
        if not await _ran(records, ctx):
            return None
    except asyncio.CancelledError:
        if isinstance(decided, Resumed) and is_put_off(ctx):
            await under_shield(wait_again(records.waits, ctx, decided))
        raise
    result = result_of(ctx)
    if not isinstance(decided, Resumed):
        return result
    if is_put_off(ctx) and (pending := await wait_again(records.waits, ctx, decided)) is not None:
        return replace(result, pending=pending)
    await keep_result(records.waits, decided.tenant, decided.wait, plan_of(ctx), decided.bound, result)
    return result


async def of_worker(gate: RunningGate, records: CallRecords, bound: SuspendedCall, limit: float | None) -> ToolResult:
    """Return the outcome of a decided job, or ``in_flight`` when it has none within *limit* seconds."""
    assert bound.job is not None  # the callers ask only for jobs
    try:
        async with asyncio.timeout(records.options.wait if limit is None else limit):
            return await gate.job(bound.job, user=bound.user).settled()
    except TimeoutError:
        return in_flight(bound, "a worker runs the call")


def in_flight(bound: SuspendedCall, who: str) -> ToolResult:
    """Return the result of a decided call that another process runs."""
    error = InFlight(f"{bound.tool}: the decision is recorded, and {who}")
    error.public = "The call was decided and is not over yet."
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


def still_waits(bound: SuspendedCall, kind: str, handle: str) -> ToolResult:
    """Return the result of a call that waits for a decision."""
    waits = suspension_of(bound, kind, handle)
    return ToolResult(
        bound.call_id or "", bound.tool, Outcome.SUSPENDED, error=error_info(Suspended(waits)), pending=waits
    )
