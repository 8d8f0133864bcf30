"""Leases: acquired capacity that is released exactly once, on every path.

The ledger is ``ctx.run.leases``, a stack of compiled release steps, pushed when an acquire returns. A step that acquires or
releases runs *shielded*, in the caller's own task. ``current_task()``, context variables and cancel scopes therefore
keep their meaning. A cancellation from outside that arrives while the step waits is deferred until the step ends. A
step that never waits costs one ``send``; no task is ever made.

The mark ``INSIDE`` separates inside from outside. While a step is shielded, its task waits on a ``_Wait``, and
``Task.cancel()`` calls its ``cancel`` in the context of the canceller. A context that descends from the step's own (a
timeout or scope that it opened, a task that it started) has the step's mark in ``INSIDE``. Such a cancellation is
internal and reaches the step. Each acquire has its own mark; the closing steps of a call share one. Timers and scopes
that the call started earlier are outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from types import FrameType
from typing import Any

from callgate.errors import StageError
from callgate.hooks.context import InvokeContext
from callgate.hooks.facts import Leases
from callgate.hooks.step import ASYNC, Compiled, Step
from callgate.runtime.call import scopes

ACQUIRE_GRACE = 1.0
"""Seconds that an acquire may continue after a cancellation; then it is cancelled, and released if it succeeded."""
RELEASE_LIMIT = 10.0
"""Maximum seconds of one closing step outside of a call; then it is cancelled, and abandoned after a grace period."""

INSIDE: ContextVar[object] = ContextVar("callgate_inside", default=None)
"""The mark of shielded steps, in their context and in all contexts that descend from it: a coroutine that ran first."""

set_mark = INSIDE.set

ENCLOSING: ContextVar[tuple[object, ...]] = ContextVar("callgate_enclosing", default=())
"""The marks of the steps within which nested calls run: a nested call has marks of its own in ``INSIDE``."""


class _Wait(asyncio.Future[None]):
    """The future that a task awaits in place of its step's own future."""

    carried: Carried

    def cancel(self, msg: object = None) -> bool:
        """Handle ``Task.cancel()``; True means that the cancellation is handled."""
        return self.carried.cancel(msg)

    def wake(self, _: object = None) -> None:
        """Continue when the step's own future is done."""
        if not self.done():
            self.set_result(None)


class Carried:
    """One shielded step; *mark* is the value of ``INSIDE`` when it began.

    ``held`` is the deferred cancellation from outside. ``told`` is True if the time ran out and the step was cancelled.
    *limit* is the maximum time of the step in seconds, or a function that returns it once the step waits; *grace*, if
    given, the time left after a deferred cancellation.
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
        coroutine: Coroutine[Any, Any, object],
        mark: object = None,
        *,
        limit: float | Callable[[], float] | None = None,
        grace: float | None = None,
    ) -> None:
        self.mark = coroutine if mark is None else mark
        self.coroutine, self.limit, self.grace = coroutine, limit, grace
        self.held: asyncio.CancelledError | None = None
        self.refused: asyncio.CancelledError | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.message: Any = None
        self.spared = 0
        self.told = self.over = False

    async def run(self) -> Any:
        """Run the whole step, in place until it waits. It has its own mark, so a timeout around it is outside."""
        outer, shield = INSIDE.get(), scopes.shield()
        set_mark(self.coroutine)
        try:
            return await self.through(self.coroutine.send(None))
        except StopIteration as stop:
            return stop.value
        finally:
            set_mark(outer)
            if shield is not None:
                scopes.leave(shield)

    async def through(self, pending: object) -> Any:
        """Run the rest of a step that waits for *pending*.

        Raises:
            TimeoutError: the time ran out, and the step was cancelled or abandoned.
        """
        self.loop, self.task, self.first = asyncio.get_running_loop(), asyncio.current_task(), True
        if self.limit is not None:
            self.limit = self.limit() if callable(self.limit) else self.limit
            self.timer = self.loop.call_later(self.limit, self._late)
        try:
            answer = await self._drive(pending)
        except GeneratorExit:  # the coroutine of the call is closed: awaiting is no longer possible
            raise
        except BaseException:
            await self._arrive()
            raise
        await self._arrive()
        return answer

    async def _drive(self, pending: object) -> Any:
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
            raise TimeoutError("the step took too long and was cancelled") from error
        finally:
            self.pending = self.wait = None
            if self.timer is not None:
                self.timer.cancel()

    def cancel(self, msg: object) -> bool:
        """Route a cancellation of the task: an internal one reaches the step, an external one is deferred.

        ``cancelling()`` does not count a deferred one; a timeout inside the step would mistake it for its own.
        """
        own = asyncio.current_task(self.loop) is self.task  # the task cancelled itself: before the step, or in it
        if (not self.first) if own else self._is_inside():
            return self.pending is not None and bool(self.pending.cancel(msg=msg))
        self.task.uncancel()
        self.spared += 1
        if msg is not None:  # an anyio scope recognizes its own cancellation by the message
            self.message = msg
        if self.spared == 1 and self.grace is not None and not self.told:
            waits_in_line = getattr(self.pending, "may_be_left", False)  # a waiter holds nothing: no grace is needed
            self._allow(0.0 if waits_in_line else self.grace)
        return True

    def _is_inside(self) -> bool:
        """Return True if the canceller descends from this step, or from a nested call that the step makes."""
        return INSIDE.get() is self.mark or self.mark in ENCLOSING.get()

    async def _arrive(self) -> None:
        """Deliver the deferred cancellations after the step."""
        if self.spared:
            for _ in range(self.spared):
                self.task.cancel(self.message)
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as held:
                self.held = held

    def _wait(self, pending: object) -> _Wait:
        self.pending = pending
        wait = self.wait = _Wait(loop=self.loop)
        wait.carried = self
        if pending is None:  # a bare yield, such as asyncio.sleep(0)
            self.loop.call_soon(wait.wake)
        elif asyncio.isfuture(pending) and pending.get_loop() is self.loop:
            pending._asyncio_future_blocking = False  # the task waits for it in the step's place
            pending.add_done_callback(wait.wake)
        else:
            wait.set_exception(RuntimeError(f"a step waits for {pending!r}, which is not of this event loop"))
        return wait

    def _allow(self, seconds: float) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        """Cancel the step when time is up; abandon it if it swallowed the first cancellation."""
        if self.told:
            self.over = True
            self.wait.wake()
            return
        self.told = True
        self._allow(min(ACQUIRE_GRACE, self.limit / 2) if isinstance(self.limit, float) else ACQUIRE_GRACE)
        if isinstance(self.pending, _Wait):  # a shielded step of a nested call, whose time is up, too
            self.pending.carried._late()
        elif self.pending is None or not self.pending.cancel():
            self.refused = asyncio.CancelledError()

    def _leave_behind(self) -> None:
        late = TimeoutError("the step took too long, did not end when it was cancelled, and was left behind")
        try:
            self.coroutine.close()
        except Exception as error:
            raise late from error
        raise late


def step_driven_by(frame: FrameType) -> Coroutine[Any, Any, object] | None:
    """Return the step that a frame of ``Carried`` drives; None for any other frame."""
    return frame.f_locals["self"].coroutine if frame.f_code is Carried._drive.__code__ else None


async def awaited(awaitable: Awaitable[object]) -> object:
    """Await an awaitable in a coroutine, which can run shielded."""
    return await awaitable


async def finish(ctx: InvokeContext, carried: Carried, pending: object) -> Any:
    """Finish a shielded step that waits for *pending*; ``ctx.run.deferred`` keeps a cancellation."""
    try:
        return await carried.through(pending)
    finally:
        hold_back(ctx, carried.held)


async def carry(
    ctx: InvokeContext, coroutine: Coroutine[Any, Any, object], limit: float | Callable[[], float] = RELEASE_LIMIT
) -> Any:
    """Run a whole step under a shield, like ``finish``; it runs in place until it waits."""
    carried = Carried(coroutine, limit=limit)
    try:
        return await carried.run()
    finally:
        hold_back(ctx, carried.held)


ENDED: Any = object()
"""The result of ``next(step.__await__(), ENDED)`` for a step that never waited; it avoids an exception."""


def taking(step: Step, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap an acquire that may return a value as a plain async step that records its own release on the ledger."""

    async def take(ctx: InvokeContext) -> Any:
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
    ctx: InvokeContext, coroutine: Coroutine[Any, Any, object], pending: object, step: Step
) -> object:
    """Finish an acquire that waits; record its release if it returned, even after a cancellation."""
    carried = Carried(coroutine, grace=ACQUIRE_GRACE)
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


def hold_back(ctx: InvokeContext, cancelled: asyncio.CancelledError | None) -> None:
    """Defer a cancellation, if there was one; one with the message of an anyio scope takes precedence."""
    if cancelled is not None and (ctx.run.deferred is None or cancelled.args):
        ctx.run.hold_back(cancelled)


def push(ctx: InvokeContext, release: Compiled | None) -> None:
    """Push one release on the ledger, a linked stack: ``(release, rest)`` or None."""
    assert release is not None
    ctx.run.leases = (release, ctx.run.leases)


def taken_off(held: Leases) -> list[Compiled]:
    """Return the releases of a ledger, the last acquired first."""
    releases: list[Compiled] = []
    while held is not None:
        release, held = held
        releases.append(release)
    return releases


_OVER = "the call is over, or its body was left behind: it takes no more leases"


async def enter_lease(ctx: InvokeContext, manager: AbstractAsyncContextManager[object]) -> object:
    """Enter the manager of ``ctx.lease`` under a shield; the ledger exits it.

    Raises:
        StageError: the call is over, or its body was abandoned, so the lease would never be released.
    """
    if _is_over(ctx):
        raise StageError(_OVER)
    step = Step(ctx.run.step.stage, f"lease of {ctx.run.step.name}")
    step.stays = id(ctx.run.step.hook) in ctx.run.plan.recorders

    async def enter() -> Any:
        outermost = scopes.shield()
        try:
            resource = await manager.__aenter__()
        except BaseException:
            if outermost is not None:
                scopes.leave(outermost)
            raise
        if outermost is not None and not scopes.leave(outermost):  # the manager has left a scope open
            await manager.__aexit__(None, None, None)
            scopes.leave(outermost)
            raise StageError("ctx.lease takes capacity; open a cancel scope or a task group in around_execute")
        return resource

    async def leave(_ctx: InvokeContext) -> None:
        error = ctx.run.error
        await manager.__aexit__(type(error) if error else None, error, None)

    carried = Carried(enter(), grace=ACQUIRE_GRACE)
    try:
        resource = await carried.run()
    except BaseException as error:
        _raise_held(carried, error)
        raise
    over = _is_over(ctx)  # meanwhile, where another task of the call asked
    if over:
        await carry(ctx, leave(ctx))
    else:
        push(ctx, (ASYNC, leave, step))
    _raise_held(carried)
    if over:
        raise StageError(_OVER)
    return resource


def _is_over(ctx: InvokeContext) -> bool:
    """Return True when the ledger has been taken off: a lease that is pushed later would never be released."""
    run = ctx.run
    return run.abandoned or run.finished is not None or (run.scope is not None and run.scope.closed)
