"""The two steps of a tool with an effect: claim before it runs, record the outcome afterwards."""

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
from callgate.providers.logs import LogEvent, emit
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import OPEN_STATES, EffectRecord, EffectState
from callgate.providers.stores.ledger_writes import ChainRows, append
from callgate.runtime.call.failure import as_invocation_error
from callgate.runtime.effects.claims import CarriedClaim, Claim
from callgate.runtime.effects.keys import Identify, identifier
from callgate.runtime.effects.ledger import Ledger
from callgate.runtime.effects.receipts import AWAITED, answer_from, receipt_of
from callgate.tools.definition import Effect as Kind

FIRST_LOOK, LAST_LOOK = 0.005, 0.25
"""Seconds between two lookups of an effect that another call runs: the shortest and the longest interval."""


def effect_step(ledger: Ledger, plan: Any) -> Compiled:
    """Return the claim step, the last before the tool of a plan; its release settles the claim."""
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
    """Rolls back the transaction, so that the approval stays available."""

    def __init__(self, effect: EffectRecord) -> None:
        super().__init__()
        self.effect = effect


class EffectSteps:
    """The ledger for the calls of one tool; values that depend only on the tool are computed once."""

    def __init__(self, ledger: Ledger, plan: Any) -> None:
        self.ledger = ledger
        self.memory: Any = ledger.memory
        self.plan = plan
        record = plan.record
        self.tool, self.version = record.id, record.definition.digest
        self.again = record.definition.effect is Kind.IDEMPOTENT
        self.within = record.within
        self.began = not record.injected and record.context_parameter is None  # no step runs in between: see ``bodies``
        self.identify: Identify = identifier(record)
        self.together = _recorders(plan, ledger.store)
        self.reconcilers = reconcilers_of(plan)
        self.carried = plan.carries and hasattr(ledger.store, "effects_in")
        self.state = EffectState.CLAIMED if self.carried else EffectState.RUNNING

    def _effect(self, ctx: Any, key: str, input_hash: str) -> EffectRecord:
        """Return the row that the ledger records before the tool runs."""
        now, ledger, call, given = self.ledger.now(), self.ledger, ctx.run.tool_call, ctx.run.idempotency_key
        if given is None:
            ctx.run.idempotency_key = key
        return EffectRecord(
            key,
            self.tool,
            self.version,
            ctx.user.id,
            input_hash,
            ctx.request_id,
            ledger.owner,
            now + ledger.valid,
            now,
            self.state,
            1,
            ctx.run.session_id,
            None if call is None else call.id,
            given,
        )

    # ------------------------------------------------------------------ in memory, without await

    def begin_now(self, ctx: Any) -> Any:
        """Claim in memory; return an awaitable if the call has to await more."""
        tenant, key = ctx.user.tenant or "", self.identify(ctx)
        if key is None:  # no call can repeat it, so it needs no input hash and no receipt
            key = ctx.request_id if ctx.run.request_id is None else new_id()
            effect = self._effect(ctx, key, "")
        else:
            effect = self._effect(ctx, key, ctx.input_hash)
            if ctx.run.resumed is not None:
                return self._begin(ctx, tenant, effect)
        mine, found = self.memory.claim_now(tenant, effect, self.again)
        if not mine:
            return self._begin(ctx, tenant, effect, found)
        ctx.run.claim = Claim(self.plan.host, tenant, found, (), self.began)
        return None

    def end_now(self, ctx: Any) -> None:
        """Record the outcome in memory."""
        claim, ledger = ctx.run.claim, self.ledger
        state, receipt, expires_at = self._ending(ctx)
        effect, tenant = claim.effect, claim.tenant
        done = self.memory.settle_now(tenant, effect.key, effect.token, state, ledger.now(), receipt, expires_at)
        if ledger.waiters:
            ledger.waiters.wake((tenant, effect.key))
        if not done:
            raise StoreConflict("the claim was lost: its lease was over")

    # ------------------------------------------------------------------ in an asynchronous store

    async def begin(self, ctx: Any) -> None:
        """Claim the effect, or answer a repeat."""
        key = self.identify(ctx) or new_id()
        await self._begin(ctx, ctx.user.tenant or "", self._effect(ctx, key, ctx.input_hash))

    async def end(self, ctx: Any) -> None:
        """Record the outcome."""
        await self.ledger.settle(ctx.run.claim, *self._ending(ctx))

    def _ending(self, ctx: Any) -> tuple[EffectState, bytes | None, float | None]:
        claim: Claim = ctx.run.claim
        state = claim.state(ctx)
        if state is EffectState.UNKNOWN:
            emit(LogEvent.EFFECT_UNKNOWN, ctx, key=claim.effect.key)
        if state is not EffectState.COMMITTED:
            return state, None, None
        until = None if self.within is None else self.ledger.now() + self.within
        if not claim.effect.input_hash:
            return state, None, until
        return state, receipt_of(ctx.run.output, None if ctx.run.error is None else as_invocation_error(ctx)), until

    async def _begin(self, ctx: Any, tenant: str, effect: EffectRecord, found: EffectRecord | None = None) -> None:
        """Claim the effect, or answer a repeat of *found*; wait while another call runs it."""
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
            if found.state not in OPEN_STATES and not (found.receipt == AWAITED and found.lease_until > ledger.now()):
                await self._answer(ctx, tenant, found)
                found = None  # the effect did not happen: it may run again
                continue
            if clock() >= until or _waits_for_itself(ctx, tenant, effect.key):
                raise InFlight(f"{self.tool}: the same effect is running")
            await ledger.waiters.wait((tenant, effect.key), max(0.0, min(look, until - clock())))
            look, found = min(look * 1.5, LAST_LOOK), None
            now = ledger.now()  # the lease begins with the claim
            effect = replace(effect, began_at=now, lease_until=now + ledger.valid)

    async def _claim(self, ctx: Any, tenant: str, effect: EffectRecord) -> EffectRecord | None:
        """Claim the effect; None if this call got it, else the row in the ledger.

        Raises:
            NotRecorded: the store failed.
            NotPending: another caller has resumed the call meanwhile.
        """
        ledger = self.ledger
        try:
            await ledger.flush(tenant, effect.key)
            rows = [one.intent_row(ctx) for one in self.together]
            if ctx.run.resumed is None:
                mine, found = await ledger.writer.claim(tenant, effect, rows, retry=self.again)
            else:
                mine, found = await self._claim_resumed(ctx, tenant, effect, rows)
        except InvocationError:
            raise
        except BaseException as error:
            await ledger.give_up(tenant, effect)
            if not isinstance(error, Exception):
                raise
            raise NotRecorded(f"{self.tool}: the ledger could not be written") from error
        if not mine:
            return found
        facts = (self.plan.host, tenant, found, self.together, self.began)
        ctx.run.claim = CarriedClaim(ledger, *facts) if self.carried else Claim(*facts)
        return None

    async def _claim_resumed(
        self, ctx: Any, tenant: str, effect: EffectRecord, rows: ChainRows
    ) -> tuple[bool, EffectRecord]:
        """Use the approval, claim and write the audit rows in one transaction."""
        try:
            return await self._in_one_transaction(ctx, tenant, effect, rows)
        except _Held as held:
            if held.effect.state is EffectState.UNKNOWN:  # the rollback may have undone the expiry
                await self.ledger.effects.expire(effect.began_at)
            return False, held.effect

    async def _in_one_transaction(
        self, ctx: Any, tenant: str, effect: EffectRecord, rows: ChainRows
    ) -> tuple[bool, EffectRecord]:
        async with AsyncExitStack() as chains, self.ledger.store.transaction() as written:
            if not await written.suspensions.replace(tenant, ctx.run.resumed.used()):
                raise NotPending("another process resumed it meanwhile")
            mine, found = await written.effects.claim(tenant, effect, retry=self.again)
            if mine:
                await append(written, tenant, rows, chains)
            elif found.state is not EffectState.COMMITTED:
                raise _Held(found)  # the approval stays available while the call waits or may still run
        return mine, found

    async def _answer(self, ctx: Any, tenant: str, found: EffectRecord) -> None:
        """Answer a repeat of an effect that has ended; return if it may run again."""
        if found.state is EffectState.UNKNOWN and self.reconcilers:
            found = await self.ledger.ask(tenant, found, self.reconcilers)
        if found.state is EffectState.NO_EFFECT:
            return
        ctx.run.replayed = found.state is EffectState.COMMITTED
        if not ctx.run.replayed:
            raise OutcomeUnknown(f"{self.tool}: its outcome is unknown; see `callgate effects`")
        answer_from(found.receipt)


def _recorders(plan: Any, store: Store) -> tuple[EffectRecorder, ...]:
    """Return the hooks that write their rows in the ledger's transaction, in the order of ``will_audit``.

    Each hook locks its chain of rows during the transaction. To avoid deadlocks, all calls lock in the same order and
    lock each chain once. A hook that is registered twice writes its rows outside of the transaction.
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
    """Return the hooks that can find the outcome of an effect of this tool."""
    return [
        one.hook
        for one in plan.registrations
        if hasattr(one.hook, "reconcile")
        and not (one.is_class or one.is_shadow)
        and why_not(one, plan.definition) is None
    ]


def _waits_for_itself(ctx: Any, tenant: str, key: str) -> bool:
    """Return whether an outer call of this nested call runs the same effect."""
    outer = ctx.run.outer
    while outer is not None:
        claim = outer.claim
        if claim is not None and (claim.tenant, claim.effect.key) == (tenant, key):
            return True
        outer = outer.outer
    return False
