"""The two steps of a tool with an effect: one claims before it runs, one writes down how it ended (design 7, 10.3)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from callgate.errors import Conflict, InFlight, InvocationError, NotPending, NotRecorded, OutcomeUnknown, StoreConflict
from callgate.hooks.effects import EffectRecorder
from callgate.hooks.guards import traced
from callgate.hooks.selection import sort_for_stage, why_not
from callgate.hooks.stages import Stage
from callgate.hooks.step import ASYNC, ASYNC_LEASE, SYNC, SYNC_LEASE, Compiled, Step
from callgate.providers.ids import new_id
from callgate.providers.logs import Event, emit
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import OPEN, Effect, EffectState
from callgate.runtime.call.failure import as_invocation_error
from callgate.runtime.effects.claims import Claim
from callgate.runtime.effects.keys import Identify, identifier
from callgate.runtime.effects.ledger import Ledger
from callgate.runtime.effects.receipts import answer_from, receipt_of
from callgate.tools.definition import Effect as Kind

FIRST_LOOK, LAST_LOOK = 0.005, 0.25
"""Seconds between two looks at an effect that somebody else runs, first and at last."""


def effect_step(ledger: Ledger, plan: Any) -> Compiled:
    """The step that claims, last before the tool of a plan; its release is the one that settles."""
    steps = EffectSteps(ledger, plan)
    step = Step(Stage.AROUND_EXECUTE, "intent")
    end = Step(Stage.DID_AUDIT, "outcome")
    if plan.trace:
        step.release = (ASYNC, traced(end, steps.end), end)
        return ASYNC_LEASE, traced(step, steps.begin), step
    if ledger.memory is not None and not steps.together:
        step.release = (SYNC, steps.end_now, end)
        return SYNC_LEASE, steps.begin_now, step
    step.release = (ASYNC, steps.end, end)
    return ASYNC_LEASE, steps.begin, step


class _Held(Exception):
    """The approval is not used up yet: nothing of this transaction is to be kept."""

    def __init__(self, effect: Effect) -> None:
        super().__init__()
        self.effect = effect


class EffectSteps:
    """The ledger for the calls of one tool: everything that depends on the tool alone is worked out here, once."""

    def __init__(self, ledger: Ledger, plan: Any) -> None:
        self.ledger = ledger
        self.memory: Any = ledger.memory
        self.plan = plan
        record = plan.record
        self.tool, self.version = record.id, record.definition.digest
        self.again = record.definition.effect is Kind.IDEMPOTENT
        self.within = record.within
        self.began = not record.injected and record.context_parameter is None  # nothing comes between: see ``bodies``
        self.identify: Identify = identifier(record)
        self.together = _recorders(plan, ledger.store)
        self.reconcilers = reconcilers_of(plan)

    def _effect(self, ctx: Any, key: str, input_hash: str) -> Effect:
        """What is written down before the tool runs."""
        now, ledger, call, given = self.ledger.now(), self.ledger, ctx._call, ctx.idempotency_key
        if given is None:
            ctx.idempotency_key = key
        return Effect(
            key,
            self.tool,
            self.version,
            ctx.user.id,
            input_hash,
            ctx.request_id,
            ledger.owner,
            now + ledger.valid,
            now,
            EffectState.RUNNING,
            1,
            ctx.session_id,
            None if call is None else call.id,
            given,
        )

    # ------------------------------------------------------------------ in memory: nothing waits

    def begin_now(self, ctx: Any) -> Any:
        """Claim in memory; an awaitable where that is not enough."""
        tenant, key = ctx.user.tenant or "", self.identify(ctx)
        if key is None:  # nobody can come with the same: there is nothing to compare, and no receipt to keep
            key = ctx.request_id if ctx._request_id is None else new_id()
            effect = self._effect(ctx, key, "")
        else:
            effect = self._effect(ctx, key, ctx.input_hash)
            if ctx.resumed is not None:
                return self._begin(ctx, tenant, effect)
        mine, found = self.memory.claim_now(tenant, effect, self.again)
        if not mine:
            return self._begin(ctx, tenant, effect, found)
        ctx.claim = Claim(self.plan.host, tenant, found, (), self.began)
        return None

    def end_now(self, ctx: Any) -> None:
        """Settle in memory."""
        claim, ledger = ctx.claim, self.ledger
        state, receipt, expires_at = self._ending(ctx)
        effect, tenant = claim.effect, claim.tenant
        done = self.memory.settle_now(tenant, effect.key, effect.token, state, ledger.now(), receipt, expires_at)
        if ledger.waiters:
            ledger.waiters.wake((tenant, effect.key))
        if not done:
            raise StoreConflict("the claim was lost: its lease was over")

    # ------------------------------------------------------------------ in a store that waits

    async def begin(self, ctx: Any) -> None:
        """Claim, and answer a repeat."""
        key = self.identify(ctx) or new_id()
        await self._begin(ctx, ctx.user.tenant or "", self._effect(ctx, key, ctx.input_hash))

    async def end(self, ctx: Any) -> None:
        """Settle."""
        await self.ledger.settle(ctx.claim, *self._ending(ctx))

    def _ending(self, ctx: Any) -> tuple[EffectState, bytes | None, float | None]:
        claim: Claim = ctx.claim
        state = claim.state(ctx)
        if state is EffectState.UNKNOWN:
            emit(Event.EFFECT_UNKNOWN, ctx, key=claim.effect.key)
        if state is not EffectState.COMMITTED:
            return state, None, None
        until = None if self.within is None else self.ledger.now() + self.within
        if not claim.effect.input_hash:
            return state, None, until
        return state, receipt_of(ctx._output, None if ctx._error is None else as_invocation_error(ctx)), until

    async def _begin(self, ctx: Any, tenant: str, effect: Effect, found: Effect | None = None) -> None:
        """Claim, or answer a repeat of *found*, or wait until either can be done."""
        ledger = self.ledger
        clock = asyncio.get_running_loop().time
        left = ctx.remaining()
        until = clock() + (ledger.options.wait if left is None else min(left, ledger.options.wait))
        look = FIRST_LOOK
        while True:
            if found is None:
                found = await self._claim(ctx, tenant, effect)
            if found is None:
                return
            if found.input_hash != effect.input_hash:
                raise Conflict(f"{self.tool}: this key was used with other arguments")
            if found.state not in OPEN:
                await self._answer(ctx, tenant, found)
                found = None  # a hook has found that it may run again
                continue
            if clock() >= until or _waits_for_itself(ctx, tenant, effect.key):
                raise InFlight(f"{self.tool}: the same effect is running")
            await ledger.waiters.wait((tenant, effect.key), max(0.0, min(look, until - clock())))
            look, found = min(look * 1.5, LAST_LOOK), None
            now = ledger.now()  # its lease begins when it is claimed
            effect = replace(effect, began_at=now, lease_until=now + ledger.valid)

    async def _claim(self, ctx: Any, tenant: str, effect: Effect) -> Effect | None:
        """None once it is ours, else what is in the ledger.

        Raises:
            NotRecorded: the store failed.
            NotPending: the call was resumed by somebody else meanwhile.
        """
        try:
            await self.ledger.flush(tenant, effect.key)
            if ctx.resumed is None and not self.together:
                mine, found = await self.ledger.effects.claim(tenant, effect, again=self.again)
            else:
                mine, found = await self._claim_together(ctx, tenant, effect)
        except InvocationError:
            raise
        except BaseException as error:
            await self.ledger.give_up(tenant, effect)
            if not isinstance(error, Exception):
                raise
            raise NotRecorded(f"{self.tool}: the ledger could not be written") from error
        if not mine:
            return found
        ctx.claim = Claim(self.plan.host, tenant, found, self.together, self.began)
        return None

    async def _claim_together(self, ctx: Any, tenant: str, effect: Effect) -> tuple[bool, Effect]:
        """The use of an approval, the claim and the audit rows: all or nothing (design 10.3)."""
        try:
            return await self._in_one_transaction(ctx, tenant, effect)
        except _Held as held:
            if held.effect.state is EffectState.UNKNOWN:  # it may have become so in what was undone
                await self.ledger.effects.expire(effect.began_at)
            return False, held.effect

    async def _in_one_transaction(self, ctx: Any, tenant: str, effect: Effect) -> tuple[bool, Effect]:
        async with AsyncExitStack() as sealings, AsyncExitStack() as transactions:
            sealed = [await sealings.enter_async_context(one.sealing_intent(ctx)) for one in self.together]
            written = await transactions.enter_async_context(self.ledger.store.transaction())
            if ctx.resumed is not None and not await written.waits.replace(tenant, ctx.resumed.used()):
                raise NotPending("it was resumed by somebody else meanwhile")
            mine, found = await written.effects.claim(tenant, effect, again=self.again)
            if not mine and found.state is not EffectState.COMMITTED and ctx.resumed is not None:
                raise _Held(found)  # nothing is used up while it waits, or may run after all
            if mine:
                for one in sealed:
                    await one.put(written.audit, tenant)
        return mine, found

    async def _answer(self, ctx: Any, tenant: str, found: Effect) -> None:
        """Answer a repeat of what has ended; returns when it may run after all."""
        if found.state is EffectState.UNKNOWN and self.reconcilers:
            found = await self.ledger.ask(tenant, found, self.reconcilers)
        if found.state is EffectState.NO_EFFECT:
            return
        ctx.replayed = found.state is EffectState.COMMITTED
        if not ctx.replayed:
            raise OutcomeUnknown(f"{self.tool}: nobody knows what came of it; see `callgate effects`")
        answer_from(found.receipt)


def _recorders(plan: Any, store: Store) -> tuple[EffectRecorder, ...]:
    """The hooks whose rows are written together with the ledger's, in the order in which they make their last one.

    Each holds its chain of rows meanwhile. So all calls take them in the same order, and none takes one twice: what is
    registered twice writes its rows by itself.
    """
    found = [
        one.hook
        for one in sort_for_stage(Stage.WILL_AUDIT, plan.registrations)
        if hasattr(one.hook, "joins_ledger")
        and Stage.WILL_AUDIT in one.all_stages()
        and why_not(one, plan.definition) is None
        and (one.filter, one.tenants, one.is_class, one.option("mode", "enforce")) == (None, None, False, "enforce")
        and one.hook.joins_ledger(store)
    ]
    return tuple(hook for hook in found if found.count(hook) == 1)


def reconcilers_of(plan: Any) -> list[Any]:
    """The hooks that may find out what became of an effect of this tool."""
    return [
        one.hook
        for one in plan.registrations
        if hasattr(one.hook, "reconcile") and not one.is_class and why_not(one, plan.definition) is None
    ]


def _waits_for_itself(ctx: Any, tenant: str, key: str) -> bool:
    """Whether a call that this one is nested in runs the very effect."""
    outer = ctx.outer
    while outer is not None:
        claim = outer.claim
        if claim is not None and (claim.tenant, claim.effect.key) == (tenant, key):
            return True
        outer = outer.outer
    return False
