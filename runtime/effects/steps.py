"""The two steps of a tool with an effect: claim before it runs, record the outcome afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import cast

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
from callgate.hooks.effects import AWAITED, Claim
from callgate.hooks.plan import PlanParts
from callgate.hooks.stages import Stage
from callgate.hooks.state.step import ASYNC, ASYNC_LEASE, SYNC, SYNC_LEASE, StepCall, plan_step
from callgate.providers.ids import new_id
from callgate.providers.logs import LogEvent, emit
from callgate.providers.stores.effects import (
    OPEN_STATES,
    Alias,
    EffectRecord,
    EffectState,
    SuspensionState,
    binds,
    claimable,
    overdue,
)
from callgate.providers.stores.ledger_writes import ChainRows, append
from callgate.runtime.effects.claims import recorders_of, waits_for_itself
from callgate.runtime.effects.idempotency_keys import (
    Identifier,
    alias_of,
    is_of_another,
    more_aliases,
    shared_by_tenants,
)
from callgate.runtime.effects.ledger import EffectOutcome, Ledger
from callgate.runtime.effects.receipts import answer_from, receipt_of
from callgate.runtime.effects.reconciling import reconcilers_of
from callgate.runtime.pipeline.deadlines import begin_in_time
from callgate.runtime.pipeline.failure import as_invocation_error
from callgate.runtime.pipeline.guards import traced
from callgate.tools.definition import Effect as Kind

FIRST_LOOK, LAST_LOOK = 0.005, 0.25
"""Seconds between two lookups of an effect that another call runs: the shortest and the longest interval."""


class LedgerClaims:
    """The ledger of a gate, as the plans of its tools need it; see ``EffectClaims``."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def of_tool(self, parts: PlanParts) -> tuple[StepCall, EffectSteps]:
        """Return the step that claims the effect, whose release settles the claim, and the ledger for calls of the tool."""
        at = (steps := EffectSteps(self._ledger, parts)).step
        if parts.trace or steps.waits:
            return (ASYNC_LEASE, traced(at, steps.begin) if parts.trace else steps.begin, at), steps
        return (SYNC_LEASE, steps.begin_now, at), steps


class _Held(Exception):
    """Rolls back the transaction, so that the approval stays available."""

    def __init__(self, effect: EffectRecord) -> None:
        super().__init__()
        self.effect = effect


class EffectSteps:
    """The ledger for the calls of one tool; values that depend only on the tool are computed once."""

    def __init__(self, ledger: Ledger, parts: PlanParts) -> None:
        self.ledger = ledger
        self.host = parts.host
        self.record = record = parts.record
        self.tool, self.version = record.id, record.definition.digest
        self.is_retryable = record.definition.effect is Kind.IDEMPOTENT
        self.within = record.within
        self.started = not record.injected and record.context_parameter is None  # see ``Claim``
        self.identifier = Identifier(record, ledger.namespace)
        self.shared, self.declared = shared_by_tenants(record), bool(record.definition.key)
        self.placed = not self.declared and record.dedupe is None  # in a nested call, its place identifies the effect
        self.together = recorders_of(parts.by_stage[Stage.WILL_AUDIT], ledger.store)
        self.waits = ledger.memory is None or bool(self.together)
        self.step = plan_step(Stage.AROUND_EXECUTE, "intent", release=self._release(trace=parts.trace))
        self.reconcilers = reconcilers_of(parts.registrations, record.definition)
        carries = parts.supply is not None and parts.supply.carries  # a transaction of the application, the outcomes
        self.is_joinable = carries and hasattr(ledger.store, "effects_in")
        self.state = EffectState.CLAIMED if self.is_joinable else EffectState.RUNNING

    def _release(self, *, trace: bool) -> StepCall:
        """Return the step that settles the claim."""
        end = plan_step(Stage.DID_AUDIT, "outcome")
        if trace:
            return ASYNC, traced(end, self.end), end
        return (ASYNC, self.end, end) if self.waits else (SYNC, self.end_now, end)

    def _tenant(self, ctx: InvokeContext) -> str:
        """Return the tenant of the row."""
        if ctx.run.outer is not None and self.placed:
            from callgate.runtime.pipeline.nesting import tenant_of_outer  # few tools call others

            return tenant_of_outer(ctx.run)
        return "" if self.shared else ctx.run.user.tenant or ""

    def _alias(self, ctx: InvokeContext) -> Alias | None:
        """Return the identity by the caller's key, beside a declared key; ``_effect`` replaces the caller's key."""
        return alias_of(ctx, self.record, self.ledger.namespace) if self.declared else None

    def _effect(self, ctx: InvokeContext, key: str, input_hash: str) -> EffectRecord:
        """Return the row that the ledger records before the tool runs; ``ctx.idempotency_key`` is its identity."""
        now, ledger, call, given = self.ledger.now(), self.ledger, ctx.run.tool_call, ctx.run.idempotency_key
        everywhere = self.shared or (ctx.run.outer is not None and self.placed)
        by = ctx.run.user
        user = f"{(by.tenant or '').replace('%', '%25').replace('/', '%2F')}/{by.id}" if everywhere else by.id
        if given is None or self.declared:
            ctx.run.idempotency_key, given = key, None
        tool, version, owner, until = self.tool, self.version, ledger.owner, now + ledger.valid
        request, session, call_id = ctx.run.known_request_id, ctx.run.session_id, None if call is None else call.id
        return EffectRecord(
            key, tool, version, user, input_hash, request, owner, until, now, self.state, 1, session, call_id, given
        )

    # ------------------------------------------------------------------ in memory, without await

    def begin_now(self, ctx: InvokeContext) -> Awaitable[None] | None:
        """Claim in memory; return an awaitable if the call has to await more."""
        if ctx.run.deadline_at is not None:
            begin_in_time(ctx)
        tenant, key = self._tenant(ctx), self.identifier.key_of(ctx)
        if key is None:  # no call can repeat it, so it needs no input hash and no receipt
            key = ctx.run.known_request_id if ctx.run.request_id is None else new_id()
            effect = self._effect(ctx, key, "")
        else:
            alias = self._alias(ctx)
            effect = self._effect(ctx, key, ctx.run.hash_of_input())
            if ctx.run.resumed is not None or alias is not None:
                return self._answer_repeat(ctx, tenant, effect, alias)
        assert self.ledger.memory is not None
        mine, found = self.ledger.memory.claim_now(tenant, effect, self.is_retryable)
        if not mine:
            return self._answer_repeat(ctx, tenant, effect, None, found)
        ctx.run.claim = Claim(self.host, tenant, found, (), self.started)
        return None

    def end_now(self, ctx: InvokeContext) -> None:
        """Record the outcome in memory."""
        claim, ledger = ctx.run.claim, self.ledger
        assert claim is not None
        assert ledger.memory is not None
        state, receipt, expires_at = self._outcome(ctx, claim)
        effect, tenant = claim.effect, claim.tenant
        done = ledger.memory.settle_now(tenant, effect.key, effect.token, state, ledger.now(), receipt, expires_at)
        if ledger.waiters:
            ledger.waiters.wake((tenant, effect.key))
        if not done:
            raise StoreConflict("the claim was lost: its lease was over")

    # ------------------------------------------------------------------ in an asynchronous store

    async def begin(self, ctx: InvokeContext) -> None:
        """Claim the effect, or answer a repeat."""
        if ctx.run.deadline_at is not None:
            begin_in_time(ctx)
        key, alias = self.identifier.key_of(ctx), self._alias(ctx)
        effect = self._effect(ctx, new_id(), "") if key is None else self._effect(ctx, key, ctx.run.hash_of_input())
        await self._answer_repeat(ctx, self._tenant(ctx), effect, alias)

    async def look(self, ctx: InvokeContext) -> None:
        """Answer a repeat of an effect; return if the effect may run. The call is authorised, and nothing is claimed.

        Raises:
            ControlRespond: the recorded output.
            InvocationError: the recorded error; or the effect runs, is unknown, or had other arguments.
        """
        key, alias, given = self.identifier.key_of(ctx), self._alias(ctx), ctx.run.idempotency_key
        if key is not None:
            effect = self._effect(ctx, key, ctx.run.hash_of_input())
            ctx.run.idempotency_key = given  # the suspension records only a key of the caller
            try:
                await self._answer_repeat(ctx, self._tenant(ctx), effect, alias, claims=False)
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
            await self.ledger.settle(claim, self._outcome(ctx, claim))

    def _outcome(self, ctx: InvokeContext, claim: Claim) -> EffectOutcome:
        state = claim.outcome(ctx.run)
        if state is EffectState.UNKNOWN:
            emit(LogEvent.EFFECT_UNKNOWN, ctx, key=claim.effect.key)
        if state is not EffectState.COMMITTED:
            return EffectOutcome(state)
        until = None if self.within is None else self.ledger.now() + self.within
        if not claim.effect.input_hash:
            return EffectOutcome(state, None, until)
        error = None if ctx.run.error is None else as_invocation_error(ctx)
        return EffectOutcome(state, receipt_of(ctx.run.output, error), until)

    async def _answer_repeat(
        self,
        ctx: InvokeContext,
        tenant: str,
        effect: EffectRecord,
        alias: Alias | None,
        found: EffectRecord | None = None,
        *,
        claims: bool = True,
    ) -> None:
        """Answer a repeat of *found*, or of what the ledger has; wait while another call runs the effect.

        Return once the ledger has nothing: this call has claimed the effect, or may claim it, without *claims*.
        """
        ledger = self.ledger
        clock = asyncio.get_running_loop().time
        left = ctx.remaining()
        until = clock() + (ledger.options.wait if left is None else min(left, ledger.options.wait))
        look = FIRST_LOOK
        while True:
            if found is None:
                found = await (self._claim if claims else self._known)(ctx, tenant, effect, alias)
            if found is None:
                return
            if found.input_hash != effect.input_hash:
                raise Conflict(f"{self.tool}: this key was used with other arguments")
            if found.state not in OPEN_STATES and is_of_another(ctx, found, effect):
                raise Conflict(f"{self.tool}: another user's call has this key")
            if found.state not in OPEN_STATES and not (found.receipt == AWAITED and found.lease_until > ledger.now()):
                await self._answer(ctx, tenant, found)
                found = None  # the effect did not happen: it may run again
                continue
            if clock() >= until or waits_for_itself(ctx, tenant, effect.key):
                raise InFlight(f"{self.tool}: the same effect is running")
            await ledger.waiters.wait((tenant, effect.key), max(0.0, min(look, until - clock())))
            look, found = min(look * 1.5, LAST_LOOK), None
            now = ledger.now()  # the lease begins with the claim
            effect = replace(effect, began_at=now, lease_until=now + ledger.valid)

    async def _find(self, tenant: str, effect: EffectRecord, alias: Alias | None) -> EffectRecord | None:
        """Return the effect of either identity, the caller's key first."""
        effects = self.ledger.effects
        if alias is not None:
            found = await effects.get(tenant, alias.key)
            if found is not None and not claimable(found, effect, retry=self.is_retryable):
                return found
        found = await effects.get(tenant, effect.key)
        if alias is not None and found is not None and binds(found, effect):
            await effects.bind(tenant, found.key, alias)
        return found

    async def _known(
        self, ctx: InvokeContext, tenant: str, effect: EffectRecord, alias: Alias | None
    ) -> EffectRecord | None:
        """Return the effect that this one repeats; None if this one may be claimed.

        Raises:
            NotRecorded: the store failed.
        """
        try:
            await self.ledger.flush(tenant, effect.key)
            found = await self._find(tenant, effect, alias)
            if found is not None and found.state is EffectState.RUNNING and overdue(found, effect.began_at):
                await self.ledger.effects.expire(effect.began_at)  # as a claim does
                found = await self._find(tenant, effect, alias)
            if found is None or claimable(found, effect, retry=self.is_retryable):
                return None
            waits, other = self.host.suspensions, found.input_hash != effect.input_hash
            if other and waits is not None and await waits.was_edited(ctx, effect.input_hash, found.input_hash):
                return replace(found, input_hash=effect.input_hash)  # an approver edited the arguments of this call
        except StoreError as error:
            raise NotRecorded(f"{self.tool}: the ledger could not be read") from error
        return found

    async def _claim(
        self, ctx: InvokeContext, tenant: str, effect: EffectRecord, alias: Alias | None
    ) -> EffectRecord | None:
        """Claim the effect; None if this call got it, else the row in the ledger.

        Raises:
            NotRecorded: the store failed.
            NotPending: another caller has resumed the call meanwhile.
        """
        from callgate.providers.stores.server_answers import GRACE, answer_within, before_deadline

        ledger = self.ledger
        try:
            rows = [one.intent_row(ctx) for one in self.together]
            with answer_within(None if (left := ctx.remaining()) is None else before_deadline(left)):
                await ledger.flush(tenant, effect.key)
                if ctx.run.resumed is None:
                    mine, found = await ledger.writer.claim(tenant, effect, rows, retry=self.is_retryable, alias=alias)
                elif ctx.run.resumed.wait.state is not SuspensionState.WAITING:
                    mine, found = await self._reclaim(tenant, effect, alias, rows)
                else:
                    mine, found = await self._claim_resumed(ctx, tenant, effect, alias, rows)
        except InvocationError:
            raise
        except BaseException as error:
            with answer_within(GRACE):
                await ledger.abandon(tenant, effect, alias)
            if not isinstance(error, Exception):
                raise
            raise NotRecorded(f"{self.tool}: the ledger could not be written") from error
        if not mine:
            return found
        facts = (tenant, found, self.together, self.started)
        if not self.is_joinable:
            claim = Claim(self.host, *facts)
        else:
            from callgate.runtime.pipeline.transaction_claim import SharedStore, TransactionClaim  # few tools have one

            claim = TransactionClaim(self.host, *facts, cast("SharedStore", ledger.store), ledger.now)
        more = () if ctx.run.resumed is None else more_aliases(ctx, ledger.namespace)
        ctx.run.claim, claim.alias, claim.more = claim, alias, more
        return None

    async def _claim_resumed(
        self, ctx: InvokeContext, tenant: str, effect: EffectRecord, alias: Alias | None, rows: ChainRows
    ) -> tuple[bool, EffectRecord]:
        """Use the approval, claim and write the audit rows in one transaction."""
        try:
            return await self._in_one_transaction(ctx, tenant, effect, alias, rows)
        except _Held as held:
            if held.effect.state is EffectState.UNKNOWN:  # the rollback may have undone the expiry
                await self.ledger.effects.expire(effect.began_at)
            return False, held.effect

    async def _reclaim(
        self, tenant: str, effect: EffectRecord, alias: Alias | None, rows: ChainRows
    ) -> tuple[bool, EffectRecord]:
        """Claim the effect of an approval that a worker used up before it died.

        Raises:
            OutcomeUnknown: the claim, which was written with the use, is no longer in the ledger.
        """
        found = await self._find(tenant, effect, alias)
        if found is None:
            raise OutcomeUnknown(f"{self.tool}: its approval was used, and the ledger has no record of the effect")
        if found.state is EffectState.COMMITTED:  # also where its receipt has expired: one approval is one effect
            return False, found
        return await self.ledger.writer.claim(tenant, effect, rows, retry=self.is_retryable, alias=alias)

    async def _in_one_transaction(
        self, ctx: InvokeContext, tenant: str, effect: EffectRecord, alias: Alias | None, rows: ChainRows
    ) -> tuple[bool, EffectRecord]:
        from callgate.providers.stores.sql.database.states import retried

        resumed = ctx.run.resumed
        assert resumed is not None

        async def once() -> tuple[bool, EffectRecord]:
            async with AsyncExitStack() as chains, self.ledger.store.transaction() as written:
                # The lease begins here: the transaction has waited for a connection.
                leased = replace(effect, lease_until=self.ledger.now() + self.ledger.valid)
                if not await written.suspensions.replace(ctx.user.tenant or "", resumed.used()):
                    raise NotPending("another process resumed it meanwhile")
                mine, found = await written.effects.claim(tenant, leased, retry=self.is_retryable, alias=alias)
                if mine:
                    for more in more_aliases(ctx, self.ledger.namespace):
                        await written.effects.bind(tenant, found.key, more)
                    await append(written, tenant, rows, chains)
                elif found.state is not EffectState.COMMITTED:
                    raise _Held(found)  # the approval stays available while the call waits or may still run
            return mine, found

        return await retried(once)

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
