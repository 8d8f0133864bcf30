"""The context of a call, by the plan of its tool."""

from __future__ import annotations

from callgate.errors import UnknownTool
from callgate.hooks.context import InvokeContext
from callgate.providers.principal import ANONYMOUS, User
from callgate.runtime.pipeline.calls import (
    Call,
    TraceTo,
    context_of,
    context_of_none,
    known_options,
    nearest_call,
    refusal_of,
    refuse_user,
)
from callgate.runtime.pipeline.options import CallOptions
from callgate.runtime.pipeline.plans import Plans
from callgate.tools.arguments.hydration import HydrationResult


def context_for(plans: Plans, call: Call, user: User, trace: bool | TraceTo, options: CallOptions) -> InvokeContext:
    """Return the context of a call; a call of an unknown tool fails in it, so that hooks record the call.

    Raises:
        TypeError: *user* or an option is of the wrong type.
        Invalid: an id cannot be stored.
        RegistrationError: the plan of the tool is refused.
    """
    refuse_user(user)
    asked = call.call if isinstance(call, HydrationResult) else call
    try:
        name = asked.name if isinstance(asked.name, str) else ""  # a name of another type is unknown
        plan = plans.of(name, trace=bool(trace))
    except UnknownTool as error:
        ctx = context_of_none(plans.of_none(), asked, user, error, options)
    else:
        ctx = context_of(plan, asked, call, user, options)
    if trace:
        ctx.run.trace = [] if trace is True else trace(ctx)
    return ctx


def context_of_mistake(
    plans: Plans, tool: object, arguments: object, user: object, error: Exception, options: CallOptions
) -> InvokeContext:
    """Return the context of a call that cannot begin: hooks record it, and it ends with an error."""
    by = user if isinstance(user, User) else ANONYMOUS
    call, known = nearest_call(tool, arguments), known_options(options)
    return context_of_none(plans.of_none(), call, by, refusal_of(error), known)
