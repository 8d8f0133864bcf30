"""Human in the loop: ``RequireApproval`` asks a person to approve calls before they run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, Unpack

from callgate.errors import HookError
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.options import HookOptions, checked, set_options
from callgate.providers.kinds import refuse_result
from callgate.tools.approval import Approval, Demand

Ruled: TypeAlias = bool | Approval
"""What ``when`` returns: True (the call needs approval), False, or a rule for the call."""


class Demanding(Protocol):
    """A hook that may require approval of a call."""

    def approval_for(self, ctx: InvokeContext) -> Demand | Awaitable[Demand]:
        """Return the rule for this call, whose arguments are frozen; None when it needs no approval."""
        ...


class RequireApproval(Hook):
    """Approval by a person before a tool runs, for all tools or for those that *options* select.

    A call has to meet the rules of all these hooks and of the tool itself. One approver counts for every rule that
    accepts them.

    Args:
        rule: who has to approve; default: one other person of the caller's tenant.
        when: a function of the context, plain or async. It returns True (the call needs approval), False, or a rule for
            this call. Default: every call needs approval. A call fails if it returns another value, or takes longer than
            the option ``timeout``.
        options: the options of every hook: ``tools``, ``tags``, ``tenants``, ``effects``, ...

    Raises:
        HookError: a setting has an invalid value.
    """

    concern = "approval"

    @checked
    def __init__(
        self,
        rule: Approval | None = None,
        *,
        when: Callable[[InvokeContext], Ruled | Awaitable[Ruled]] | None = None,
        **options: Unpack[HookOptions],
    ) -> None:
        if not isinstance(rule, Approval | None) or (when is not None and not callable(when)):
            raise HookError("RequireApproval takes an Approval, and when= takes a function of the context")
        self._rule = rule or Approval()
        self._when = when
        set_options(self, options)

    def approval_for(self, ctx: InvokeContext) -> Demand | Awaitable[Demand]:
        """See ``Demanding``."""
        if self._when is None:
            return self._rule
        demand = self._when(ctx)
        return self._awaited(demand) if inspect.isawaitable(demand) else self._or_own(demand)

    async def _awaited(self, demand: Awaitable[Ruled]) -> Demand:
        return self._or_own(await demand)

    def _or_own(self, demand: object) -> Demand:
        if not isinstance(demand, bool | Approval):  # None is what a function returns that forgot its verdict
            refuse_result("RequireApproval", "when", demand, "True, False or an Approval")
        return self._rule if demand is True else demand
