"""The lifecycle of one invocation, top to bottom. Every tool runs through ``run``.

before:  context, providers, policy, capacity, input (parse, validate, freeze), cache
execute: around_execute { will_execute, tool, did_execute }
shaping: cache write, redact, validate, transform
closing: audit, metrics, releases in reverse, finalise, request providers; on every path, each once, despite failures
"""

from __future__ import annotations

import inspect
from asyncio import current_task
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from sys import modules
from threading import get_ident
from types import CoroutineType
from typing import Any

from callgate.errors import ControlRespond
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage
from callgate.hooks.state.host import CallPlan
from callgate.hooks.state.step import ASYNC, SYNC_LEASE, PlanStep, StepCall
from callgate.providers.logs import bind_ids
from callgate.providers.registry import MISSING, as_pairs
from callgate.runtime.pipeline import scopes
from callgate.runtime.pipeline.bodies import converted
from callgate.runtime.pipeline.closing import close, closing_steps, end_scope, restore_context
from callgate.runtime.pipeline.deadlines import LEAKS, arm_call, begin_in_time, disarm, forget_leaked
from callgate.runtime.pipeline.failure import counted, fail, ignored_deadline
from callgate.runtime.pipeline.guards import SKIPPED, refuse_value
from callgate.runtime.pipeline.leases import finish_acquire, taking
from callgate.runtime.pipeline.shield import ANYIO, awaited, set_mark
from callgate.tools.values import SCALARS

# The first test of a step is for truth: SYNC is 0, and most steps are SYNC. The thread and the task tell the loop: to ask
# for the running loop is a system call. A waiting call holds a word for each local name, so some names serve twice.


async def run(plan: CallPlan[InvokeContext], ctx: InvokeContext) -> object:  # noqa: C901  (the whole lifecycle in one place)
    """Run one call through the gate; return its output, or raise the error that ended it."""
    if ANYIO in modules and scopes.begins(ctx.run):
        return await scopes.once(run(plan, ctx))
    state, shaping, under_way = ctx.run, plan.shaping, plan.host.under_way
    if under_way.loop is None or get_ident() != under_way.thread or (task := current_task(under_way.loop)) is None:
        task = under_way.admit(ctx)
    under_way[ctx], state.requests = task, task.cancelling() if LEAKS and task is not None else 0
    outside = _opened(plan, ctx) if plan.restores or state.off_fast_path else None
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
                    await take_returned(ctx, step, answer)
            if plan.fast_path is None:
                await plan.execute(ctx)
            else:  # fast path: the tool's own coroutine takes the arguments directly
                state.step = plan.running
                if state.deadline_at is not None:
                    begin_in_time(ctx)
                output = await plan.fast_path(**(state.input if plan.prepare is None else plan.prepare(state.input)))
                answer = output if output.__class__ in SCALARS else plan.copied(state, output)
                state.output, state.executed = answer if answer is not MISSING else await converted(ctx, output), True
                if plan.watched:
                    state.returned()
        except (ControlRespond, BaseExceptionGroup) as raised:
            shaping = await take_response(plan, ctx, response_in(ctx, raised))
        try:
            for kind, call, step in shaping:
                state.step = step
                if (answer := await call(ctx) if kind else call(ctx)) is not None:
                    await take_returned(ctx, step, answer)
        except (ControlRespond, BaseExceptionGroup) as raised:
            await shape_response(plan, ctx, response_in(ctx, raised))
    except BaseException as raised:  # noqa: BLE001  (fail separates cancellations from tool errors)
        await fail(plan, ctx, raised)
    if state.off_fast_path and state.alarm is not None and await disarm(ctx):
        await fail(plan, ctx, ignored_deadline(ctx), body_ended=True)
    if (plan.closing or state.leases is not None) and (answer := close(ctx, closing_steps(plan, ctx))) is not None:
        await answer
    if state.scope is None:
        state.scope = plan.ended  # a later access raises the error of an ended scope
    elif state.ends_scope:
        await end_scope(ctx)
    if outside is not None:
        restore_context(outside)
    del under_way[ctx]
    if state.off_fast_path and (state.error is not None or state.deferred is not None):
        raise plan.surface(ctx)
    return state.output


def begin_acquire(ctx: InvokeContext, call: Callable[[InvokeContext], Any], step: PlanStep) -> Any:
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
    if ctx.run.off_fast_path:
        ctx.run.alarm = arm_call(ctx)
    outside = copy_context() if plan.restores else None
    if plan.binds:
        bind_ids(ctx)
    return outside


async def attempt(ctx: InvokeContext) -> object:
    """Run one attempt: ``will_execute``, the tool, ``did_execute``; ``on_retry`` precedes all but the first."""
    plan = ctx.run.plan
    ctx.run.tries += 1
    ctx.run.attempt, ctx.run.sent = ctx.run.tries, (0, 0)
    ctx.run.shown_output = MISSING
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


async def walk(ctx: InvokeContext, steps: Iterable[StepCall]) -> None:
    """Run the steps of a stage in order."""
    for kind, call, step in steps:
        ctx.run.step = step
        if (answer := await call(ctx) if kind else call(ctx)) is not None:
            await take_returned(ctx, step, answer)


async def take_returned(ctx: InvokeContext, step: PlanStep, answer: object) -> None:
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


async def take_response(
    plan: CallPlan[InvokeContext], ctx: InvokeContext, response: ControlRespond
) -> tuple[StepCall, ...]:
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
            except ControlRespond as later:
                response = later
                continue
        return plan.after_response if response.validate else plan.unchecked_shaping


def response_in(ctx: InvokeContext, error: BaseException) -> ControlRespond:
    """Return a response, or that which left a task group; raise the error that counts if there is none."""
    if isinstance(found := counted(ctx, error), ControlRespond):
        return found
    raise found


async def shape_response(plan: CallPlan[InvokeContext], ctx: InvokeContext, response: ControlRespond) -> None:
    """Take a response from an output stage: set the output, skip the rest of that stage, continue with the next."""
    while True:
        stopped = ctx.run.step
        shaping = await take_response(plan, ctx, response)
        try:
            return await walk(ctx, [one for one in shaping if follows(one[2], stopped)])
        except ControlRespond as later:
            response = later


def follows(step: PlanStep, stopped: PlanStep) -> bool:
    """Return True for steps of later stages, and for the runtime's own step of the same stage."""
    return step.row.position > stopped.row.position or (step.hook is None and step.stage is stopped.stage)
