"""Arguments that are not those that the caller sent: an approver, a repairer or a hook has changed them."""

from __future__ import annotations

from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Section
from callgate.hooks.state.facts import FROZEN
from callgate.tools.calls import Outcome
from callgate.tools.values import thaw

_NOT_RUN = frozenset({Outcome.CONFLICT, Outcome.IN_FLIGHT, Outcome.SUSPENDED})


def are_changed(ctx: InvokeContext) -> bool:
    """Return True if the frozen arguments are others than the caller's, beyond defaults and conversions."""
    run = ctx.run
    if run.repair is not None or (run.resumed is not None and run.resumed.bound.changed):
        return True
    return run.input_log is not None and run.plan.builtins.differ(run.raw_input, run.input)


def ran_with(ctx: InvokeContext) -> object:
    """Return the arguments that ran, masked as records show them, if they are changed; else None."""
    run = ctx.run
    early = run.failed_in is not None and run.failed_in.row.section is Section.BEFORE
    if run.input_state != FROZEN or early or run.outcome in _NOT_RUN or not are_changed(ctx):
        return None
    try:
        return thaw(ctx.masked_input)
    except Exception as error:  # noqa: BLE001  (a mask that fails must not show what it hides)
        ctx.suppress(error)
        return {}
