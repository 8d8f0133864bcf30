"""Many deadlines, one coarse timer: arming and disarming are two dictionary writes (performance.md 6.5).

A deadline that fires cancels the task that runs the invocation, once, and says so in ``Alarm.fired``: ``contain``
in ``failure.py`` then turns that cancellation, and only that one, into ``DeadlineExceeded``.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

TICK = 0.005
"""Resolution in seconds."""


class Alarm:
    """One armed deadline."""

    __slots__ = ("fired", "table", "task", "when")

    def __init__(self, table: DeadlineTable, task: asyncio.Task[Any], when: float) -> None:
        self.table = table
        self.task = task
        self.when = when
        self.fired = False

    def disarm(self) -> None:
        """The work is over; the deadline can no longer fire."""
        self.table.live.pop(self, None)

    def forget(self) -> None:
        """The cancellation that this alarm sent has arrived and is spent."""
        self.task.uncancel()
        self.fired = False


class DeadlineTable:
    """The deadlines of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.live: dict[Alarm, None] = {}
        self.timer: asyncio.TimerHandle | None = None

    def arm(self, seconds: float) -> Alarm:
        """Cancel the current task in *seconds*, unless disarmed before."""
        task = asyncio.current_task(self.loop)
        if task is None:
            raise RuntimeError("a deadline needs a running task")
        alarm = Alarm(self, task, self.loop.time() + seconds)
        self.live[alarm] = None
        if self.timer is None:
            self.timer = self.loop.call_later(TICK, self._scan)
        return alarm

    def _scan(self) -> None:
        now = self.loop.time()
        for alarm in [alarm for alarm in self.live if alarm.when <= now]:
            del self.live[alarm]
            alarm.fired = True
            alarm.task.cancel()
        self.timer = self.loop.call_later(TICK, self._scan) if self.live else None


_TABLES: WeakKeyDictionary[asyncio.AbstractEventLoop, DeadlineTable] = WeakKeyDictionary()


def arm(seconds: float) -> Alarm:
    """A deadline for the current task on the running loop."""
    loop = asyncio.get_running_loop()
    table = _TABLES.get(loop)
    if table is None:
        table = _TABLES[loop] = DeadlineTable(loop)
    return table.arm(seconds)


async def stand_down(ctx: Any) -> None:
    """The work is over: disarm. A deadline that fired too late to be noticed is taken back, so it hits nobody else."""
    alarm = ctx.alarm
    alarm.disarm()
    if alarm.fired:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as late:
            if alarm.task.cancelling() > 1:  # ours and somebody else's came together
                ctx.hold_back(late)
        alarm.forget()
