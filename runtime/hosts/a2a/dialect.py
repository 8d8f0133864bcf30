"""The documents' dialect (contract 38-42, C8): ``message/stream`` with ``params.tools``, ``tasks/resume``, its own events.

Another codec on the same tasks: what a client says is read here as exact JSON, and goes the way of every other message.
A stream stays open while its task waits (``final: false``); it ends with the task, or with the client.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NoReturn

from callgate.providers.ids import new_id
from callgate.runtime.hosts.a2a.executor import ASKED
from callgate.runtime.hosts.a2a.handler import Handler, telling
from callgate.runtime.hosts.a2a.integers import whole
from callgate.runtime.hosts.a2a.messages import Asked, BadAsk, call_id_in, read
from callgate.runtime.hosts.a2a.parts import data_part
from callgate.runtime.hosts.a2a.task_store import is_over
from callgate.runtime.models.wire.shapes import is_list, is_mapping, mapping
from callgate.runtime.suspensions.pending import Answer, PendingTasks
from callgate.tools.calls import ToolCall
from callgate.tools.client.arguments import function_call
from callgate.tools.values import dump

MAX_RESULTS = 64
"""Results in one ``tasks/resume``."""


class Dialect:
    """The endpoint of the dialect; *contexts* makes the context of a call."""

    paths = ("/a2a", "/a2a/message/stream", "/a2a/tasks/resume")

    def __init__(self, handler: Handler, contexts: Any, pending: PendingTasks) -> None:
        self._handler = handler
        self._contexts = contexts
        self._pending = pending

    async def serve(self, request: Any) -> Any:
        """One JSON-RPC request."""
        from a2a.server.jsonrpc_models import JSONParseError
        from a2a.utils.errors import A2AError, InvalidRequestError

        id: Any = None
        try:
            body = json.loads(await request.body(), parse_constant=_refuse)
        except (ValueError, RecursionError):
            return _json(_failure(None, JSONParseError()))
        try:
            if not is_mapping(body) or body.get("jsonrpc") != "2.0" or not _is_id(body.get("id")):
                raise InvalidRequestError
            id = body.get("id")
            with telling():
                return await self._called(body.get("method"), body.get("params"), request, id)
        except A2AError as error:
            return _json(_failure(id, error))

    async def _called(self, method: Any, params: Any, request: Any, id: Any) -> Any:
        from a2a.utils.errors import MethodNotFoundError

        if method not in {"message/stream", "tasks/resume"}:
            raise MethodNotFoundError
        if not is_mapping(params):
            raise BadAsk("params is an object")
        context = self._contexts.build(request)
        if method == "message/stream":
            context.state[ASKED], message = _started(params)
            return await self._stream(self._whole_life(message, context), id)
        context.state[ASKED], message = _resumed(params)
        if "text/event-stream" in request.headers.get("accept", ""):
            return await self._stream(self._statuses(self._sent(message, context), context), id)
        last: Any = None
        async for status in self._statuses(self._sent(message, context), context):
            last = status
        return _json({"jsonrpc": "2.0", "id": id, "result": last})

    # ------------------------------------------------------------------ events

    async def _stream(self, events: AsyncGenerator[dict[str, Any], None], id: Any) -> Any:
        """A stream of events; what fails before the first of them is no stream."""
        from a2a.server.routes.common import create_event_source_response
        from a2a.utils.errors import A2AError

        first = await anext(events, None)

        async def lines() -> AsyncGenerator[dict[str, str], None]:
            try:
                with telling():
                    if first is not None:
                        yield {"data": json.dumps({"jsonrpc": "2.0", "id": id, "result": first})}
                    async for event in events:
                        yield {"data": json.dumps({"jsonrpc": "2.0", "id": id, "result": event})}
            except A2AError as error:
                yield {"data": json.dumps(_failure(id, error))}
            finally:
                await events.aclose()

        return create_event_source_response(lines())

    async def _whole_life(self, message: Any, context: Any) -> AsyncGenerator[dict[str, Any], None]:
        """What happens to a task from its first message to its end, whoever goes on with it meanwhile."""
        from a2a.types import GetTaskRequest, SubscribeToTaskRequest
        from a2a.utils.errors import UnsupportedOperationError

        told: dict[str, Any] = {}
        async with aclosing(self._statuses(self._sent(message, context), context)) as statuses:
            async for told in statuses:
                yield told
        if not told or told["final"]:
            return
        task_id = told["taskId"]
        try:
            later = self._handler.on_subscribe_to_task(SubscribeToTaskRequest(id=task_id), context)
            async with aclosing(self._statuses(later, context)) as statuses:
                async for status in statuses:
                    if status != told:  # the first is where it was left
                        yield status
        except UnsupportedOperationError:  # it has ended just now
            task = await self._handler.on_get_task(GetTaskRequest(id=task_id), context)
            yield await self._status(task, _text(task.artifacts), context)

    def _sent(self, message: Any, context: Any) -> AsyncGenerator[Any, None]:
        from a2a.types import SendMessageRequest

        return self._handler.on_message_send_stream(SendMessageRequest(message=message), context)

    async def _statuses(self, events: Any, context: Any) -> AsyncGenerator[dict[str, Any], None]:
        """The SDK's events as status updates; an answer comes with the last."""
        from a2a.types import Message, Task, TaskArtifactUpdateEvent

        answer = ""
        async with aclosing(events):
            async for event in events:
                if isinstance(event, TaskArtifactUpdateEvent):
                    answer = _text([event.artifact])
                    continue
                if isinstance(event, Task):
                    answer = _text(event.artifacts)
                if not isinstance(event, Message):
                    yield await self._status(event, answer, context)

    async def _status(self, event: Any, answer: str, context: Any) -> dict[str, Any]:
        """One status update, of a task or of an event about one."""
        from a2a.types import Task, TaskState

        task_id = event.id if isinstance(event, Task) else event.task_id
        state = event.status.state
        said: dict[str, Any] = {"role": "assistant", "content": answer or _text([event.status.message])}
        if state == TaskState.TASK_STATE_INPUT_REQUIRED:
            pending = await self._pending.find(context.user.principal, task_id)
            wanted = () if pending is None else pending.open(self._pending.now)
            calls = [ToolCall(one.call_id, one.tool, one.arguments) for one in wanted if one.kind == "client_tool"]
            prompts = [one.prompt for one in wanted if one.kind != "client_tool"]
            said |= {"content": "\n".join(prompts), "toolCalls": [function_call(call) for call in calls]}
        name = TaskState.Name(state).removeprefix("TASK_STATE_").lower().replace("_", "-")
        return {
            "kind": "status-update",
            "taskId": task_id,
            "contextId": event.context_id,
            "status": {"state": name, "message": said},
            "final": is_over(event),
        }


# ---------------------------------------------------------------------- what clients say


def _started(params: Mapping[str, Any]) -> tuple[Asked, Any]:
    """The message of ``message/stream``, and what it says."""
    from a2a.types import Part

    message = mapping(params.get("message"))
    parts = message.get("parts")
    if not is_list(parts) or not all(map(is_mapping, parts)):
        raise BadAsk("message.parts is a list of objects")
    texts = [part.get("text") for part in parts if part.get("kind") == "text"]
    data = [part.get("data") for part in parts if part.get("kind") == "data"]
    if len(texts) + len(data) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise BadAsk("parts are of the kinds text and data")
    shown = [*(Part(text=text) for text in texts if text), *map(data_part, data)]
    if params.get("tools"):
        data.append({"type": "tools", "tools": params["tools"]})
    asked = read([text for text in texts if isinstance(text, str)], data)
    return asked, _message(shown, _text_of(message, "contextId"), _text_of(message, "taskId"))


def _resumed(params: Mapping[str, Any]) -> tuple[Asked, Any]:
    """The results of ``tasks/resume``; none at all asks to look again whether the task can go on."""
    results, task_id = params.get("toolResults"), _text_of(params, "taskId")
    if not is_list(results) or len(results) > MAX_RESULTS or not all(map(is_mapping, results)) or not task_id:
        raise BadAsk(f"tasks/resume takes a taskId, and toolResults: a list of {MAX_RESULTS} at most")
    answers: dict[str, Answer] = {}
    for result in results:
        call_id, success = call_id_in(result, "toolCallId"), result.get("success")
        if call_id in answers or not isinstance(success, bool):
            raise BadAsk("a result has a toolCallId, which comes once, and success: true or false")
        error = None if success else _text_of(result, "error") or "The client's tool failed."
        answers[call_id] = Answer(
            result.get("result") if success else None, error, _text_of(result, "toolName") or None
        )
    shown = data_part({"type": "tool_results", "toolResults": list(results)} if results else {"type": "continue"})
    return Asked(answers=answers, again=not answers), _message([shown], "", task_id)


def _message(parts: list[Any], context_id: str, task_id: str) -> Any:
    from a2a.types import Message, Role

    return Message(message_id=new_id(), role=Role.ROLE_USER, parts=parts, context_id=context_id, task_id=task_id)


def _text_of(data: Mapping[str, Any], name: str) -> str:
    given = data.get(name)
    if given is None:
        return ""
    if not isinstance(given, str):
        raise BadAsk(f"{name} is a text")
    return given


def _refuse(_: str) -> NoReturn:
    raise ValueError("JSON has no such number")


def _is_id(given: Any) -> bool:
    return given is None or (isinstance(given, str | int) and not isinstance(given, bool))


# ---------------------------------------------------------------------- what they are told


def _text(holders: Any) -> str:
    """The texts of messages or artifacts, and their data as JSON."""
    from a2a.helpers import get_data_parts

    parts = [part for holder in holders for part in holder.parts]
    return "\n".join(
        part.text if part.HasField("text") else dump(whole(get_data_parts([part])[0], None)).decode() for part in parts
    )


def _failure(id: Any, error: Any) -> dict[str, Any]:
    from a2a.server.request_handlers.response_helpers import build_error_response

    return build_error_response(id, error)


def _json(body: Any) -> Any:
    from starlette.responses import JSONResponse

    return JSONResponse(body)
