"""One call of a remote agent: send a message, wait for the result, and cancel the remote task if the call ends early."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from callgate.errors import ToolError, ToolFailed
from callgate.hooks.tool_view import ToolView
from callgate.providers.ids import new_id
from callgate.providers.logs import LogEvent, emit
from callgate.runtime.hosts.a2a.remote_task import RemoteTask, remote_task
from callgate.runtime.pipeline.shield import Shielded

if TYPE_CHECKING:
    from a2a.client import Client, ClientCallContext
    from a2a.types import Part


SILENCE_LIMIT = 600.0
"""Read timeout of a call without a deadline, in seconds."""
CANCEL_LIMIT = 5.0
"""Timeout for cancelling a remote task, in seconds."""
MAX_HISTORY = 8
"""Number of messages of a remote task that are searched for the one of this call."""
FIRST_POLL, LAST_POLL = 0.25, 4.0
"""First and longest interval of polling a remote task, in seconds."""


class RemoteCall:
    """The exchange about one remote task: a new task, or the task of a resumed call."""

    def __init__(self, client: Client, ctx: ToolView, task: str, extension: str | None) -> None:
        self._client = client
        self._ctx = ctx
        self._task = task
        self._sent_id = new_id()  # finds a task whose id did not arrive
        self._extension = extension
        self._settled = False

    async def send(self, parts: list[Part]) -> RemoteTask:
        """Send a message and wait until the task ends or asks for input. If this call is cancelled, so is the task.

        Raises:
            ToolError: the agent refused the message, or cannot be reached; there was no effect.
            ToolFailed: the effect is unknown.
        """
        try:
            return await self._send(parts)
        except ToolError:  # the agent has not started
            raise
        except BaseException:
            await self.cancel()
            raise

    async def cancel(self) -> None:
        """Cancel the remote task, if it has not ended; a failure is logged only."""
        if self._settled:
            return
        self._settled = True
        shielded = Shielded(self._cancel_remote(), limit=CANCEL_LIMIT)
        try:
            await shielded.run()
        except Exception as error:  # noqa: BLE001  (the outcome of the call does not change)
            emit(LogEvent.PROVIDER_FAILED, provider="a2a", phase="cancel", error=error)
        if shielded.deferred is not None:
            raise shielded.deferred

    async def _cancel_remote(self) -> None:
        from a2a.types import CancelTaskRequest, ListTasksRequest

        context = self._context(CANCEL_LIMIT)
        if self._task:
            found = [self._task]
        else:
            listed = await self._client.list_tasks(ListTasksRequest(history_length=MAX_HISTORY), context=context)
            ours = [task for task in listed.tasks if self._sent_id in {one.message_id for one in task.history}]
            found = [task.id for task in ours if not remote_task(task).is_over]
        for task in found:
            await self._client.cancel_task(CancelTaskRequest(id=task), context=context)

    async def _send(self, parts: list[Part]) -> RemoteTask:
        import httpx
        from a2a.types import Message, Role, SendMessageRequest
        from a2a.utils.errors import A2AError
        from google.protobuf.json_format import ParseError

        message = Message(message_id=self._sent_id, role=Role.ROLE_USER, parts=parts, task_id=self._task)
        if self._extension is not None:
            message.extensions.append(self._extension)
        try:
            async for event in self._client.send_message(SendMessageRequest(message=message), context=self._context()):
                if event.HasField("message"):
                    self._settled = True
                    return RemoteTask("completed", artifacts=tuple(event.message.parts))
                self._ctx.progressed()
                kind = event.WhichOneof("payload")
                self._task = event.task.id if kind == "task" else getattr(event, kind).task_id
            task = await self._poll()
        except (A2AError, httpx.HTTPError, ParseError, ValueError, RecursionError) as error:
            raise _failure(error, begun=bool(self._task)) from error
        self._settled = task.is_over
        return task

    async def _poll(self) -> RemoteTask:
        """Poll the task until it ends or asks for input."""
        from a2a.types import GetTaskRequest

        if not self._task:
            raise ValueError("the response has no task and no message")
        pause, before = FIRST_POLL, None
        while True:
            task = remote_task(await self._client.get_task(GetTaskRequest(id=self._task), context=self._context()))
            if task.is_settled:
                return task
            if before is not None and task != before:
                self._ctx.progressed()
            before = task
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_POLL)

    def _context(self, seconds: float | None = None) -> ClientCallContext:
        """Return the timeout and the requested extension of a request."""
        from a2a.client import ClientCallContext
        from a2a.extensions.common import HTTP_EXTENSION_HEADER

        left = self._ctx.remaining()
        headers = {} if self._extension is None else {HTTP_EXTENSION_HEADER: self._extension}
        return ClientCallContext(timeout=seconds or left or SILENCE_LIMIT, service_parameters=headers)


def _failure(error: Exception, *, begun: bool) -> Exception:
    """Choose the error of a call without a response, by what is known about its effect."""
    import httpx
    from a2a.client.errors import A2AClientError
    from a2a.utils.errors import InternalError
    from google.protobuf.json_format import ParseError

    cause = error.__cause__ if isinstance(error, A2AClientError) else error
    status = cause.response.status_code if isinstance(cause, httpx.HTTPStatusError) else None
    if not begun and isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout):
        return ToolError("The agent cannot be reached.", code="remote_unreachable", no_effect=True)
    refused = not isinstance(
        error, A2AClientError | InternalError | httpx.HTTPError | ParseError | ValueError | RecursionError
    )
    if not begun and (refused or (status is not None and 400 <= status < 500)):
        return ToolError("The agent refused the request.", code="remote_refused", no_effect=True)
    return ToolFailed(f"the agent did not answer: {type(error).__name__}")
