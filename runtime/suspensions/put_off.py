"""Decided calls that a limit or a store put off before the tool had an effect: they wait again under their handles.

An approval is used up by a run of the tool, not by an attempt to run it.
"""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import replace

from callgate.errors import DeadlineExceeded, RetryLater, ToolError
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.facts import Suspension
from callgate.providers.stores.effects import EffectState, SuspensionState
from callgate.runtime.suspensions.decisions import suspension_of
from callgate.runtime.suspensions.reads import note_in_time
from callgate.runtime.suspensions.resumption import Resumed, SuspendedCall, handle_of, signed
from callgate.runtime.suspensions.suspensions import STORE_FAILED, SuspensionManager

POLICY_FAILED = "policy_error"
"""The code of a call that was refused because a policy failed to run, which is no decision against it."""


def is_put_off(ctx: InvokeContext) -> bool:
    """Return whether a call may run later: a limit, a fault of a store or a policy, a deadline or a cancellation ended it.

    An effect that took place, or may have, is never put off. A read that has begun is put off only by ``RetryLater``.
    """
    run, error = ctx.run, ctx.run.error
    if run.claim is not None and run.claim.outcome(run) is not EffectState.NO_EFFECT:
        return False
    code = getattr(error, "code", None)
    if isinstance(error, RetryLater):
        return True
    if run.executed:  # whatever stopped it afterwards, the read has run
        return False
    if code in STORE_FAILED:
        return True
    if error is not None and code == POLICY_FAILED:
        return not isinstance(error.__cause__, ToolError)  # as which an approver answers with an error
    has_begun = run.failed_in is run.plan.running or run.body_error is not None
    return isinstance(error, DeadlineExceeded | CancelledError) and not has_begun


async def wait_again(waits: SuspensionManager, ctx: InvokeContext, resumed: Resumed) -> Suspension | None:
    """Let a call that was put off wait as before its last decision, and return its suspension.

    Return None if its row stays used: the store failed, or does not replace such a row.
    """
    wait, tenant = replace(resumed.wait, state=SuspensionState.WAITING), resumed.tenant
    if resumed.wait.state is SuspensionState.USED or ctx.run.claim is not None:
        wait = signed(waits.keys, tenant, replace(wait, number=wait.number + 2))  # the use was the version between
        if not await note_in_time(waits.store().suspensions.replace(tenant, wait)):
            return None
    return suspension_of(SuspendedCall.load(wait.body), wait.kind, handle_of(waits.keys, tenant, wait.id))
