"""Leases: acquired capacity that is released exactly once, on every path.

The ledger is ``ctx.run.leases``, a stack of compiled release steps, pushed when an acquire returns. A step that acquires or
releases runs under a shield (``shield.py``), in the caller's own task: a cancellation from outside that arrives while
the step waits is deferred until the step ends. A step that never waits costs one ``send``; no task is ever made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager

from callgate.errors import StageError
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.facts import Leases
from callgate.hooks.state.step import ASYNC, PlanStep, StepCall, lease_step
from callgate.providers.exits import Taking
from callgate.runtime.pipeline.shield import (
    ACQUIRE_GRACE,
    LATE,
    RELEASE_LIMIT,
    Shielded,
    T_co,
    enter_shield,
    leave_shield,
    set_mark,
)


async def finish(ctx: InvokeContext, shielded: Shielded[T_co], pending: object) -> T_co:
    """Finish a shielded step that waits for *pending*; ``ctx.run.deferred`` keeps a cancellation."""
    try:
        return await shielded.finish(pending)
    finally:
        defer(ctx, shielded.deferred)


async def finish_shielded(
    ctx: InvokeContext, coroutine: Coroutine[object, None, T_co], limit: float | Callable[[], float] = RELEASE_LIMIT
) -> T_co:
    """Run a whole step under a shield, like ``finish``; it runs in place until it waits."""
    shielded = Shielded(coroutine, limit=limit)
    try:
        return await shielded.run()
    finally:
        defer(ctx, shielded.deferred)


def taking(step: PlanStep, call: Callable[..., Coroutine[object, None, object]]) -> Callable[..., Awaitable[object]]:
    """Wrap an acquire that may return a value as a plain async step that records its own release on the ledger."""

    async def take(ctx: InvokeContext) -> object:
        set_mark(coroutine := call(ctx))
        try:
            pending = coroutine.send(None)
        except StopIteration as stop:
            if stop.value is None:
                push(ctx, step.release)
            return stop.value
        return await finish_acquire(ctx, coroutine, pending, step)

    return take


async def finish_acquire(
    ctx: InvokeContext, coroutine: Coroutine[object, None, object], pending: object, step: PlanStep
) -> object:
    """Finish an acquire that waits; record its release if it returned, even after a cancellation."""
    shielded = Shielded(coroutine, grace=ACQUIRE_GRACE)
    try:
        answer = await shielded.finish(pending)
    except BaseException as error:
        if shielded.timed_out and getattr(step.hook, "releases_by_token", False):
            push(ctx, step.release)
        _raise_deferred(shielded, error)
        raise
    if answer is None:
        push(ctx, step.release)
    if shielded.deferred is not None:
        _raise_deferred(shielded)
    return answer


def _raise_deferred(shielded: Shielded[object], error: BaseException | None = None) -> None:
    if shielded.deferred is not None and not isinstance(error, GeneratorExit):
        raise shielded.deferred from error


def defer(ctx: InvokeContext, cancelled: asyncio.CancelledError | None) -> None:
    """Defer a cancellation, if there was one; that of an anyio scope, known by its message, takes precedence."""
    if cancelled is not None and (ctx.run.deferred is None or cancelled.args not in ((), (LATE,))):
        ctx.run.defer(cancelled)


def share(ctx: InvokeContext) -> float:
    """Return the seconds that a closing step may wait: half of the budget that is left. The first call starts it."""
    state, now = ctx.run, asyncio.get_running_loop().time()
    until = state.closes_at
    if until is None:
        until = now + state.plan.host.closing
        state.closes_at, state.off_fast_path = until, True
    return max(0.0, until - now) / 2


def push(ctx: InvokeContext, release: StepCall | None) -> None:
    """Push one release on the ledger, a linked stack: ``(release, rest)`` or None."""
    assert release is not None
    ctx.run.leases = (release, ctx.run.leases)


def releases_of(ledger: Leases) -> list[StepCall]:
    """Return the releases of a ledger, the last acquired first."""
    releases: list[StepCall] = []
    while ledger is not None:
        release, ledger = ledger
        releases.append(release)
    return releases


_OVER = "the call is over, or its body was abandoned: it takes no more leases"


async def enter_lease(ctx: InvokeContext, manager: AbstractAsyncContextManager[object]) -> object:
    """Enter the manager of ``ctx.lease`` under a shield; the ledger exits it.

    Raises:
        StageError: the call is over, or its body was abandoned, so the lease would never be released.
    """
    if _is_over(ctx):
        raise StageError(_OVER)
    at = ctx.run.step
    step = lease_step(at.stage, at.name, id(at.hook) in ctx.run.plan.recorders)

    async def enter() -> object:
        outermost = enter_shield()
        try:
            resource = await manager.__aenter__()
        except BaseException:
            if outermost is not None:
                leave_shield(outermost)
            raise
        if outermost is not None and not leave_shield(outermost):  # the manager has left a scope open
            await manager.__aexit__(None, None, None)
            leave_shield(outermost)
            raise StageError("ctx.lease takes capacity; open a cancel scope or a task group in around_execute")
        return resource

    async def leave(_ctx: InvokeContext) -> None:
        error = ctx.run.error
        await manager.__aexit__(type(error) if error else None, error, None)

    with Taking():
        shielded = Shielded(enter(), grace=ACQUIRE_GRACE)
        try:
            resource = await shielded.run()
        except BaseException as error:
            _raise_deferred(shielded, error)
            raise
        if over := _is_over(ctx):  # meanwhile, where another task of the call asked
            await finish_shielded(ctx, leave(ctx))
        else:
            push(ctx, (ASYNC, leave, step))
    _raise_deferred(shielded)
    if over:
        raise StageError(_OVER)
    return resource


def call_is_over(ctx: InvokeContext) -> bool:
    """Return True once a call has ended, or its body was abandoned."""
    return ctx.run.abandoned or (ctx.run.scope is not None and ctx.run.scope.closed)


def _is_over(ctx: InvokeContext) -> bool:
    """Return True when the ledger has been taken off: a lease that is pushed later would never be released."""
    return ctx.run.finished is not None or call_is_over(ctx)
