"""From a tool call to the context that it runs in."""

from __future__ import annotations

from callgate.errors import InvocationError
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.runtime.engine import CallOptions, apply_options
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ToolCall, User


def context_of(
    plan: Plan, asked: ToolCall, given: ToolCall | HydrationResult, user: User, options: CallOptions
) -> InvokeContext:
    """A context for a call; what was hydrated before is not read again where it is vouched for, or failed."""
    ctx = InvokeContext(plan, asked.arguments, user, plan.now())
    apply_options(ctx, options)
    ctx._call = asked
    hydrated = given if isinstance(given, HydrationResult) else None
    if hydrated is not None and not (
        hydrated.success and not hydrated.vouched_for(plan.definition, plan.builtins.arguments)
    ):
        ctx.hydration = ctx._input = hydrated
    elif asked.truncated:
        ctx._input = asked  # no text: the short way must not take it
    return ctx


def context_of_none(
    plan: Plan, asked: ToolCall, user: User, error: InvocationError, options: CallOptions
) -> InvokeContext:
    """A context for a call that runs no tool: it goes the way of an error, so that it is recorded."""
    ctx = InvokeContext(plan, asked.arguments, user, plan.now())
    apply_options(ctx, {**options, "deadline": None})
    ctx.step, ctx._call, ctx.unknown = plan.start, asked, error
    return ctx
