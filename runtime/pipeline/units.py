"""The unit of work: instances of the scope ``"execution"``, which end inside the claim of the effect.

Each attempt of a tool has its own. It is left before the outcome is recorded, with the error that ended the attempt. So
a transaction that a provider commits after its ``yield`` is part of the call: if the commit fails, the call fails.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import TypeVar

from callgate.errors import ControlRespond, OutcomeUnknown
from callgate.hooks.context import InvokeContext
from callgate.hooks.effects import Known
from callgate.hooks.plan import PlanParts
from callgate.hooks.stages import Stage
from callgate.hooks.state.run import Run
from callgate.hooks.state.step import plan_step
from callgate.providers.execution_scope import ExecutionScope
from callgate.providers.exits import Exit, PlainThreads
from callgate.providers.recipe import Recipe
from callgate.providers.recipes import depends_on
from callgate.providers.scope import ProviderScope
from callgate.providers.stores.effects import EffectState
from callgate.runtime.pipeline.bodies import Body
from callgate.runtime.pipeline.closing import step_of
from callgate.runtime.pipeline.failure import crashed
from callgate.runtime.pipeline.guards import closes, traced
from callgate.runtime.pipeline.leases import finish_shielded
from callgate.runtime.pipeline.shield import RELEASE_LIMIT, Shielded
from callgate.runtime.pipeline.transaction_claim import TransactionClaim

T = TypeVar("T")
_ROLLED_BACK = ("23", "40")
"""SQLSTATE classes with which a transaction rolled back: violated constraints, and rollbacks by the server."""
_COMPLETION_UNKNOWN = "40003"


def in_unit(parts: PlanParts, inner: Body) -> Body:
    """Run each attempt in a unit of work of its own."""
    leave = traced(plan_step(Stage.AROUND_EXECUTE, "unit of work"), _leave) if parts.trace else _leave
    lease = _leases(parts)

    async def unit(ctx: InvokeContext) -> object:
        run = ctx.run
        run.unit = scope = ExecutionScope(run, lease())
        run.body_error = None
        before = None if run.claim is None else run.claim.known
        if isinstance(run.claim, TransactionClaim):
            run.claim.joined = None
        try:
            output = await inner(ctx)
        except BaseException as error:
            if closes(error, run.plan.host.under_way.get(ctx)):  # awaiting is no longer possible
                _give_back(scope)
                raise
            if run.unit is scope:  # else it was abandoned with a body that still uses it
                await leave(ctx, scope, _failed_body(run) if isinstance(error, ControlRespond) else error, before)
            raise
        if run.unit is scope:
            await leave(ctx, scope, _failed_body(run), before)
        return output

    return unit


def _leases(parts: PlanParts) -> Callable[[], PlainThreads | None]:
    """Return what makes the thread of an attempt; that of a tool which needs none makes None."""
    record, host = parts.record, parts.host
    if record.is_async or record.inline:
        return lambda: None
    # a service of coroutines needs no threads
    from callgate.runtime.pipeline.thread_settings import around_threads
    from callgate.runtime.pipeline.threads import Lease, threads_of

    threads = threads_of(record)
    return lambda: Lease(threads, around_threads(host.around_threads))


def _give_back(scope: ProviderScope) -> None:
    if scope.threads is not None:
        scope.threads.end()


def _failed_body(run: Run[InvokeContext]) -> BaseException | None:
    """Return the error of a body for which a hook has answered: what the body wrote is rolled back."""
    return None if isinstance(run.body_error, ControlRespond) else run.body_error


async def leave_abandoned(ctx: InvokeContext, scope: ProviderScope) -> None:
    """Roll back the unit of work of an abandoned body that has ended, even if a hook answered for it."""
    before = None if ctx.run.claim is None else ctx.run.claim.known
    error = ctx.run.error or OutcomeUnknown(f"{ctx.tool_id} was abandoned")
    await _leave(ctx, scope, error, before)


async def _leave(
    ctx: InvokeContext,
    scope: ProviderScope,
    error: BaseException | None,
    before: Known | None,
) -> None:
    """Leave the unit of work with the error of the attempt, and tell the claim whether it was committed.

    Raises:
        CancelledError: a cancellation from outside arrived meanwhile.
        Exception: the unit could not be committed.
    """
    run, claim, at = ctx.run, ctx.run.claim, ctx.run.step
    exits, end = scope.leave(), UnitEnd(ctx, error)
    if run.unit is scope:
        run.unit = None
    # Without a joined claim no body ran, or no transaction carries its outcome.
    joined = claim if isinstance(claim, TransactionClaim) and claim.joined is not None else None
    try:
        if joined is not None:
            await end.prepare(joined)
        for one in exits:
            run.step = step_of(one)
            await end.leave(one)
    finally:
        _give_back(scope)
    if joined is not None:
        joined.decided = EffectState.NO_EFFECT  # if waiting fails: the ledger keeps a row that is committed
        joined.decided = await end.outcome(joined)
    elif claim is not None and before is not None and not end.is_clean and run.plan.effect_in_unit and exits:
        claim.roll_back(before, sure=end.is_sure)
    elif claim is not None and end.failure is not None:
        claim.wrapper_failed(end.failure)
    if end.failure is None or end.deferred is not None:
        run.step = at
    if end.deferred is not None:
        raise end.deferred from (end.failure or error)
    if end.failure is None:
        return
    raise end.failure if isinstance(end.failure, Exception) else crashed(ctx, end.failure)


class UnitEnd:
    """The end of one unit of work.

    ``failure`` is the error of an exit of an attempt that had none. ``deferred`` is a cancellation that waits for the
    end. ``is_sure`` is False when an exit failed or hid an error, and it is not certain that everything was rolled back.
    ``may_be_committed`` is True once an instance was left without an error, ``undone`` once the transaction was rolled
    back. ``left`` are the instances that were left without an error.
    """

    def __init__(self, ctx: InvokeContext, error: BaseException | None) -> None:
        self.ctx = ctx
        self.error = error
        self.failure: BaseException | None = None
        self.deferred: asyncio.CancelledError | None = None
        self.is_sure = True
        self.may_be_committed = False
        self.undone = False
        self.left: list[Recipe] = []

    @property
    def is_clean(self) -> bool:
        """True when nothing failed: neither the attempt nor an exit."""
        return self.error is None and self.failure is None

    async def run(self, step: Coroutine[object, None, T]) -> T | BaseException:
        """Run one step under a shield; return its result or its error."""
        shielded = Shielded(step, limit=RELEASE_LIMIT)
        try:
            return await shielded.run()
        except GeneratorExit:
            raise
        except BaseException as raised:  # noqa: BLE001  (the other exits are left, too)
            if self.is_clean:
                self.failure = raised
            else:
                self.ctx.suppress(raised)
            return raised
        finally:
            self.deferred = shielded.deferred or self.deferred

    async def prepare(self, claim: TransactionClaim) -> None:
        """Write the outcome of an attempt that succeeded; else roll back, because the provider may hide the error."""
        if self.is_clean:
            await self.run(claim.write_outcome())
        if not self.is_clean:
            self.undone = not isinstance(await self.run(claim.undo()), BaseException)

    async def leave(self, one: Exit) -> None:
        """Leave one instance, with the error of the attempt or of an earlier exit."""
        ended = self.error or self.failure
        self.may_be_committed = self.may_be_committed or ended is None
        hidden = await self.run(one.hides(ended))
        if hidden is True:  # it may have committed
            self.is_sure = False
        elif hidden is False:
            self.left += [one.recipe] if ended is None else []
        elif not rolled_back(hidden) or not all(depends_on(other, one.recipe) for other in self.left):
            self.is_sure = False

    async def outcome(self, claim: TransactionClaim) -> EffectState:
        """Return whether the transaction that carries the outcome was committed."""
        if self.is_clean:
            return EffectState.COMMITTED
        if self.is_sure:
            return EffectState.NO_EFFECT
        if not self.may_be_committed:  # the outcome is in no transaction, and the rows may be without it
            return EffectState.NO_EFFECT if self.undone else EffectState.UNKNOWN
        state = EffectState.NO_EFFECT
        try:
            state = await finish_shielded(self.ctx, claim.find_outcome())
        except Exception as error:  # noqa: BLE001  (the row tells it when the store responds again)
            self.ctx.suppress(error)
        if state is EffectState.COMMITTED and self.failure is not None:
            self.ctx.suppress(self.failure)
            self.failure = None
        return state


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
