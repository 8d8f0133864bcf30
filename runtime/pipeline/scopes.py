"""A call in a cancelled scope of anyio is cancelled once, as in asyncio.

A cancelled scope cancels at *every* checkpoint inside it. The tool's own clean-up would be cut off at its first
``await``, and a call that waits for a thread would be a busy loop. Steps have a shield of their own (``shield.py``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Generic, TypeVar

from callgate.hooks.context import InvokeContext
from callgate.hooks.state.run import Run
from callgate.runtime.pipeline.shield import is_inside, leave_shield, scope_class

T = TypeVar("T")

CLEAN_UP_LIMIT = 10.0
"""Seconds for which a call that is cancelled is shielded; then the scope cancels at each checkpoint again."""


def begins(run: Run[InvokeContext]) -> bool:
    """Return True if a call needs ``once``: it runs in a scope, and does not go through it yet."""
    if run.cancelled_once or not is_inside():
        return False
    run.cancelled_once = True
    return True


async def once(work: Coroutine[object, None, T], *, closing: bool = False) -> T:
    """Run a call, and let cancelled scopes around it cancel it once; *closing* work has had its cancellation before.

    The scope is entered before the call, because scopes nest: when the cancellation arrives, the call may be in a
    scope that the tool has opened.
    """
    if not is_inside():
        return await work
    driven = _Once(work)
    if closing:
        driven.keep_off()
    try:
        return await driven
    finally:
        driven.end()


class _Once(Generic[T]):
    """Drives a call in a scope of its own, which becomes a shield when a scope around it cancels the call."""

    def __init__(self, work: Coroutine[object, None, T]) -> None:
        self.work, self.scope = work, scope_class()()
        self.timer: asyncio.TimerHandle | None = None
        self.scope.__enter__()

    def __await__(self) -> Generator[object, None, T]:
        given: None = None
        thrown: BaseException | None = None
        while True:
            try:
                pending = self.work.send(given) if thrown is None else self.work.throw(thrown)
            except StopIteration as end:
                answer: T = end.value
                return answer
            given = thrown = None
            try:
                given = yield pending
            except BaseException as error:  # noqa: BLE001  (passed on to the call)
                if self.timer is None and isinstance(error, asyncio.CancelledError):
                    self.keep_off()
                thrown = error

    def keep_off(self) -> None:
        """Shield the call for a limited time, if a scope around it is cancelled. A scope inside it, of the tool, does not count."""
        from anyio import current_effective_deadline  # -inf: a scope that reaches the running task is cancelled

        if current_effective_deadline() > -math.inf:
            return
        self.scope.shield = True
        if current_effective_deadline() > -math.inf:
            self.timer = asyncio.get_running_loop().call_later(CLEAN_UP_LIMIT, self._lift, context=Context())
        else:  # a scope inside; if one around the call is cancelled too, it cancels again
            self.scope.shield = False

    def _lift(self) -> None:
        self.scope.shield = False

    def end(self) -> None:
        """Leave the scope."""
        if self.timer is not None:
            self.timer.cancel()
        leave_shield(self.scope)
