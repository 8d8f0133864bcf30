"""The older dialect of A2A: ``message/stream`` with ``params.tools``, ``tasks/resume``, and its own events.

This is a second codec for the same tasks. It reads exact JSON and passes messages to the same handler. A stream stays open
while its task waits (``final: false``); it ends with the task, or when the client disconnects.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from callgate.runtime.hosts.a2a.dialect_requests import parse_resume, parse_start
from callgate.runtime.hosts.a2a.executor import MESSAGE
from callgate.runtime.hosts.a2a.handler import Handler, public_errors
from callgate.runtime.hosts.a2a.integers import restore_integers
from callgate.runtime.hosts.a2a.messages import BadMessage
from callgate.runtime.hosts.a2a.task_states import AgentCall, is_over
from callgate.runtime.models.wire.shapes import is_mapping
from callgate.runtime.suspensions.pending import PendingTasks
from callgate.tools.calls import ToolCall
from callgate.tools.values import dump

if TYPE_CHECKING:
    from a2a.server.events.event_queue import Event
    from a2a.server.jsonrpc_models import JSONRPCError
    from a2a.types import Artifact, Message, Task, TaskStatusUpdateEvent
    from a2a.utils.errors import A2AError
    from starlette.requests import Request
    from starlette.responses import Response


class Dialect:
    """The endpoint of the dialect; *contexts* builds the context of a call."""

    paths = ("/a2a", "/a2a/message/stream", "/a2a/tasks/resume")

    def __init__(self, handler: Handler, contexts: Any, pending: PendingTasks) -> None:
        self._handler = handler
        self._contexts = contexts
        self._pending = pending

    async def serve(self, request: Request) -> Response:
        """Serve one JSON-RPC request."""
        from a2a.server.jsonrpc_models import JSONParseError
        from a2a.utils.errors import A2AError, InvalidRequestError

        id: str | int | None = None
        try:
            body = json.loads(await request.body(), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return _json(_failure(None, JSONParseError()))
        try:
            if not is_mapping(body) or body.get("jsonrpc") != "2.0" or not _is_id(given := body.get("id")):
                raise InvalidRequestError
            id = given
            with public_errors():
                return await self._dispatch(body.get("method"), body.get("params"), request, id)
        except A2AError as error:
            return _json(_failure(id, error))

    async def _dispatch(self, method: object, params: object, request: Request, id: str | int | None) -> Response:
        from a2a.utils.errors import MethodNotFoundError

        if method not in ("message/stream", "tasks/resume"):
            raise MethodNotFoundError
        if not is_mapping(params):
            raise BadMessage("params must be an object")
        context = self._contexts.build(request)
        if method == "message/stream":
            context.state[MESSAGE], message = parse_start(params)
            return await self._stream(self._task_events(message, context), id)
        context.state[MESSAGE], message = parse_resume(params)
        if "text/event-stream" in request.headers.get("accept", ""):
            return await self._stream(self._statuses(self._send(message, context), context), id)
        last: object = None
        async for status in self._statuses(self._send(message, context), context):
            last = status
        return _json({"jsonrpc": "2.0", "id": id, "result": last})

    # ------------------------------------------------------------------ events

    async def _stream(self, events: AsyncGenerator[dict[str, object], None], id: str | int | None) -> Response:
        """Respond with a stream of events; an error before the first event is a plain JSON response."""
        from a2a.server.routes.common import create_event_source_response
        from a2a.utils.errors import A2AError

        first = await anext(events, None)

        async def lines() -> AsyncGenerator[dict[str, str], None]:
            try:
                with public_errors():
                    if first is not None:
                        yield {"data": json.dumps({"jsonrpc": "2.0", "id": id, "result": first})}
                    async for event in events:
                        yield {"data": json.dumps({"jsonrpc": "2.0", "id": id, "result": event})}
            except A2AError as error:
                yield {"data": json.dumps(_failure(id, error))}
            finally:
                await events.aclose()

        return create_event_source_response(lines())

    async def _task_events(self, message: Message, context: AgentCall) -> AsyncGenerator[dict[str, object], None]:
        """Yield the events of a task from its first message to its end, also when another process resumes it."""
        from a2a.types import GetTaskRequest, SubscribeToTaskRequest
        from a2a.utils.errors import UnsupportedOperationError

        last: dict[str, object] = {}
        async with aclosing(self._statuses(self._send(message, context), context)) as statuses:
            async for last in statuses:
                yield last
        if not last or last["final"]:
            return
        task_id = str(last["taskId"])
        try:
            later = self._handler.on_subscribe_to_task(SubscribeToTaskRequest(id=task_id), context)
            async with aclosing(self._statuses(later, context)) as statuses:
                async for status in statuses:
                    if status != last:  # the first event repeats the last one
                        yield status
        except UnsupportedOperationError:  # the task has just ended
            task = await self._handler.on_get_task(GetTaskRequest(id=task_id), context)
            if task is not None:
                yield await self._status(task, _text(task.artifacts), context)

    def _send(self, message: Message, context: AgentCall) -> AsyncGenerator[Event, None]:
        from a2a.types import SendMessageRequest

        return self._handler.on_message_send_stream(SendMessageRequest(message=message), context)

    async def _statuses(
        self, events: AsyncGenerator[Event, None], context: AgentCall
    ) -> AsyncGenerator[dict[str, object], None]:
        """Turn the SDK's events into status updates; the last one has the answer."""
        from a2a.types import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

        answer = ""
        async with aclosing(events):
            async for event in events:
                if isinstance(event, TaskArtifactUpdateEvent):
                    answer = _text([event.artifact])
                    continue
                if isinstance(event, Task):
                    answer = _text(event.artifacts)
                if isinstance(event, Task | TaskStatusUpdateEvent):
                    yield await self._status(event, answer, context)

    async def _status(self, event: Task | TaskStatusUpdateEvent, answer: str, context: AgentCall) -> dict[str, object]:
        """Build a status update from a task, or from an event of a task."""
        from a2a.types import Task, TaskState

        task_id = event.id if isinstance(event, Task) else event.task_id
        state = event.status.state
        message: dict[str, object] = {"role": "assistant", "content": answer or _text([event.status.message])}
        if state == TaskState.TASK_STATE_INPUT_REQUIRED:
            pending = await self._pending.find(context.user.principal, task_id)
            wanted = () if pending is None else pending.open(self._pending.now)
            calls = [
                ToolCall(id=one.id, name=one.tool, arguments=one.arguments)
                for one in wanted
                if one.kind == "client_tool"
            ]
            prompts = [one.prompt for one in wanted if one.kind != "client_tool"]
            message |= {"content": "\n".join(prompts), "toolCalls": [call.to_function_call() for call in calls]}
        name = TaskState.Name(state).removeprefix("TASK_STATE_").lower().replace("_", "-")
        return {
            "kind": "status-update",
            "taskId": task_id,
            "contextId": event.context_id,
            "status": {"state": name, "message": message},
            "final": is_over(event),
        }


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError("JSON has no such number")


def _is_id(given: object) -> TypeGuard[str | int | None]:
    return given is None or (isinstance(given, str | int) and not isinstance(given, bool))


def _text(holders: Iterable[Message | Artifact]) -> str:
    """Join the texts of messages or artifacts; data parts become JSON."""
    from a2a.helpers import get_data_parts

    parts = [part for holder in holders for part in holder.parts]
    return "\n".join(
        part.text if part.HasField("text") else dump(restore_integers(get_data_parts([part])[0], None)).decode()
        for part in parts
    )


def _failure(id: str | int | None, error: A2AError | JSONRPCError) -> dict[str, object]:
    from a2a.server.request_handlers.response_helpers import build_error_response

    return build_error_response(id, error)


def _json(body: object) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(body)
