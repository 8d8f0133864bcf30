"""``gate.explain``: the plan of a tool, and the reason for each hook. ``gate.would``: whether a call would pass now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from callgate.errors import Control, ControlRespond, ControlSuspend, InvocationError, UnknownTool
from callgate.hooks.context import InvokeContext
from callgate.hooks.linter import Finding, lint
from callgate.hooks.plan import Plan
from callgate.hooks.selection import why_not
from callgate.hooks.stages import Stage
from callgate.hooks.state.step import StepCall
from callgate.providers.logs import LogEvent, emit
from callgate.providers.principal import User
from callgate.runtime.pipeline.calls import Call, as_call, context_of
from callgate.runtime.pipeline.closing import close, end_scope
from callgate.runtime.pipeline.failure import as_invocation_error, counted, error_info, outcome_of
from callgate.runtime.pipeline.leases import releases_of
from callgate.runtime.pipeline.plans import Plans
from callgate.runtime.pipeline.run import walk
from callgate.tools.approval import Approval
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import Issue

DRY_RUN_LIMIT = 30.0
"""Seconds that the hooks of a dry run may take, for a tool without a deadline."""

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


@dataclass(frozen=True, slots=True)
class HookChoice:
    """One registered hook: included in the plan or not, and the reason."""

    name: str
    origin: str
    included: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The plan of a tool, the choice about every hook, and the findings of the linter; ``str()`` is for people."""

    plan: Plan
    choices: tuple[HookChoice, ...]
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        lines = [str(self.plan), "hooks"]
        lines += [
            f"  {'in ' if one.included else 'out'} {one.name} ({one.origin}): {one.reason}" for one in self.choices
        ]
        lines += [f"lint {finding}" for finding in self.findings]
        return "\n".join(lines)


def explain(plan: Plan, user: User | None = None) -> Explanation:
    """Explain a plan; with *user*, also the hooks that are limited to other tenants."""
    choices = []
    for one in plan.registrations:
        out = why_not(one, plan.definition)
        if out is None and user is not None and one.tenants is not None and user.tenant not in one.tenants:
            out = f"limited to tenants {sorted(one.tenants)}; the user's is {user.tenant!r}"
        if out is None and one.runs_nowhere is not None:
            out = f"runs nowhere: {one.runs_nowhere}"
        asks = " when its filter says so" if one.filter is not None else ""
        into = f"priority {one.priority:g}, runs at {', '.join(one.all_stages())}{asks}" if out is None else ""
        choices.append(HookChoice(one.name, one.origin, out is None, out or into))
    return Explanation(plan, tuple(choices), tuple(lint(plan)))


@dataclass(frozen=True, slots=True)
class DryRun:
    """The verdict on a call that was not made.

    ``verdict`` is ``"pass"``, ``"deny"`` (also for arguments that are not valid), or ``"suspend"``: the call would wait for
    a decision. ``code`` and ``reason`` are those of the refusal, or of the request for a decision; the caller may read
    them. ``issues`` say what is wrong with the arguments. ``rules`` name who may approve.
    """

    verdict: Literal["pass", "deny", "suspend"]
    code: str | None = None
    reason: str | None = None
    issues: tuple[Issue, ...] = ()
    rules: tuple[Approval, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict == "pass"


async def dry_run(plans: Plans, tool: object, arguments: object, user: User, deadline: float | None) -> DryRun:
    """See ``Gate.would``."""
    given = as_call(plans.registry, tool, arguments)
    name = (given.call if isinstance(given, HydrationResult) else given).name
    known = isinstance(name, str) and name in plans.registry and plans.may_see(plans.registry.get(name), user)
    verdict = await _asked(plans.of(name), given, user, deadline) if known else _refused(UnknownTool("no such tool"))
    emit(LogEvent.CALL_ASKED, tool=name if known else "", user=user.id, verdict=verdict.verdict, code=verdict.code)
    return verdict


async def _asked(plan: Plan, given: Call, user: User, deadline: float | None) -> DryRun:
    ctx = context_of(plan, given.call if isinstance(given, HydrationResult) else given, given, user, {})
    limit = deadline if deadline is not None else plan.limit if plan.limit is not None else DRY_RUN_LIMIT
    under_way = plan.host.under_way
    under_way[ctx] = under_way.admit(ctx)
    ctx.run.step = plan.start
    steps = [one for one in _deciding(plan, plan.before) if one[2].stage in _ASKED and not one[2].shadow]
    try:
        async with asyncio.timeout(limit):
            await walk(ctx, tuple(steps))
    except ControlRespond:  # a hook would answer in place of the tool
        return DryRun("pass")
    except (Exception, Control) as raised:  # noqa: BLE001  (each is a verdict, as it is of a call)
        return _verdict(ctx, counted(ctx, raised))
    finally:
        try:  # releases what hooks have taken for the length of a call, and lets them finish
            held, ctx.run.leases = ctx.run.leases, None
            if (closing := close(ctx, [*releases_of(held), *_deciding(plan, plan.finals)])) is not None:
                await closing
            if ctx.run.scope is not None:
                await end_scope(ctx)
        finally:
            del under_way[ctx]
    return DryRun("pass")


def _deciding(plan: Plan, steps: Iterable[StepCall]) -> list[StepCall]:
    """Return the steps of hooks that are no recorders."""
    recording = {id(one.hook) for one in plan.registrations if one.option("concern") in _RECORDERS}
    return [one for one in steps if id(one[2].hook) not in recording]


def _verdict(ctx: InvokeContext, error: BaseException) -> DryRun:
    if isinstance(error, ControlSuspend):
        pending = error.pending
        return DryRun("suspend", f"{pending.kind}_required", pending.prompt, rules=pending.rules)
    ctx.run.error, ctx.run.outcome = error, outcome_of(error, ctx.run.step)
    return _refused(as_invocation_error(ctx))


def _refused(error: BaseException) -> DryRun:
    info = error_info(error if isinstance(error, InvocationError) else InvocationError())
    return DryRun("deny", info.code, info.public, issues=info.issues)
