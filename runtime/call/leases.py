"""Leases: acquired capacity that is given back exactly once, on every path (invariant I1).

The ledger is ``ctx.leases``, a stack of compiled release steps, pushed when an acquire returned. A step that takes or
gives back is *carried through*: it is driven in the caller's own task, so ``current_task()``, context variables and
cancel scopes keep their meaning, but a cancellation from outside that arrives while it waits is held back until the
step is over. A step that never waits costs one ``send``; no task is made, ever.

What is outside? While a step is carried, its task waits on a ``_Wait``, and ``Task.cancel()`` asks that first, in the
context of whoever cancels. A context that descends from the step's own (a time limit or scope that it opened, a task
that it started) has the step's mark in ``INSIDE``: such a cancellation is the step's own business, and reaches it. Each
acquire has a mark of its own, the closing steps of a call share one: what the call has started before is outside.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any

from callgate.errors import StageError
from callgate.hooks.step import ASYNC, Step
from callgate.runtime.call import scopes

ACQUIRE_GRACE = 1.0
"""Seconds that an acquire may still take once a cancellation has arrived; then it is cancelled and given back if it won."""
RELEASE_LIMIT = 10.0
"""Seconds that one closing step may take; then it is cancelled, and after a grace left behind."""

INSIDE: ContextVar[int] = ContextVar("callgate_inside", default=0)
"""The mark of the steps that are carried, in their context and in all that is started from there."""

new_mark: Callable[[], int] = itertools.count(1).__next__
set_mark = INSIDE.set


class _Wait(asyncio.Future[None]):
    """What a task waits on in place of what its step waits for."""

    carried: Carried

    def cancel(self, msg: Any = None) -> bool:
        """``Task.cancel()`` asks this; True means that it is dealt with."""
        return self.carried.cancel(msg)

    def wake(self, _: Any = None) -> None:
        """What the step waits for has come."""
        if not self.done():
            self.set_result(None)


class Carried:
    """One step on its way to its end; *mark* is what ``INSIDE`` held when it began.

    ``held`` is the cancellation from outside that it was spared, ``told`` whether its time ran out and it was
    cancelled after all. *limit* bounds the step in seconds; *grace*, if given, what is left once it is spared one.
    """

    __slots__ = (
        "coroutine",
        "first",
        "grace",
        "held",
        "limit",
        "loop",
        "mark",
        "message",
        "over",
        "pending",
        "refused",
        "spared",
        "task",
        "timer",
        "told",
        "wait",
    )

    loop: asyncio.AbstractEventLoop
    pending: Any
    task: Any
    wait: Any

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        mark: int = 0,
        *,
        limit: float | None = None,
        grace: float | None = None,
    ) -> None:
        self.mark = mark
        self.coroutine, self.limit, self.grace = coroutine, limit, grace
        self.held: asyncio.CancelledError | None = None
        self.refused: asyncio.CancelledError | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.message: Any = None
        self.spared = 0
        self.told = self.over = False

    async def run(self) -> Any:
        """The whole step; as long as it does not wait, in place. With a mark of its own: a limit about it is outside."""
        outer, hidden = INSIDE.get(), scopes.hide()
        self.mark = new_mark()
        set_mark(self.mark)
        try:
            return await self.through(self.coroutine.send(None))
        except StopIteration as stop:
            return stop.value
        finally:
            set_mark(outer)
            if hidden is not None:
                hidden.restore()

    async def through(self, pending: Any) -> Any:
        """The rest of a step that waits for *pending*.

        Raises:
            TimeoutError: its time ran out; it was cancelled, or at last left behind.
        """
        self.loop, self.task, self.first = asyncio.get_running_loop(), asyncio.current_task(), True
        if self.limit is not None:
            self.timer = self.loop.call_later(self.limit, self._late)
        try:
            answer = await self._drive(pending)
        except GeneratorExit:  # the coroutine of the call is closed: nothing may be awaited any more
            raise
        except BaseException:
            await self._arrive()
            raise
        await self._arrive()
        return answer

    async def _drive(self, pending: Any) -> Any:
        try:
            while True:
                try:
                    await self._wait(pending)
                    thrown: BaseException | None = self.refused
                except BaseException as error:  # noqa: BLE001  (its own cancellation, or the coroutine is closed)
                    thrown = error
                if self.over:
                    self._leave_behind()
                set_mark(self.mark)
                self.refused, self.first = None, False
                pending = self.coroutine.send(None) if thrown is None else self.coroutine.throw(thrown)
        except StopIteration as stop:
            return stop.value
        except asyncio.CancelledError as error:
            if not self.told:
                raise
            raise TimeoutError("a step that takes or gives back capacity hung and was cancelled") from error
        finally:
            self.pending = self.wait = None
            if self.timer is not None:
                self.timer.cancel()

    def cancel(self, msg: Any) -> bool:
        """Somebody cancels the task: the step itself, or anybody else, whom it does not hear of.

        It does not see him in ``cancelling()`` either, or a time limit of its own would take him for its own.
        """
        own = asyncio.current_task(self.loop) is self.task  # asked for while it ran: before the step, or by it
        if (not self.first) if own else INSIDE.get() == self.mark:
            return self.pending is not None and bool(self.pending.cancel(msg=msg))
        self.task.uncancel()
        self.spared += 1
        if msg is not None:  # by its message an anyio scope knows its own cancellation
            self.message = msg
        if self.spared == 1 and self.grace is not None and not self.told:
            waits_in_line = getattr(self.pending, "may_be_left", False)  # nothing is taken meanwhile: no need to wait
            self._allow(0.0 if waits_in_line else self.grace)
        return True

    async def _arrive(self) -> None:
        """The step is over: now what it was spared may come."""
        if self.spared:
            for _ in range(self.spared):
                self.task.cancel(self.message)
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as held:
                self.held = held

    def _wait(self, pending: Any) -> _Wait:
        self.pending = pending
        wait = self.wait = _Wait(loop=self.loop)
        wait.carried = self
        if pending is None:  # a bare yield, such as asyncio.sleep(0)
            self.loop.call_soon(wait.wake)
        elif asyncio.isfuture(pending) and pending.get_loop() is self.loop:
            pending._asyncio_future_blocking = False  # we wait for it in the step's place
            pending.add_done_callback(wait.wake)
        else:
            wait.set_exception(RuntimeError(f"a step waits for {pending!r}, which is not of this event loop"))
        return wait

    def _allow(self, seconds: float) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        """Time is up: cancel it. Up again: it swallows cancellations."""
        if self.told:
            self.over = True
            self.wait.wake()
            return
        self.told = True
        self._allow(ACQUIRE_GRACE)
        if self.pending is None or not self.pending.cancel():
            self.refused = asyncio.CancelledError()

    def _leave_behind(self) -> None:
        try:
            self.coroutine.close()
        except Exception as error:
            raise TimeoutError("a step that takes or gives back capacity hung and was left behind") from error
        raise TimeoutError("a step that takes or gives back capacity hung and was left behind")


async def awaited(awaitable: Awaitable[Any]) -> Any:
    """An awaitable as a coroutine, to be carried."""
    return await awaitable


async def carry_on(ctx: Any, coroutine: Coroutine[Any, Any, Any], pending: Any, mark: int, limit: float) -> Any:
    """Carry a step that began with *mark* and waits for *pending* to its end; a cancellation goes to ``ctx.deferred``."""
    carried = Carried(coroutine, mark, limit=limit)
    try:
        return await carried.through(pending)
    finally:
        hold_back(ctx, carried.held)


async def carry(ctx: Any, coroutine: Coroutine[Any, Any, Any], limit: float = RELEASE_LIMIT) -> Any:
    """``carry_on`` from the start: the first step runs in place."""
    carried = Carried(coroutine, limit=limit)
    try:
        return await carried.run()
    finally:
        hold_back(ctx, carried.held)


ENDED: Any = object()
"""What ``next(step.__await__(), ENDED)`` answers for a step that never waited: no exception is made on the way."""


def taking(step: Step, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An acquire that may return something, as a plain async step: it puts its own release on the ledger."""

    async def take(ctx: Any) -> Any:
        set_mark(mark := new_mark())
        coroutine = call(ctx)
        try:
            pending = coroutine.send(None)
        except StopIteration as stop:
            if stop.value is None:
                push(ctx, step.release)
            return stop.value
        return await finish_acquire(ctx, coroutine, pending, mark, step)

    return take


async def finish_acquire(ctx: Any, coroutine: Coroutine[Any, Any, Any], pending: Any, mark: int, step: Step) -> Any:
    """The rest of an acquire that waits: on the ledger when it returned, whatever arrived meanwhile."""
    carried = Carried(coroutine, mark, grace=ACQUIRE_GRACE)
    try:
        answer = await carried.through(pending)
    except BaseException as error:
        if carried.told and getattr(step.hook, "releases_by_token", False):
            push(ctx, step.release)
        _raise_held(carried, error)
        raise
    if answer is None:
        push(ctx, step.release)
    _raise_held(carried)
    return answer


def _raise_held(carried: Carried, error: BaseException | None = None) -> None:
    if carried.held is not None and not isinstance(error, GeneratorExit):
        raise carried.held from error


def hold_back(ctx: Any, cancelled: asyncio.CancelledError | None) -> None:
    """Keep a cancellation, if there was one, for the end; one with the message of an anyio scope wins."""
    if cancelled is not None and (ctx.deferred is None or cancelled.args):
        ctx.hold_back(cancelled)


def push(ctx: Any, release: Any) -> None:
    """Put one release on the ledger, a linked stack: ``(release, those below)`` or None."""
    ctx.leases = (release, ctx.leases)


def taken_off(held: Any) -> list[Any]:
    """A ledger's releases, the last taken first."""
    releases = []
    while held is not None:
        release, held = held
        releases.append(release)
    return releases


async def enter_lease(ctx: Any, manager: AbstractAsyncContextManager[Any]) -> Any:
    """``ctx.lease(manager)``: enter it carried through; exit it from the ledger.

    Raises:
        StageError: the body was left behind at its deadline, and nobody would give the lease back.
    """
    if ctx.abandoned:
        raise StageError("the call is over: a body that was left behind takes no more leases")
    step = Step(ctx.step.stage, f"lease of {ctx.step.name}")

    async def enter() -> Any:
        resource = await manager.__aenter__()
        if scopes.current() is not None:
            await manager.__aexit__(None, None, None)
            raise StageError("ctx.lease takes capacity; open a cancel scope or a task group in around_execute")
        return resource

    async def leave(_ctx: Any) -> None:
        error = ctx.error
        await manager.__aexit__(type(error) if error else None, error, None)

    carried = Carried(enter(), grace=ACQUIRE_GRACE)
    try:
        resource = await carried.run()
    except BaseException as error:
        _raise_held(carried, error)
        raise
    if ctx.abandoned:  # meanwhile
        await carry(ctx, leave(ctx))
    else:
        push(ctx, (ASYNC, leave, step))
    _raise_held(carried)
    return resource
