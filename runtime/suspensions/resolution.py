"""The outcome of a suspended call that another request or another process decided.

The approver of a call gets its result; the task that made the call has to look it up. The ledger holds the receipt of an
effect, which is the result. A read has no receipt: its result is kept beside the suspension. If it is too large for that,
its requester may run it once more, under the approvals that it was given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from callgate.errors import (
    ControlRespond,
    Denied,
    InvocationError,
    NotPending,
    OutcomeUnknown,
    Stale,
    ToolFailed,
    UnknownTool,
)
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import plan_of
from callgate.hooks.state.facts import Suspension
from callgate.providers.principal import User
from callgate.providers.stores.effects import OPEN_STATES, EffectRecord, EffectState, SuspensionRecord, SuspensionState
from callgate.runtime.effects.idempotency_keys import Identifier, alias_of, tenant_of
from callgate.runtime.effects.receipts import answer_from
from callgate.runtime.pipeline.failure import error_info
from callgate.runtime.pipeline.options import apply_options
from callgate.runtime.pipeline.results import run_to_result
from callgate.runtime.suspensions.keyed import is_open
from callgate.runtime.suspensions.record_keeping import CallRecords
from callgate.runtime.suspensions.resumption import Resumed, SuspendedCall, context_of_resumed, handle_of, id_in
from callgate.runtime.suspensions.suspensions import SuspensionManager
from callgate.tools.calls import Outcome, ToolResult

MAX_SEARCHED = 1000
"""Maximum number of suspended calls of one user that are searched for those of a session."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """A result; or the handle under which the call waits now; or a call that has to run.

    With ``decided``, ``gate.proceed`` runs the call; with ``repeat``, ``gate.repeat_read`` runs a read again.
    """

    result: ToolResult | None = None
    handle: str | None = None
    repeat: bool = False
    decided: bool = False


class CallState(StrEnum):
    """The state of a call: ``working → input_required → completed | failed | cancelled``."""

    WORKING = "working"  # it is queued, or runs
    INPUT_REQUIRED = "input_required"  # it waits for a person or a client
    COMPLETED = "completed"
    FAILED = "failed"  # it was refused, failed, or its outcome is unknown; the result says which
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The state of a call.

    ``result`` is its result once it has ended. It is None for a completed read that was suspended and whose result was too
    large to keep. ``pending`` is the suspension of a call that waits for input. A working call may have one, too, with
    ``pending.decided``: ``gate.proceed`` runs it.
    """

    state: CallState
    result: ToolResult | None = None
    pending: Suspension | None = None


async def resolve(records: CallRecords, handle: str, user: User) -> Resolution | None:
    """See ``Gate.resolution``."""
    found = await find_suspended(records.waits, handle, user)
    if found is None:
        return Resolution(_failed_result(None, NotPending()))
    wait, bound = found
    if (error := end_without_run(wait, bound, records.waits.now())) is not None:
        return Resolution(_failed_result(bound, error))
    if wait.state is SuspensionState.WAITING:
        return Resolution(decided=True) if bound.decided and bound.job is None else None
    return await _resumed(records, wait, bound, user)


def end_without_run(wait: SuspensionRecord, bound: SuspendedCall, now: float) -> InvocationError | None:
    """Return the error of a suspended call that ended without running; None for any other."""
    if wait.state is SuspensionState.DENIED:
        answer = bound.answers.get(bound.place)
        reason, public = (None, None) if answer is None else (answer.error, answer.value)
        return Denied(reason or "declined", code="declined", public=public or "The call was declined.")
    if wait.state is SuspensionState.VOID:
        return Stale()
    if wait.state is SuspensionState.EXPIRED or (wait.state is SuspensionState.WAITING and not is_open(wait, now)):
        late = (
            "The call was decided, and did not run in time." if bound.decided else "The approval did not come in time."
        )
        return Denied("expired", code="expired", public=late)
    return None


async def repeat_read(records: CallRecords, handle: str, user: User, deadline: float | None) -> ToolResult:
    """See ``Gate.repeat_read``."""
    from callgate.runtime.suspensions.put_off import is_put_off  # few calls wait
    from callgate.runtime.suspensions.reads import begin_repeat, end_put_off, keep_result, kept_result

    found = await find_suspended(records.waits, handle, user)
    if found is None:
        return _failed_result(None, Stale())
    wait, bound = found
    tenant = user.tenant or ""
    if (kept := await kept_result(records.waits, tenant, wait)) is not None:
        return kept
    ctx = _context(records, wait, bound, user)
    if ctx is None or wait.state is not SuspensionState.USED or not records.waits.is_bound_to(plan_of(ctx), bound):
        return _failed_result(bound, Stale())
    if wait.expires_at is not None and wait.expires_at <= records.waits.now():
        return _failed_result(bound, Denied(code="expired", public="The approval is over."))
    if (number := await begin_repeat(records.waits, tenant, wait)) is None:
        over = "The approval was used: the call has run, and its result was too large to keep."
        return _failed_result(bound, Denied("its approval was used", code="used", public=over))
    apply_options(ctx, {"deadline": deadline})
    result = await run_to_result(ctx)
    if is_put_off(ctx):
        await end_put_off(records.waits, tenant, wait, number)
        return result
    await keep_result(records.waits, tenant, wait, plan_of(ctx), bound, result)
    return result


async def in_session(waits: SuspensionManager, session_id: str, user: User) -> list[tuple[str, SuspendedCall]]:
    """The suspended calls of this user in a session, with their handles."""
    tenant = user.tenant or ""
    rows = await waits.store().suspensions.list(tenant, user=user.id, limit=MAX_SEARCHED)
    calls = [(wait, waits.opened(tenant, wait)) for wait in rows if wait.tool]  # the row of a task has no tool
    return [
        (handle_of(waits.keys, tenant, wait.id), bound)
        for wait, bound in calls
        if bound is not None and bound.session_id == session_id
    ]


async def find_suspended(
    waits: SuspensionManager, handle: str, user: User
) -> tuple[SuspensionRecord, SuspendedCall] | None:
    """Return a suspended call of this user in any state; None for an unknown, foreign or damaged row."""
    tenant = user.tenant or ""
    wait = await waits.store().suspensions.get(tenant, id_in(waits.keys, tenant, handle))
    bound = None if wait is None else waits.opened(tenant, wait)
    return None if wait is None or bound is None or bound.user.id != user.id else (wait, bound)


def _context(records: CallRecords, wait: SuspensionRecord, bound: SuspendedCall, user: User) -> InvokeContext | None:
    """The context in which the call was resumed; None if its tool no longer exists."""
    try:
        plan = records.plans.of(bound.tool)
    except UnknownTool:
        return None
    ctx = context_of_resumed(plan, bound, Resumed(records.waits.keys, user.tenant or "", wait, bound))
    ctx.run.user = user
    return ctx


async def _resumed(records: CallRecords, wait: SuspensionRecord, bound: SuspendedCall, user: User) -> Resolution | None:
    """The resolution of a call that was resumed: it waits again, or has a receipt, or is a read."""
    from callgate.runtime.suspensions.reads import has_no_receipt, kept_result  # few calls wait

    if bound.session_id is not None:
        for handle, other in await in_session(records.waits, bound.session_id, user):
            if other.request_id == bound.request_id and other.call_id == bound.call_id:
                return Resolution(handle=handle)
    ctx = _context(records, wait, bound, user)
    if ctx is None:
        return Resolution(_failed_result(bound, Stale()))
    if has_no_receipt(plan_of(ctx), bound):
        kept = await kept_result(records.waits, user.tenant or "", wait)
        return Resolution(repeat=True) if kept is None else Resolution(kept)
    effect = await _effect(records, ctx)
    if effect is not None and effect.state in OPEN_STATES:
        return None
    return Resolution(recorded_result(effect, bound.call_id or "", bound.tool))


async def _effect(records: CallRecords, ctx: InvokeContext) -> EffectRecord | None:
    """Return the effect of a call, by either of its identities."""
    record, namespace = ctx.run.plan.record, records.keys.namespace
    alias, key = alias_of(ctx, record, namespace), Identifier(record, namespace).key_of(ctx)
    tenant, get = tenant_of(ctx.user, record), records.ledger.effects.get
    found = None if alias is None else await get(tenant, alias.key)
    return await get(tenant, key) if found is None and key is not None else found


def recorded_result(effect: EffectRecord | None, call_id: str, tool: str) -> ToolResult:
    """Return the result of an effect that has ended, from the ledger."""
    if effect is not None and effect.state is EffectState.NO_EFFECT:
        return _failed(call_id, tool, ToolFailed(code="no_effect", public="The call failed without an effect."))
    if effect is None or effect.state is not EffectState.COMMITTED:
        return _failed(call_id, tool, OutcomeUnknown())
    try:
        answer_from(effect.receipt)
    except ControlRespond as answer:
        return ToolResult(call_id, tool, Outcome.SUCCESS, answer.value, replayed=True)
    except InvocationError as error:
        return replace(_failed(call_id, tool, error), replayed=True)


def _failed_result(bound: SuspendedCall | None, error: InvocationError) -> ToolResult:
    return _failed("", "", error) if bound is None else _failed(bound.call_id or "", bound.tool, error)


def _failed(call_id: str, tool: str, error: InvocationError) -> ToolResult:
    denies = isinstance(error, Denied | NotPending | Stale)
    outcome = Outcome.UNKNOWN if isinstance(error, OutcomeUnknown) else Outcome.DENIED if denies else Outcome.ERROR
    return ToolResult(call_id, tool, outcome, error=error_info(error))
