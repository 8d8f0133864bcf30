"""``Authorize``: authorisation by roles, scopes and rules (RBAC, ABAC). The default is deny, and forbid wins."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Unpack
from weakref import ReferenceType, ref

from callgate.errors import Control, Denied, HookError, InvocationError
from callgate.hooks.base import Hook, Step, not_overridden
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage
from callgate.hooks.state.host import CallPlan
from callgate.hooks.stock.options import HookOptions, check_seconds, checked, keep, set_options
from callgate.hooks.stock.policy.rules import (
    FORBID,
    MAY_FORBID,
    PENDING,
    PERMIT,
    Decider,
    EventualJudgement,
    Judgement,
    Rule,
    Ruling,
    Verdict,
    drop,
    permit,
)
from callgate.providers.logs import LogEvent, emit_fault
from callgate.providers.principal import User
from callgate.tools.definition import ToolDefinition
from callgate.tools.definitions import Definitions
from callgate.tools.naming import did_you_mean
from callgate.tools.values import freeze

_CODE = "not_authorized"
_WITHOUT_INPUT = "it has rules on arguments, but is not registered at will_authorize_input, where they are evaluated"


@dataclass(frozen=True, slots=True, eq=False)
class _Concerned:
    """The rules of an ``Authorize`` for one tool, computed once: static rules as tuples, and deciders to call."""

    source: ReferenceType[CallPlan[InvokeContext]]  # a plan ends with the task whose client brought its tool
    static: tuple[tuple[bool, frozenset[str] | None, frozenset[str] | None, frozenset[str] | None, str], ...]
    deciders: tuple[Decider, ...]
    defaults: Mapping[str, object]
    on_input: bool  # the plan runs will_authorize_input of this hook


_AGAIN = (PENDING, MAY_FORBID)
_MAY_PERMIT = (PERMIT, PENDING)
_FINAL: tuple[bool, tuple[Decider, ...], Mapping[str, object]] = (True, (), {})
"""The state for the second stage when the first stage is final."""


class Authorize(Hook):
    """Authorisation: a call passes when at least one decider permits it, none forbids it, and none fails.

    Deciders are the rules that ``permit`` and ``forbid`` make, ``CedarPolicy``, or your own objects (``Decider``). A call
    without a verdict is denied, and so is a call whose decider fails or times out. The order of the deciders does not
    matter. Rules on arguments are evaluated at ``will_authorize_input``, all others at ``will_authorize``. A call has to
    pass every ``Authorize`` hook.

    Args:
        deciders: at least one, unless *roles* or *scopes* is given.
        roles: permit users with one of these roles; short for ``permit("roles", roles=...)``.
        scopes: permit users with all of these scopes; together with *roles* one rule that requires both.
        decider_timeout: seconds that one asynchronous decider may take. A plain function cannot be interrupted.
        public: the message to the model after a denial; default "The call was denied."
        options: the options of every hook: ``priority``, ``tools``, ``tags``, ``tenants``, ``mode``, ``filter``, ...

    Raises:
        HookError: no decider, two deciders with the same id, or a setting with an invalid value.
    """

    concern = "authorize"
    priority = 100

    @checked
    def __init__(
        self,
        *deciders: Decider,
        roles: Collection[str] | None = None,
        scopes: Collection[str] | None = None,
        decider_timeout: float = 5.0,
        public: str | None = None,
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        if roles is not None or scopes is not None:
            short = permit("roles" if roles is not None else "scopes", roles=roles, scopes=scopes)
            deciders = (*deciders, short)
        _check(deciders)
        check_seconds("Authorize", "decider_timeout", decider_timeout)
        self.deciders = tuple(sorted(deciders, key=lambda one: one.id))
        self.decider_timeout = decider_timeout
        self.public = public
        self._key = object()
        self._by_tool: dict[str, _Concerned] = {}
        self._checked: Collection[str] | None = None  # the names of the tools of the last check
        if all(isinstance(one, Rule) and one.when_input is None for one in deciders):  # no rule reads arguments
            self.leaves_out = not_overridden(self, Authorize, (Stage.WILL_AUTHORIZE_INPUT,))

    # ------------------------------------------------------------------ the stages

    def will_authorize(self, ctx: InvokeContext) -> Step:
        """Evaluate the rules that do not read arguments."""
        plan = ctx.run.plan
        known = self._by_tool.get(plan.definition.name)
        if known is None or known.source() is not plan:
            known = self._about(plan.definition, plan)
        if ctx.run.step.shadow:
            ctx.data[self._key] = _FINAL  # a shadow records a would-be denial once
        user = ctx.user
        permitted = False
        for permits, roles, scopes, tenants, id in known.static:
            if (
                (roles is None or not roles.isdisjoint(user.roles))
                and (scopes is None or scopes.issubset(user.scopes))
                and (tenants is None or user.tenant in tenants)
            ):
                if not permits:
                    self._deny(ctx, f"forbidden by rule {id!r}")
                permitted = True
        if known.deciders:
            return self._evaluate(ctx, known, permitted)
        if not permitted:
            self._deny(ctx, "no rule permits it")
        return None

    async def _evaluate(self, ctx: InvokeContext, known: _Concerned, permitted: bool) -> None:
        pending: list[Decider] = []
        may_permit = permitted
        for one in known.deciders:
            verdict = await self._verdict(ctx, one, None)
            permitted = permitted or verdict is PERMIT
            may_permit = may_permit or verdict in _MAY_PERMIT
            if verdict in _AGAIN:
                pending.append(one)
        if pending and not known.on_input:
            self._deny(ctx, _WITHOUT_INPUT)
        if not may_permit:
            self._deny(ctx, "no rule permits it")
        ctx.data[self._key] = (permitted, pending, known.defaults) if pending else _FINAL

    async def will_authorize_input(self, ctx: InvokeContext) -> None:
        """Evaluate the deciders that read arguments; run the first stage here if a filter left it out."""
        if self._key not in ctx.data:
            answer = self.will_authorize(ctx)
            if answer is not None:
                await answer
        permitted, pending, defaults = ctx.data.get(self._key, _FINAL)
        if not pending:
            return
        arguments = freeze({**defaults, **ctx.input})
        for one in pending:
            verdict = await self._verdict(ctx, one, arguments)
            permitted = permitted or verdict is PERMIT
        if not permitted:
            self._deny(ctx, "no rule permits it")

    async def _verdict(self, ctx: InvokeContext, one: Decider, arguments: Any) -> Verdict:
        """Return one decider's verdict. FORBID, an error and a timeout deny the call."""
        try:
            answer: EventualJudgement = (
                self._before_input(one, ctx.user, ctx.tool)
                if arguments is None
                else one.on_input(ctx.user, ctx.tool, arguments)
            )
            judgement = await self._in_time(answer) if isinstance(answer, Awaitable) else answer
            verdict = _verdict_of(judgement, final=arguments is not None)
        except (Exception, Control) as error:  # noqa: BLE001  (every error denies)
            what = f"did not answer within {self.decider_timeout:g} s" if isinstance(error, _TimedOut) else "failed"
            self._deny(ctx, f"decider {one.id!r} {what}", error)
        if verdict is FORBID:
            self._deny(ctx, f"forbidden by {judgement.reason if isinstance(judgement, Ruling) else f'rule {one.id!r}'}")
        return verdict

    async def _in_time(self, answer: Awaitable[Judgement]) -> Judgement:
        limit = asyncio.timeout(self.decider_timeout)
        try:
            async with limit:
                judgement = await answer
        except TimeoutError as error:
            if limit.expired():
                raise _TimedOut from error
            raise
        if limit.expired():  # the decider suppressed its cancellation; its verdict is too late
            raise _TimedOut
        return judgement

    def _deny(self, ctx: InvokeContext, why: str, cause: BaseException | None = None) -> NoReturn:
        raise Denied(f"{ctx.user.id} may not call {ctx.tool_id}: {why}", code=_CODE, public=self.public) from cause

    # ------------------------------------------------------------------ visibility

    def may_see(self, user: User, definition: ToolDefinition) -> bool:
        """Return False for a tool that the rules deny this user whatever the arguments.

        An asynchronous decider cannot be called here and hides the tool; see ``may_see_async``.
        """
        permitted = False
        for one in self.deciders:
            try:
                answer = self._before_input(one, user, definition)
                if isinstance(answer, Awaitable):
                    drop(answer)
                    return False
                verdict = _verdict_of(answer)
            except (Exception, Control) as error:  # noqa: BLE001  (every error hides the tool)
                emit_fault(LogEvent.HOOK_FAILED, error, hook=one.id)
                return False
            if verdict is FORBID:
                return False
            permitted = permitted or verdict in _MAY_PERMIT
        return permitted

    async def may_see_async(self, user: User, definition: ToolDefinition) -> bool:
        """``may_see`` that awaits asynchronous deciders, each within ``decider_timeout``."""
        permitted = False
        for one in self.deciders:
            try:
                answer = self._before_input(one, user, definition)
                verdict = _verdict_of(await self._in_time(answer) if isinstance(answer, Awaitable) else answer)
            except (Exception, Control) as error:  # noqa: BLE001  (every error hides the tool)
                emit_fault(LogEvent.HOOK_FAILED, error, hook=one.id)
                return False
            if verdict is FORBID:
                return False
            permitted = permitted or verdict in _MAY_PERMIT
        return permitted

    # ------------------------------------------------------------------ registration

    def check_tools(self, definitions: Iterable[ToolDefinition]) -> None:
        """Check the rules against the registered tools: unknown tool names, and policies that do not fit the arguments.

        Raises:
            HookError: a rule does not fit; the message names it. A ``forbid`` for a misspelt tool would forbid nothing.
        """
        tools = definitions if isinstance(definitions, Definitions) else tuple(definitions)
        names = tools.names if isinstance(tools, Definitions) else {definition.name for definition in tools}
        for one in self.deciders:
            if isinstance(one, Rule):
                for name in sorted(name for name in one.tools or () if name not in names):
                    raise HookError(f"rule {one.id!r}: there is no tool {name!r}{did_you_mean(name, names)}")
            checks = getattr(one, "check_tools", None)
            if checks is not None:
                checks(tools)
        self._checked = names

    def _before_input(self, one: Decider, user: User, tool: ToolDefinition) -> EventualJudgement:
        """Ask a decider. A tool of a client was not there when the gate checked its tools: it is checked now."""
        checks = getattr(one, "check_more_tools", None)
        if checks is not None and self._checked is not None and tool.name not in self._checked:
            checks((tool,))
        return one.before_input(user, tool)

    def _about(self, tool: ToolDefinition, source: CallPlan[InvokeContext]) -> _Concerned:
        rules = [one for one in self.deciders if isinstance(one, Rule) and one.concerns(tool)]
        static = tuple(
            (one.verdict is PERMIT, one.roles, one.scopes, one.tenants, one.id) for one in rules if one.is_static
        )
        deciders = tuple(
            one for one in self.deciders if not isinstance(one, Rule) or (one in rules and not one.is_static)
        )
        parts = ((tool.parameters or {}).get("properties") or {}).items()
        defaults = {name: part["default"] for name, part in parts if isinstance(part, dict) and "default" in part}
        made = _Concerned(ref(source), static, deciders, defaults, _runs_on_input(source, self))
        return keep(self._by_tool, tool.name, made)


class _TimedOut(InvocationError):
    """A decider exceeded ``decider_timeout``."""


def _check(deciders: tuple[Any, ...]) -> None:
    if not deciders:
        raise HookError('Authorize without a rule denies every call; write Authorize(roles={"manager"}) or give rules')
    for one in deciders:
        if not isinstance(one, Decider) or inspect.isclass(one):
            names = {one} if isinstance(one, str) else one
            if isinstance(names, set | frozenset | list | tuple) and all(isinstance(name, str) for name in names):
                raise HookError(f"Authorize takes rules by position; for roles write Authorize(roles={set(names)!r})")
            raise HookError(
                f"Authorize takes permit(...), forbid(...), CedarPolicy(...), or an object with id, before_input and "
                f"on_input; not {one!r:.80}"
            )
    ids = [one.id for one in deciders]
    for id in ids:
        if ids.count(id) > 1:
            raise HookError(f"Authorize has two deciders with the id {id!r}; give each rule an id of its own")


def _verdict_of(judgement: object, *, final: bool = False) -> Verdict:
    verdict = judgement.verdict if isinstance(judgement, Ruling) else judgement
    if not isinstance(verdict, Verdict) or (final and verdict in _AGAIN):
        raise TypeError(f"a decider returns a Verdict, not {type(judgement).__name__}")
    return verdict


def _runs_on_input(plan: CallPlan[InvokeContext], hook: Authorize) -> bool:
    return any(step.hook is hook and step.stage is Stage.WILL_AUTHORIZE_INPUT for _, _, step in plan.before)
