"""Leases: acquired capacity that is given back exactly once, on every path (invariant I1).

The ledger is ``ctx.leases``, a list of compiled release steps, pushed when an acquire returned. A step that takes or
gives back is *carried through*: it is driven in the caller's own task, so ``current_task()``, time limits and
cancel scopes inside it keep their meaning, but a cancellation that arrives while it waits is held back until the
step is over. A step that never waits costs one ``send``; no task is made, ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from callgate.errors import DeadlineExceeded
from callgate.hooks.step import ASYNC, Step

ACQUIRE_GRACE = 1.0
"""Seconds that an acquire may still take once a cancellation has arrived; then it is cancelled and given back if it won."""
RELEASE_LIMIT = 10.0
"""Seconds that one closing step may take in all; a lease on a dead server must not hold the caller for ever."""


class Interrupted(Exception):
    """An acquire was cancelled, after its grace, before it returned: it may or may not have won."""


async def carry_on(  # noqa: C901  (one loop; split, its cases would be harder to check against each other)
    ctx: Any, coroutine: Coroutine[Any, Any, Any], pending: Any, limit: float, *, grace: float | None = None
) -> Any:
    """Drive a coroutine that has suspended on *pending* to its end; hold cancellations back in ``ctx.deferred``.

    *limit* bounds the whole step in seconds. *grace*, if given, is what remains once a cancellation arrives.

    Raises:
        Interrupted: time ran out after a cancellation; the coroutine has ended.
        DeadlineExceeded: time ran out without one.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + limit
    told = False
    while True:
        try:
            if pending is None:  # a bare yield, such as asyncio.sleep(0)
                await asyncio.sleep(0)
            else:
                pending._asyncio_future_blocking = False  # we wait for it in the coroutine's place
                if not pending.done():
                    await asyncio.wait([pending], timeout=max(0.0, give_up - loop.time()))
        except asyncio.CancelledError as cancelled:
            if ctx.deferred is None and grace is not None:
                give_up = min(give_up, loop.time() + grace)
            ctx.hold_back(cancelled)
        if pending is not None and not pending.done():
            if loop.time() >= give_up:
                if told:  # it was cancelled and swallows that: the step is left behind
                    coroutine.close()
                    raise _timed_out(ctx)
                told = True
                give_up = loop.time() + (grace or ACQUIRE_GRACE)
                pending.cancel()
            continue
        try:
            pending = coroutine.send(None)
        except StopIteration as stop:
            return stop.value
        except asyncio.CancelledError:
            if told:
                raise _timed_out(ctx) from None
            raise


def _timed_out(ctx: Any) -> Exception:
    return (
        Interrupted() if ctx.deferred is not None else DeadlineExceeded("a step that takes or gives back capacity hung")
    )


async def carry(
    ctx: Any, coroutine: Coroutine[Any, Any, Any], limit: float = RELEASE_LIMIT, grace: float | None = None
) -> Any:
    """``carry_on`` from the start: the first step runs in place."""
    try:
        pending = coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    return await carry_on(ctx, coroutine, pending, limit, grace=grace)


async def finish_acquire(ctx: Any, coroutine: Coroutine[Any, Any, Any], pending: Any, step: Step) -> Any:
    """The rest of an acquire that waits: on the ledger when it returned, whatever arrived meanwhile."""
    before = ctx.deferred
    try:
        answer = await carry_on(ctx, coroutine, pending, limit=86_400.0, grace=ACQUIRE_GRACE)
    except Interrupted:
        if getattr(step.hook, "releases_by_token", False):
            push(ctx, step.release)
        raise ctx.deferred from None
    if answer is None:
        push(ctx, step.release)
    if ctx.deferred is not before:
        cancelled, ctx.deferred = ctx.deferred, before
        raise cancelled
    return answer


def push(ctx: Any, release: Any) -> None:
    """Put one release on the ledger."""
    if ctx.leases is None:
        ctx.leases = [release]
    else:
        ctx.leases.append(release)


async def enter_lease(ctx: Any, manager: AbstractAsyncContextManager[Any]) -> Any:
    """``ctx.lease(manager)``: enter it carried through; exit it from the ledger."""
    step = Step(ctx.step.stage, f"lease of {ctx.step.name}")

    async def leave(_ctx: Any) -> None:
        error = ctx.error
        await manager.__aexit__(type(error) if error else None, error, None)

    before = ctx.deferred
    resource = await carry(ctx, manager.__aenter__(), limit=86_400.0, grace=ACQUIRE_GRACE)
    push(ctx, (ASYNC, leave, step))
    if ctx.deferred is not before:
        cancelled, ctx.deferred = ctx.deferred, before
        raise cancelled
    return resource
