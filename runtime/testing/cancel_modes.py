"""The ways in which a caller can end a call from outside, and how each must look afterwards."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import anyio

from callgate.runtime.call import deadlines
from callgate.runtime.testing.virtual_time import FAR, Stepping
from callgate.tools.calls import ToolResult


class Mode:
    """One way to end a scenario from outside. ``strike`` sends it; ``verdict`` says what is wrong with how it ended.

    ``begins_as`` is the mode that struck once is the same as this one struck once.
    """

    name: ClassVar[str] = "undisturbed"
    begins_as: ClassVar[type[Mode] | None] = None

    def __init__(self) -> None:
        self.sent = 0
        self.finished = False

    async def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        """The scenario, with whatever stands around it."""
        return await scenario()

    def strike(self, task: asyncio.Task[Any], loop: Stepping) -> None:
        """Cancel now. Nothing, where it cannot reach the scenario."""
        raise NotImplementedError

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        """None, or what is wrong."""
        raise NotImplementedError

    def _untouched(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        ended = Ending.of(task)
        if ended != usual:
            return f"invented: it ended with {ended}, usually {usual}"
        return _counts(task, 0)


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a task ended: what it raised, or what it returned."""

    raised: str | None
    returned: Any = None

    @classmethod
    def of(cls, task: asyncio.Task[Any]) -> Ending:
        """Of a task that is done."""
        if task.cancelled():
            return cls("CancelledError")
        error = task.exception()
        return cls(type(error).__name__) if error is not None else cls(None, _told(task.result()))

    def __str__(self) -> str:
        return self.raised or f"the result {self.returned}"


def _told(returned: Any) -> str:
    """What can be compared of one run with another: the ids and times of results differ."""
    if isinstance(returned, list):
        return f"[{', '.join(map(_told, returned))}]"
    if isinstance(returned, ToolResult):
        return f"{returned.outcome} {returned.error.code if returned.error else returned.output!r}"
    return repr(returned)


def _counts(task: asyncio.Task[Any], right: int) -> str | None:
    return None if task.cancelling() == right else f"cancelling() is {task.cancelling()}, it ought to be {right}"


class Native(Mode):
    """``task.cancel()``; as often as it strikes."""

    name = "cancel"

    def strike(self, task: asyncio.Task[Any], loop: Stepping) -> None:
        self.sent += task.cancel()

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        if not self.sent:
            return self._untouched(task, usual)
        if not task.cancelled():
            return f"cancellation lost: it ended with {Ending.of(task)}"
        return _counts(task, self.sent)


class Scope(Mode):
    """An anyio cancel scope around the scenario."""

    name = "anyio scope"

    async def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        with anyio.CancelScope() as self.scope:
            try:
                return await scenario()
            finally:
                self.finished = True
                task = asyncio.current_task()
                assert task is not None
                self.sent = task.cancelling()

    def strike(self, task: asyncio.Task[Any], loop: Stepping) -> None:
        if hasattr(self, "scope") and not self.finished:
            self.scope.cancel()

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        if not self.sent:
            return self._untouched(task, usual)
        if not self.scope.cancelled_caught:
            return f"cancellation lost: the scope caught nothing, it ended with {Ending.of(task)}"
        if task.cancelled() or task.exception() is not None:
            return f"the scope let {Ending.of(task)} through"
        return _counts(task, 0)


class _ThenNative(Mode):
    """Before another mode: that one strikes first, and ``task.cancel()`` from then on, which ``native`` counts."""

    def __init__(self) -> None:
        super().__init__()
        self.strikes = self.native = 0

    def strike(self, task: asyncio.Task[Any], loop: Stepping) -> None:
        self.strikes += 1
        if self.strikes == 1:
            super().strike(task, loop)
        else:
            self.native += task.cancel()


class ScopeThenNative(_ThenNative, Scope):
    """A scope, and then ``task.cancel()``."""

    name = "anyio scope, then cancel"
    begins_as = Scope

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        if not self.native:
            return super().verdict(task, usual)
        return None if task.cancelled() else f"cancellation lost: it ended with {Ending.of(task)}"


class TimeLimit(Mode):
    """``asyncio.timeout`` around the scenario."""

    name = "asyncio.timeout"

    async def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(FAR) as self.limit:
            return await scenario()

    def strike(self, task: asyncio.Task[Any], loop: Stepping) -> None:
        if hasattr(self, "limit"):
            for pass_by in loop.far:
                pass_by()

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        if not hasattr(self, "limit") or not self.limit.expired():
            return self._untouched(task, usual)
        if Ending.of(task).raised != "TimeoutError":
            return f"cancellation lost: the limit passed, it ended with {Ending.of(task)}"
        return _counts(task, 0)


class WaitFor(Mode):
    """``asyncio.wait_for`` around the scenario, which may finish at the very moment the time is up."""

    name = "asyncio.wait_for"

    async def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        async def inside() -> Any:
            inner = asyncio.current_task()
            assert inner is not None
            try:
                return await scenario()
            finally:
                self.finished = True
                self.sent = inner.cancelling()

        return await asyncio.wait_for(inside(), FAR)

    def strike(self, task: asyncio.Task[Any], loop: Stepping) -> None:
        for pass_by in loop.far:
            pass_by()

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        ended = Ending.of(task)
        if self.sent and ended.raised != "TimeoutError":
            return f"cancellation lost: the time was up, it ended with {ended}"
        if not self.sent and ended != usual and ended.raised != "TimeoutError":
            return f"invented: it ended with {ended}, usually {usual}"
        return _counts(task, 0)


class Deadline(Mode):
    """The call's own deadline, given as ``deadline=FAR``, passes."""

    name = "deadline"
    ends: ClassVar[frozenset[str]] = frozenset({"DeadlineExceeded", "OutcomeUnknown"})

    def strike(self, task: asyncio.Task[Any], loop: Stepping) -> None:
        self.sent += expire(loop)

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        ended = Ending.of(task)
        if ended != usual and ended.raised not in (self.ends if self.sent else ()):
            return f"a deadline ended it with {ended}"
        return _counts(task, 0)


class DeadlineThenNative(_ThenNative, Deadline):
    """The deadline, and then (or at once) ``task.cancel()``: the outside wins."""

    name = "deadline, then cancel"
    begins_as: ClassVar[type[Mode] | None] = Deadline

    def verdict(self, task: asyncio.Task[Any], usual: Ending) -> str | None:
        if not self.native:
            return super().verdict(task, usual)
        if not task.cancelled():
            return f"cancellation lost: it ended with {Ending.of(task)}"
        return _counts(task, self.native)


class NativeThenDeadline(DeadlineThenNative):
    """``task.cancel()``, and then the deadline."""

    name = "cancel, then deadline"
    begins_as = Native

    def strike(self, task: asyncio.Task[Any], loop: Stepping) -> None:
        self.strikes += 1
        if self.strikes == 1:
            self.native += task.cancel()
        else:
            self.sent += expire(loop)


def expire(loop: asyncio.AbstractEventLoop) -> int:
    """Let every deadline that is armed on the loop pass now; how many there were."""
    table = deadlines._TABLES.get(loop)
    live = list(table.live) if table is not None else []
    for alarm in live:
        alarm.when = loop.time()
    if table is not None and live:
        table._scan(loop)
    return len(live)


SINGLE: tuple[type[Mode], ...] = (Native, Scope, TimeLimit, WaitFor)
"""Struck at each k."""
PAIRED: tuple[type[Mode], ...] = (Native, ScopeThenNative)
"""Struck at each k1 and at each later k2."""
DEADLINE: tuple[type[Mode], ...] = (Deadline,)
DEADLINE_PAIRED: tuple[type[Mode], ...] = (DeadlineThenNative, NativeThenDeadline)
"""For scenarios whose call has ``deadline=FAR``."""
