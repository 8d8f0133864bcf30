"""Shields: a step runs to its end in the task of its caller, and a cancellation from outside waits until then.

Why a part of its own
    ``asyncio.shield`` runs the step in another task. Then ``current_task()``, the context variables and the cancel
    scopes of the step are not those of its call, and a lock that belongs to the task that took it cannot be released.
    A new task also costs more than most steps. A shielded scope of anyio keeps off scopes, but not ``Task.cancel()``.

How it works
    ``Shielded`` drives the coroutine of the step with ``send`` and ``throw``. The task waits for a ``Wait`` instead of
    the future of the step. ``Task.cancel()`` calls ``Wait.cancel()`` in the context of the canceller. A context that
    descends from the step (a timeout that it opened, a task that it started) has the mark of the step in ``INSIDE``:
    such a cancellation reaches the step. Any other one is deferred: it arrives after the step. Each acquire has its own
    mark; the closing steps of a call share one. Timers and scopes that the call started earlier are outside.

    A cancelled scope of anyio cancels at *every* checkpoint inside it. A step that uses anyio's primitives would loop
    forever at its first one, because its cancellation is deferred. A shield of anyio keeps such scopes off, and they
    cancel the task at its next checkpoint after the step. A scope can only exist where anyio runs, so nothing else pays.

What it relies on; ``tests/runtime/pipeline/test_shield.py`` fails when one of these changes
    * ``Task.cancel()`` calls ``cancel(msg=...)`` of the future that the task awaits, at once and in the same context.
      True means that the cancellation is handled.
    * A coroutine yields the future that it waits for, or None for a bare yield. It is resumed with ``send(None)``.
    * A task to which a future is yielded clears its flag ``_asyncio_future_blocking``. While the flag is set, no other
      coroutine can await the future. The driver of a coroutine has to clear it: see ``take_over``.
    * ``coroutine.close()`` reaches a coroutine that waits in an async generator from Python 3.13 on, and not before.
    * anyio keeps the innermost scope of each task in a private table of its module for asyncio. Without the table, each
      call pays for a scope, and two steps in one task share a stack of scopes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import Context, ContextVar
from functools import cache
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from callgate.hooks.state.facts import Shield

T_co = TypeVar("T_co", covariant=True)

ACQUIRE_GRACE = 1.0
"""Seconds that an acquire may continue after a cancellation; then it is cancelled, and released if it succeeded."""
RELEASE_LIMIT = 10.0
"""Maximum seconds of one closing step outside of a call; then it is cancelled, and abandoned after a grace period."""
LATE = "the deadline of the call passed while its task had another request to cancel"
"""The message of the cancellation of such a deadline: a ``CancelledError`` without it came from the other request."""

INSIDE: ContextVar[object] = ContextVar("callgate_inside", default=None)
"""The mark of shielded steps, in their context and in all contexts that descend from it: a coroutine that ran first."""

set_mark = INSIDE.set

ENCLOSING: ContextVar[tuple[object, ...]] = ContextVar("callgate_enclosing", default=())
"""The marks of the steps within which nested calls run: a nested call has marks of its own in ``INSIDE``."""

ENDED: object = object()
"""The result of ``next(step.__await__(), ENDED)`` for a step that never waited; it avoids an exception."""


class Cancellable(Protocol):
    """Shielded work that a task waits for through ``Wait``."""

    def cancel(self, msg: object) -> bool:
        """Route a cancellation of the task; True means that it is handled."""
        ...

    def expire(self) -> None:
        """Cancel the work, because its time is up; abandon it if it swallowed the first cancellation."""
        ...


def take_over(future: asyncio.Future[object]) -> None:
    """Take a future that a coroutine has yielded, as a task does: until then, no other coroutine can await it."""
    future._asyncio_future_blocking = False


class Wait(asyncio.Future[None]):
    """The future that a task awaits in place of the future of its step; *work* routes its cancellation."""

    work: Cancellable

    def cancel(self, msg: object = None) -> bool:
        """Handle ``Task.cancel()``; True means that the cancellation is handled."""
        return self.work.cancel(msg)

    def wake(self, _: object = None) -> None:
        """Continue when the step's own future is done."""
        if not self.done():
            self.set_result(None)


class Shielded(Generic[T_co]):
    """One step under a shield; *mark* is the value of ``INSIDE`` when it began.

    ``deferred`` is a cancellation from outside that arrived meanwhile. ``timed_out`` is True if the step was cancelled
    because its time was up. *limit* is the maximum time of the step in seconds, or a function that returns it once the
    step waits; *grace*, if given, the time left after a deferred cancellation.
    """

    __slots__ = (
        "coroutine",
        "deferred",
        "grace",
        "has_resumed",
        "is_abandoned",
        "limit",
        "loop",
        "mark",
        "message",
        "pending",
        "requests",
        "task",
        "thrown",
        "timed_out",
        "timer",
        "wait",
    )

    loop: asyncio.AbstractEventLoop
    pending: Any
    task: asyncio.Task[object]
    wait: Wait

    waiting: ClassVar[WeakKeyDictionary[asyncio.Task[object], list[Shielded[object]]] | None] = None
    """The shielded steps that wait, by task, the outermost first; None unless tests look for the place of a task."""

    def __init__(
        self,
        coroutine: Coroutine[object, None, T_co],
        mark: object = None,
        *,
        limit: float | Callable[[], float] | None = None,
        grace: float | None = None,
    ) -> None:
        self.mark = coroutine if mark is None else mark
        self.coroutine, self.limit, self.grace = coroutine, limit, grace
        self.deferred: asyncio.CancelledError | None = None
        self.thrown: asyncio.CancelledError | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.message: object = None
        self.requests = 0
        self.timed_out = self.is_abandoned = False

    async def run(self) -> T_co:
        """Run the whole step, in place until it waits. It has its own mark, so a timeout around it is outside."""
        outer, shield = INSIDE.get(), enter_shield()
        set_mark(self.coroutine)
        try:
            return await self.finish(self.coroutine.send(None))
        except StopIteration as stop:
            answer: T_co = stop.value
            return answer
        finally:
            set_mark(outer)
            if shield is not None:
                leave_shield(shield)

    async def finish(self, pending: object) -> T_co:  # noqa: C901  (in one coroutine: each more is resumed at each wake-up)
        """Run the rest of a step that waits for *pending*.

        Raises:
            TimeoutError: the time ran out, and the step was cancelled or abandoned.
        """
        loop = self.loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self.task, self.has_resumed = task, False
        if self.limit is not None:
            self.limit = self.limit() if callable(self.limit) else self.limit
            self.timer = loop.call_later(self.limit, self.expire)
        watched = None if Shielded.waiting is None else Shielded.waiting.setdefault(task, [])
        if watched is not None:
            watched.append(self)
        try:
            try:
                while True:
                    try:
                        await self._wait(pending)
                        thrown: BaseException | None = self.thrown
                    except BaseException as error:  # noqa: BLE001  (its own cancellation, or the coroutine is closed)
                        thrown = error
                    if self.is_abandoned:
                        self._abandon()
                    set_mark(self.mark)
                    self.thrown, self.has_resumed = None, True
                    pending = self.coroutine.send(None) if thrown is None else self.coroutine.throw(thrown)
            except asyncio.CancelledError as error:
                if not self.timed_out:
                    raise
                raise TimeoutError("the step took too long and was cancelled") from error
            finally:
                if watched is not None:
                    watched.remove(self)
                del self.wait  # it refers to this shield: a cycle would live until the garbage collector runs
                self.pending = None
                if self.timer is not None:
                    self.timer.cancel()
        except StopIteration as stop:
            answer: T_co = stop.value
        except GeneratorExit:  # the coroutine of the call is closed: awaiting is no longer possible
            raise
        except BaseException:
            if self.requests:
                await self._deliver()
            raise
        if self.requests:
            await self._deliver()
        return answer  # type: ignore[possibly-undefined]  # only StopIteration leaves the loop

    def cancel(self, msg: object) -> bool:
        """Route a cancellation of the task: an internal one reaches the step, an external one is deferred.

        ``cancelling()`` does not count a deferred one; a timeout inside the step would mistake it for its own.
        """
        own = asyncio.current_task(self.loop) is self.task  # the task cancelled itself: before the step, or in it
        if self.has_resumed if own else self._is_inside():
            return self.pending is not None and bool(self.pending.cancel(msg=msg))
        self.task.uncancel()
        self.requests += 1
        if msg is not None and (
            self.message is None or msg != LATE
        ):  # an anyio scope recognizes its own by the message
            self.message = msg
        if self.requests == 1 and self.grace is not None and not self.timed_out:
            holds_nothing = getattr(self.pending, "may_be_left", False)  # a waiter in a queue needs no grace
            self._allow(0.0 if holds_nothing else self.grace)
        return True

    def _is_inside(self) -> bool:
        """Return True if the canceller descends from this step, or from a nested call that the step makes."""
        return INSIDE.get() is self.mark or self.mark in ENCLOSING.get()

    async def _deliver(self) -> None:
        """Deliver the deferred cancellations after the step."""
        for _ in range(self.requests):
            self.task.cancel(self.message)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as cancelled:
            self.deferred = cancelled

    def _wait(self, pending: object) -> Wait:
        self.pending = pending
        wait = self.wait = Wait(loop=self.loop)
        wait.work = self
        if pending is None:  # a bare yield, such as asyncio.sleep(0)
            self.loop.call_soon(wait.wake)
        elif asyncio.isfuture(pending) and pending.get_loop() is self.loop:
            take_over(pending)
            pending.add_done_callback(wait.wake)
        else:
            wait.set_exception(RuntimeError(f"a step waits for {pending!r}, which is not of this event loop"))
        return wait

    def _allow(self, seconds: float) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(seconds, self.expire)

    def expire(self) -> None:
        """Cancel the step when time is up; abandon it if it swallowed the first cancellation."""
        if self.timed_out:
            self.is_abandoned = True
            self.wait.wake()
            return
        self.timed_out = True
        self._allow(min(ACQUIRE_GRACE, self.limit / 2) if isinstance(self.limit, float) else ACQUIRE_GRACE)
        if isinstance(self.pending, Wait):  # a shielded step of a nested call, whose time is up, too
            self.pending.work.expire()
        elif self.pending is None or not self.pending.cancel():
            self.thrown = asyncio.CancelledError()

    def _abandon(self) -> None:
        from callgate.runtime.pipeline.abandoned import leave_running, waits_in_generator  # few steps are abandoned

        late = TimeoutError("the step took too long, did not end when it was cancelled, and was abandoned")
        if waits_in_generator(self.coroutine):
            leave_running(self.coroutine, self.pending)
            raise late
        try:
            self.coroutine.close()
        except Exception as error:
            raise late from error
        raise late


async def awaited(awaitable: Awaitable[object]) -> object:
    """Await an awaitable in a coroutine, which can run shielded."""
    return await awaitable


async def under_shield(step: Coroutine[object, None, T_co], limit: float = RELEASE_LIMIT) -> T_co:
    """Run a step to its end, at most *limit* seconds; then raise the cancellation that arrived meanwhile.

    Raises:
        TimeoutError: the step took longer, and was cancelled or abandoned.
    """
    shielded = Shielded(step, limit=limit)
    try:
        answer = await shielded.run()
    except BaseException as error:
        if shielded.deferred is not None:
            raise shielded.deferred from error
        raise
    if shielded.deferred is not None:
        raise shielded.deferred
    return answer


# ---------------------------------------------------------------------- the scopes of anyio

ANYIO = "anyio._backends._asyncio"
"""The module without which there is no cancel scope. Only its presence counts: anyio is not imported for the check."""


class Scope(Shield, Protocol):
    """A cancel scope of anyio."""

    def __enter__(self) -> object:
        """Enter the scope."""
        ...


def enter_shield() -> Shield | None:
    """Enter a shield of anyio in the running task and return it; None where there can be no cancel scope."""
    if ANYIO not in sys.modules or running_task() is None:
        return None
    scope: Scope = scope_class()(shield=True)
    scope.__enter__()
    return scope


@cache
def scope_class() -> Any:
    """Return the class of scopes in this event loop: anyio takes longer to find it than to enter a scope."""
    from anyio import CancelScope

    return type(CancelScope())


def leave_shield(scope: Shield) -> bool:
    """Leave a shield. Return False if a scope inside it was left open: the shield ends, and its place is taken.

    A scope around it that was cancelled meanwhile now cancels the task. It does so in a context of its own, because it
    comes from outside of every step.
    """
    try:
        Context().run(scope.__exit__, None, None, None)
    except RuntimeError:
        scope.shield = False
        return False
    return True


class _State(Protocol):
    """The part that counts of what anyio keeps for a task."""

    cancel_scope: object | None


def is_inside() -> bool:
    """Return True if the running task is, or may be, inside a scope.

    anyio has no public question for that, and a scope around every call would cost half of a call. Where the name is
    gone, the answer is True: each call pays, and works.
    """
    if ANYIO not in sys.modules or (task := running_task()) is None:
        return False
    if (states := _states()) is None:
        return True
    state = states.get(task)
    return state is not None and state.cancel_scope is not None


def _states() -> Mapping[object, _State] | None:
    states: Mapping[object, _State] | None = getattr(sys.modules.get(ANYIO), "_task_states", None)
    return states


def innermost(task: object) -> object:
    """Return the innermost scope of *task*, if any."""
    state = (_states() or {}).get(task)
    return None if state is None else state.cancel_scope


def enter_stack(task: object, scope: object) -> None:
    """Make *scope* the innermost of *task*: of two steps in one task, each has a stack of scopes of its own."""
    if (state := (_states() or {}).get(task)) is not None:
        state.cancel_scope = scope


def running_task() -> asyncio.Task[object] | None:
    """Return the running task; None where the coroutine of a call is closed without its loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
