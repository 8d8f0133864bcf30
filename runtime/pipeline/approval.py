"""The approval step: it runs last in ``will_authorize_input`` and suspends calls until a person approves them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from callgate.errors import ControlSuspend, Denied
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.facts import OnRepair, Suspension
from callgate.tools.approval import Approval, Demand, Requirement, rule_of
from callgate.tools.values import thaw

PLACE = "approval"
"""The name of the one place in the lifecycle where a call is suspended for approval."""

Source: TypeAlias = Callable[[InvokeContext], Demand | Awaitable[Demand]]
"""A function from a context to the approval that the call needs."""

_REPAIRED = Approval(reason="A repairer, not the model, wrote these arguments.")


def of_repaired(on_repair: OnRepair, *, has_approvers: bool) -> Source:
    """Return the rule for a call whose arguments a repairer wrote."""

    def rule(_: InvokeContext) -> Demand:
        if on_repair == "run":
            return None
        if on_repair == "approve" and has_approvers:
            return _REPAIRED
        why, code = "a repairer wrote the arguments", "repaired"
        if on_repair != "refuse":
            why, code = (
                f"{why}; call the tool through a gate with a store, where they are approved",
                "approval_required",
            )
        public = "The arguments were not valid. Their repair was refused; send valid arguments."
        raise Denied(why, code=code, public=public, no_effect=True)

    return rule


def of_tool(requirement: Requirement) -> Source | None:
    """Return the approval rule that the tool declares, or None if it declares none."""
    if callable(requirement):
        return lambda ctx: requirement(thaw(ctx.run.input))  # a copy of the arguments that will run
    rule = rule_of(requirement)
    return None if rule is None else lambda _: rule


def approval_step(sources: Sequence[Source]) -> Callable[[InvokeContext], Awaitable[None] | None]:
    """Make the built-in approval step: it lets the call continue, or suspends the call until every rule is met."""

    def check(ctx: InvokeContext) -> Awaitable[None] | None:
        rules: list[Approval] = []
        for number, source in enumerate(sources):
            demand = source(ctx)
            if inspect.isawaitable(demand):
                return slowly(ctx, rules, demand, sources[number + 1 :])
            rules += _rules(demand)
        return decide(ctx, rules)

    async def slowly(
        ctx: InvokeContext, rules: list[Approval], demand: Awaitable[Demand], rest: Sequence[Source]
    ) -> None:
        rules += _rules(await demand)
        for source in rest:
            found = source(ctx)
            rules += _rules(await found if inspect.isawaitable(found) else found)
        if (known := decide(ctx, rules)) is not None:
            await known

    return check


def _rules(demand: Demand) -> list[Approval]:
    rule = rule_of(demand)
    return [] if rule is None else [rule]


def decide(ctx: InvokeContext, rules: list[Approval]) -> Awaitable[None] | None:
    """Continue if the rules are met; otherwise end the call with the approver's response, or suspend it.

    Before a person is asked, the ledger answers the repeat of an effect: the awaitable that is returned does both.
    A response in place of the tool's output is not an approval. The tool then does not run, even if no rule applies now.
    """
    resumed = ctx.run.resumed
    if resumed is not None:
        answer = resumed.answer_at(PLACE, ctx.input_hash)
        if answer is not None:
            ctx.respond(answer.take())
        if not rules and resumed.is_answered_at(PLACE):
            raise Denied("its arguments have changed since it was answered", code="stale", no_effect=True)
    if not rules or (resumed is not None and resumed.approved(rules, ctx.input_hash)):
        return None
    reasons = "; ".join(dict.fromkeys(rule.reason for rule in rules if rule.reason))
    prompt = reasons or f"{ctx.tool_name} needs approval before it runs."
    expires = min(rule.expires for rule in rules)
    asked = ControlSuspend(Suspension("approval", prompt, expires=expires, rules=tuple(rules), place=PLACE))
    if resumed is None and (effect := ctx.run.plan.effect) is not None:
        return _ask_if_new(effect.look(ctx), asked)
    raise asked


async def _ask_if_new(looking: Awaitable[None], asked: ControlSuspend) -> None:
    await looking
    raise asked
