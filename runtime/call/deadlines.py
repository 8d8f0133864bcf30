"""Many deadlines, one timer: arming and disarming are two dictionary writes (performance.md 6.5).

A deadline that fires cancels the task that runs the invocation, once, and says so in ``Alarm.fired``: ``contain``
in ``failure.py`` then turns that cancellation, and only that one, into ``DeadlineExceeded``. Whoever else cancels the
task meanwhile wins.
"""

from __future__ import annotations

import asyncio
import math
from contextvars import Context, copy_context
from typing import Any
from weakref import WeakKeyDictionary

TICK = 0.005
"""Resolution in seconds: a deadline fires at most that late."""


class Alarm:
    """One armed deadline."""

    __slots__ = ("before", "context", "fired", "live", "task", "when")

    def __init__(self, live: dict[Alarm, None], task: asyncio.Task[Any], when: float) -> None:
        self.live = live
        self.task = task
        self.when = when
        self.fired = False
        self.before = task.cancelling()
        self.context = copy_context()

    def fire(self) -> None:
        """Cancel the task, as somebody in the context in which the deadline was armed (see ``leases.INSIDE``)."""
        self.fired = True
        self.context.run(self.task.cancel)

    def disarm(self) -> None:
        """The work is over; the deadline can no longer fire."""
        self.live.pop(self, None)

    @property
    def alone(self) -> bool:
        """Whether it fired and nobody else cancelled the task since it was armed."""
        return self.fired and self.task.cancelling() <= self.before + 1

    def forget(self) -> bool:
        """The cancellation that this alarm sent is spent. Whether it was alone."""
        alone, self.fired = self.alone, False
        self.task.uncancel()
        return alone


class DeadlineTable:
    """The deadlines of one event loop. Its timer is set to the earliest; those after it within a tick wait for the next."""

    def __init__(self) -> None:
        self.live: dict[Alarm, None] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.next = math.inf

    def arm(self, loop: asyncio.AbstractEventLoop, seconds: float) -> Alarm:
        """Cancel the current task in *seconds*, unless disarmed before."""
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("a deadline needs a running task")
        alarm = Alarm(self.live, task, loop.time() + seconds)
        self.live[alarm] = None
        if alarm.when < self.next:
            self._look_at(loop, alarm.when)
        return alarm

    def _look_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.next = when
        self.timer = loop.call_at(when, self._scan, loop, context=Context())

    def _scan(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for alarm in [alarm for alarm in self.live if alarm.when <= now]:
            del self.live[alarm]
            alarm.fire()
        self.timer, self.next = None, math.inf
        if self.live:
            self._look_at(loop, max(now + TICK, min(alarm.when for alarm in self.live)))


_TABLES: WeakKeyDictionary[asyncio.AbstractEventLoop, DeadlineTable] = WeakKeyDictionary()


def arm(seconds: float) -> Alarm:
    """A deadline for the current task on the running loop."""
    loop = asyncio.get_running_loop()
    table = _TABLES.get(loop)
    if table is None:
        for closed in [other for other in list(_TABLES) if other.is_closed()]:
            del _TABLES[closed]  # a timer that is still set would keep its loop
        table = _TABLES[loop] = DeadlineTable()
    return table.arm(loop, seconds)


async def stand_down(ctx: Any) -> None:
    """The work is over: disarm. A deadline that fired too late to be noticed is taken back, so it hits nobody else."""
    alarm: Alarm = ctx.alarm
    alarm.disarm()
    if not alarm.fired:
        return
    try:
        await asyncio.sleep(0)  # what is under way arrives here
    except asyncio.CancelledError as late:
        ctx.hold_back(late)
    if alarm.forget():
        ctx.deferred = None
