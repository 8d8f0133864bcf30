"""Calls that wait for a person or a client: kept in the store, decided once, resumed by any process (design 7, I5, I16)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from callgate.errors import Denied, Invalid, NotPending, Stale, UnknownTool
from callgate.hooks.approval import PLACE
from callgate.hooks.builtin import FROZEN, refusal
from callgate.hooks.context import InvokeContext
from callgate.hooks.facts import Suspension
from callgate.hooks.plan import Plan
from callgate.hooks.selection import why_not
from callgate.hooks.stages import Stage
from callgate.providers.ids import new_id
from callgate.providers.logs import Event, emit
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import Wait, WaitState
from callgate.runtime.suspensions.decisions import Approve, Deny, Edit, Respond, as_decision, name_of
from callgate.runtime.suspensions.resumption import Answer, Bound, Resumed, handle_of, id_in, is_whole, sealed
from callgate.tools.arguments.parsing import parse_arguments
from callgate.tools.calls import ToolCall
from callgate.tools.schemas.validation import Validator, compile_schema
from callgate.tools.values import hash_of, thaw

EXPIRES = 86_400.0
"""Seconds that a call waits where nobody says how long."""

_POLICY = (Stage.WILL_AUTHORIZE, Stage.WILL_AUTHORIZE_INPUT, Stage.WILL_CHECK_CONSENT, Stage.WILL_CHECK_FEATURE_FLAGS)


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that waits, as somebody sees it who may decide it. ``text`` is made from the arguments, never by a model.

    ``arguments`` are exactly those that would run; None where they were not read yet. ``approvals`` are the ids of those
    who have approved so far, ``needed`` how many have to for each rule. Times are seconds since the epoch.
    """

    handle: str
    kind: str
    tool: str
    text: str
    prompt: str
    arguments: Mapping[str, Any] | None
    requested_by: str
    made_at: float
    expires_at: float | None
    schema: Mapping[str, Any] | None = None
    approvals: tuple[str, ...] = ()
    needed: tuple[int, ...] = ()
    escalated: bool = False


class Suspensions:
    """The waiting calls of one gate.

    *plan_for* gives the plan of a tool, *policy_version* is what the application says of its policies.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        keys: SigningKeys,
        now: Callable[[], float],
        plan_for: Callable[[str], Plan],
        policy_version: str = "",
    ) -> None:
        self._store = store
        self.keys = keys
        self._now = now
        self._plan_for = plan_for
        self._policy_version = policy_version

    # ------------------------------------------------------------------ beginning to wait

    async def keep(self, ctx: InvokeContext, asked: Suspension) -> Suspension:
        """Write down a call that waits; what is pending, with its handle.

        Raises:
            Denied: it is a nested call, which nobody could go on with.
            StoreError: it could not be written.
        """
        if ctx.outer is not None:
            raise Denied("a call within a call cannot wait", code="nested_wait", no_effect=True)
        tenant, now, resumed = ctx.user.tenant or "", self._now(), ctx.resumed
        bound = self._bind(ctx, asked)
        lasts = EXPIRES if asked.expires is None else asked.expires
        wait = Wait(new_id(), asked.kind, ctx.tool_id, ctx.user.id, now, now + lasts, bound.dump(), "")
        wait = sealed(self.keys, tenant, wait)
        if resumed is None or ctx.claim is not None or resumed.wait.state is not WaitState.WAITING:
            await self._store().waits.put(tenant, wait)
        else:  # it had waited before: that ends as this begins
            async with self._store().transaction() as written:
                if not await written.waits.replace(tenant, resumed.used()):
                    raise NotPending("it was resumed by somebody else meanwhile")
                await written.waits.put(tenant, wait)
        return replace(asked, expires=lasts, handle=handle_of(self.keys, tenant, wait.id))

    def _bind(self, ctx: InvokeContext, asked: Suspension) -> Bound:
        frozen = ctx._input_state == FROZEN
        raw = ctx.raw_input if not isinstance(ctx.raw_input, Mapping) else thaw(dict(ctx.raw_input))
        call, resumed = ctx.tool_call, ctx.resumed
        before: Bound | None = None if resumed is None else resumed.bound
        decided_on = None if before is None else before.input_hash
        input_hash = ctx.input_hash if frozen else decided_on
        if decided_on not in {None, input_hash}:  # what was decided so far was about other arguments
            before = None
        return Bound(
            tool=ctx.tool_id,
            version=ctx.tool.digest,
            policy=self.policy_of(ctx.plan),
            user=ctx.user,
            arguments=thaw(ctx._input) if frozen else raw,  # not the copy that hooks look at
            frozen=frozen,
            input_hash=input_hash,
            request_id=ctx.request_id,
            session_id=ctx.session_id,
            call_id=call.id,
            synthetic_id=call.synthetic_id,
            truncated=call.truncated,
            idempotency_key=ctx.idempotency_key if ctx.claim is None else ctx.claim.effect.idempotency_key,
            place=asked.place,
            prompt=asked.prompt,
            schema=None if asked.schema is None else thaw(asked.schema),
            rules=asked.rules,
            nonce=new_id(),
            approvals=() if before is None else before.approvals,
            answers={} if before is None else before.answers,
        )

    def policy_of(self, plan: Plan) -> str:
        """What authorises a tool, as a hash: the application's word, and every hook that has a say, with its version."""
        hooks = [
            [one.name, str(getattr(one.hook, "policy_version", ""))]
            for one in plan.registrations
            if why_not(one, plan.definition) is None
            and (not set(_POLICY).isdisjoint(one.all_stages()) or hasattr(one.hook, "approval_for"))
        ]
        return hash_of([self._policy_version, hooks])

    # ------------------------------------------------------------------ looking

    async def pending(self, viewer: User, kind: str | None = None, limit: int = 100) -> list[Pending]:
        """What waits and this person may decide, the oldest first."""
        tenant, now, most = viewer.tenant or "", self._now(), limit
        while True:
            rows = await self._store().waits.list(tenant, limit=most)
            found = []
            for wait in rows:
                bound = self._opened(tenant, wait) if kind in {None, wait.kind} else None
                if bound is None or (wait.expires_at is not None and wait.expires_at <= now):
                    continue
                if may_decide(bound, viewer, now - wait.made_at):
                    found.append(self._shown(tenant, wait, bound, now))
            if len(found) >= limit or len(rows) < most:
                return found[:limit]
            most *= 4  # of those that were looked at, many are for others to decide

    def _shown(self, tenant: str, wait: Wait, bound: Bound, now: float) -> Pending:
        return Pending(
            handle_of(self.keys, tenant, wait.id),
            wait.kind,
            wait.tool,
            call_text(bound),
            bound.prompt,
            bound.arguments if bound.frozen else None,
            wait.user,
            wait.made_at,
            wait.expires_at,
            bound.schema,
            tuple(user.id for user, _ in bound.given_at(bound.place)),
            tuple(rule.quorum for rule in bound.rules),
            any(r.escalate_after is not None and now - wait.made_at >= r.escalate_after for r in bound.rules),
        )

    async def look(self, handle: str, viewer: User) -> Pending:
        """One call that waits, as somebody sees it who may decide it, or has asked for it.

        Raises:
            NotPending: nothing waits there for this person.
        """
        tenant = viewer.tenant or ""
        wait, bound = await self._find(tenant, handle)
        now = self._now()
        if viewer.id != bound.user.id and not may_decide(bound, viewer, now - wait.made_at):
            raise NotPending("not this viewer's")
        return self._shown(tenant, wait, bound, now)

    async def _find(self, tenant: str, handle: Any) -> tuple[Wait, Bound]:
        wait = await self._store().waits.get(tenant, id_in(self.keys, tenant, handle))
        if wait is None or wait.state is not WaitState.WAITING:
            raise NotPending("unknown or used")
        bound = self._opened(tenant, wait)
        if bound is None:
            raise NotPending("changed in the store")
        if wait.expires_at is not None and wait.expires_at <= self._now():
            raise NotPending("expired")
        return wait, bound

    def _opened(self, tenant: str, wait: Wait) -> Bound | None:
        """What a row is bound to; None for one that somebody has changed, or that is no call (``runtime/suspensions/pending.py``)."""
        if not is_whole(self.keys, tenant, wait):
            emit(Event.WAIT_DAMAGED, tool=wait.tool, kind=wait.kind)
            return None
        try:
            return Bound.load(wait.body)
        except (ValueError, TypeError, KeyError):
            return None

    # ------------------------------------------------------------------ deciding

    async def decide(self, handle: str, given: Any, approver: User) -> tuple[Bound, Resumed | Denied | Pending]:
        """Take a decision: what is to run now, why it must not, or what it waits for still.

        Raises:
            NotPending: nothing waits under the handle, or not for this person.
            Denied: the caller may not approve its own call.
            Stale: what the call was bound to has changed.
            Invalid: the new arguments, or the answer, do not fit.
        """
        decision = as_decision(given)
        tenant = approver.tenant or ""
        wait, bound = await self._find(tenant, handle)
        waited = self._now() - wait.made_at
        if not may_decide(bound, approver, waited):
            if bound.user.id == approver.id:
                raise Denied("the caller may not approve its own call", code="not_an_approver")
            raise NotPending("not this approver's")
        if isinstance(decision, Deny):
            told = Answer(error=decision.reason, by=approver.id)
            after = replace(bound, answers={**bound.answers, bound.place: told})
            await self._replace(tenant, Resumed(self.keys, tenant, wait, after).used(WaitState.DENIED))
            self._tell(wait, decision, approver)
            public = decision.public or "The call was declined."
            return bound, Denied(decision.reason or f"declined by {approver.id}", code="declined", public=public)
        plan = await self._unchanged(tenant, wait, bound)
        after = self._decided(plan, bound, decision, approver, waited)
        resumed = Resumed(self.keys, tenant, wait, after)
        if not (_is_final(decision, after) or after.is_met):
            wait = replace(wait, number=wait.number + 1, body=after.dump())
            await self._replace(tenant, sealed(self.keys, tenant, wait))
            self._tell(wait, decision, approver)
            return after, self._shown(tenant, wait, after, self._now())
        if not any(step.name == "intent" and step.hook is None for _, _, step in plan.before) or (
            isinstance(decision, Respond) and after.place == PLACE
        ):  # no claim will use it up
            await self._replace(tenant, resumed.used())
            resumed.wait = replace(resumed.wait, state=WaitState.USED)
        self._tell(wait, decision, approver)
        return after, resumed

    async def withdraw(self, handle: str, user: User) -> None:
        """The caller does not want its call any more.

        Raises:
            NotPending: nothing of this user's waits there.
        """
        tenant = user.tenant or ""
        wait, bound = await self._find(tenant, handle)
        if bound.user.id != user.id:
            raise NotPending("not this user's")
        await self._replace(tenant, Resumed(self.keys, tenant, wait, bound).used(WaitState.DENIED))

    async def _replace(self, tenant: str, wait: Wait) -> None:
        if not await self._store().waits.replace(tenant, wait):
            raise NotPending("decided by somebody else meanwhile")

    async def _unchanged(self, tenant: str, wait: Wait, bound: Bound) -> Plan:
        """The plan of the tool, if it and what authorises it are still what they were."""
        try:
            plan = self._plan_for(bound.tool)
        except UnknownTool:
            plan = None
        if plan is None or not self.is_bound_to(plan, bound):
            await self._replace(tenant, Resumed(self.keys, tenant, wait, bound).used(WaitState.VOID))
            raise Stale(f"{bound.tool} or its policies have changed since it was asked for")
        return plan

    def is_bound_to(self, plan: Plan, bound: Bound) -> bool:
        """Whether a tool, and what authorises it, are those that a call was decided on."""
        return plan.definition.digest == bound.version and self.policy_of(plan) == bound.policy

    def _decided(
        self, plan: Plan, bound: Bound, decision: Approve | Edit | Respond, approver: User, waited: float
    ) -> Bound:
        answer = Answer(by=approver.id)
        if isinstance(decision, Respond):
            answer = Answer(self._fitting(plan, bound, decision), decision.error, approver.id)
            if _is_final(decision, bound):
                return replace(bound, answers={**bound.answers, bound.place: answer})
        elif bound.schema is not None:
            raise Invalid("an answer was asked for: Respond(value)", code="answer_expected")
        elif isinstance(decision, Edit):
            if not bound.frozen:
                raise Invalid("its arguments were not read yet: there is nothing to edit", code="not_editable")
            arguments = parse_arguments(dict(decision.arguments), limits=plan.builtins.limits).value
            _check(plan.builtins.arguments, arguments)
            bound = replace(bound, arguments=arguments, input_hash=hash_of(arguments), approvals=(), answers={})
        said = bound.answers.get(bound.place)
        agree = said is None or hash_of(said.value) == hash_of(answer.value)
        if bound.rules:  # who approves again counts once, by the roles of the last time; who said otherwise, not at all
            others = (one for one in bound.approvals if one[0] != bound.place or (agree and one[1].id != approver.id))
            bound = replace(bound, approvals=(*others, (bound.place, approver, waited)))
        return bound if bound.place == PLACE else replace(bound, answers={**bound.answers, bound.place: answer})

    def _fitting(self, plan: Plan, bound: Bound, decision: Respond) -> Any:
        """The answer, if it fits what was asked for."""
        if decision.error is not None:
            return None
        if bound.place == PLACE:
            validator = plan.builtins.output
        else:
            validator = None if bound.schema is None else compile_schema(bound.schema, trusted=False)
        try:
            value = json.loads(json.dumps(decision.value, allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            raise Invalid("the answer is not JSON", code="invalid_answer") from None
        _check(validator, value)
        return value

    @staticmethod
    def _tell(wait: Wait, decision: Any, approver: User) -> None:
        emit(Event.WAIT_RESUMED, tool=wait.tool, kind=wait.kind, decision=name_of(decision), by=approver.id)

    # ------------------------------------------------------------------ looking after

    async def sweep(self) -> int:
        """End what nobody has decided in time; how many."""
        ended = 0
        for tenant, wait in await self._store().waits.due(self._now()):
            over = replace(wait, state=WaitState.EXPIRED, number=wait.number + 1)
            if is_whole(self.keys, tenant, wait):  # what somebody has changed gets no seal of ours
                over = sealed(self.keys, tenant, over)
            if await self._store().waits.replace(tenant, over):
                emit(Event.WAIT_EXPIRED, tool=wait.tool, kind=wait.kind)
                ended += 1
        return ended


def _check(validator: Validator | None, value: Any) -> None:
    """Refuse what somebody has put in the place of arguments, or answered, where it breaks its schema."""
    if validator is not None:
        try:
            validator.check(value)
        except Exception as error:
            raise refusal(validator, value) from error


def _is_final(decision: Any, bound: Bound) -> bool:
    """Whether an answer needs nobody else's: one that runs nothing, as a ``Deny`` does, or that takes the place of the run."""
    return isinstance(decision, Respond) and (bound.place == PLACE or decision.error is not None)


def may_decide(bound: Bound, person: User, waited: float) -> bool:
    """Whether a person of the caller's tenant may decide: by any of the rules, or, without rules, the caller alone."""
    if not bound.rules:
        return person.id == bound.user.id
    return any(rule.allows(person, bound.user.id, waited) for rule in bound.rules)


def call_text(bound: Bound) -> str:
    """A call as one reads it: made by the runtime from what would run. Nothing in it can pass for anything else."""
    if not bound.frozen or not isinstance(bound.arguments, dict):
        return f"{bound.tool}(…)"
    shown = (f"{_name_text(name)}={json.dumps(value, ensure_ascii=True)}" for name, value in bound.arguments.items())
    return f"{bound.tool}({', '.join(shown)})"


def _name_text(name: str) -> str:
    """The name of an argument; where a model has made it up it may be anything."""
    return name if name.isascii() and name.isidentifier() else json.dumps(name, ensure_ascii=True)


def context_of_resumed(plan: Plan, bound: Bound, resumed: Resumed | None) -> InvokeContext:
    """The context of the same call, from the top; *resumed* is None where it is not to run."""
    ctx = InvokeContext(plan, bound.arguments, bound.user, plan.now())
    ctx._call = call = ToolCall(
        bound.call_id or "", bound.tool, bound.arguments, synthetic_id=bound.synthetic_id, truncated=bound.truncated
    )
    if call.truncated:
        ctx._input = call  # as in ``context_of``
    ctx._request_id, ctx.session_id = bound.request_id, bound.session_id
    ctx.idempotency_key = bound.idempotency_key
    ctx.resumed = resumed
    return ctx


def refused_context(plan: Plan, bound: Bound, refused: Denied) -> InvokeContext:
    """The context of a call that must not run: *plan* tells those who observe and record."""
    ctx = context_of_resumed(plan, bound, None)
    ctx.step, ctx.unknown = plan.start, refused
    if bound.frozen:
        ctx._input_state = FROZEN
    return ctx
