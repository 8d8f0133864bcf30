"""Suspended calls (human in the loop): the store keeps them, one decision ends them, any process resumes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from callgate.errors import Denied, InFlight, NotPending, Stale, StoreConflict, UnknownTool
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan, plan_of
from callgate.hooks.state.facts import Suspension
from callgate.providers.ids import new_id
from callgate.providers.logs import LogEvent, emit
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store, Transaction
from callgate.providers.stores.effects import SuspensionRecord, SuspensionState
from callgate.providers.stores.jobs import JobState
from callgate.providers.stores.turns import KeyedTurns
from callgate.runtime.pipeline.approval import PLACE
from callgate.runtime.suspensions.decisions import (
    Approve,
    Deny,
    Edit,
    Pending,
    Respond,
    as_decision,
    is_final,
    may_decide,
    name_of,
    pending_of,
    suspension_of,
    with_decision,
    with_named_answers,
)
from callgate.runtime.suspensions.keyed import (
    chains_of,
    find_same,
    is_open,
    link,
    raw_identity,
    repeat_of,
    was_edited,
    with_key,
)
from callgate.runtime.suspensions.resumption import (
    Answer,
    Resumed,
    SuspendedCall,
    bound_call,
    handle_of,
    id_in,
    is_whole,
    policy_digest,
    signed,
    without_secrets,
)

EXPIRES = 86_400.0
"""Default expiry of a suspended call, in seconds."""
STORE_FAILED = frozenset({"not_recorded", "quota_unavailable", "semaphore_unavailable"})
"""Codes of calls that were refused because a store failed: nothing ran, and the next attempt may succeed."""


class SuspensionManager:
    """The suspended calls of one gate.

    *plan_for* returns the plan of a tool; *policy_version* is the application's version of its policies. ``deliver``
    hands a job to the job engine, by tenant and id: its call was decided.
    """

    deliver: Callable[[str, str], Awaitable[None]] | None = None

    def __init__(
        self,
        store: Callable[[], Store],
        keys: SigningKeys,
        now: Callable[[], float],
        plan_for: Callable[[str], Plan],
        policy_version: str = "",
        max_per_user: int | None = None,
    ) -> None:
        self.store, self.keys, self.now, self.plan_for = store, keys, now, plan_for
        self.policy_version, self.max_per_user = policy_version, max_per_user
        self.turns = KeyedTurns()

    # ------------------------------------------------------------------ suspending

    async def keep(self, ctx: InvokeContext, asked: Suspension) -> Suspension:
        """Store a suspended call; return its suspension with the handle. A repeat gets the same one.

        Raises:
            Denied: the call is nested, and a nested call cannot be resumed.
            Conflict: a call with other arguments is suspended under its key.
            InFlight: the same call of another user or job is suspended.
            RetryLater: the user has as many suspended calls as one may have.
            StoreError: the store failed.
        """
        from callgate.runtime.suspensions.crowding import put_in_limit, put_together  # few calls wait

        if ctx.run.outer is not None:
            raise Denied("a call within a call cannot wait", code="nested_wait", no_effect=True)
        if ctx.run.scrubber is not None:
            asked = without_secrets(asked, ctx.run.scrubber)
        tenant, now, resumed = ctx.user.tenant or "", self.now(), ctx.run.resumed
        chains = chains_of(ctx, self.keys.namespace)  # before the call gets a request id of its own
        raw, repeat = raw_identity(ctx, self.keys.namespace), repeat_of(ctx, self.keys.namespace)
        bound = bound_call(ctx, asked, self.policy_of(plan_of(ctx)), raw, repeat)
        lasts = EXPIRES if asked.expires is None else asked.expires
        wait = SuspensionRecord("", asked.kind, ctx.tool_id, ctx.user.id, now, now + lasts, bound.dump(), "")
        if ctx.run.claim is not None or (resumed is not None and resumed.wait.state is not SuspensionState.WAITING):
            resumed = None  # its row is used up already
        while True:
            free, known = await self._same(tenant, bound, chains, None if resumed is None else resumed.id)
            new = [] if known is not None else [signed(self.keys, tenant, replace(wait, id=(free or [new_id()])[0]))]
            kept = new[0] if known is None else known
            links = [link(self.keys, tenant, id, kept) for id in free if id != kept.id]
            try:
                if known is None and resumed is None and self.max_per_user is not None:
                    await put_in_limit(self, tenant, ctx.user.id, [*new, *links])
                else:
                    before = resumed.used() if new and resumed else with_key(self.keys, tenant, known, ctx)
                    await put_together(self.store(), tenant, [*new, *links], before)
            except StoreConflict:
                if not chains:
                    raise
            else:
                handle = handle_of(self.keys, tenant, kept.id)
                if known is None:
                    return replace(asked, expires=lasts, handle=handle)
                left = None if kept.expires_at is None else kept.expires_at - now
                return replace(suspension_of(SuspendedCall.load(kept.body), kept.kind, handle), expires=left)

    async def was_edited(self, ctx: InvokeContext, asked: str, ran: str) -> bool:
        """Return whether an approver replaced the arguments of an earlier call with its keys. Arguments are hashes."""
        tenant, chains = ctx.user.tenant or "", chains_of(ctx, self.keys.namespace)
        store, opened = self.store().suspensions, partial(self.opened, tenant)
        return await was_edited(store, self.keys, tenant, chains, opened, (asked, ran))

    async def _same(
        self, tenant: str, bound: SuspendedCall, chains: Sequence[str], before: str | None
    ) -> tuple[list[str], SuspensionRecord | None]:
        """Return the free ids of the chains, and the open suspension of the same call; *before* is about to be used up."""

        def opened(wait: SuspensionRecord) -> SuspendedCall | None:
            return self.opened(tenant, wait) if wait.id != before and is_open(wait, self.now()) else None

        while True:
            free, wait, known = await find_same(self.store().suspensions, self.keys, bound, chains, opened)
            if wait is None or known is None or bound.job in {None, known.job}:
                return free, wait
            other = None if known.job is None else await self.store().jobs.get(tenant, known.job)
            if other is not None and other.state is JobState.INPUT_REQUIRED:
                raise InFlight(f"{bound.tool}: the same call of another job is suspended")
            adopted = replace(wait, number=wait.number + 1, body=replace(known, job=bound.job).dump())
            adopted = signed(self.keys, tenant, adopted)  # the same key as a call and as a job
            if await self.store().suspensions.replace(tenant, adopted):
                return free, adopted

    def policy_of(self, plan: Plan) -> str:
        """Return the digest of a tool's policies: the application's version, and each policy hook with its version."""
        return policy_digest(plan, self.policy_version)

    # ------------------------------------------------------------------ listing

    async def pending(
        self, viewer: User, kind: str | None = None, limit: int = 100, *, after: str | None = None
    ) -> list[Pending]:
        """Return the suspended calls that the viewer may decide, of a kind such as ``"approval"``, oldest first.

        *after* is the handle of the last call of the page before.

        Raises:
            Invalid: *kind* is no text that a database can keep.
            NotPending: *after* is no handle of this tenant, or its call was deleted.
        """
        from callgate.runtime.pipeline.options import checked_id
        from callgate.runtime.suspensions.listing import list_pending, position  # for processes that list them

        checked_id("kind", kind)
        tenant, now, suspensions = viewer.tenant or "", self.now(), self.store().suspensions
        place = None if after is None else await position(suspensions, tenant, id_in(self.keys, tenant, after))
        listing = list_pending(suspensions, partial(self.opened, tenant), viewer, kind, now, place)
        found: list[Pending] = []
        async with aclosing(listing):
            async for wait, bound in listing:
                found.append(self.shown(tenant, wait, bound, now))
                if len(found) >= limit:
                    break
        return found

    def shown(self, tenant: str, wait: SuspensionRecord, bound: SuspendedCall, now: float) -> Pending:
        """Return a suspended call as its approver sees it."""
        return pending_of(bound, wait, handle_of(self.keys, tenant, wait.id), now)

    async def look(self, handle: str, viewer: User) -> Pending:
        """Return one suspended call for its approver or its caller.

        Raises:
            NotPending: no suspended call has this handle, or the viewer may not see it.
        """
        tenant = viewer.tenant or ""
        wait, bound = await self._find(tenant, handle, decided=True)
        now = self.now()
        if viewer.id != bound.user.id and (bound.decided or not may_decide(bound, viewer, now - wait.made_at)):
            raise NotPending("not this viewer's")
        return self.shown(tenant, wait, bound, now)

    async def _find(
        self, tenant: str, handle: object, after: SuspensionRecord | None = None, *, decided: bool = False
    ) -> tuple[SuspensionRecord, SuspendedCall]:
        wait = await self.store().suspensions.get(tenant, id_in(self.keys, tenant, handle))
        if wait is None or wait.state is not SuspensionState.WAITING:
            raise NotPending("unknown or used")
        bound = self.opened(tenant, wait)
        if bound is None:
            raise NotPending("changed in the store")
        if bound.decided and not (decided and bound.job is None):
            raise NotPending("decided, and handed to another process")
        if wait.expires_at is not None and wait.expires_at <= self.now():
            raise NotPending("expired")
        if after is not None and wait.number <= after.number:  # a lost race means a later version
            raise NotPending("its record cannot be replaced")
        return wait, bound

    def opened(self, tenant: str, wait: SuspensionRecord) -> SuspendedCall | None:
        """Return the facts in a row; None for a damaged row or a task (``runtime/suspensions/pending.py``)."""
        if not is_whole(self.keys, tenant, wait):
            emit(LogEvent.SUSPENSION_DAMAGED, tool=wait.tool, kind=wait.kind)
            return None
        try:
            return SuspendedCall.load(wait.body)
        except (ValueError, TypeError, KeyError):
            return None

    # ------------------------------------------------------------------ deciding

    async def decide(
        self, handle: str, given: object, approver: User, lost: SuspensionRecord | None = None, *, here: bool = True
    ) -> tuple[SuspendedCall, Resumed | Denied | Pending]:
        """Record a decision; return the call to run, the denial, or the call that still waits for approvals.

        Without *here* the record holds the last decision, too, and ``proceed`` runs the call. Concurrent decisions all count: a decision that loses a race is made again on the version that won it, unless that
        version has other arguments. *lost* is the version of a decision whose call lost the race when it ran.

        Raises:
            NotPending: no call waits under the handle, or this person may not decide it.
            Denied: the caller may not approve its own call.
            Stale: the tool or its policies of this process are others; the call keeps waiting.
            Invalid: the new arguments, or the answer, break their schema.
        """
        decision, tenant, first = as_decision(given), approver.tenant or "", lost is None
        while True:
            wait, bound = await self._find(tenant, handle, lost)
            if lost is not None and SuspendedCall.load(lost.body).input_hash != bound.input_hash:
                raise NotPending("another approver edited its arguments meanwhile")
            decided = await self._decide_version(tenant, wait, bound, decision, approver, here=here)
            if decided is not None:
                if first:
                    person, what = approver.id, name_of(decision)
                    emit(LogEvent.SUSPENSION_RESUMED, tool=wait.tool, kind=wait.kind, decision=what, by=person)
                return decided
            lost = wait

    async def _decide_version(
        self,
        tenant: str,
        wait: SuspensionRecord,
        bound: SuspendedCall,
        decision: Approve | Deny | Edit | Respond,
        approver: User,
        *,
        here: bool,
    ) -> tuple[SuspendedCall, Resumed | Denied | Pending] | None:
        """Decide one version of a suspended call; None if another process has replaced that version."""
        waited = self.now() - wait.made_at
        if not may_decide(bound, approver, waited):
            if bound.user.id == approver.id:
                raise Denied("the caller may not approve its own call", code="not_an_approver")
            raise NotPending("not this approver's")
        if isinstance(decision, Deny):
            answer = Answer(decision.public, decision.reason, approver.id)
            after = replace(bound, answers={**bound.answers, bound.place: answer})
            if not await self._end(tenant, Resumed(self.keys, tenant, wait, after), SuspensionState.DENIED):
                return None
            public = decision.public or "The call was declined."
            return after, Denied(decision.reason or f"declined by {approver.id}", code="declined", public=public)
        plan, refused = self._bound_plan(bound), None
        if bound.questions is not None and isinstance(decision, Respond) and decision.error is None:
            after, refused = with_named_answers(plan, bound, decision, approver, waited)
        else:
            after = with_decision(plan, bound, decision, approver, waited)
        ends = is_final(decision, after) or after.is_met
        if ends and here and after.job is None:
            return after, Resumed(self.keys, tenant, wait, after)
        after = replace(after, decided=ends)
        wait = signed(self.keys, tenant, replace(wait, number=wait.number + 1, body=after.dump()))
        if not await self._replace(tenant, wait, after.job if ends else None):
            return None
        if refused is not None:  # the other answers are recorded
            raise refused
        return after, Resumed(self.keys, tenant, wait, after) if ends else self.shown(tenant, wait, after, self.now())

    async def use(self, plan: Plan, resumed: Resumed) -> bool:
        """Use up the approval of a call that is about to run, unless the claim of its effect does.

        Return False if another process has replaced its record.
        """
        claims = any(step.name == "intent" and step.hook is None for _, _, step in plan.before)
        if claims and PLACE not in resumed.bound.answers:
            return True
        done = await self.store().suspensions.replace(resumed.tenant, resumed.used())
        if done:
            resumed.wait = replace(resumed.wait, state=SuspensionState.USED)
        return done

    async def withdraw(self, handle: str, user: User) -> None:
        """Withdraw a suspended call on behalf of its caller, also a decided call that has not run.

        Raises:
            NotPending: no suspended call of this user has the handle.
        """
        tenant, lost = user.tenant or "", None
        while True:
            wait, bound = await self._find(tenant, handle, lost, decided=True)
            if bound.user.id != user.id:
                raise NotPending("not this user's")
            if await self._end(tenant, Resumed(self.keys, tenant, wait, bound), SuspensionState.DENIED):
                return
            lost = wait

    async def _end(self, tenant: str, resumed: Resumed, state: SuspensionState) -> bool:
        """End the wait of a call; False if another process has replaced its record."""
        return await self._replace(tenant, resumed.used(state), resumed.bound.job)

    async def _replace(self, tenant: str, wait: SuspensionRecord, job: str | None) -> bool:
        """Replace a record; one transaction also queues the job that its decision concerns."""
        if job is None:
            return await self.store().suspensions.replace(tenant, wait)

        from callgate.providers.stores.sql.database.states import in_transaction

        async def replace(written: Transaction) -> tuple[bool, JobState | None]:
            if not await written.suspensions.replace(tenant, wait):
                return False, None
            return True, await written.jobs.wake(tenant, job, self.now())

        done, woken = await in_transaction(self.store(), replace)
        if woken is JobState.QUEUED and self.deliver is not None:
            await self.deliver(tenant, job)
        return done

    def _bound_plan(self, bound: SuspendedCall) -> Plan:
        """Return the plan of the tool that a call is bound to.

        The call keeps waiting where this process does not fit: during a deployment another process may.

        Raises:
            Stale: this process has no such tool, or another version of it or of its policies.
        """
        try:
            plan = self.plan_for(bound.tool)
        except UnknownTool:
            plan = None
        if plan is None or not self.is_bound_to(plan, bound):
            raise Stale(f"{bound.tool} or its policies are not those that it was asked for with")
        return plan

    def is_bound_to(self, plan: Plan, bound: SuspendedCall) -> bool:
        """Return whether the tool and its policies are those that the call is bound to."""
        definition = plan.definition  # earlier versions bound the digest of the whole definition
        return bound.version in {definition.binding_digest, definition.digest} and self.policy_of(plan) == bound.policy

    # ------------------------------------------------------------------ maintenance

    async def sweep(self) -> int:
        """Expire all overdue suspended calls; return their number."""
        from callgate.runtime.suspensions.expiry import expire_overdue  # one process in many expires calls

        return await expire_overdue(self.store(), self.keys, self.now, self.deliver)
