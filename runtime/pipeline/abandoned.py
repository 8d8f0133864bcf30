"""Abandoned steps: hooks that do not end within a grace after the deadline of their call, and steps under a shield.

A hook runs in the task of the call, so its context variables and cancel scopes work as ever. Only what is abandoned gets
a task: it goes on there until it ends, and keeps the leases of the call.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any

from callgate.errors import DeadlineExceeded
from callgate.hooks.context import InvokeContext
from callgate.runtime.pipeline.shield import awaited, take_over

GRACE = 0.25
"""Seconds that a cancelled hook may take to end."""


def abandonable(call: Callable[..., object]) -> Callable[..., object]:
    """Wrap a method of a hook: what it returns to be awaited is abandoned at the deadline, after the grace."""

    def bounded(ctx: InvokeContext, *rest: Callable[..., Awaitable[object]]) -> object:
        if ctx.run.alarm is None:
            return call(ctx, *rest)
        answer = call(ctx, *(_until_abandoned(ctx, one) for one in rest))
        if not inspect.isawaitable(answer):
            return answer
        return _drive(ctx, answer if inspect.iscoroutine(answer) else awaited(answer))

    return bounded


def _until_abandoned(ctx: InvokeContext, proceed: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    """Wrap the ``next`` of ``around_execute``: an abandoned hook begins nothing."""

    async def checked(*given: object) -> object:
        if ctx.run.abandoned:
            raise DeadlineExceeded(f"{ctx.tool_id} has ended at its deadline")
        return await proceed(*given)

    return checked


@types.coroutine
def _drive(ctx: InvokeContext, hook: Coroutine[object, None, object]) -> Generator[object, None, object]:
    """Run a hook as ``await`` does, until the deadline cancels it; then for the grace."""
    try:
        pending = hook.send(None)
        while True:
            try:
                sent = yield pending
            except asyncio.CancelledError as cancelled:
                alarm = ctx.run.alarm
                if alarm is None or not alarm.fired:  # a timeout or a scope of the hook, or a caller
                    pending = hook.throw(cancelled)
                    continue
                ended, pending = yield from _last(ctx, hook, cancelled)  # pyright: ignore[reportGeneralTypeIssues]
                if ended:
                    return pending
            except BaseException as error:  # noqa: BLE001  (the hook gets it)
                pending = hook.throw(error)
            else:
                pending = hook.send(sent)
    except StopIteration as stop:
        return stop.value


@types.coroutine
def _last(
    ctx: InvokeContext, hook: Coroutine[Any, Any, object], cancelled: asyncio.CancelledError
) -> Generator[Any, Any, tuple[bool, Any]]:
    """Cancel the hook, and run it for the grace.

    Return ``(False, what it waits for)`` or ``(True, its value)`` if a body has consumed the deadline.

    Raises:
        CancelledError: the hook was abandoned, or it ended and had swallowed the cancellation.
    """
    alarm, loop = ctx.run.alarm, asyncio.get_running_loop()
    until = loop.time() + GRACE
    given: BaseException | None = cancelled
    try:
        while True:
            pending = hook.send(None) if given is None else hook.throw(given)
            if ctx.run.alarm is not alarm:  # a body ended within its own grace: its result counts, and has a new alarm
                return False, pending
            given = yield from settled(pending, until)
            if loop.time() >= until and (pending is None or not pending.done()):
                break
    except StopIteration as stop:
        if ctx.run.alarm is not alarm:
            return True, stop.value
        raise cancelled from None
    # asyncio: the hook outlives its call, which an anyio task group would hold
    ctx.run.plan.host.abandon(ctx, loop.create_task(finish_abandoned(hook, pending)))
    raise cancelled


# ---------------------------------------------------------------------- the rest of an abandoned step


async def settled(pending: asyncio.Future[object] | None, until: float | None = None) -> asyncio.CancelledError | None:
    """Wait until the future for which a coroutine waits is done, at most until then. Return a cancellation for it.

    A cancellation goes to the future first, as if the task waited for the future itself.
    """
    clock = asyncio.get_running_loop().time
    if pending is not None:
        take_over(pending)
    while pending is None or not pending.done():
        left = None if until is None else until - clock()
        if left is not None and left <= 0:
            break
        try:
            if pending is None:  # a bare yield, such as asyncio.sleep(0)
                await asyncio.sleep(0)
                break
            await asyncio.wait([pending], timeout=left)
        except asyncio.CancelledError as cancelled:
            if pending is None or not pending.cancel(*cancelled.args[:1]):
                return cancelled
    return None


async def finish_abandoned(
    hook: Coroutine[Any, Any, object], pending: Any, *, ends_when_cancelled: bool = False
) -> object:
    """Run the rest of an abandoned hook, in a task of its own.

    With *ends_when_cancelled* a cancellation, as at the end of the loop, ends the hook, also if the hook swallows it.
    """
    task = asyncio.current_task()
    assert task is not None
    try:
        while True:
            cancelled = await settled(pending)
            pending = hook.send(None) if cancelled is None else hook.throw(cancelled)
            if ends_when_cancelled and task.cancelling():
                hook.close()
                raise asyncio.CancelledError
    except StopIteration as stop:
        return stop.value
    except (KeyboardInterrupt, SystemExit) as error:  # in its own task it would stop the loop
        raise RuntimeError("an abandoned hook raised an exit") from error


_LEFT = set[asyncio.Task[object]]()


def leave_running(step: Coroutine[object, None, object], pending: object) -> None:
    """Run the rest of an abandoned step in a task of its own."""
    # asyncio: the step outlives its call, which an anyio task group would hold
    rest = asyncio.get_running_loop().create_task(finish_abandoned(step, pending, ends_when_cancelled=True))
    _LEFT.add(rest)  # the loop itself keeps no task
    rest.add_done_callback(_forget)


def _forget(rest: asyncio.Task[object]) -> None:
    _LEFT.discard(rest)
    if not rest.cancelled():
        rest.exception()  # the step has failed already: it was late


def waits_in_generator(coroutine: Coroutine[object, None, object]) -> bool:
    """Return True if a coroutine waits in an async generator that ``close()`` does not reach: before Python 3.13.

    The generator would keep its place in the queue of a lock until it is garbage, and the lock would be free for no
    other waiter.
    """
    waited: object = coroutine
    while inspect.iscoroutine(waited):
        waited = waited.cr_await
    return type(waited) in _GENERATOR_STEPS


async def _empty() -> AsyncGenerator[None, None]:
    yield


def _step_types() -> tuple[type, ...]:
    steps = _empty().asend(None), _empty().aclose()
    for step in steps:
        step.close()  # Python 3.12 and later warn of a step that was not awaited
    return tuple(map(type, steps))


_GENERATOR_STEPS = _step_types() if sys.version_info < (3, 13) else ()
