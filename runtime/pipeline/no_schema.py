"""Calls of tools without a schema: the mode that holds for each, by the tool's declaration or the gate's policy."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from callgate.errors import Denied
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.facts import NoSchemaVerdict
from callgate.providers.logs import LogEvent, emit
from callgate.tools.approval import Approval, Demand
from callgate.tools.calls import User
from callgate.tools.definition import Effect, NoSchemaMode, ToolDefinition

NoSchemaAnswer: TypeAlias = NoSchemaMode | Literal["read-only", "human-approval", "full"] | Approval | None
"""The mode that holds for one call; an ``Approval`` is the mode ``human-approval`` with this rule; None denies it."""

NoSchemaPolicy: TypeAlias = Callable[[ToolDefinition, User], NoSchemaAnswer | Awaitable[NoSchemaAnswer]]
"""Decides, by tool and user, in which mode a call of a tool without a schema runs; plain or async."""


class NoSchemaRules:
    """The rules for calls of one tool without a schema. ``has_approvers`` is False where no call can be suspended."""

    def __init__(self, definition: ToolDefinition, policy: NoSchemaPolicy | None, *, has_approvers: bool) -> None:
        self.definition = definition
        self.policy = policy
        self.has_approvers = has_approvers
        self.own = NoSchemaVerdict(definition.no_schema_mode)

    @property
    def may_ask(self) -> bool:
        """True if some call may need approval, and can be suspended for it."""
        asks = self.policy is not None or self.own.mode is NoSchemaMode.HUMAN_APPROVAL
        return asks and self.has_approvers

    def mode_of(self, verdict: NoSchemaVerdict | None) -> NoSchemaMode | None:
        """Return the mode that holds for a call with this verdict; before the policy has decided, that of the tool."""
        return (self.own if verdict is None else verdict).mode

    def decide(self, ctx: InvokeContext) -> Awaitable[None] | None:
        """Ask the policy; a built-in step of ``will_authorize``."""
        assert self.policy is not None
        answer = self.policy(self.definition, ctx.user)
        if inspect.isawaitable(answer):
            return self._later(ctx, answer)
        self._settle(ctx, answer)
        return None

    async def _later(self, ctx: InvokeContext, answer: Awaitable[NoSchemaAnswer]) -> None:
        self._settle(ctx, await answer)

    def _settle(self, ctx: InvokeContext, answer: NoSchemaAnswer) -> None:
        if isinstance(answer, Approval):
            verdict = NoSchemaVerdict(NoSchemaMode.HUMAN_APPROVAL, answer)
        else:
            verdict = NoSchemaVerdict(None if answer is None else NoSchemaMode(answer))
        ctx.run.no_schema = verdict
        if verdict.mode is None:
            raise Denied("the policy allows no call without a schema here", code="no_schema")
        if verdict.mode is NoSchemaMode.READ_ONLY and self.definition.effect is not Effect.READ:
            raise Denied("the policy allows only tools that declare effect='read' without a schema", code="no_schema")

    def demand(self, ctx: InvokeContext) -> Demand:
        """Return the approval that a call needs; a source of the approval step."""
        verdict = self._verdict(ctx)
        return (verdict.approval or True) if verdict.mode is NoSchemaMode.HUMAN_APPROVAL else False

    def check(self, ctx: InvokeContext) -> None:
        """Refuse a call that its mode does not allow."""
        mode = self.mode_of(ctx.run.no_schema)
        if mode is NoSchemaMode.HUMAN_APPROVAL and not self.has_approvers:
            raise Denied(
                "a tool without a schema in mode human-approval needs an approver; call it through a gate with a store",
                code="approval_required",
            )
        if mode is None:
            raise Denied("a tool without a schema is not callable", code="no_schema")

    def admit(self, ctx: InvokeContext) -> None:
        """Log that unvalidated arguments were admitted; the runtime freezes them now."""
        emit(LogEvent.CALL_NOT_VALIDATED, ctx)

    def _verdict(self, ctx: InvokeContext) -> NoSchemaVerdict:
        return self.own if ctx.run.no_schema is None else ctx.run.no_schema
