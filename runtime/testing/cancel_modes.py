"""The ways in which a caller can end a call from outside, and the outcome that each must have."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import anyio

from callgate.runtime.pipeline.deadlines import expire_all
from callgate.runtime.testing.virtual_time import FAR, Stepping
from callgate.tools.calls import ToolResult


class Mode:
    """One way to end a scenario from outside.

    ``cancel_from_outside`` sends the cancellation, and ``verdict`` checks the outcome. ``begins_as`` names a mode that
    does the same with its first cancellation.
    """

    name: ClassVar[str] = "undisturbed"
    begins_as: ClassVar[type[Mode] | None] = None

    def __init__(self) -> None:
        self.sent = 0
        self.finished = False

    async def run(self, scenario: Callable[[], Awaitable[object]]) -> object:
        """Run the scenario inside the construct that ends it."""
        return await scenario()

    def cancel_from_outside(self, task: asyncio.Task[object], loop: Stepping) -> None:
        """Cancel now, if the scenario has begun and has not ended."""
        raise NotImplementedError

    def verdict(self, task: asyncio.Task[object], usual: TaskOutcome) -> str | None:
        """Return the problem of the outcome, or None."""
        raise NotImplementedError

    def _untouched(self, task: asyncio.Task[object], usual: TaskOutcome) -> str | None:
        ended = TaskOutcome.of(task)
        if ended != usual:
            return f"invented: it ended with {ended}, usually {usual}"
        return _counts(task, 0)


@dataclasses.dataclass(frozen=True)
class TaskOutcome:
    """The outcome of a task: the exception's name, or the returned value."""

    raised: str | None
    returned: object = None

    @classmethod
    def of(cls, task: asyncio.Task[object]) -> TaskOutcome:
        """Read the outcome of a finished task."""
        if task.cancelled():
            return cls("CancelledError")
        error = task.exception()
        return cls(type(error).__name__) if error is not None else cls(None, _comparable(task.result()))

    def __str__(self) -> str:
        return self.raised or f"the result {self.returned}"


def _comparable(returned: object) -> str:
    """The comparable part of a returned value; the ids and times of results differ between runs."""
    if isinstance(returned, list):
        return f"[{', '.join(map(_comparable, returned))}]"
    if isinstance(returned, ToolResult):
        return f"{returned.outcome} {returned.error.code if returned.error else returned.output!r}"
    return repr(returned)


def _counts(task: asyncio.Task[object], right: int) -> str | None:
    return None if task.cancelling() == right else f"cancelling() is {task.cancelling()}, expected {right}"


class Native(Mode):
    """``task.cancel()``, once or several times."""

    name = "cancel"

    def cancel_from_outside(self, task: asyncio.Task[object], loop: Stepping) -> None:
        self.sent += task.cancel()

    def verdict(self, task: asyncio.Task[object], usual: TaskOutcome) -> str | None:
        if not self.sent:
            return self._untouched(task, usual)
        if not task.cancelled():
            return f"cancellation lost: it ended with {TaskOutcome.of(task)}"
        return _counts(task, self.sent)


class AnyioScope(Mode):
    """An anyio cancel scope around the scenario."""

    name = "anyio scope"

    async def run(self, scenario: Callable[[], Awaitable[object]]) -> Any:
        with anyio.CancelScope() as self.scope:
            try:
                return await scenario()
            finally:
                self.finished = True
                task = asyncio.current_task()
                assert task is not None
                self.sent = task.cancelling()

    def cancel_from_outside(self, task: asyncio.Task[object], loop: Stepping) -> None:
        if hasattr(self, "scope") and not self.finished:
            self.scope.cancel()

    def verdict(self, task: asyncio.Task[object], usual: TaskOutcome) -> str | None:
        if not self.sent:
            return self._untouched(task, usual)
        if not self.scope.cancelled_caught:
            return f"cancellation lost: the scope caught nothing, it ended with {TaskOutcome.of(task)}"
        if task.cancelled() or task.exception() is not None:
            return f"the scope let {TaskOutcome.of(task)} through"
        return _counts(task, 0)


class _ThenNative(Mode):
    """Another mode first, then ``task.cancel()``, which ``native`` counts."""

    def __init__(self) -> None:
        super().__init__()
        self.cancellations = self.native = 0

    def cancel_from_outside(self, task: asyncio.Task[object], loop: Stepping) -> None:
        self.cancellations += 1
        if self.cancellations == 1:
            super().cancel_from_outside(task, loop)
        else:
            self.native += task.cancel()


class ScopeThenNative(_ThenNative, AnyioScope):
    """A scope, and then ``task.cancel()``."""

    name = "anyio scope, then cancel"
    begins_as: ClassVar[type[Mode] | None] = AnyioScope

    def verdict(self, task: asyncio.Task[object], usual: TaskOutcome) -> str | None:
        if not self.native:
            return super().verdict(task, usual)
        return None if task.cancelled() else f"cancellation lost: it ended with {TaskOutcome.of(task)}"


class NativeThenScope(ScopeThenNative):
    """``task.cancel()``, and then a scope, such as while the tool cleans up. The first one takes precedence."""

    name = "cancel, then anyio scope"
    begins_as = Native

    def cancel_from_outside(self, task: asyncio.Task[object], loop: Stepping) -> None:
        self.cancellations += 1
        if self.cancellations == 1:
            self.native += task.cancel()
        elif hasattr(self, "scope") and not self.finished:
            self.scope.cancel()


class TimeLimit(Mode):
    """``asyncio.timeout`` around the scenario."""

    name = "asyncio.timeout"

    async def run(self, scenario: Callable[[], Awaitable[object]]) -> object:
        async with asyncio.timeout(FAR) as self.limit:
            return await scenario()

    def cancel_from_outside(self, task: asyncio.Task[object], loop: Stepping) -> None:
        if hasattr(self, "limit"):
            for pass_by in loop.far:
                pass_by()

    def verdict(self, task: asyncio.Task[object], usual: TaskOutcome) -> str | None:
        if not hasattr(self, "limit") or not self.limit.expired():
            return self._untouched(task, usual)
        if TaskOutcome.of(task).raised != "TimeoutError":
            return f"cancellation lost: the limit passed, it ended with {TaskOutcome.of(task)}"
        return _counts(task, 0)


class WaitFor(Mode):
    """``asyncio.wait_for`` around the scenario, which may finish at the moment of the timeout."""

    name = "asyncio.wait_for"

    async def run(self, scenario: Callable[[], Awaitable[object]]) -> object:
        async def inside() -> object:
            inner = asyncio.current_task()
            assert inner is not None
            try:
                return await scenario()
            finally:
                self.finished = True
                self.sent = inner.cancelling()

        return await asyncio.wait_for(inside(), FAR)

    def cancel_from_outside(self, task: asyncio.Task[object], loop: Stepping) -> None:
        for pass_by in loop.far:
            pass_by()

    def verdict(self, task: asyncio.Task[object], usual: TaskOutcome) -> str | None:
        ended = TaskOutcome.of(task)
        if self.sent and ended.raised != "TimeoutError":
            return f"cancellation lost: the time was up, it ended with {ended}"
        if not self.sent and ended != usual and ended.raised != "TimeoutError":
            return f"invented: it ended with {ended}, usually {usual}"
        return _counts(task, 0)


class CallDeadline(Mode):
    """The call's own deadline, given as ``deadline=FAR``, passes."""

    name = "deadline"
    ends: ClassVar[frozenset[str]] = frozenset({"DeadlineExceeded", "OutcomeUnknown"})

    def cancel_from_outside(self, task: asyncio.Task[object], loop: Stepping) -> None:
        self.sent += expire_all(loop)

    def verdict(self, task: asyncio.Task[object], usual: TaskOutcome) -> str | None:
        ended = TaskOutcome.of(task)
        if ended != usual and ended.raised not in (self.ends if self.sent else ()):
            return f"a deadline ended it with {ended}"
        return _counts(task, 0)


class DeadlineThenNative(_ThenNative, CallDeadline):
    """The deadline, and then or at the same time ``task.cancel()``, which takes precedence."""

    name = "deadline, then cancel"
    begins_as: ClassVar[type[Mode] | None] = CallDeadline

    def verdict(self, task: asyncio.Task[object], usual: TaskOutcome) -> str | None:
        if not self.native:
            return super().verdict(task, usual)
        if not task.cancelled():
            return f"cancellation lost: it ended with {TaskOutcome.of(task)}"
        return _counts(task, self.native)


class NativeThenDeadline(DeadlineThenNative):
    """``task.cancel()``, and then the deadline."""

    name = "cancel, then deadline"
    begins_as = Native

    def cancel_from_outside(self, task: asyncio.Task[object], loop: Stepping) -> None:
        self.cancellations += 1
        if self.cancellations == 1:
            self.native += task.cancel()
        else:
            self.sent += expire_all(loop)


SINGLE_MODES: tuple[type[Mode], ...] = (Native, AnyioScope, TimeLimit, WaitFor)
"""Modes that cancel at each callback."""
PAIRED_MODES: tuple[type[Mode], ...] = (Native, ScopeThenNative, NativeThenScope)
"""Modes that cancel at pairs of callbacks."""
DEADLINE_MODES: tuple[type[Mode], ...] = (CallDeadline,)
DEADLINE_PAIRED_MODES: tuple[type[Mode], ...] = (DeadlineThenNative, NativeThenDeadline)
"""Modes for scenarios whose call has ``deadline=FAR``."""
