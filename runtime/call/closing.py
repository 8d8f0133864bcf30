"""Closing: records, releases, finals and provider exits. They run on every path, each once, despite failures.

All closing steps of a call, and its hooks of ``on_error`` and ``on_give_up``, share a budget: the seconds of
``Options.closing``. It begins when one of them waits for the first time. A step may wait for half of what is left, so
a step that hangs leaves time for those after it. Steps that do not wait always run.

The order is that of the stage table, with one exception: releases run before the first record that may wait, because
a record that hangs must hold no capacity. A plain function cannot wait; what it returns to be awaited is awaited after
the releases. The lease of a hook that has records itself comes after all records, which may use it, and so do the
leases taken before. The outcome of an effect is settled after ``will_audit``, which prepares the audit row of its
transaction, and before later records that may wait.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Awaitable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from itertools import chain
from sys import modules
from typing import Any

from callgate.hooks.context import InvokeContext
from callgate.hooks.guards import valueless
from callgate.hooks.host import CallPlan
from callgate.hooks.stages import RECORDS, Stage
from callgate.hooks.step import ASYNC, Compiled, Step
from callgate.providers.exits import Exit
from callgate.providers.ranks import Rank
from callgate.runtime.call import scopes
from callgate.runtime.call.leases import ENDED, Carried, finish, set_mark, taken_off
from callgate.runtime.call.scopes import ANYIO
from callgate.tools.calls import Outcome


def closing_steps(plan: CallPlan[InvokeContext], ctx: InvokeContext) -> tuple[Compiled, ...]:
    """Return the steps for records, releases in reverse, and finals. Clear the ledger, so each release runs once."""
    state = ctx.run
    state.finished = plan.now()
    if state.error is None:
        state.outcome = Outcome.SUCCESS
    held, state.leases = state.leases, None
    if held is None:
        return plan.closing
    if held[1] is None and held[0][2].stays is False:
        return (*plan.early, held[0], *plan.late_finals)
    releases = taken_off(held)
    for one in releases:
        if one[2].stays is not False:  # the outcome of an effect, or a lease that its hook's records may use
            return (*plan.early, *in_order(releases, plan.late), *plan.finals)
    return (*plan.early, *releases, *plan.late_finals)


def in_order(releases: Iterable[Compiled], late: Iterable[Compiled]) -> list[Compiled]:
    """Order releases, the last acquired first, and *late* records, which may wait."""
    audits = [one for one in late if one[2].stage is Stage.WILL_AUDIT]
    outcome: list[Compiled] = []
    free: list[Compiled] = []
    staying: list[Compiled] = []
    for one in releases:
        if _is_outcome(one[2]):
            (outcome if audits else free).append(one)
        else:
            (staying if staying or one[2].stays else free).append(one)
    return [*free, *audits, *outcome, *(one for one in late if one[2].stage is not Stage.WILL_AUDIT), *staying]


def _is_outcome(step: Step) -> bool:
    """Return True for the release of the claim of an effect, which settles its outcome."""
    return step.stage is Stage.DID_AUDIT and step.hook is None


def _put_off(step: Step, answer: object, rest: Iterable[Compiled]) -> list[Compiled]:
    """Return *rest* with the *answer* of a plain function, which is to be awaited: a record's after the releases."""
    late: list[Compiled] = [(ASYNC, lambda _: valueless(step, answer), step)]
    if step.stage not in RECORDS:
        return [*late, *rest]
    releases: list[Compiled] = []
    finals: list[Compiled] = []
    for one in rest:
        is_release = one[2].stays is not None or _is_outcome(one[2])
        (releases if is_release else late if one[2].stage in RECORDS else finals).append(one)
    return [*in_order(releases, late), *finals]


def close(ctx: InvokeContext, steps: Iterable[Compiled]) -> Coroutine[Any, Any, None] | None:
    """Run closing steps, each under a shield; failures here are recorded and do not change the outcome.

    Return None if no step waited; otherwise await the result, which finishes from the first step that waits.
    Cancellations from earlier parts of the call (a hook's timer, a cancelled scope) now count as external.
    """
    state, rest = ctx.run, iter(steps)
    if state.special and state.closes_at is not None:
        return _close_each(ctx, list(rest))
    for one in rest:
        kind, call, state.step = one
        if kind:
            rest = chain((one,), rest)
            break
        try:
            if (answer := call(ctx)) is not None:
                rest = iter(_put_off(state.step, answer, rest))
                break
        except BaseException as error:  # noqa: BLE001  (a lease is released even after SystemExit)
            ctx.suppress(error)
    else:
        if state.plan.finals:  # finals may take time, and the duration includes them
            state.finished = state.plan.now()
        return None
    set_mark(driver := _drive(ctx, rest))  # one coroutine for all steps, up to the first that waits
    shield = scopes.shield() if ANYIO in modules else None
    if (pending := next(driver.__await__(), ENDED)) is not ENDED:
        state.shield = shield
        return _close_each(ctx, list(rest), driver, pending)  # without its iterator, the driver ends with this step
    if shield is not None:
        scopes.leave(shield)
    if state.plan.finals:
        state.finished = state.plan.now()
    return None


def _closed(ctx: InvokeContext) -> None:
    state = ctx.run
    if state.shield is not None:
        scopes.leave(state.shield)
        state.shield = None
    if state.plan.finals:
        state.finished = state.plan.now()


async def _drive(ctx: InvokeContext, steps: Iterable[Compiled]) -> None:
    """Run steps and record their failures. Once one has waited, raise them: time limits are errors, too."""
    state = ctx.run
    for kind, call, step in steps:
        state.step = step
        try:
            answer = await call(ctx) if kind else call(ctx)
            if answer is not None:
                await valueless(step, answer)  # a plain function returned an awaitable, or a hook a value
        except BaseException as error:
            if state.closes_at is not None:
                raise
            ctx.suppress(error)


async def _close_each(
    ctx: InvokeContext, steps: list[Compiled], driver: Coroutine[Any, Any, None] | None = None, pending: object = None
) -> None:
    """Finish the step of *driver*, which waits for *pending*; then run each of *steps* in a coroutine of its own."""
    if driver is None and ANYIO in modules:
        ctx.run.shield = scopes.shield()
    mark: object = driver or object()
    while driver is not None or steps:
        try:
            if driver is None:
                (kind, call, ctx.run.step), *steps = steps
                if not kind:
                    if (answer := call(ctx)) is not None:
                        steps = _put_off(ctx.run.step, answer, steps)
                    continue
                set_mark(mark)
                driver = _drive(ctx, ((kind, call, ctx.run.step),))
                pending = next(driver.__await__(), ENDED)
            if pending is not ENDED:
                await finish(ctx, Carried(driver, mark, limit=share(ctx)), pending)
        except BaseException as error:  # noqa: BLE001  (as in ``close``)
            ctx.suppress(error)
        driver = None
    _closed(ctx)


def share(ctx: InvokeContext) -> float:
    """Return the seconds that a closing step may wait: half of the budget that is left. The first call starts it."""
    state, now = ctx.run, get_running_loop().time()
    until = state.closes_at
    if until is None:
        until = now + state.plan.host.closing
        state.closes_at, state.special = until, True
    return max(0.0, until - now) / 2


# ---------------------------------------------------------------------- providers


async def end_scope(ctx: InvokeContext) -> None:
    """Close the invocation's provided instances, the last first, unless an abandoned body still holds them."""
    scope = ctx.run.request_scope()
    scope.holds -= 1
    exits = () if scope.holds else scope.leave()
    if exits and (closing := close(ctx, map(exit_step, exits))) is not None:
        await closing


def exit_step(one: Exit) -> Compiled:
    """Return the step that closes one provided instance; it sees the error that ended the invocation."""

    def leave(ctx: InvokeContext) -> Awaitable[None]:
        return one.leave(ctx.run.error)

    return ASYNC, leave, step_of(one)


def step_of(one: Exit) -> Step:
    """Return the position of the closing of one provided instance in the lifecycle."""
    recipe = one.recipe
    if recipe.step is None:
        stage = Stage.AROUND_EXECUTE if recipe.rank is Rank.EXECUTION else Stage.WILL_FINALIZE_INVOKE
        recipe.step = Step(stage, f"close {recipe.name}")
    step: Step = recipe.step
    return step


# ---------------------------------------------------------------------- context variables


def restore_context(outside: Context) -> None:
    """Give each context variable the value that it had before the call; *outside* is the context of that time.

    A call has no task of its own, so the next call of the same task would see the tenant that a hook of this one has set.
    """
    set_mark(None)  # most calls have set nothing else, and their contexts are equal
    now = copy_context()
    try:
        if now == outside:
            return
    except Exception:  # noqa: BLE001, S110  (values that cannot be compared are told apart by identity)
        pass
    for variable, value in now.items():
        before = outside.get(variable, now)
        if before is not value:
            variable.set(_default_of(variable) if before is now else before)
    for variable, value in outside.items():
        if variable not in now:
            variable.set(value)


def _default_of(variable: ContextVar[Any]) -> object:
    """Return the value of a variable that is not set. Python cannot unset one, so None stands for no default."""
    try:
        return Context().run(variable.get)
    except LookupError:
        return None
