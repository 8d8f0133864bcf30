"""Leases: acquired capacity that is given back exactly once, on every path (invariant I1).

The ledger is ``ctx.leases``, a list of compiled release steps, pushed when an acquire returned. A step that takes or
gives back is *carried through*: it is driven in the caller's own task, so ``current_task()``, context variables and
cancel scopes keep their meaning, but a cancellation from outside that arrives while it waits is held back until the
step is over. A step that never waits costs one ``send``; no task is made, ever.

What is outside? While a step is carried, its task waits on a ``_Wait``, and ``Task.cancel()`` asks that first, in the
context of whoever cancels. A context that descends from the step's own (a time limit or scope that it opened, a task
that it started) has the step in ``INSIDE``: such a cancellation is the step's own business, and reaches it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any

from callgate.errors import StageError
from callgate.hooks.step import ASYNC, Step

ACQUIRE_GRACE = 1.0
"""Seconds that an acquire may still take once a cancellation has arrived; then it is cancelled and given back if it won."""
RELEASE_LIMIT = 10.0
"""Seconds that one closing step may take; then it is cancelled, and after a grace left behind."""

INSIDE: ContextVar[Any] = ContextVar("callgate_inside", default=None)
"""The coroutine that is being carried, in its context and in all that is started from there."""


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
    """One step on its way to its end.

    ``held`` is the cancellation from outside that it was spared, ``told`` whether its time ran out and it was
    cancelled after all. *limit* bounds the step in seconds; *grace*, if given, what is left once it is spared one.
    """

    __slots__ = (
        "coroutine",
        "grace",
        "held",
        "limit",
        "loop",
        "over",
        "pending",
        "refused",
        "task",
        "timer",
        "told",
        "wait",
    )

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], *, limit: float | None = None, grace: float | None = None
    ) -> None:
        self.coroutine, self.limit, self.grace = coroutine, limit, grace
        self.held: asyncio.CancelledError | None = None
        self.refused: asyncio.CancelledError | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.told = self.over = False

    async def run(self) -> Any:
        """The whole step; as long as it does not wait, in place."""
        outer = INSIDE.get()
        INSIDE.set(self.coroutine)
        try:
            return await self.through(self.coroutine.send(None))
        except StopIteration as stop:
            return stop.value
        finally:
            INSIDE.set(outer)

    async def through(self, pending: Any) -> Any:
        """The rest of a step that waits for *pending*.

        Raises:
            TimeoutError: its time ran out; it was cancelled, or at last left behind.
        """
        self.loop, self.task = asyncio.get_running_loop(), asyncio.current_task()
        if self.limit is not None:
            self.timer = self.loop.call_later(self.limit, self._late)
        try:
            while True:
                try:
                    await self._wait(pending)
                    thrown: BaseException | None = self.refused
                except BaseException as error:  # noqa: BLE001  (its own cancellation, or the coroutine is closed)
                    thrown = error
                if self.over:
                    self._leave_behind()
                INSIDE.set(self.coroutine)
                self.refused = None
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
        """Somebody cancels the task: the step itself, or anybody else, whom it does not hear of."""
        if INSIDE.get() is self.coroutine and asyncio.current_task(self.loop) is not self.task:
            return self.pending is not None and bool(self.pending.cancel(msg=msg))
        if self.held is None:
            self.held = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
            if self.grace is not None and not self.told:
                self._allow(self.grace)
        elif msg is not None:  # an anyio scope knows its own cancellation by the message
            self.held = asyncio.CancelledError(msg)
        return True

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


async def carry_on(ctx: Any, coroutine: Coroutine[Any, Any, Any], pending: Any, limit: float) -> Any:
    """Carry a step that has suspended on *pending* to its end; a cancellation goes to ``ctx.deferred``."""
    carried = Carried(coroutine, limit=limit)
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


class Unfinished:
    """What a first step came to when it did not simply end: it waits for *pending*, or it returned *answer*."""

    __slots__ = ("answer", "pending", "waits")

    def __init__(self, *, waits: bool, pending: Any = None, answer: Any = None) -> None:
        self.waits, self.pending, self.answer = waits, pending, answer


_ENDED: Any = object()


def begin(coroutine: Any, silent: bool = False) -> Unfinished | None:
    """Drive a coroutine to its first wait, in place; None when it ended and returned nothing.

    *silent* says that it never returns a value: ``next`` with a default then spares an exception.
    """
    INSIDE.set(coroutine)
    if silent:
        pending = next(coroutine.__await__(), _ENDED)
        return None if pending is _ENDED else Unfinished(waits=True, pending=pending)
    try:
        return Unfinished(waits=True, pending=coroutine.send(None))
    except StopIteration as stop:
        return None if stop.value is None else Unfinished(waits=False, answer=stop.value)


async def finish_acquire(ctx: Any, coroutine: Coroutine[Any, Any, Any], unfinished: Unfinished, step: Step) -> Any:
    """The rest of an acquire that waits: on the ledger when it returned, whatever arrived meanwhile."""
    if not unfinished.waits:
        return unfinished.answer
    carried = Carried(coroutine, grace=ACQUIRE_GRACE)
    try:
        answer = await carried.through(unfinished.pending)
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
    """Keep a cancellation, if there was one, for the end. One with a message wins: by that an anyio scope knows its own."""
    if cancelled is not None and (ctx.deferred is None or cancelled.args):
        ctx.hold_back(cancelled)


def push(ctx: Any, release: Any) -> None:
    """Put one release on the ledger."""
    if ctx.leases is None:
        ctx.leases = [release]
    else:
        ctx.leases.append(release)


async def enter_lease(ctx: Any, manager: AbstractAsyncContextManager[Any]) -> Any:
    """``ctx.lease(manager)``: enter it carried through; exit it from the ledger.

    Raises:
        StageError: the body was left behind at its deadline, and nobody would give the lease back.
    """
    if ctx.abandoned:
        raise StageError("the call is over: a body that was left behind takes no more leases")
    step = Step(ctx.step.stage, f"lease of {ctx.step.name}")

    async def enter() -> Any:
        return await manager.__aenter__()

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
