"""One call's talk with a remote agent: send, wait for what comes of it, and leave nothing running behind."""

from __future__ import annotations

import asyncio
from typing import Any

from callgate.errors import ToolError, ToolFailed
from callgate.providers.ids import new_id
from callgate.providers.logs import Event, emit
from callgate.runtime.call.leases import Carried
from callgate.runtime.hosts.a2a.remote_task import Said, said_in

PATIENCE = 600.0
"""Seconds of silence after which an agent is given up on where the call has no deadline."""
CANCEL_LIMIT = 5.0
"""Seconds in which a remote task must have been cancelled when its call is."""
MOST_HISTORY = 8
"""Messages of a task that are looked at to know whether it is ours."""
FIRST_LOOK, LAST_LOOK = 0.25, 4.0
"""Seconds between two looks at a task that does not tell how far it is, first and at last."""


class Talk:
    """Talks about one task, from its first message or from where it was left."""

    def __init__(self, client: Any, ctx: Any, task: str, extension: str | None) -> None:
        self._client = client
        self._ctx = ctx
        self._task = task
        self._sent_id = new_id()  # of our message: by it a task is found whose own id did not arrive
        self._extension = extension
        self._settled = False

    async def send(self, parts: list[Any]) -> Said:
        """Send a message; what comes of it when the agent has done what it can. Left early, the task is cancelled.

        Raises:
            ToolError: the agent refused, or cannot be reached: nothing was done.
            ToolFailed: nobody knows what the agent did.
        """
        try:
            return await self._sent(parts)
        except ToolError:  # nothing has begun
            raise
        except BaseException:
            await self.cancel()
            raise

    async def cancel(self) -> None:
        """Cancel the remote task, if there is one that is not over; a failure changes nothing here."""
        if self._settled:
            return
        self._settled = True
        carried = Carried(self._cancelled(), limit=CANCEL_LIMIT)
        try:
            await carried.run()
        except Exception as error:  # noqa: BLE001  (the call ends as it ends)
            emit(Event.PROVIDER_FAILED, provider="a2a", phase="cancel", error=error)
        if carried.held is not None:
            raise carried.held

    async def _cancelled(self) -> None:
        from a2a.types import CancelTaskRequest, ListTasksRequest

        context = self._context(CANCEL_LIMIT)
        if self._task:
            found = [self._task]
        else:
            listed = await self._client.list_tasks(ListTasksRequest(history_length=MOST_HISTORY), context=context)
            ours = [task for task in listed.tasks if self._sent_id in {one.message_id for one in task.history}]
            found = [task.id for task in ours if not said_in(task).over]
        for task in found:
            await self._client.cancel_task(CancelTaskRequest(id=task), context=context)

    async def _sent(self, parts: list[Any]) -> Said:
        import httpx
        from a2a.types import Message, Role, SendMessageRequest
        from a2a.utils.errors import A2AError

        message = Message(message_id=self._sent_id, role=Role.ROLE_USER, parts=parts, task_id=self._task)
        if self._extension is not None:
            message.extensions.append(self._extension)
        try:
            async for event in self._client.send_message(SendMessageRequest(message=message), context=self._context()):
                if event.HasField("message"):
                    self._settled = True
                    return Said("completed", made=tuple(event.message.parts))
                kind = event.WhichOneof("payload")
                self._task = event.task.id if kind == "task" else getattr(event, kind).task_id
            said = await self._settle()
        except (A2AError, httpx.HTTPError, ValueError) as error:
            raise _failure(error, begun=bool(self._task)) from error
        self._settled = said.over
        return said

    async def _settle(self) -> Said:
        """The task when nothing more comes of it by itself."""
        from a2a.types import GetTaskRequest

        if not self._task:
            raise ValueError("an answer without a task or a message")
        pause = FIRST_LOOK
        while True:
            said = said_in(await self._client.get_task(GetTaskRequest(id=self._task), context=self._context()))
            if said.settled:
                return said
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_LOOK)

    def _context(self, seconds: float | None = None) -> Any:
        """How long a request may take, and what is asked for."""
        from a2a.client import ClientCallContext
        from a2a.extensions.common import HTTP_EXTENSION_HEADER

        left = self._ctx.remaining()
        headers = {} if self._extension is None else {HTTP_EXTENSION_HEADER: self._extension}
        return ClientCallContext(timeout=seconds or left or PATIENCE, service_parameters=headers)


def _failure(error: Exception, *, begun: bool) -> Exception:
    """What a call ends with whose agent gave no answer: what it knows of the effect is all that differs."""
    import httpx
    from a2a.client.errors import A2AClientError
    from a2a.utils.errors import InternalError

    cause = error.__cause__ if isinstance(error, A2AClientError) else error
    status = cause.response.status_code if isinstance(cause, httpx.HTTPStatusError) else None
    if not begun and isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout):
        return ToolError("The agent cannot be reached.", code="remote_unreachable", no_effect=True)
    refused = not isinstance(error, A2AClientError | InternalError | httpx.HTTPError | ValueError)
    if not begun and (refused or (status is not None and 400 <= status < 500)):
        return ToolError("The agent refused the request.", code="remote_refused", no_effect=True)
    return ToolFailed(f"the agent did not answer: {type(error).__name__}")
