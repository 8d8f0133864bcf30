"""``Authorize``: who may call which tool with what. Nothing passes that no rule permits, and what one forbids stays out."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Unpack

from callgate.errors import Control, Denied, HookError, InvocationError
from callgate.hooks.base import Hook, Step, not_overridden
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage
from callgate.hooks.stock.options import HookOptions, set_options
from callgate.hooks.stock.policy.rules import (
    FORBID,
    MAY_FORBID,
    PENDING,
    PERMIT,
    Answer,
    Decider,
    Rule,
    Ruling,
    Said,
    Verdict,
    drop,
    permit,
)
from callgate.providers.principal import User
from callgate.tools.definition import ToolDefinition
from callgate.tools.naming import did_you_mean
from callgate.tools.values import freeze

_CODE = "not_authorized"
_WITHOUT_INPUT = "it has rules on arguments and is not registered at will_authorize_input, where they would be asked"


@dataclass(frozen=True, slots=True, eq=False)
class _Concerned:
    """What an ``Authorize`` has to say about one tool, worked out once: static rules in parts, and who has to be asked."""

    source: Any  # the plan
    static: tuple[tuple[bool, frozenset[str] | None, frozenset[str] | None, frozenset[str] | None, str], ...]
    asked: tuple[Decider, ...]
    defaults: Mapping[str, Any]
    heard: bool  # whether the plan asks it about the arguments, too


_AGAIN = (PENDING, MAY_FORBID)
_MAY_PERMIT = (PERMIT, PENDING)
_SAID: tuple[bool, tuple[Decider, ...], Mapping[str, Any]] = (True, (), {})
"""What is kept for the second stage when the first has said it all."""


class Authorize(Hook):
    """Lets a call pass when one of its deciders permits it, none forbids it, and none of them fails.

    Deciders are what ``permit`` and ``forbid`` make, ``CedarPolicy``, or objects of your own (``Decider``). No verdict
    denies; an error or a hang denies. In which order they are given does not matter: they are asked in the order of
    their ids, those without a condition of their own first, and the first that forbids ends it. Rules on arguments are
    asked at ``will_authorize_input``, all others at ``will_authorize``. Several ``Authorize`` hooks have to agree.

    Args:
        deciders: at least one, unless *roles* or *scopes* is given.
        roles: short for ``permit("roles", roles=...)``.
        scopes: short for ``permit("scopes", scopes=...)``; with *roles* one rule that asks for both.
        time_limit: seconds that one asynchronous decider may take. A plain function cannot be interrupted.
        public: what a model is told of a denial; default "The call was denied."
        options: those of ``Hook``: ``priority``, ``tools``, ``tags``, ``tenants``, ``timeout``, ``mode``, ``filter``.

    Raises:
        HookError: nothing that decides, two deciders of one id, or an option that means nothing.
    """

    concern = "authorize"
    priority = 100

    def __init__(
        self,
        *deciders: Decider,
        roles: Collection[str] | None = None,
        scopes: Collection[str] | None = None,
        time_limit: float = 5.0,
        public: str | None = None,
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        if roles is not None or scopes is not None:
            short = permit("roles" if roles is not None else "scopes", roles=roles, scopes=scopes)
            deciders = (*deciders, short)
        _check(deciders)
        if not time_limit > 0:
            raise HookError(f"Authorize: time_limit is {time_limit!r}; give seconds above 0")
        self.deciders = tuple(sorted(deciders, key=lambda one: one.id))
        self.time_limit = time_limit
        self.public = public
        self._key = object()
        self._by_tool: dict[str, _Concerned] = {}
        if all(isinstance(one, Rule) and one.when_input is None for one in deciders):  # nothing asks for arguments
            self.leaves_out = not_overridden(self, Authorize, (Stage.WILL_AUTHORIZE_INPUT,))

    # ------------------------------------------------------------------ the stages

    def will_authorize(self, ctx: InvokeContext) -> Step:
        """Everything that can be said without the arguments."""
        plan = ctx.plan
        known = self._by_tool.get(plan.definition.name)
        if known is None or known.source is not plan:
            known = self._about(plan.definition, plan)
        if ctx.step.shadow:
            ctx.data[self._key] = _SAID  # what it would have denied is recorded once
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
        if known.asked:
            return self._ask_all(ctx, known, permitted)
        if not permitted:
            self._deny(ctx, "no rule permits it")
        return None

    async def _ask_all(self, ctx: InvokeContext, known: _Concerned, permitted: bool) -> None:
        pending: list[Decider] = []
        may_permit = permitted
        for one in known.asked:
            verdict = await self._ask(ctx, one, None)
            permitted = permitted or verdict is PERMIT
            may_permit = may_permit or verdict in _MAY_PERMIT
            if verdict in _AGAIN:
                pending.append(one)
        if pending and not known.heard:
            self._deny(ctx, _WITHOUT_INPUT)
        if not may_permit:
            self._deny(ctx, "no rule permits it")
        ctx.data[self._key] = (permitted, pending, known.defaults) if pending else _SAID

    async def will_authorize_input(self, ctx: InvokeContext) -> None:
        """The deciders that asked for the arguments. Where a filter left out the first stage, it is made up for."""
        if self._key not in ctx.data:
            answer = self.will_authorize(ctx)
            if answer is not None:
                await answer
        permitted, pending, defaults = ctx.data.get(self._key, _SAID)
        if not pending:
            return
        arguments = freeze({**defaults, **ctx.input})
        for one in pending:
            verdict = await self._ask(ctx, one, arguments)
            permitted = permitted or verdict is PERMIT
        if not permitted:
            self._deny(ctx, "no rule permits it")

    async def _ask(self, ctx: InvokeContext, one: Decider, arguments: Any) -> Verdict:
        """One decider's verdict; FORBID, an error and a hang deny here."""
        try:
            answer: Answer = (
                one.before_input(ctx.user, ctx.tool)
                if arguments is None
                else one.on_input(ctx.user, ctx.tool, arguments)
            )
            said = await self._in_time(answer) if isinstance(answer, Awaitable) else answer
            verdict = _verdict_of(said, final=arguments is not None)
        except (Exception, Control) as error:  # noqa: BLE001  (whatever it raises denies)
            what = f"did not answer within {self.time_limit:g} s" if isinstance(error, _Hung) else "failed"
            self._deny(ctx, f"decider {one.id!r} {what}", error)
        if verdict is FORBID:
            self._deny(ctx, f"forbidden by {said.reason if isinstance(said, Ruling) else f'rule {one.id!r}'}")
        return verdict

    async def _in_time(self, answer: Awaitable[Said]) -> Said:
        limit = asyncio.timeout(self.time_limit)
        try:
            async with limit:
                said = await answer
        except TimeoutError as error:
            if limit.expired():
                raise _Hung from error
            raise
        if limit.expired():  # it swallowed its cancellation: what it says now comes too late
            raise _Hung
        return said

    def _deny(self, ctx: InvokeContext, why: str, cause: BaseException | None = None) -> NoReturn:
        raise Denied(f"{ctx.user.id} may not call {ctx.tool_id}: {why}", code=_CODE, public=self.public) from cause

    # ------------------------------------------------------------------ visibility

    def may_see(self, user: User, definition: ToolDefinition) -> bool:
        """Whether a user is offered a tool, by the same rules: not what they would be denied whatever the arguments.

        A decider that has to wait cannot be asked here and hides the tool: see ``may_see_async``.
        """
        permitted = False
        for one in self.deciders:
            try:
                answer = one.before_input(user, definition)
                if isinstance(answer, Awaitable):
                    drop(answer)
                    return False
                verdict = _verdict_of(answer)
            except (Exception, Control):  # noqa: BLE001  (whatever it raises hides the tool)
                return False
            if verdict is FORBID:
                return False
            permitted = permitted or verdict in _MAY_PERMIT
        return permitted

    async def may_see_async(self, user: User, definition: ToolDefinition) -> bool:
        """``may_see`` that waits for deciders which have to wait, each within the time limit."""
        permitted = False
        for one in self.deciders:
            try:
                answer = one.before_input(user, definition)
                verdict = _verdict_of(await self._in_time(answer) if isinstance(answer, Awaitable) else answer)
            except (Exception, Control):  # noqa: BLE001  (whatever it raises hides the tool)
                return False
            if verdict is FORBID:
                return False
            permitted = permitted or verdict in _MAY_PERMIT
        return permitted

    # ------------------------------------------------------------------ registration

    def check_tools(self, definitions: Iterable[ToolDefinition]) -> None:
        """Hold the rules against the tools there are: names that no tool has, policies that do not fit their arguments.

        Raises:
            HookError: names the rule; a rule that forbids and is about no tool would be a silent hole.
        """
        tools = {definition.name: definition for definition in definitions}
        for one in self.deciders:
            if isinstance(one, Rule):
                for name in sorted((one.tools or frozenset()) - tools.keys()):
                    raise HookError(f"rule {one.id!r}: there is no tool {name!r}{did_you_mean(name, tools)}")
            checks = getattr(one, "check_tools", None)
            if checks is not None:
                checks(tools.values())

    def _about(self, tool: ToolDefinition, source: Any) -> _Concerned:
        rules = [one for one in self.deciders if isinstance(one, Rule) and one.concerns(tool)]
        static = tuple(
            (one.verdict is PERMIT, one.roles, one.scopes, one.tenants, one.id) for one in rules if one.is_static
        )
        asked = tuple(one for one in self.deciders if not isinstance(one, Rule) or (one in rules and not one.is_static))
        parts = ((tool.parameters or {}).get("properties") or {}).items()
        defaults = {name: part["default"] for name, part in parts if isinstance(part, dict) and "default" in part}
        made = self._by_tool[tool.name] = _Concerned(source, static, asked, defaults, _asks_input(source, self))
        return made


class _Hung(InvocationError):
    """A decider took longer than its time."""


def _check(deciders: tuple[Any, ...]) -> None:
    if not deciders:
        raise HookError('Authorize without a rule denies everything; give it one, such as permit("staff", roles={...})')
    for one in deciders:
        if not isinstance(one, Decider) or inspect.isclass(one):
            raise HookError(
                f"Authorize takes what permit(...), forbid(...) and CedarPolicy(...) make, or an object with id, "
                f"before_input and on_input; not {one!r:.80}"
            )
    ids = [one.id for one in deciders]
    for id in ids:
        if ids.count(id) > 1:
            raise HookError(f"Authorize has two deciders named {id!r}; a denial could not say which")


def _verdict_of(said: Any, *, final: bool = False) -> Verdict:
    verdict = said.verdict if isinstance(said, Ruling) else said
    if not isinstance(verdict, Verdict) or (final and verdict in _AGAIN):
        raise TypeError(f"a decider answers with a Verdict, not {type(said).__name__}")
    return verdict


def _asks_input(plan: Any, hook: Authorize) -> bool:
    return any(step.hook is hook and step.stage is Stage.WILL_AUTHORIZE_INPUT for _, _, step in plan.before)
