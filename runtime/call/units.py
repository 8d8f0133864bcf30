"""The unit of work: instances of the scope ``"execution"``, which end inside the claim of the effect.

Each attempt of a tool has its own. It is left before the outcome is recorded, with the error that ended the attempt. So
a transaction that a provider commits after its ``yield`` is part of the call: if the commit fails, the call fails.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from callgate.errors import ControlRespond, OutcomeUnknown
from callgate.hooks.context import InvokeContext
from callgate.hooks.facts import JoinedClaim
from callgate.hooks.guards import closes, traced
from callgate.hooks.host import CallPlan
from callgate.hooks.plan import Body, Plan
from callgate.hooks.run import Run
from callgate.hooks.stages import Stage
from callgate.hooks.step import Step
from callgate.providers.execution_scope import ExecutionScope
from callgate.providers.exits import Exit, PlainThreads
from callgate.providers.recipes import Recipe, depends_on
from callgate.providers.scope import ProviderScope
from callgate.providers.stores.effects import EffectState
from callgate.runtime.call.closing import step_of
from callgate.runtime.call.failure import crashed
from callgate.runtime.call.leases import RELEASE_LIMIT, Carried, carry
from callgate.tools.record import ToolRecord

T = TypeVar("T")
_ROLLED_BACK = ("23", "40")
"""SQLSTATE classes with which a transaction rolled back: violated constraints, and rollbacks by the server."""
_COMPLETION_UNKNOWN = "40003"


def in_unit(plan: Plan, inner: Body) -> Body:
    """Run each attempt in a unit of work of its own."""
    leave: Callable[..., Awaitable[None]] = functools.partial(_leave, plan)
    if plan.trace:
        leave = traced(Step(Stage.AROUND_EXECUTE, "unit of work"), leave)
    lease = _leases(plan.record)

    async def unit(ctx: InvokeContext) -> object:
        run = ctx.run
        run.unit = scope = ExecutionScope(run, lease())
        run.body_error = None
        before = None
        if run.claim is not None:
            before, run.claim.joined = run.claim.facts(ctx), None
        try:
            output = await inner(ctx)
        except BaseException as error:
            if closes(error, plan.host.under_way.get(ctx)):  # awaiting is no longer possible
                _give_back(scope)
                raise
            if run.unit is scope:  # else it was left behind with a body that still uses it
                await leave(ctx, scope, _failed_body(run) if isinstance(error, ControlRespond) else error, before)
            raise
        if run.unit is scope:
            await leave(ctx, scope, _failed_body(run), before)
        return output

    return unit


def _leases(record: ToolRecord) -> Callable[[], PlainThreads | None]:
    """Return what makes the thread of an attempt; that of a tool which needs none makes None."""
    if record.is_async or record.inline:
        return lambda: None
    from callgate.runtime.call.threads import Lease, threads_of  # a service of coroutines needs no threads

    return functools.partial(Lease, threads_of(record))


def _give_back(scope: ProviderScope) -> None:
    if scope.threads is not None:
        scope.threads.end()


def _failed_body(run: Run[InvokeContext]) -> BaseException | None:
    """Return the error of a body for which a hook has answered: what the body wrote is rolled back."""
    return None if isinstance(run.body_error, ControlRespond) else run.body_error


async def leave_abandoned(ctx: InvokeContext, scope: ProviderScope) -> None:
    """Roll back the unit of work of an abandoned body that has ended, even if a hook answered for it."""
    before = None if ctx.run.claim is None else ctx.run.claim.facts(ctx)
    error = ctx.run.error or OutcomeUnknown(f"{ctx.tool_id} was left behind")
    await _leave(ctx.run.plan, ctx, scope, error, before)


async def _leave(
    plan: CallPlan[InvokeContext],
    ctx: InvokeContext,
    scope: ProviderScope,
    error: BaseException | None,
    before: dict[str, bool] | None,
) -> None:
    """Leave the unit of work with the error of the attempt, and tell the claim whether it was committed.

    Raises:
        CancelledError: a cancellation from outside arrived meanwhile.
        Exception: the unit could not be committed.
    """
    run, claim, at = ctx.run, ctx.run.claim, ctx.run.step
    exits, ending = scope.leave(), _Ending(ctx, error)
    if run.unit is scope:
        run.unit = None
    # Without a joined claim no body ran, or no transaction carries its outcome.
    joined = cast("JoinedClaim[InvokeContext]", claim) if claim is not None and claim.joined is not None else None
    try:
        if joined is not None:
            await ending.prepare(joined)
        for one in exits:
            run.step = step_of(one)
            await ending.leave(one)
    finally:
        _give_back(scope)
    if joined is not None:
        await ending.decide(joined)
    elif claim is not None and before is not None and not ending.clean and plan.effect_in_unit and exits:
        claim.roll_back(before, sure=ending.sure or not claim.began)
    elif claim is not None and ending.failure is not None:
        claim.wrapper_failed(ending.failure)
    if ending.failure is None or ending.held is not None:
        run.step = at
    if ending.held is not None:
        raise ending.held from (ending.failure or error)
    if ending.failure is None:
        return
    raise ending.failure if isinstance(ending.failure, Exception) else crashed(ctx, ending.failure)


class _Ending:
    """The end of one unit of work.

    ``failure`` is the error of an exit of an attempt that had none. ``held`` is a cancellation that waits for the end.
    ``sure`` is False when an exit failed or hid an error, and it is not certain that everything was rolled back.
    ``tried`` means that the outcome may be committed. ``left`` are the instances that were left without an error.
    """

    def __init__(self, ctx: InvokeContext, error: BaseException | None) -> None:
        self.ctx = ctx
        self.error = error
        self.failure: BaseException | None = None
        self.held: BaseException | None = None
        self.sure = True
        self.tried = False
        self.undone = False
        self.left: list[Recipe] = []

    @property
    def clean(self) -> bool:
        """True when nothing failed: neither the attempt nor an exit."""
        return self.error is None and self.failure is None

    async def run(self, step: Coroutine[Any, Any, T]) -> T | BaseException:
        """Run one step under a shield; return its result or its error."""
        carried = Carried(step, limit=RELEASE_LIMIT)
        try:
            return cast("T", await carried.run())
        except GeneratorExit:
            raise
        except BaseException as raised:  # noqa: BLE001  (the other exits are left, too)
            if self.clean:
                self.failure = raised
            else:
                self.ctx.suppress(raised)
            return raised
        finally:
            self.held = carried.held or self.held

    async def prepare(self, claim: JoinedClaim[InvokeContext]) -> None:
        """Write the outcome of an attempt that succeeded; else roll back, because the provider may hide the error."""
        if self.clean:
            await self.run(claim.write_outcome())
        if not self.clean:
            self.undone = not isinstance(await self.run(claim.undo()), BaseException)

    async def leave(self, one: Exit) -> None:
        """Leave one instance, with the error of the attempt or of an earlier exit."""
        ended = self.error or self.failure
        self.tried = self.tried or ended is None
        hidden = await self.run(one.hides(ended))
        if hidden is True:  # it may have committed
            self.sure = False
        elif hidden is False:
            self.left += [one.recipe] if ended is None else []
        elif not rolled_back(hidden) or not all(depends_on(other, one.recipe) for other in self.left):
            self.sure = False

    async def decide(self, claim: JoinedClaim[InvokeContext]) -> None:
        """Find out whether the transaction that carries the outcome was committed."""
        claim.decided = EffectState.COMMITTED if self.clean else EffectState.NO_EFFECT
        if self.clean or self.sure:
            return
        if not self.tried:  # the outcome is in no transaction, and the rows may be without it
            claim.decided = EffectState.NO_EFFECT if self.undone else EffectState.UNKNOWN
            return
        try:
            claim.decided = await carry(self.ctx, claim.ask())
        except Exception as error:  # noqa: BLE001  (the row tells it when the store responds again)
            self.ctx.suppress(error)
        if claim.decided is EffectState.COMMITTED and self.failure is not None:
            self.ctx.suppress(self.failure)
            self.failure = None


def rolled_back(error: BaseException | None) -> bool:
    """Return True when an error of a database states that its transaction rolled back, or an error says ``no_effect``."""
    integrity = getattr(sys.modules.get("sqlite3"), "IntegrityError", ())
    for _ in range(10):  # an error may be its own cause
        if error is None:
            return False
        state = getattr(error, "sqlstate", None)
        if getattr(error, "no_effect", False) or isinstance(error, integrity):
            return True
        if isinstance(state, str):
            return state.startswith(_ROLLED_BACK) and state != _COMPLETION_UNKNOWN
        error = getattr(error, "orig", None) or error.__cause__
    return False
