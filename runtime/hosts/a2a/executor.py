"""The executor of tasks: it runs an accepted message and publishes the result as events of the task.

It implements the ``AgentExecutor`` of the SDK without importing it.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from callgate.errors import StoreConflict
from callgate.providers.logs import LogEvent, emit
from callgate.runtime.hosts.a2a.messages import ClientMessage
from callgate.runtime.hosts.a2a.parts import pending_parts, result_parts, shows_pending, text_parts
from callgate.runtime.hosts.a2a.task_runner import State, TaskResult, TaskRunner
from callgate.runtime.hosts.a2a.task_states import STORED, AgentCall, is_over
from callgate.tools.calls import User

if TYPE_CHECKING:
    from a2a.server.events import EventQueue
    from a2a.server.tasks import TaskUpdater
    from a2a.types import Message, Part, Task


MESSAGE = "callgate.message"
"""The key of the parsed message in the state of a call."""

GRACE = 60.0
"""Seconds after its deadline when a task without progress counts as interrupted."""

_FAILED = TaskResult(State.FAILED, "The task failed.")
_INTERRUPTED = TaskResult(State.FAILED, "The task was interrupted, or waited too long.")


class TaskRequest(Protocol):
    """The request that a run of a task serves: the ``RequestContext`` of the SDK."""

    task_id: str
    context_id: str
    current_task: Task | None
    message: Message
    call_context: AgentCall


class Executor:
    """Runs tasks, each in an asyncio task: when the executor reports a cancellation, the work has stopped."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner
        self._running: dict[str, asyncio.Task[TaskResult | None]] = {}

    def is_running(self, task: str) -> bool:
        """Tell whether this process runs the task."""
        return task in self._running

    async def should_resume(self, task: Task, user: User) -> bool:
        """Tell whether a task has to resume without a message: after a decision, a timeout, or with an outdated status."""
        return not is_over(task) and not self.is_running(task.id) and await self._is_abandoned(task, user)

    async def _is_abandoned(self, task: Task, user: User) -> bool:
        """Tell whether a task has to resume, as far as the store shows; another process may run it."""
        from a2a.types import TaskState

        tasks, patience = self._runner.pending, self._runner.deadline + GRACE
        if task.status.state != TaskState.TASK_STATE_INPUT_REQUIRED:
            return bool(task.status.timestamp.ToSeconds() + patience < tasks.now)
        pending = await tasks.look(user.tenant or "", task.id, ended=True)
        if pending is None:
            return True
        if pending.taken_at is not None:
            return pending.taken_at + patience < tasks.now
        try:
            wanted = (await self._runner.refresh(pending, user)).open(tasks.now)
        except StoreConflict:
            return False
        return not wanted or not shows_pending(task, wanted)

    async def execute(self, context: TaskRequest, queue: EventQueue) -> None:
        """Run a task until it ends or waits."""
        from a2a.server.tasks import TaskUpdater

        updater = TaskUpdater(queue, context.task_id, context.context_id)
        if context.current_task is None:
            # The SDK stores the task meanwhile: a task that the store refuses, or loses, must not run
            context.call_context.state[STORED] = stored = asyncio.get_running_loop().create_future()
            await queue.enqueue_event(self._new_task(context))
            if not await stored:
                return
        # asyncio: another request cancels this task alone, and waits for its end
        self._running[context.task_id] = running = asyncio.ensure_future(self._run(context, updater))
        try:
            result = await running
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is None or own.cancelling():
                raise
            return  # ``cancel`` reports it
        finally:
            del self._running[context.task_id]
        if result is not None:
            await self._publish(updater, result)

    async def cancel(self, context: TaskRequest, queue: EventQueue) -> None:
        """Cancel a task and await its end."""
        from a2a.server.tasks import TaskUpdater

        running = self._running.get(context.task_id)
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        await self._set_state(TaskUpdater(queue, context.task_id, context.context_id), "CANCELED")

    async def _run(self, context: TaskRequest, updater: TaskUpdater) -> TaskResult | None:
        """Run a task; returns None if there was nothing to do."""
        parsed: ClientMessage = context.call_context.state[MESSAGE]
        user: User = context.call_context.user.principal
        try:
            if context.current_task is not None:
                return await self._resume(context.current_task, user, updater)
            await self._set_state(updater, "WORKING")
            return await self._runner.start(parsed, user, context.task_id, context.context_id)
        except Exception as error:  # noqa: BLE001  (its text goes to the log, never to the client)
            emit(LogEvent.PROVIDER_FAILED, provider="a2a", phase="task", error=error)
            await self._runner.abandon(context.task_id, user)
            return _FAILED

    async def _resume(self, task: Task, user: User, updater: TaskUpdater) -> TaskResult | None:
        tasks = self._runner.pending
        while (pending := await tasks.find(user, task.id)) is not None:
            try:
                pending = await self._runner.refresh(pending, user)
                wanted = pending.open(tasks.now)
                if wanted:
                    return TaskResult(State.WAITING, wanted=wanted)
                await self._set_state(updater, "WORKING")
                return await self._runner.resume(pending, user)
            except StoreConflict:  # another request changed the task: read it again
                continue
        if not await self._is_abandoned(task, user):
            return None  # another process runs it
        await self._runner.abandon(task.id, user)
        return _INTERRUPTED

    # ------------------------------------------------------------------ events

    def _new_task(self, context: TaskRequest) -> Task:
        from a2a.types import Task, TaskState, TaskStatus

        status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        status.timestamp.FromDatetime(self._now())
        return Task(id=context.task_id, context_id=context.context_id, status=status, history=[context.message])

    async def _publish(self, updater: TaskUpdater, result: TaskResult) -> None:
        """Publish the result of a run."""
        output = result.result
        if result.state is State.WAITING:
            await self._set_state(updater, "INPUT_REQUIRED", pending_parts(result.wanted))
            return
        parts = result_parts(output) if output is not None else text_parts(result.text)
        if result.state is State.DONE:
            await updater.add_artifact(parts, name="answer")
            await self._set_state(updater, "COMPLETED")
        else:
            await self._set_state(updater, "REJECTED" if result.state is State.REJECTED else "FAILED", parts)

    async def _set_state(self, updater: TaskUpdater, state: str, parts: list[Part] | None = None) -> None:
        """Publish a new state of a task, with the time of the gate's clock."""
        from a2a.types import TaskState

        message = None if parts is None else updater.new_agent_message(parts)
        at = self._now().isoformat()
        number: Any = TaskState.Value(f"TASK_STATE_{state}")  # an int, which checkers do not take for a TaskState
        await updater.update_status(number, message, timestamp=at)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._runner.pending.now, UTC)
