"""Scheduled calls: jobs that are submitted by the clock, once for each time of a schedule."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from callgate.errors import Invalid, RegistrationError, UnknownTool
from callgate.hooks.plan import Plan
from callgate.hooks.stages import STAGES, May
from callgate.providers.logs import LogEvent, emit
from callgate.runtime.jobs.calls import JobCalls, as_fault, stops
from callgate.runtime.jobs.jobs import JobQueue
from callgate.runtime.jobs.schedule_times import last_time
from callgate.runtime.options.schedule import Schedule
from callgate.runtime.pipeline.options import BadCall
from callgate.tools.calls import ToolCall

TICK = 1.0
"""Seconds between two looks at the clock."""
LATE = 60.0
"""Seconds after its time in which a run is never missed, as on a busy machine."""


class Scheduler:
    """Submits the calls of schedules. The key of a job is the schedule and the time, so each time has one job."""

    def __init__(self, jobs: JobQueue, schedules: Sequence[Schedule]) -> None:
        self._jobs, self._schedules = jobs, schedules
        self._submitted: dict[str, float] = {}
        self._failing: dict[str, type[BaseException]] = {}

    def check(self, calls: JobCalls) -> None:
        """Check that the gate can submit the calls, and that they are valid.

        Raises:
            UnknownTool: the gate does not have a tool.
            RegistrationError: a run could be caught up after its job was deleted, and so run twice; no store keeps its key,
                queue or priority; or its arguments are not valid, and no hook may change them before they are checked.
        """
        keep = self._jobs.options.keep
        for schedule in self._schedules:
            if keep is not None and _late(schedule) >= keep:
                raise RegistrationError(
                    f"the schedule {schedule.key}: a run is made up to {_late(schedule):g} seconds late, and a job that is "
                    "deleted is not known any more: give Jobs(keep=...) of more seconds"
                )
            try:
                self._jobs.prepare(self._call(schedule), schedule.user, **_options(schedule, self._jobs.now()))
            except UnknownTool:
                raise
            except (BadCall, Invalid) as error:
                raise RegistrationError(f"the schedule {schedule.key}: {error}") from None
            if (fault := _fault(calls.plan_of(schedule.tool), self._call(schedule))) is not None:
                raise RegistrationError(f"the schedule {schedule.key}: each run would be invalid: {fault}")

    async def tick(self) -> None:
        """Submit the calls whose time has come; of several missed times of a schedule, the last one only.

        A schedule that fails does not stop the others. Its failure is logged, and the next round submits the call.
        """
        for schedule in self._schedules:
            try:
                await self._submit_due(schedule)
            except BaseException as error:  # a store, an engine or a time zone may raise anything
                if stops(error, asyncio.current_task()):
                    raise
                if self._failing.get(schedule.key) is not type(error):  # a round each second: log a failure once
                    emit(LogEvent.SCHEDULE_FAILED, schedule=schedule.key, tool=schedule.tool, error=as_fault(error))
                self._failing[schedule.key] = type(error)
            else:
                self._failing.pop(schedule.key, None)

    async def _submit_due(self, schedule: Schedule) -> None:
        now = self._jobs.now()
        at = last_time(schedule, now)
        if at <= self._submitted.get(schedule.key, -math.inf):
            return
        if now - at <= _late(schedule):
            await self._jobs.submit(
                self._call(schedule),
                schedule.user,
                once=True,
                **_options(schedule, at),
                deadline=None if schedule.deadline is None else max(at + schedule.deadline - now, 0.0),
            )
        self._submitted[schedule.key] = at

    @staticmethod
    def _call(schedule: Schedule) -> ToolCall:
        return ToolCall(name=schedule.tool, arguments=dict(schedule.arguments))


def _fault(plan: Plan, call: ToolCall) -> str | None:
    """Return why a call is not valid; None if it is, or if a hook may change the arguments before they are checked."""
    if any(step.hook is not None and May.INPUT in STAGES[step.stage].may for _, _, step in plan.before):
        return None
    found = plan.builtins.hydrator(plan.record, False).hydrate(call)
    return None if found.success else found.errors[0].message


def _options(schedule: Schedule, at: float) -> dict[str, Any]:
    return {
        "key": f"schedule {schedule.key} {at:.0f}",
        "queue": schedule.queue,
        "priority": schedule.priority,
    }


def _late(schedule: Schedule) -> float:
    """Return the seconds after its time in which a run of a schedule is made."""
    return max(schedule.catch_up, LATE)
