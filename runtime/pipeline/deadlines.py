"""Deadlines that share one timer: arming and disarming are two dictionary writes.

A deadline that fires cancels the task of the invocation once, and sets ``Alarm.fired``. ``contain`` in ``failure.py``
converts only that cancellation into ``DeadlineExceeded``. A cancellation from another source takes precedence.

An idle limit costs a call one store at each progress: the timer looks at it when it fires, and is set anew.
"""

from __future__ import annotations

import asyncio
import math
import sys
from contextvars import Context, copy_context
from typing import TypeAlias
from weakref import WeakKeyDictionary

from callgate.errors import DeadlineExceeded
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.facts import IdleLimit
from callgate.hooks.state.run import Run
from callgate.hooks.state.step import PlanStep
from callgate.providers.logs import emit_overran
from callgate.runtime.pipeline.shield import LATE

_Call: TypeAlias = Run[InvokeContext]

TICK = 0.005
"""Resolution in seconds: the maximum delay of a deadline."""

OVERRUN = 0.05
"""Seconds that a call may take to end after its deadline; then the log names it and the step that it waits for."""

LEAKS = sys.version_info < (3, 13)
"""True where ``asyncio.TaskGroup`` leaves a request to cancel on its task after the failure of a child."""


class Alarm:
    """One armed deadline. Only the table refers to the call, so that an armed deadline makes no cycle.

    With an idle limit it fires at ``hard``, or earlier when ``idle`` has passed; ``when`` is then the time to look.
    """

    __slots__ = (
        "before",
        "context",
        "fired",
        "hard",
        "idle",
        "late",
        "leaked",
        "live",
        "postponed",
        "run",
        "seen",
        "task",
        "was_idle",
        "when",
    )

    def __init__(self, live: dict[Alarm, _Call | None], task: asyncio.Task[object], when: float) -> None:
        self.live = live
        self.task = task
        self.when = when
        self.fired = self.postponed = self.was_idle = False
        self.idle: IdleLimit | None = None
        self.hard, self.seen = when, 0.0
        self.before = task.cancelling()
        self.leaked = 0
        self.late: PlanStep | None = None
        self.run: _Call | None = None
        self.context = copy_context()

    def keep_idle_limit(self, idle: IdleLimit, hard: float) -> None:
        """Fire also when *idle* has passed; *hard* is the time of the deadline, or infinite."""
        self.idle, self.hard, self.seen = idle, hard, idle.last

    def progressed(self, run: _Call | None, now: float) -> bool:
        """Return True if the call has made progress since the last look, and look again when that will be too long ago."""
        idle = self.idle
        if idle is None or now >= self.hard:
            return False
        if idle.last != self.seen and (left := idle.left()) > 0:
            self.seen, self.when = idle.last, min(self.hard, now + left)
            self.live[self] = run
            return True
        self.was_idle = True
        return False

    def fire(self, run: _Call | None = None) -> None:
        """Cancel the task, in the context in which the deadline was armed (see ``leases.INSIDE``).

        Where the task has other requests to cancel, wait a tick for them to arrive. A request that is left afterwards came
        from a ``TaskGroup``, or the task still ends because of it: ``came_second`` tells.
        """
        if LEAKS and (others := self.task.cancelling() - self.before) > 0:
            if not self.postponed:
                self.postponed = True
                self.when += TICK
                self.live[self] = run
                return
            self.leaked = others
        self.fired, self.run = True, run
        if run is not None:
            self.task.get_loop().call_later(OVERRUN, self._look, OVERRUN, context=Context())
        self.context.run(self.task.cancel, LATE if self.leaked else None)

    def _look(self, seconds: float) -> None:
        """Note the step that the call still waits for; look again when the call is twice as late."""
        run = self.run
        if run is not None and run.alarm is self and run.failed_in is None and run.finished is None:
            self.late = run.step
            self.task.get_loop().call_later(seconds, self._look, 2 * seconds, context=Context())

    def disarm(self) -> None:
        """Disarm the deadline after the work; it can no longer fire."""
        self.live.pop(self, None)

    def later(self, seconds: float) -> Alarm:
        """Disarm, and return an alarm for the same task that fires this much later, or this much from now."""
        run = self.live.pop(self, self.run)
        now = asyncio.get_running_loop().time()
        made = arm(max(self.when, now) - now + seconds, run)
        made.before = self.before
        if self.idle is not None:
            made.keep_idle_limit(self.idle, self.hard + seconds)
            made.seen, made.was_idle = self.seen, self.was_idle
        return made

    def pause(self) -> bool:
        """Disarm; return True if it was armed, so that ``resume`` has to follow."""
        if self not in self.live:
            return False
        self.run = self.live.pop(self)
        return True

    def resume(self, seconds: float) -> None:
        """Arm again after ``pause``; the seconds since then do not count."""
        loop = asyncio.get_running_loop()
        self.when += seconds
        self.hard += seconds
        self.live[self], self.run = self.run, None
        _TABLES[loop].look_by(loop, self.when)

    @property
    def alone(self) -> bool:
        """True if it fired and the task received no other cancellation since it was armed."""
        return self.fired and self.task.cancelling() <= self.before + self.leaked + 1

    def came_second(self, error: BaseException) -> bool:
        """Return True if the task was already ending because of another cancellation when this alarm fired."""
        if not self.leaked or self.task.cancelling() <= self.before + 1:  # the other request was withdrawn
            return False
        chain = [error]
        while (cause := chain[-1].__context__) is not None and cause not in chain:
            chain.append(cause)
        return any(isinstance(one, asyncio.CancelledError) and one.args[:1] != (LATE,) for one in chain)

    def forget(self) -> bool:
        """Consume the cancellation that this alarm sent; return the value of ``alone``."""
        alone, self.fired = self.alone, False
        self.task.uncancel()
        return alone


class DeadlineTable:
    """The deadlines of one event loop. The timer is set to the earliest; later ones within a tick use the next run."""

    def __init__(self) -> None:
        self.live: dict[Alarm, _Call | None] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.next = math.inf

    def arm(self, loop: asyncio.AbstractEventLoop, seconds: float, run: _Call | None = None) -> Alarm:
        """Cancel the current task in *seconds*, unless it is disarmed earlier."""
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("a deadline needs a running task")
        alarm = Alarm(self.live, task, loop.time() + seconds)
        self.live[alarm] = run
        self.look_by(loop, alarm.when)
        return alarm

    def look_by(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        """Set the timer to this time, unless it is set to an earlier one."""
        if when < self.next:
            if self.timer is not None:
                self.timer.cancel()
            self.next = when
            self.timer = loop.call_at(when, self._scan, loop, context=Context())

    def expire_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """Expire every armed deadline now."""
        for alarm in self.live:
            alarm.when = alarm.hard = loop.time()
        self._scan(loop)

    def _scan(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for alarm in [alarm for alarm in self.live if alarm.when <= now]:
            run = self.live.pop(alarm)
            if not alarm.progressed(run, now):
                alarm.fire(run)
        self.timer, self.next = None, math.inf
        if self.live:
            self.look_by(loop, max(now + TICK, min(alarm.when for alarm in self.live)))


_TABLES: WeakKeyDictionary[asyncio.AbstractEventLoop, DeadlineTable] = WeakKeyDictionary()


def arm(seconds: float, run: _Call | None = None) -> Alarm:
    """Arm a deadline for the current task on the running loop; *run* is its call."""
    loop = asyncio.get_running_loop()
    table = _TABLES.get(loop)
    if table is None:
        for closed in [other for other in list(_TABLES) if other.is_closed()]:
            del _TABLES[closed]  # an active timer would keep its loop alive
        table = _TABLES[loop] = DeadlineTable()
    return table.arm(loop, seconds, run)


def arm_call(ctx: InvokeContext) -> Alarm:
    """Arm the deadline and the idle limit of a call. The idle limit of the call around it is that call's to keep."""
    run, left, idle = ctx.run, ctx.remaining(), ctx.run.idle
    if idle is None or (run.outer is not None and run.outer.idle is idle):
        return arm(left or 0.0, run)
    quiet = max(idle.left(), 0.0)
    if left is None:
        left = math.inf
    alarm = arm(min(left, quiet), run)
    alarm.keep_idle_limit(idle, asyncio.get_running_loop().time() + left)
    return alarm


def expire_all(loop: asyncio.AbstractEventLoop) -> int:
    """Expire every deadline armed on *loop* now, for tests on virtual time; return their number."""
    table = _TABLES.get(loop)
    if table is None or not table.live:
        return 0
    expired = len(table.live)
    table.expire_all(loop)
    return expired


def begin_in_time(ctx: InvokeContext) -> None:
    """Refuse to begin an effect or a body of a call whose deadline is past.

    The timer does not notice it where a hook or a provider blocked the event loop, and nothing has waited since.

    Raises:
        DeadlineExceeded: the deadline is past; the body has had no effect.
    """
    if ctx.remaining() == 0.0:
        late = DeadlineExceeded(f"the deadline of {ctx.tool_id} passed before its body began")
        late.no_effect = True
        raise late


async def forget_leaked(ctx: InvokeContext) -> None:
    """Withdraw the requests to cancel that a ``TaskGroup`` of the call left on its task (see ``LEAKS``)."""
    run, task = ctx.run, asyncio.current_task()
    run.grouped = False
    if not LEAKS or task is None or task.cancelling() <= run.requests or (run.alarm is not None and run.alarm.fired):
        return
    try:
        await asyncio.sleep(0)  # a real cancellation arrives here
    except asyncio.CancelledError as late:
        run.off_fast_path = True
        run.defer(late)
        return
    while task.cancelling() > run.requests:
        task.uncancel()


def overran(ctx: InvokeContext) -> None:
    """Log a call that ended later than its deadline, and the step for which it waited last; once."""
    alarm = ctx.run.alarm
    if alarm is None or alarm.late is None:
        return
    step, alarm.late = alarm.late, None
    if not ctx.run.abandoned:  # that is logged as such
        late = asyncio.get_running_loop().time() - alarm.when
        emit_overran(ctx, late, stage=step.stage, hook=step.name)


async def disarm(ctx: InvokeContext) -> bool:
    """Disarm after the work; withdraw the cancellation of a deadline that fired too late, so it hits no later code.

    Return True if the cancellation had arrived, and the tool or a hook suppressed it and ended without an error.
    """
    alarm = ctx.run.alarm
    assert alarm is not None
    alarm.disarm()
    if not alarm.fired:
        return False
    overran(ctx)
    ignored = ctx.run.error is None and ctx.run.deferred is None
    try:
        await asyncio.sleep(0)  # a cancellation in flight arrives here
    except asyncio.CancelledError as late:
        ctx.run.defer(late)
        ignored = False
    if not alarm.forget():
        return False
    ctx.run.deferred = None
    return ignored
