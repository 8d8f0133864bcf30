"""Approval before a tool runs: what asks for it, and the last step of ``will_authorize_input``, which sees that it is there."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, Unpack

from callgate.errors import ControlSuspend, Denied, HookError
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.hooks.facts import Suspension
from callgate.hooks.stock.options import HookOptions, set_options
from callgate.tools.approval import Approval, Demand, Requirement, rule_of
from callgate.tools.values import thaw

PLACE = "approval"
"""Where in the lifecycle approval is asked for: there is one such place."""

Source: TypeAlias = Callable[[Any], Demand | Awaitable[Demand]]
"""From a context to what it demands."""


class Demanding(Protocol):
    """A hook that may ask for approval of a call."""

    def approval_for(self, ctx: InvokeContext) -> Demand | Awaitable[Demand]:
        """The rule for this call, its arguments frozen; None where it needs none."""
        ...


class RequireApproval(Hook):
    """A policy that asks for approval before tools run: all tools, or those that *options* name.

    What several of these and the tool itself ask for must all be met, each by its own rule; who approves counts for
    every rule that lets them.

    Args:
        rule: who has to approve; default: one other person of the caller's tenant.
        when: a function of the context, plain or async, that says whether this call needs it: True, False, or a rule
            of its own. Default: every call.
        options: those of every hook: ``tools``, ``tags``, ``tenants``, ``effects``, ...

    Raises:
        HookError: a setting that means nothing.
    """

    concern = "approval"

    def __init__(
        self,
        rule: Approval | None = None,
        *,
        when: Callable[[InvokeContext], Demand | Awaitable[Demand]] | None = None,
        **options: Unpack[HookOptions],
    ) -> None:
        if not isinstance(rule, Approval | None) or (when is not None and not callable(when)):
            raise HookError("RequireApproval takes an Approval, and as when= a function of the context")
        self._rule = rule or Approval()
        self._when = when
        set_options(self, options)

    def approval_for(self, ctx: InvokeContext) -> Demand | Awaitable[Demand]:
        """See ``Demanding``."""
        if self._when is None:
            return self._rule
        said = self._when(ctx)
        return self._settled(said) if inspect.isawaitable(said) else self._or_own(said)

    async def _settled(self, said: Awaitable[Demand]) -> Demand:
        return self._or_own(await said)

    def _or_own(self, said: Demand) -> Demand:
        return self._rule if said is True else said


def of_tool(requirement: Requirement) -> Source | None:
    """What a tool itself asks for; None when that is nothing."""
    if callable(requirement):
        return lambda ctx: requirement(thaw(ctx._input))  # what will run, and a copy that is its own
    rule = rule_of(requirement)
    return None if rule is None else lambda _: rule


def approval_step(sources: Sequence[Source]) -> Callable[[Any], Any]:
    """The built-in step: it goes on, or suspends the call until the rules are met."""

    def check(ctx: Any) -> Any:
        rules: list[Approval] = []
        for number, source in enumerate(sources):
            demand = source(ctx)
            if inspect.isawaitable(demand):
                return slowly(ctx, rules, demand, sources[number + 1 :])
            rules += _rules(demand)
        return decide(ctx, rules)

    async def slowly(ctx: Any, rules: list[Approval], demand: Any, rest: Sequence[Source]) -> None:
        rules += _rules(await demand)
        for source in rest:
            demand = source(ctx)
            rules += _rules(await demand if inspect.isawaitable(demand) else demand)
        decide(ctx, rules)

    return check


def _rules(demand: Any) -> list[Approval]:
    rule = rule_of(demand)
    return [] if rule is None else [rule]


def decide(ctx: Any, rules: list[Approval]) -> None:
    """Go on where the rules are met; end here with the approver's answer, or suspended, where they are not.

    Who has answered in the tool's place did not approve of it: it does not run, also where nobody is asked any more.
    """
    resumed = ctx.resumed
    if resumed is not None:
        answer = resumed.answer_at(PLACE, ctx.input_hash)
        if answer is not None:
            ctx.respond(answer.take())
        if not rules and resumed.is_answered_at(PLACE):
            raise Denied("its arguments have changed since it was answered", code="stale", no_effect=True)
    if not rules or (resumed is not None and resumed.approved(rules, ctx.input_hash)):
        return
    reasons = "; ".join(dict.fromkeys(rule.reason for rule in rules if rule.reason))
    prompt = reasons or f"{ctx.tool_name} needs approval before it runs."
    expires = min(rule.expires for rule in rules)
    raise ControlSuspend(Suspension("approval", prompt, expires=expires, rules=tuple(rules), place=PLACE))
