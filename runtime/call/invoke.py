"""The lifecycle of one invocation, top to bottom. Every tool runs through ``run``.

before:  context, providers, policy, capacity, input (parse, validate, freeze), cache
execute: around_execute { will_execute, tool, did_execute }
shaping: cache write, redact, validate, transform
closing: audit, metrics, releases in reverse, finalise, request providers; on every path, each once, despite failures
"""

from __future__ import annotations

import inspect
from asyncio import current_task, get_running_loop
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from types import CoroutineType
from typing import Any

from callgate.errors import ControlRespond
from callgate.hooks.context import InvokeContext
from callgate.hooks.guards import SKIPPED, refuse_value
from callgate.hooks.host import CallPlan
from callgate.hooks.plan import Plan
from callgate.hooks.stages import Stage
from callgate.hooks.step import ASYNC, SYNC, SYNC_LEASE, Compiled, Step
from callgate.providers.registry import MISSING, as_pairs
from callgate.runtime.call.bodies import converted
from callgate.runtime.call.closing import close, closing_steps, end_scope, restore_context
from callgate.runtime.call.deadlines import LEAKS, arm, begin_in_time, forget_leaked, stand_down
from callgate.runtime.call.failure import counted, fail, ignored_deadline
from callgate.runtime.call.leases import awaited, finish_acquire, set_mark, taking
from callgate.tools.values import SCALARS

# The first test is for truth: SYNC is 0, and most steps are SYNC.


async def run(plan: CallPlan[InvokeContext], ctx: InvokeContext) -> Any:  # noqa: C901  (the whole lifecycle in one place)
    """Run one call through the gate; return its output, or raise the error that ended it."""
    state, shaping, under_way = ctx.run, plan.shaping, plan.host.under_way
    task = current_task(loop) if (loop := get_running_loop()) is under_way.loop else under_way.admit(ctx)
    under_way[ctx], state.requests = task, task.cancelling() if LEAKS and task is not None else 0
    outside = _opened(plan, ctx) if plan.restores or state.special else None
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
                        state.leases = (step.release, state.leases)  # type: ignore[assignment]  # by its kind
                elif (answer := begin_acquire(ctx, call, step)).__class__ is CoroutineType:  # it waits
                    answer = await answer
                if answer is not None:
                    await answered(ctx, step, answer)
            if plan.straight is None:
                await plan.execute(ctx)
            else:  # fast path: the tool's own coroutine takes the arguments directly
                state.step, prepare = plan.running, plan.prepare
                if state.deadline_at is not None:
                    begin_in_time(ctx)
                output = await plan.straight(**(state.input if prepare is None else prepare(state.input)))
                own = output if output.__class__ in SCALARS else plan.copied(state, output)
                state.output, state.executed = own if own is not MISSING else await converted(ctx, output), True
                if plan.watched:
                    state.returned()
        except (ControlRespond, BaseExceptionGroup) as response:
            shaping = await responded(plan, ctx, response_in(ctx, response))
        try:
            for kind, call, step in shaping:
                state.step = step
                answer = await call(ctx) if kind else call(ctx)
                if answer is not None:
                    await answered(ctx, step, answer)
        except (ControlRespond, BaseExceptionGroup) as response:
            await reshape(plan, ctx, response_in(ctx, response))
    except BaseException as error:  # noqa: BLE001  (fail separates cancellations from tool errors)
        await fail(plan, ctx, error)
    if state.special and state.alarm is not None and await stand_down(ctx):
        await fail(plan, ctx, ignored_deadline(ctx), body_ended=True)
    if (plan.closing or state.leases is not None) and (closing := close(ctx, closing_steps(plan, ctx))) is not None:
        await closing
    if state.scope is None:
        state.scope = plan.ended  # a later access raises the error of an ended scope
    elif state.ends_scope:
        await end_scope(ctx)
    if outside is not None:
        restore_context(outside)
    del under_way[ctx]
    if state.special and (state.error is not None or state.deferred is not None):
        raise plan.surface(ctx)
    return state.output


def begin_acquire(ctx: InvokeContext, call: Callable[[InvokeContext], Any], step: Step) -> Any:
    """Drive an asynchronous acquire up to its first wait; return its answer, or the coroutine that finishes it shielded."""
    set_mark(acquiring := call(ctx))
    try:
        pending = acquiring.send(None)
    except StopIteration as stop:
        if stop.value is None:
            ctx.run.leases = (step.release, ctx.run.leases)  # type: ignore[assignment]  # by its kind
        return stop.value
    return finish_acquire(ctx, acquiring, pending, step)


def _opened(plan: CallPlan[InvokeContext], ctx: InvokeContext) -> Context | None:
    """Arm the deadline, and return the context to which the call is undone."""
    if ctx.run.special:
        ctx.run.alarm = arm(ctx.remaining() or 0.0, ctx.run)
    return copy_context() if plan.restores else None


async def attempt(plan: Plan, ctx: InvokeContext) -> Any:
    """Run one attempt: ``will_execute``, the tool, ``did_execute``; ``on_retry`` precedes all but the first."""
    ctx.run.tries += 1
    ctx.run.attempt, ctx.run.sent = ctx.run.tries, 0
    ctx.run.forget_view()
    if ctx.run.tries > 1:
        await walk(ctx, plan.on_retry)
    await walk(ctx, plan.will_execute)
    ctx.run.step = plan.running
    try:
        ctx.run.output = await (plan.body(ctx) if ctx.run.claim is None else ctx.run.claim.watch(plan.body(ctx)))
    except BaseException as error:
        ctx.run.step, ctx.run.body_error = plan.running, error
        raise
    ctx.run.executed = True
    if plan.watched:
        ctx.run.returned()
    await walk(ctx, plan.did_execute)
    return ctx.run.output


async def walk(ctx: InvokeContext, steps: Iterable[Compiled]) -> None:
    """Run the steps of a stage in order."""
    for kind, call, step in steps:
        ctx.run.step = step
        answer = call(ctx) if kind == SYNC else await call(ctx)
        if answer is not None:
            await answered(ctx, step, answer)


async def answered(ctx: InvokeContext, step: Step, answer: object) -> None:
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
    else:
        refuse_value(step, answer)


async def responded(
    plan: CallPlan[InvokeContext], ctx: InvokeContext, response: ControlRespond
) -> tuple[Compiled, ...]:
    """Take a response as the output, and return the steps that shape it. In ``will_read_cache`` it is a hit."""
    if ctx.run.grouped:
        await forget_leaked(ctx)
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


def response_in(ctx: InvokeContext, error: BaseException) -> ControlRespond:
    """Return a response, or that which left a task group; raise the error that counts if there is none."""
    found = counted(ctx, error)
    if isinstance(found, ControlRespond):
        return found
    raise found


async def reshape(plan: CallPlan[InvokeContext], ctx: InvokeContext, response: ControlRespond) -> None:
    """Take a response from an output stage: set the output, skip the rest of that stage, continue with the next."""
    while True:
        stopped = ctx.run.step
        shaping = await responded(plan, ctx, response)
        try:
            return await walk(ctx, [one for one in shaping if follows(one[2], stopped)])
        except ControlRespond as again:
            response = again


def follows(step: Step, stopped: Step) -> bool:
    """Return True for steps of later stages, and for the runtime's own step of the same stage."""
    return step.row.position > stopped.row.position or (step.hook is None and step.stage is stopped.stage)
