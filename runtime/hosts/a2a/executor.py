"""Where the SDK hands over: a request that was let pass becomes work, and what came of it the events of a task.

It is an ``AgentExecutor`` of the SDK in all but name.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from callgate.errors import StoreConflict
from callgate.providers.logs import Event, emit
from callgate.runtime.hosts.a2a.messages import Asked
from callgate.runtime.hosts.a2a.parts import call_parts, message_parts, shows, wanted_parts
from callgate.runtime.hosts.a2a.task_runner import Came, State, Work
from callgate.runtime.hosts.a2a.task_store import is_over
from callgate.tools.calls import User

ASKED = "callgate.asked"
"""Where what a message says is kept in the state of its call."""

GRACE = 60.0
"""Seconds beyond its deadline after which work that nobody here does counts as interrupted."""

_BROKEN = Came(State.FAILED, "The task failed.")
_LOST = Came(State.FAILED, "The task was interrupted, or has waited too long.")


class Executor:
    """Runs the work of tasks, each in a task of its own, so that it has ended before anybody says so."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._running: dict[str, asyncio.Task[Came | None]] = {}

    def runs(self, task: str) -> bool:
        """Whether this process is at work on a task."""
        return task in self._running

    async def is_due(self, task: Any, user: User) -> bool:
        """Whether a task of this user should go on though nobody asks: it is decided, or given up, or says old things."""
        return not is_over(task) and not self.runs(task.id) and await self._is_left(task, user)

    async def _is_left(self, task: Any, user: User) -> bool:
        """The same, whoever is at it here: nobody is at it elsewhere, as far as one can know."""
        from a2a.types import TaskState

        tasks, patience = self._work.pending, self._work.deadline + GRACE
        if task.status.state != TaskState.TASK_STATE_INPUT_REQUIRED:
            return bool(task.status.timestamp.ToSeconds() + patience < tasks.now)
        pending = await tasks.look(user.tenant or "", task.id, ended=True)
        if pending is None:
            return True
        if pending.taken_at is not None:
            return pending.taken_at + patience < tasks.now
        try:
            wanted = (await self._work.catch_up(pending, user)).open(tasks.now)
        except StoreConflict:
            return False
        return not wanted or not shows(task, wanted)

    async def execute(self, context: Any, queue: Any) -> None:
        """Work on a task until it is over or waits."""
        from a2a.server.tasks import TaskUpdater

        updater = TaskUpdater(queue, context.task_id, context.context_id)
        if context.current_task is None:
            await queue.enqueue_event(self._new_task(context))
        self._running[context.task_id] = running = asyncio.ensure_future(self._run(context, updater))
        try:
            came = await running
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is None or own.cancelling():
                raise
            return  # by ``cancel``, which says so
        finally:
            del self._running[context.task_id]
        if came is not None:
            await self._publish(updater, came)

    async def cancel(self, context: Any, queue: Any) -> None:
        """Stop work on a task; when this returns nothing of it runs any more."""
        from a2a.server.tasks import TaskUpdater

        running = self._running.get(context.task_id)
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        await self._tell(TaskUpdater(queue, context.task_id, context.context_id), "CANCELED")

    async def _run(self, context: Any, updater: Any) -> Came | None:
        """What came of the work; None where there was nothing to do."""
        asked: Asked = context.call_context.state[ASKED]
        user: User = context.call_context.user.principal
        try:
            if context.current_task is not None:
                return await self._go_on(context, user, updater)
            await self._tell(updater, "WORKING")
            return await self._work.begin(asked, user, context.task_id, context.context_id)
        except Exception as error:  # noqa: BLE001  (what it says is for the log, never for the client)
            emit(Event.PROVIDER_FAILED, provider="a2a", phase="task", error=error)
            await self._work.drop(context.task_id, user)
            return _BROKEN

    async def _go_on(self, context: Any, user: User, updater: Any) -> Came | None:
        tasks, task = self._work.pending, context.current_task
        while (pending := await tasks.find(user, task.id)) is not None:
            try:
                pending = await self._work.catch_up(pending, user)
                wanted = pending.open(tasks.now)
                if wanted:
                    return Came(State.WAITS, wanted=wanted)
                await self._tell(updater, "WORKING")
                return await self._work.go_on(pending, user)
            except StoreConflict:  # somebody else was faster: look again
                continue
        if not await self._is_left(task, user):
            return None  # somebody else is at it
        await self._work.drop(task.id, user)
        return _LOST

    # ------------------------------------------------------------------ events

    def _new_task(self, context: Any) -> Any:
        from a2a.types import Task, TaskState, TaskStatus

        status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        status.timestamp.FromDatetime(self._now())
        return Task(id=context.task_id, context_id=context.context_id, status=status, history=[context.message])

    async def _publish(self, updater: Any, came: Came) -> None:
        """Say what came of it."""
        said = came.result
        if came.state is State.WAITS:
            await self._tell(updater, "INPUT_REQUIRED", wanted_parts(came.wanted))
            return
        parts = call_parts(said) if said is not None else message_parts(came.text)
        if came.state is State.DONE:
            await updater.add_artifact(parts, name="answer")
            await self._tell(updater, "COMPLETED")
        else:
            await self._tell(updater, "REJECTED" if came.state is State.REJECTED else "FAILED", parts)

    async def _tell(self, updater: Any, state: str, parts: list[Any] | None = None) -> None:
        """The new state of a task, by the clock of the gate."""
        from a2a.types import TaskState

        message = None if parts is None else updater.new_agent_message(parts)
        at = self._now().isoformat()
        await updater.update_status(TaskState.Value(f"TASK_STATE_{state}"), message, timestamp=at)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._work.pending.now, UTC)
