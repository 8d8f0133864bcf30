"""``gate.would``: whether a call would pass now, and why not. The tool does not run, and nothing is taken or counted."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from callgate.errors import Control, ControlRespond, ControlSuspend, InvocationError, UnknownTool
from callgate.hooks.context import InvokeContext
from callgate.hooks.plan import Plan
from callgate.hooks.stages import Stage
from callgate.hooks.step import Compiled
from callgate.providers.logs import LogEvent, emit
from callgate.runtime.call.calls import as_call, context_of
from callgate.runtime.call.closing import close, end_scope
from callgate.runtime.call.failure import as_invocation_error, counted, error_info, outcome_of
from callgate.runtime.call.invoke import walk
from callgate.runtime.call.leases import taken_off
from callgate.runtime.faces.explain import DryRun
from callgate.runtime.plans import Plans
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import User
from callgate.tools.registry import ToolRegistry

LIMIT = 30.0
"""Seconds that the hooks may take, for a tool without a deadline."""

_ASKED = frozenset(
    {
        Stage.WILL_CREATE_INVOKE_CONTEXT,
        Stage.DID_CREATE_INVOKE_CONTEXT,
        Stage.WILL_BIND_PROVIDERS,
        Stage.WILL_AUTHORIZE,
        Stage.WILL_CHECK_CONSENT,
        Stage.WILL_CHECK_FEATURE_FLAGS,
        Stage.WILL_PARSE_INPUT,
        Stage.WILL_VALIDATE_INPUT,
        Stage.WILL_NORMALIZE_INPUT,
        Stage.WILL_AUTHORIZE_INPUT,
    }
)
"""The stages that decide about a call by its user and its arguments. Those that take capacity are left out."""
_RECORDERS = frozenset({"audit", "metrics", "tracing"})


async def dry_run(
    plans: Plans, registry: ToolRegistry, tool: object, arguments: object, user: User, deadline: float | None
) -> DryRun:
    """See ``Gate.would``."""
    given = as_call(registry, tool, arguments)
    asked = given.call if isinstance(given, HydrationResult) else given
    name = asked.name
    known = isinstance(name, str) and name in registry and plans.may_see(registry.get(name), user)
    verdict = await _asked(plans.of(name), given, user, deadline) if known else _refused(UnknownTool("no such tool"))
    emit(LogEvent.CALL_ASKED, tool=name if known else "", user=user.id, verdict=verdict.verdict, code=verdict.code)
    return verdict


async def _asked(whole: Plan, given: Any, user: User, deadline: float | None) -> DryRun:
    host = copy.copy(whole.host)
    plan = whole.derive(host=host)
    ctx = context_of(plan, getattr(given, "call", given), given, user, {})
    limit = deadline if deadline is not None else plan.limit if plan.limit is not None else LIMIT
    under_way = host.under_way
    under_way[ctx] = asyncio.current_task() if asyncio.get_running_loop() is under_way.loop else under_way.admit(ctx)
    ctx.run.step = plan.start
    try:
        async with asyncio.timeout(limit):
            await walk(ctx, _steps(plan))
    except ControlRespond:  # a hook would answer in place of the tool
        return DryRun("pass")
    except (Exception, Control) as raised:  # noqa: BLE001  (each is a verdict, as it is of a call)
        return _verdict(ctx, counted(ctx, raised))
    finally:
        try:
            await _closed(ctx, plan)
        finally:
            del under_way[ctx]
    return DryRun("pass")


def _steps(plan: Plan) -> tuple[Compiled, ...]:
    recording = {id(one.hook) for one in plan.registrations if one.option("concern") in _RECORDERS}
    return tuple(
        one for one in plan.before if one[2].stage in _ASKED and not one[2].shadow and id(one[2].hook) not in recording
    )


async def _closed(ctx: InvokeContext, plan: Plan) -> None:
    """Release what hooks have taken for the length of a call, and let them finish."""
    held, ctx.run.leases = ctx.run.leases, None
    recording = {id(one.hook) for one in plan.registrations if one.option("concern") in _RECORDERS}
    finals = [one for one in plan.finals if id(one[2].hook) not in recording]
    if (closing := close(ctx, [*taken_off(held), *finals])) is not None:
        await closing
    if ctx.run.scope is not None:
        await end_scope(ctx)


def _verdict(ctx: InvokeContext, error: BaseException) -> DryRun:
    if isinstance(error, ControlSuspend):
        pending = error.pending
        return DryRun("suspend", f"{pending.kind}_required", pending.prompt, rules=pending.rules)
    ctx.run.error, ctx.run.outcome = error, outcome_of(error, ctx.run.step)
    return _refused(as_invocation_error(ctx))


def _refused(error: BaseException) -> DryRun:
    info = error_info(error if isinstance(error, InvocationError) else InvocationError())
    return DryRun("deny", info.code, info.public, issues=info.issues)
