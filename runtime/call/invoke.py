"""The lifecycle of one invocation, top to bottom. Every tool runs through ``run``.

before:  context, providers, policy, capacity, input (parse, validate, freeze), cache
execute: around_execute { will_execute, tool, did_execute }
shaping: cache write, redact, validate, transform
closing: audit, metrics, releases in reverse, finalise, request providers; on every path, each once, despite failures
"""

from __future__ import annotations

import inspect
from collections.abc import Coroutine, Iterable, Iterator
from sys import modules
from typing import Any, TypeAlias

from callgate.errors import ControlRespond
from callgate.hooks.context import InvokeContext
from callgate.hooks.guards import SKIPPED, never_returns_a_value
from callgate.hooks.plan import Plan
from callgate.hooks.stages import Stage
from callgate.hooks.step import ASYNC, SYNC, SYNC_LEASE, Compiled, Step
from callgate.providers.exits import Exit
from callgate.providers.registry import as_pairs
from callgate.runtime.call import scopes
from callgate.runtime.call.deadlines import arm, stand_down
from callgate.runtime.call.failure import fail
from callgate.runtime.call.leases import (
    ENDED,
    RELEASE_LIMIT,
    awaited,
    carry_on,
    finish_acquire,
    set_mark,
    taken_off,
    taking,
)
from callgate.runtime.call.scopes import ANYIO
from callgate.tools.calls import Outcome
from callgate.tools.values import snapshot

# The first test is for truth: SYNC is 0, and most steps are SYNC.


async def run(plan: Plan, ctx: InvokeContext) -> Any:  # noqa: C901  (the whole lifecycle in one place)
    """Run one call through the gate; return its output, or raise the error that ended it."""
    state = ctx.run
    if state.special:
        state.alarm = arm(ctx.remaining() or 0.0)
    shaping = plan.shaping
    try:
        try:
            for kind, call, step in plan.before:
                state.step = step
                if not kind:
                    answer = call(ctx)
                elif kind == ASYNC:
                    answer = await call(ctx)
                elif kind == SYNC_LEASE:
                    if (answer := call(ctx)) is None:
                        state.leases = (step.release, state.leases)
                else:  # an acquire: driven here up to its first wait; the rest is shielded
                    set_mark(acquiring := call(ctx))
                    try:
                        pending = acquiring.send(None)
                    except StopIteration as stop:
                        if (answer := stop.value) is None:
                            state.leases = (step.release, state.leases)
                    else:
                        answer = await finish_acquire(ctx, acquiring, pending, step)
                if answer is not None:
                    await answered(ctx, step, answer)
            if plan.straight is None:
                await plan.execute(ctx)
            else:  # fast path: the tool's own coroutine takes the arguments directly
                state.step, prepare = plan.running, plan.prepare
                state.output = await plan.straight(**(state.input if prepare is None else prepare(state.input)))
                state.executed = True
                if plan.watched:
                    state.output_json = snapshot(state.output)
        except ControlRespond as response:
            shaping = await responded(plan, ctx, response)
        try:
            for kind, call, step in shaping:
                state.step = step
                answer = await call(ctx) if kind else call(ctx)
                if answer is not None:
                    await answered(ctx, step, answer)
        except ControlRespond as response:
            await reshape(plan, ctx, response)
    except BaseException as error:  # noqa: BLE001  (fail separates cancellations from tool errors)
        await fail(plan, ctx, error)
    if state.special and state.alarm is not None:
        await stand_down(ctx)
    closes = plan.closing or state.leases is not None
    if closes and (closing := close(ctx, closing_steps(plan, ctx))) is not None:
        await closing
    if state.scope is None:
        state.scope = plan.ended  # a later access raises the error of an ended scope
    elif state.ends_scope:
        await end_scope(ctx)
    if state.special and (state.error is not None or state.deferred is not None):
        raise plan.surface(ctx)
    return state.output


def closing_steps(plan: Plan, ctx: InvokeContext) -> tuple[Compiled, ...]:
    """Return the steps for records, releases in reverse, and finals. Clear the ledger, so each release runs once."""
    state = ctx.run
    state.finished = plan.now()
    if state.error is None:
        state.outcome = Outcome.SUCCESS
    held, state.leases = state.leases, None
    if held is None:
        return plan.closing
    if held[1] is None:
        return (*plan.records, held[0], *plan.finals)
    return (*plan.records, *taken_off(held), *plan.finals)


def close(ctx: InvokeContext, steps: Iterable[Compiled]) -> Coroutine[Any, Any, None] | None:
    """Run closing steps, each under a shield; failures here are recorded and do not change the outcome.

    Return None if no step waited; otherwise await the result, which finishes from the first step that waits.
    Cancellations from earlier parts of the call (a hook's timer, a cancelled scope) now count as external.
    """
    rest = iter(steps)
    waiting = _close_until_wait(ctx, rest, None)
    return None if waiting is None else _close_from(ctx, rest, waiting)


Waiting: TypeAlias = tuple[Coroutine[Any, Any, Any], Any, Any]
"""A closing step that waits: its coroutine, the future, and the mark of the call's closing steps."""


def _close_until_wait(ctx: InvokeContext, rest: Iterator[Compiled], mark: Any) -> Waiting | None:
    state = ctx.run
    for kind, call, step in rest:
        state.step = step
        try:
            closing = call(ctx)
            if not kind:
                if closing is None or not inspect.isawaitable(closing):
                    continue
                closing = awaited(closing)
            if mark is None:
                set_mark(mark := closing)
                if ANYIO in modules:
                    state.hidden = scopes.hide()
            if (pending := next(closing.__await__(), ENDED)) is not ENDED:
                return closing, pending, mark
        except BaseException as error:  # noqa: BLE001  (a lease is released even after SystemExit)
            ctx.suppress(error)
    if state.hidden is not None:
        state.hidden.restore()
        state.hidden = None
    if state.plan.finals:  # finals may take time, and the duration includes them
        state.finished = state.plan.now()
    return None


async def _close_from(ctx: InvokeContext, rest: Iterator[Compiled], waiting: Waiting | None) -> None:
    while waiting is not None:
        closing, pending, mark = waiting
        try:
            await carry_on(ctx, closing, pending, mark, RELEASE_LIMIT)
        except BaseException as error:  # noqa: BLE001  (as above)
            ctx.suppress(error)
        waiting = _close_until_wait(ctx, rest, mark)


async def end_scope(ctx: InvokeContext) -> None:
    """Close the invocation's provided instances, the last first, unless an abandoned body still holds them."""
    scope = ctx.run.request_scope()
    scope.holds -= 1
    exits = () if scope.holds else scope.leave()
    if exits and (closing := close(ctx, map(exit_step, exits))) is not None:
        await closing


def exit_step(one: Exit) -> Compiled:
    """Return the step that closes one provided instance; it sees the error that ended the invocation."""
    recipe = one.recipe
    if recipe.step is None:
        recipe.step = Step(Stage.WILL_FINALIZE_INVOKE, f"close {recipe.name}")
    return ASYNC, lambda ctx: one.leave(ctx.run.error), recipe.step


async def attempt(plan: Plan, ctx: InvokeContext) -> Any:
    """Run one attempt: ``will_execute``, the tool, ``did_execute``; ``on_retry`` precedes all but the first."""
    ctx.run.tries += 1
    ctx.run.attempt = ctx.run.tries
    if ctx.run.tries > 1:
        await walk(ctx, plan.on_retry)
    await walk(ctx, plan.will_execute)
    ctx.run.step = plan.running
    ctx.run.output = await (plan.body(ctx) if ctx.run.claim is None else ctx.run.claim.watch(plan.body(ctx)))
    ctx.run.executed = True
    if plan.watched:
        ctx.run.output_json = snapshot(ctx.run.output)
    await walk(ctx, plan.did_execute)
    return ctx.run.output


async def walk(ctx: InvokeContext, steps: Iterable[Compiled]) -> None:
    """Run the steps of a stage in order."""
    for kind, call, step in steps:
        ctx.run.step = step
        answer = call(ctx) if kind == SYNC else await call(ctx)
        if answer is not None:
            await answered(ctx, step, answer)


async def answered(ctx: InvokeContext, step: Step, answer: Any) -> None:
    """Handle the return value of a hook: bindings, an awaitable, or a mistake that must not pass as permission."""
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
    """Take a response as the output, and return the steps that shape it. In ``will_read_cache`` it is a hit."""
    while True:
        if ctx.run.claim is not None and ctx.run.step is plan.running:
            ctx.run.claim.failed(response)
        ctx.run.take(response)
        if response.shaped:
            return ()
        if ctx.run.step.stage is Stage.WILL_READ_CACHE:
            ctx.run.cache_hit = True
            try:
                await walk(ctx, plan.cache_hit)
            except ControlRespond as again:
                response = again
                continue
        return plan.after_response if response.validate else plan.unchecked_shaping


async def reshape(plan: Plan, ctx: InvokeContext, response: ControlRespond) -> None:
    """Take a response from an output stage: set the output, skip the rest of that stage, continue with the next."""
    while True:
        stopped = ctx.run.step
        shaping = await responded(plan, ctx, response)
        try:
            return await walk(ctx, [one for one in shaping if _follows(one[2], stopped)])
        except ControlRespond as again:
            response = again


def _follows(step: Step, stopped: Step) -> bool:
    """Return True for steps of later stages, and for the runtime's own step of the same stage."""
    return step.row.position > stopped.row.position or (step.hook is None and step.stage is stopped.stage)
