"""Hooks that are abandoned where they do not end within a grace after the deadline of their call.

A hook runs in the task of the call, so its context variables and cancel scopes work as ever. Only what is abandoned gets
a task: it goes on there until it ends, and keeps the leases of the call.
"""

from __future__ import annotations

import asyncio
import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from callgate.errors import DeadlineExceeded
from callgate.hooks.context import InvokeContext

GRACE = 0.25
"""Seconds that a cancelled hook may take to end."""


def abandonable(call: Callable[..., object]) -> Callable[..., Any]:
    """Wrap a method of a hook: what it returns to be awaited is abandoned at the deadline, after the grace."""

    def bounded(ctx: InvokeContext, *rest: Any) -> object:
        if ctx.run.alarm is None:
            return call(ctx, *rest)
        answer = call(ctx, *(_until_abandoned(ctx, one) for one in rest))
        return _in_time(ctx, answer) if inspect.isawaitable(answer) else answer

    return bounded


def _until_abandoned(ctx: InvokeContext, proceed: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    """Wrap the ``next`` of ``around_execute``: an abandoned hook begins nothing."""

    async def checked(*given: object) -> Any:
        if ctx.run.abandoned:
            raise DeadlineExceeded(f"{ctx.tool_id} has ended at its deadline")
        return await proceed(*given)

    return checked


async def _in_time(ctx: InvokeContext, answer: Awaitable[object]) -> object:
    return await _drive(ctx, answer if inspect.iscoroutine(answer) else _awaited(answer))


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


@types.coroutine
def _drive(ctx: InvokeContext, hook: Coroutine[Any, Any, object]) -> Generator[Any, Any, Any]:
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
                ended, pending = yield from _last(ctx, hook, cancelled)
                if ended:
                    return pending
            except BaseException as error:  # noqa: BLE001  (the hook gets it)
                pending = hook.throw(error)
            else:
                pending = hook.send(sent)
    except StopIteration as stop:
        return stop.value


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
            given = yield from _wait(pending, until)
            if loop.time() >= until and (pending is None or not pending.done()):
                break
    except StopIteration as stop:
        if ctx.run.alarm is not alarm:
            return True, stop.value
        raise cancelled from None
    ctx.run.plan.host.abandon(ctx, loop.create_task(_rest(hook, pending)))
    raise cancelled


class _Wait(asyncio.Future[None]):
    """The future that a task awaits in place of the hook's own; cancelling it cancels that one."""

    pending: asyncio.Future[Any]

    def cancel(self, msg: object = None) -> bool:
        return self.pending.cancel(msg=msg)

    def wake(self, _: object = None) -> None:
        """Let the task go on."""
        if not self.done():
            self.set_result(None)


def _wait(pending: asyncio.Future[Any] | None, until: float) -> Generator[Any, Any, BaseException | None]:
    """Wait for a future, at most until then; return an error that was thrown in."""
    loop = asyncio.get_running_loop()
    if pending is None:  # a bare yield, such as asyncio.sleep(0)
        try:
            yield None
        except asyncio.CancelledError as again:
            return again
        return None
    wait = _Wait(loop=loop)
    wait.pending = pending
    pending._asyncio_future_blocking = False  # the task waits for it in the hook's place
    pending.add_done_callback(wait.wake)
    timer = loop.call_at(until, wait.wake)
    try:
        yield from wait
    except asyncio.CancelledError as again:
        return again
    finally:
        timer.cancel()
        pending.remove_done_callback(wait.wake)
    return None


async def _rest(hook: Coroutine[Any, Any, object], pending: object) -> object:
    """Run the rest of an abandoned hook, in a task of its own."""
    try:
        return await _go_on(hook, pending)
    except (KeyboardInterrupt, SystemExit) as error:  # in its own task it would stop the loop
        raise RuntimeError("an abandoned hook raised an exit") from error


@types.coroutine
def _go_on(hook: Coroutine[Any, Any, Any], pending: Any) -> Generator[Any, Any, Any]:
    if pending is not None:
        pending._asyncio_future_blocking = True
    try:
        while True:
            try:
                sent = yield pending
            except BaseException as error:  # noqa: BLE001  (the hook gets it)
                pending = hook.throw(error)
            else:
                pending = hook.send(sent)
    except StopIteration as stop:
        return stop.value
