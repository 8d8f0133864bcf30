"""What became of a call that waited and that somebody decided elsewhere: in another request, or another process.

Whoever decides gets the result; the task that asked has to find out. What had an effect is in the ledger, and its receipt
is the result. A read is made again, under the approvals that it was given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from callgate.errors import ControlRespond, Denied, InvocationError, NotPending, OutcomeUnknown, Stale, ToolFailed
from callgate.hooks.approval import PLACE
from callgate.providers.stores.effects import OPEN, EffectState, Wait, WaitState
from callgate.runtime.call.failure import error_info
from callgate.runtime.call.results import run_to_result
from callgate.runtime.effects.keys import identifier
from callgate.runtime.effects.receipts import answer_from
from callgate.runtime.engine import apply_options
from callgate.runtime.hosts.a2a import task_store as tasks
from callgate.runtime.suspensions import pending
from callgate.runtime.suspensions.resumption import Bound, Resumed, handle_of, id_in
from callgate.runtime.suspensions.suspensions import context_of_resumed
from callgate.tools.calls import Outcome, ToolResult, User
from callgate.tools.definition import Effect

MOST_WAITS = 1000
"""Waiting calls of one user that are looked through."""

_NO_CALLS = {pending.KIND, tasks.KIND}


@dataclass(frozen=True, slots=True)
class Became:
    """A result; or the handle under which the call waits now; or that it is to be made ``again``."""

    result: ToolResult | None = None
    handle: str | None = None
    again: bool = False


async def became(gate: Any, handle: str, user: User) -> Became | None:
    """What became of a call of this user that waited under *handle*; None while it waits there, or runs. Runs nothing."""
    wait, bound = await _row(gate, handle, user)
    if wait is None or bound is None:
        return Became(_refused(None, NotPending()))
    over = wait.expires_at is not None and wait.expires_at <= gate.waits._now()
    match wait.state:
        case WaitState.WAITING if not over:
            return None
        case WaitState.WAITING | WaitState.EXPIRED:
            return Became(_refused(bound, Denied(code="expired", public="Nobody decided in time.")))
        case WaitState.DENIED:
            return Became(_refused(bound, Denied(code="declined", public="The call was declined.")))
        case WaitState.VOID:
            return Became(_refused(bound, Stale()))
        case _:
            return await _gone_on(gate, bound, user, context_of(gate, wait, bound, user))


async def made_again(gate: Any, handle: str, user: User, deadline: float) -> ToolResult:
    """The result of a read that was approved elsewhere, made again for its user as they are now."""
    wait, bound = await _row(gate, handle, user)
    ctx = None if wait is None or bound is None else context_of(gate, wait, bound, user)
    if ctx is None or not gate.waits.is_bound_to(ctx.plan, bound):
        return _refused(bound, Stale())
    apply_options(ctx, {"deadline": deadline})
    return await run_to_result(ctx)


async def left_waiting(gate: Any, user: User, session_id: str) -> list[tuple[str, Bound]]:
    """The calls of one session that wait, with their handles."""
    waits, tenant = gate.waits, user.tenant or ""
    found: list[tuple[str, Bound]] = []
    for wait in await waits._store().waits.list(tenant, user=user.id, limit=MOST_WAITS):
        bound = None if wait.kind in _NO_CALLS else waits._opened(tenant, wait)
        if bound is not None and bound.session_id == session_id:
            found.append((handle_of(waits.keys, tenant, wait.id), bound))
    return found


def context_of(gate: Any, wait: Wait, bound: Bound, user: User) -> Any:
    """The context that a call went on in; None where its tool is gone."""
    if bound.tool not in gate.registry:
        return None
    ctx = context_of_resumed(
        gate._plans.of(bound.tool), bound, Resumed(gate.waits.keys, user.tenant or "", wait, bound)
    )
    ctx.user = user
    return ctx


async def _row(gate: Any, handle: str, user: User) -> tuple[Wait | None, Bound | None]:
    waits, tenant = gate.waits, user.tenant or ""
    wait = await waits._store().waits.get(tenant, id_in(waits.keys, tenant, handle))
    bound = None if wait is None else waits._opened(tenant, wait)
    return (wait, bound) if bound is not None and bound.user.id == user.id else (None, None)


async def _gone_on(gate: Any, bound: Bound, user: User, ctx: Any) -> Became | None:
    """A call that was resumed: it waits again, or has a receipt, or is a read."""
    if bound.session_id is not None:
        for handle, other in await left_waiting(gate, user, bound.session_id):
            if other.request_id == bound.request_id and other.call_id == bound.call_id:
                return Became(handle=handle)
    if ctx is None:
        return Became(_refused(bound, Stale()))
    if ctx.plan.definition.effect is Effect.READ or PLACE in bound.answers:  # or an approver gave the output
        return Became(again=True)
    key = identifier(ctx.plan.record)(ctx)
    effect = None if key is None else await gate._records.ledger.effects.get(user.tenant or "", key)
    if effect is not None and effect.state in OPEN:
        return None
    if effect is not None and effect.state is EffectState.NO_EFFECT:
        return Became(_refused(bound, ToolFailed(code="no_effect", public="The call failed, and has done nothing.")))
    if effect is None or effect.state is not EffectState.COMMITTED:
        return Became(_refused(bound, OutcomeUnknown()))
    return Became(_replayed(bound, effect.receipt))


def _replayed(bound: Bound, receipt: bytes | None) -> ToolResult:
    try:
        answer_from(receipt)
    except ControlRespond as answer:
        return ToolResult(bound.call_id or "", bound.tool, Outcome.SUCCESS, answer.value, replayed=True)
    except InvocationError as error:
        return replace(_refused(bound, error), replayed=True)


def _refused(bound: Bound | None, error: InvocationError) -> ToolResult:
    call_id, tool = ("", "") if bound is None else (bound.call_id or "", bound.tool)
    denies = isinstance(error, Denied | NotPending | Stale)
    outcome = Outcome.UNKNOWN if isinstance(error, OutcomeUnknown) else Outcome.DENIED if denies else Outcome.ERROR
    return ToolResult(call_id, tool, outcome, error=error_info(error))
