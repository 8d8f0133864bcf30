"""The two steps of a tool with an effect: claim before it runs, record the outcome afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeAlias

from callgate.errors import (
    Conflict,
    ControlRespond,
    InFlight,
    InvocationError,
    NotPending,
    NotRecorded,
    OutcomeUnknown,
    StoreConflict,
    StoreError,
)
from callgate.hooks.context import InvokeContext
from callgate.hooks.effects import EffectRecorder
from callgate.hooks.guards import traced
from callgate.hooks.plan import Plan
from callgate.hooks.selection import Registration, sort_for_stage, why_not
from callgate.hooks.stages import Stage
from callgate.hooks.step import ASYNC, ASYNC_LEASE, SYNC, SYNC_LEASE, Compiled, Step
from callgate.providers.ids import new_id
from callgate.providers.logs import LogEvent, emit
from callgate.providers.principal import ANONYMOUS
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import (
    OPEN_STATES,
    EffectRecord,
    EffectState,
    SuspensionState,
    claimable,
    overdue,
)
from callgate.providers.stores.ledger_writes import ChainRows, append
from callgate.runtime.call.failure import as_invocation_error
from callgate.runtime.effects.claims import CarriedClaim, Claim
from callgate.runtime.effects.keys import Identify, identifier, shared_by_tenants
from callgate.runtime.effects.ledger import Ledger
from callgate.runtime.effects.receipts import AWAITED, answer_from, receipt_of
from callgate.tools.definition import Effect as Kind
from callgate.tools.definition import ToolDefinition

Lookup: TypeAlias = Callable[[InvokeContext, str, EffectRecord], Awaitable[EffectRecord | None]]
"""Claims an effect, or looks for it, by context and tenant; None if the effect is new."""

FIRST_LOOK, LAST_LOOK = 0.005, 0.25
"""Seconds between two lookups of an effect that another call runs: the shortest and the longest interval."""


def effect_step(ledger: Ledger, plan: Plan) -> tuple[Compiled, Callable[[InvokeContext], Awaitable[None]]]:
    """Return the claim step, the last before the tool of a plan, and the lookup for calls that need approval.

    The release of the step settles the claim.
    """
    steps = EffectSteps(ledger, plan)
    step = steps.step
    end = Step(Stage.DID_AUDIT, "outcome")
    if plan.trace:
        step.release = (ASYNC, traced(end, steps.end), end)
        return (ASYNC_LEASE, traced(step, steps.begin), step), steps.look
    if ledger.memory is not None and not steps.together:
        step.release = (SYNC, steps.end_now, end)
        return (SYNC_LEASE, steps.begin_now, step), steps.look
    step.release = (ASYNC, steps.end, end)
    return (ASYNC_LEASE, steps.begin, step), steps.look


class _Held(Exception):
    """Rolls back the transaction, so that the approval stays available."""

    def __init__(self, effect: EffectRecord) -> None:
        super().__init__()
        self.effect = effect


class EffectSteps:
    """The ledger for the calls of one tool; values that depend only on the tool are computed once."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self.ledger = ledger
        self.memory: Any = ledger.memory
        self.plan = plan
        record = plan.record
        self.tool, self.version = record.id, record.definition.digest
        self.again = record.definition.effect is Kind.IDEMPOTENT
        self.within = record.within
        self.began = not record.injected and record.context_parameter is None  # no step runs in between: see ``bodies``
        self.identify: Identify = identifier(record, ledger.namespace)
        self.shared = shared_by_tenants(record)
        self.declared = bool(record.definition.key) or record.dedupe is not None
        self.together = _recorders(plan, ledger.store)
        self.step = Step(Stage.AROUND_EXECUTE, "intent")
        self.reconcilers = reconcilers_of(plan.registrations, record.definition)
        self.carried = plan.carries and hasattr(ledger.store, "effects_in")
        self.state = EffectState.CLAIMED if self.carried else EffectState.RUNNING

    def _tenant(self, ctx: InvokeContext, given: str | None) -> str:
        """Return the tenant of the row, if *given* is the key of the caller."""
        if ctx.run.outer is not None and not self.declared:
            from callgate.runtime.call.nesting import tenant_of  # few tools call others

            return tenant_of(ctx.run)
        return "" if self.shared and given is None else ctx.user.tenant or ""

    def _effect(self, ctx: InvokeContext, key: str, input_hash: str) -> EffectRecord:
        """Return the row that the ledger records before the tool runs."""
        now, ledger, call, given = self.ledger.now(), self.ledger, ctx.run.tool_call, ctx.run.idempotency_key
        everywhere = (self.shared or ctx.run.outer is not None) and given is None
        user = f"{ctx.user.tenant or ''}/{ctx.user.id}" if everywhere else ctx.user.id
        if given is None:
            ctx.run.idempotency_key = key
        return EffectRecord(
            key,
            self.tool,
            self.version,
            user,
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

    def begin_now(self, ctx: InvokeContext) -> Awaitable[None] | None:
        """Claim in memory; return an awaitable if the call has to await more."""
        tenant, key = self._tenant(ctx, ctx.run.idempotency_key), self.identify(ctx)
        if key is None:  # no call can repeat it, so it needs no input hash and no receipt
            key = ctx.request_id if ctx.run.request_id is None else new_id()
            effect = self._effect(ctx, key, "")
        else:
            effect = self._effect(ctx, key, ctx.input_hash)
            if ctx.run.resumed is not None:
                return self._answer_repeat(ctx, tenant, effect, self._claim)
        mine, found = self.memory.claim_now(tenant, effect, self.again)
        if not mine:
            return self._answer_repeat(ctx, tenant, effect, self._claim, found)
        ctx.run.claim = Claim(self.plan.host, tenant, found, (), self.began)
        return None

    def end_now(self, ctx: InvokeContext) -> None:
        """Record the outcome in memory."""
        claim, ledger = ctx.run.claim, self.ledger
        assert claim is not None
        state, receipt, expires_at = self._ending(ctx)
        effect, tenant = claim.effect, claim.tenant
        done = self.memory.settle_now(tenant, effect.key, effect.token, state, ledger.now(), receipt, expires_at)
        if ledger.waiters:
            ledger.waiters.wake((tenant, effect.key))
        if not done:
            raise StoreConflict("the claim was lost: its lease was over")

    # ------------------------------------------------------------------ in an asynchronous store

    async def begin(self, ctx: InvokeContext) -> None:
        """Claim the effect, or answer a repeat."""
        key = self.identify(ctx)
        effect = self._effect(ctx, new_id(), "") if key is None else self._effect(ctx, key, ctx.input_hash)
        await self._answer_repeat(ctx, self._tenant(ctx, effect.idempotency_key), effect, self._claim)

    async def look(self, ctx: InvokeContext) -> None:
        """Answer a repeat of an effect; return if the effect may run. The call is authorised, and nothing is claimed.

        Raises:
            ControlRespond: the recorded output.
            InvocationError: the recorded error; or the effect runs, is unknown, or had other arguments.
        """
        key, given = self.identify(ctx), ctx.run.idempotency_key
        if key is not None:
            effect = self._effect(ctx, key, ctx.input_hash)
            ctx.run.idempotency_key = given  # the suspension records only a key of the caller
            try:
                await self._answer_repeat(ctx, self._tenant(ctx, given), effect, self._known)
            except ControlRespond:
                raise
            except Exception:
                ctx.run.step = self.step  # the ledger answers, as in ``begin``: the policy that asked it did not fail
                raise

    async def end(self, ctx: InvokeContext) -> None:
        """Record the outcome."""
        from callgate.providers.stores.server_answers import RECORD_GRACE, answer_within

        left, claim = ctx.remaining(), ctx.run.claim
        assert claim is not None
        with answer_within(None if left is None else max(left, RECORD_GRACE)):
            await self.ledger.settle(claim, *self._ending(ctx))

    def _ending(self, ctx: InvokeContext) -> tuple[EffectState, bytes | None, float | None]:
        claim = ctx.run.claim
        assert claim is not None
        state = claim.state(ctx)
        if state is EffectState.UNKNOWN:
            emit(LogEvent.EFFECT_UNKNOWN, ctx, key=claim.effect.key)
        if state is not EffectState.COMMITTED:
            return state, None, None
        until = None if self.within is None else self.ledger.now() + self.within
        if not claim.effect.input_hash:
            return state, None, until
        return state, receipt_of(ctx.run.output, None if ctx.run.error is None else as_invocation_error(ctx)), until

    async def _answer_repeat(
        self, ctx: InvokeContext, tenant: str, effect: EffectRecord, lookup: Lookup, found: EffectRecord | None = None
    ) -> None:
        """Answer a repeat of *found*, or of what *lookup* finds; wait while another call runs the effect.

        Return once *lookup* finds nothing: it has claimed the effect, or the effect may run.
        """
        ledger = self.ledger
        clock = asyncio.get_running_loop().time
        left = ctx.remaining()
        until = clock() + (ledger.options.wait if left is None else min(left, ledger.options.wait))
        look = FIRST_LOOK
        while True:
            if found is None:
                found = await lookup(ctx, tenant, effect)
            if found is None:
                return
            if found.input_hash != effect.input_hash:
                raise Conflict(f"{self.tool}: this key was used with other arguments")
            if found.state not in OPEN_STATES and _is_of_another(ctx, found, effect):
                raise Conflict(f"{self.tool}: another user's call has this key")
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

    async def _known(self, ctx: InvokeContext, tenant: str, effect: EffectRecord) -> EffectRecord | None:
        """Return the effect that this one repeats; None if this one may be claimed.

        Raises:
            NotRecorded: the store failed.
        """
        try:
            await self.ledger.flush(tenant, effect.key)
            found = await self.ledger.effects.get(tenant, effect.key)
            if found is not None and found.state is EffectState.RUNNING and overdue(found, effect.began_at):
                await self.ledger.effects.expire(effect.began_at)  # as a claim does
                found = await self.ledger.effects.get(tenant, effect.key)
            if found is None or claimable(found, effect, retry=self.again):
                return None
            waits = self.plan.host.waits
            other = found.input_hash != effect.input_hash
            if other and waits is not None and await waits.was_edited(ctx, effect.input_hash, found.input_hash):
                return replace(found, input_hash=effect.input_hash)  # an approver edited the arguments of this call
        except StoreError as error:
            raise NotRecorded(f"{self.tool}: the ledger could not be read") from error
        return found

    async def _claim(self, ctx: InvokeContext, tenant: str, effect: EffectRecord) -> EffectRecord | None:
        """Claim the effect; None if this call got it, else the row in the ledger.

        Raises:
            NotRecorded: the store failed.
            NotPending: another caller has resumed the call meanwhile.
        """
        from callgate.providers.stores.server_answers import GRACE, answer_within, before_deadline

        ledger = self.ledger
        try:
            rows = [one.intent_row(ctx) for one in self.together]
            with answer_within(before_deadline(ctx.remaining())):
                await ledger.flush(tenant, effect.key)
                if ctx.run.resumed is None:
                    mine, found = await ledger.writer.claim(tenant, effect, rows, retry=self.again)
                elif ctx.run.resumed.wait.state is not SuspensionState.WAITING:
                    mine, found = await self._claim_again(tenant, effect, rows)
                else:
                    mine, found = await self._claim_resumed(ctx, tenant, effect, rows)
        except InvocationError:
            raise
        except BaseException as error:
            with answer_within(GRACE):
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
        self, ctx: InvokeContext, tenant: str, effect: EffectRecord, rows: ChainRows
    ) -> tuple[bool, EffectRecord]:
        """Use the approval, claim and write the audit rows in one transaction."""
        try:
            return await self._in_one_transaction(ctx, tenant, effect, rows)
        except _Held as held:
            if held.effect.state is EffectState.UNKNOWN:  # the rollback may have undone the expiry
                await self.ledger.effects.expire(effect.began_at)
            return False, held.effect

    async def _claim_again(self, tenant: str, effect: EffectRecord, rows: ChainRows) -> tuple[bool, EffectRecord]:
        """Claim the effect of an approval that a worker used up before it died.

        Raises:
            OutcomeUnknown: the claim, which was written with the use, is no longer in the ledger.
        """
        found = await self.ledger.effects.get(tenant, effect.key)
        if found is None:
            raise OutcomeUnknown(f"{self.tool}: its approval was used, and the ledger has no record of the effect")
        if found.state is EffectState.COMMITTED:  # also where its receipt has expired: one approval is one effect
            return False, found
        return await self.ledger.writer.claim(tenant, effect, rows, retry=self.again)

    async def _in_one_transaction(
        self, ctx: InvokeContext, tenant: str, effect: EffectRecord, rows: ChainRows
    ) -> tuple[bool, EffectRecord]:
        async with AsyncExitStack() as chains, self.ledger.store.transaction() as written:
            resumed = ctx.run.resumed
            assert resumed is not None
            if not await written.suspensions.replace(tenant, resumed.used()):
                raise NotPending("another process resumed it meanwhile")
            mine, found = await written.effects.claim(tenant, effect, retry=self.again)
            if mine:
                await append(written, tenant, rows, chains)
            elif found.state is not EffectState.COMMITTED:
                raise _Held(found)  # the approval stays available while the call waits or may still run
        return mine, found

    async def _answer(self, ctx: InvokeContext, tenant: str, found: EffectRecord) -> None:
        """Answer a repeat of an effect that has ended; return if it may run again."""
        if found.state is EffectState.UNKNOWN and self.reconcilers:
            found = await self.ledger.ask(tenant, found, self.reconcilers)
        if found.state is EffectState.NO_EFFECT:
            return
        ctx.run.replayed = found.state is EffectState.COMMITTED
        if not ctx.run.replayed:
            raise OutcomeUnknown(f"{self.tool}: its outcome is unknown; see `callgate effects`")
        answer_from(found.receipt)


def _is_of_another(ctx: InvokeContext, found: EffectRecord, effect: EffectRecord) -> bool:
    """Return True if another caller made the effect. Only a session, a job or an outer call identifies an anonymous one."""
    if found.user != effect.user or ctx.user.id != ANONYMOUS.id:
        return found.user != effect.user
    if effect.session_id is not None:
        return found.session_id != effect.session_id
    run = ctx.run
    known = run.job is not None or run.resumed is not None or run.outer is not None
    return not known or found.request_id != effect.request_id


def _recorders(plan: Plan, store: Store) -> tuple[EffectRecorder[InvokeContext], ...]:
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


def reconcilers_of(registrations: Iterable[Registration], definition: ToolDefinition) -> list[Any]:
    """Return the hooks that can find the outcome of an effect of this tool."""
    return [
        one.hook
        for one in registrations
        if hasattr(one.hook, "reconcile") and not (one.is_class or one.is_shadow) and why_not(one, definition) is None
    ]


def _waits_for_itself(ctx: InvokeContext, tenant: str, key: str) -> bool:
    """Return whether an outer call of this nested call runs the same effect."""
    outer = ctx.run.outer
    while outer is not None:
        claim = outer.claim
        if claim is not None and (claim.tenant, claim.effect.key) == (tenant, key):
            return True
        outer = outer.outer
    return False
