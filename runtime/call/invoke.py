"""The lifecycle of one invocation, top to bottom. Everything that runs a tool goes through ``run``.

before:  context, providers, policy, capacity, input (parse, validate, freeze), cache
execute: around_execute { will_execute, tool, did_execute }
shaping: cache write, redact, validate, transform
closing: audit, metrics, releases in reverse, finalise, the request's providers; on every path, each once, whatever fails
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from callgate.errors import ControlRespond
from callgate.hooks.context import InvokeContext
from callgate.hooks.guards import SKIPPED, never_returns_a_value
from callgate.hooks.plan import Plan
from callgate.hooks.stages import Stage
from callgate.hooks.step import ASYNC, QUICK, QUICK_LEASE, SYNC, SYNC_LEASE, Compiled, Step
from callgate.providers.registry import as_pairs
from callgate.providers.scope import Exit
from callgate.runtime.call import scopes
from callgate.runtime.call.deadlines import arm, stand_down
from callgate.runtime.call.failure import fail
from callgate.runtime.call.leases import (
    ENDED,
    RELEASE_LIMIT,
    awaited,
    carry,
    carry_on,
    finish_acquire,
    new_mark,
    set_mark,
    taken_off,
    taking,
)
from callgate.tools.calls import Outcome
from callgate.tools.values import snapshot

# Kinds are tested for truth first: SYNC is 0, and most steps are.


async def run(plan: Plan, ctx: InvokeContext) -> Any:  # noqa: C901  (one road; the reader sees all of it)
    """One call through the gate: its output, or the error that ended it."""
    if ctx.special:
        ctx.alarm = arm(ctx.remaining() or 0.0)
    shaping = plan.shaping
    try:
        try:
            for kind, call, step in plan.before:
                ctx.step = step
                if not kind:
                    answer = call(ctx)
                elif kind == ASYNC:
                    answer = await call(ctx)
                elif kind == SYNC_LEASE:
                    if (answer := call(ctx)) is None:
                        ctx.leases = (step.release, ctx.leases)
                elif kind == QUICK_LEASE:
                    answer = await call(ctx)
                    ctx.leases = (step.release, ctx.leases)
                else:  # an acquire that returns nothing: run here up to its first wait, if any; the rest is carried
                    set_mark(mark := new_mark())
                    answer, acquiring = None, call(ctx)
                    if (pending := next(acquiring.__await__(), ENDED)) is ENDED:
                        ctx.leases = (step.release, ctx.leases)
                    else:
                        await finish_acquire(ctx, acquiring, pending, mark, step)
                if answer is not None:
                    await answered(ctx, step, answer)
            if plan.straight is None:
                await plan.execute(ctx)
            else:  # nobody stands about the tool, and its own coroutine takes the arguments as they are
                ctx.step, prepare = plan.running, plan.prepare
                ctx._output = await plan.straight(**(ctx._input if prepare is None else prepare(ctx._input)))
                ctx.executed = True
                if plan.watched:
                    ctx._output_json = snapshot(ctx._output)
        except ControlRespond as response:
            shaping = await responded(plan, ctx, response)
        try:
            for kind, call, step in shaping:
                ctx.step = step
                answer = await call(ctx) if kind else call(ctx)
                if answer is not None:
                    await answered(ctx, step, answer)
        except ControlRespond as response:
            await reshape(plan, ctx, response)
    except BaseException as error:  # noqa: BLE001  (cancellation and tool faults are told apart there)
        await fail(plan, ctx, error)
    if ctx.special and ctx.alarm is not None:
        await stand_down(ctx)
    if plan.closing or ctx.leases is not None:
        await close(ctx, closing_steps(plan, ctx))
    if ctx._scope is None:
        ctx._scope = plan.ended  # whoever asks later is told so
    elif ctx._ends_scope:
        await end_scope(ctx)
    if ctx.special and (ctx._error is not None or ctx.deferred is not None):
        raise plan.surface(ctx)
    return ctx._output


def closing_steps(plan: Plan, ctx: InvokeContext) -> tuple[Compiled, ...]:
    """Records, then what is held in reverse, then the last word. Takes the ledger: nothing is given back twice."""
    ctx.finished = plan.now()
    if ctx._error is None:
        ctx.outcome = Outcome.SUCCESS
    held, ctx.leases = ctx.leases, None
    if held is None:
        return plan.closing
    if held[1] is None:
        return (*plan.records, held[0], *plan.finals)
    return (*plan.records, *taken_off(held), *plan.finals)


async def close(ctx: InvokeContext, steps: Sequence[Compiled]) -> None:
    """Closing steps, each carried through to its end; what fails here is kept and changes nothing.

    What the call's own past has started (a hook's timer, a cancelled scope that goes on cancelling) is outside now.
    """
    mark, hidden = 0, None
    for kind, call, step in steps:
        ctx.step = step
        try:
            closing = call(ctx)
            if kind == QUICK:
                await closing
            elif kind:
                if not mark:
                    set_mark(mark := new_mark())
                    hidden = scopes.hide()
                if (pending := next(closing.__await__(), ENDED)) is not ENDED:
                    await carry_on(ctx, closing, pending, mark, RELEASE_LIMIT)
            elif closing is not None and inspect.isawaitable(closing):
                await carry(ctx, awaited(closing), RELEASE_LIMIT)
        except BaseException as error:  # noqa: BLE001  (not even a hook that raises SystemExit may keep a lease)
            ctx.suppress(error)
    if hidden is not None:
        hidden.restore()
    if ctx.plan.finals:  # they may have taken their time, and are not the last to ask
        ctx.finished = ctx.plan.now()


async def end_scope(ctx: InvokeContext) -> None:
    """Close what the invocation's providers made, the last first, unless a body that was left behind still holds it."""
    scope = ctx.scope
    scope.holds -= 1
    if not scope.holds and (exits := scope.leave()):
        await close(ctx, [exit_step(one) for one in exits])


def exit_step(one: Exit) -> Compiled:
    """The closing of one provided instance, as a step; it sees the error that the invocation ended with."""
    recipe = one.recipe
    if recipe.step is None:
        recipe.step = Step(Stage.WILL_FINALIZE_INVOKE, f"close {recipe.name}")
    return ASYNC, lambda ctx: one.leave(ctx._error), recipe.step


async def attempt(plan: Plan, ctx: InvokeContext) -> Any:
    """One attempt: ``will_execute``, the tool, ``did_execute``; preceded by ``on_retry`` from the second on."""
    ctx.tries += 1
    ctx.attempt = ctx.tries
    if ctx.tries > 1:
        await walk(ctx, plan.on_retry)
    await walk(ctx, plan.will_execute)
    ctx.step = plan.running
    ctx._output = await (plan.body(ctx) if ctx.claim is None else ctx.claim.watch(plan.body(ctx)))
    ctx.executed = True
    if plan.watched:
        ctx._output_json = snapshot(ctx._output)
    await walk(ctx, plan.did_execute)
    return ctx._output


async def walk(ctx: InvokeContext, steps: tuple[Compiled, ...]) -> None:
    """Run the steps of a stage in order."""
    for kind, call, step in steps:
        ctx.step = step
        answer = call(ctx) if kind == SYNC else await call(ctx)
        if answer is not None:
            await answered(ctx, step, answer)


async def answered(ctx: InvokeContext, step: Step, answer: Any) -> None:
    """A hook returned something: bindings, an awaitable to await, or a mistake that must not pass for a yes."""
    if answer is SKIPPED:
        return
    if inspect.isawaitable(answer):
        rest = awaited(answer)
        answer = await (rest if step.release is None else taking(step, lambda _: rest)(ctx))
        if answer is None:
            return
    if step.stage is Stage.WILL_BIND_PROVIDERS:
        ctx.bind_providers(as_pairs(answer))
    elif never_returns_a_value(step):
        raise TypeError(
            f"{step.name}.{step.stage} returned {type(answer).__name__}, which decides nothing; "
            "call ctx.abort(), ctx.respond() or ctx.retry_after(), or return None to go on"
        )


async def responded(plan: Plan, ctx: InvokeContext, response: ControlRespond) -> tuple[Compiled, ...]:
    """Take a response as the output; the shaping that it gets. One from ``will_read_cache`` is a hit (contract 99, C15a)."""
    while True:
        if ctx.claim is not None and ctx.step is plan.running:
            ctx.claim.failed(response)
        ctx.take(response)
        if response.shaped:
            return ()
        if ctx.step.stage is Stage.WILL_READ_CACHE:
            ctx.cache_hit = True
            try:
                await walk(ctx, plan.cache_hit)
            except ControlRespond as again:
                response = again
                continue
        return plan.after_response if response.validate else plan.unchecked_shaping


async def reshape(plan: Plan, ctx: InvokeContext, response: ControlRespond) -> None:
    """A response from an output stage: set the output, skip the rest of that stage, go on with the next (C18)."""
    while True:
        stopped = ctx.step
        shaping = await responded(plan, ctx, response)
        try:
            for kind, call, step in shaping:
                if step.row.position > stopped.row.position or (step.hook is None and step.stage is stopped.stage):
                    ctx.step = step
                    answer = await call(ctx) if kind else call(ctx)
                    if answer is not None:
                        await answered(ctx, step, answer)
            return
        except ControlRespond as again:
            response = again
