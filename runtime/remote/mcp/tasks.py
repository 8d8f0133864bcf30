"""Tasks of a remote server (SEP-2663): the response to a call is a task, which is polled until it ends.

A server makes a task only for a client that offers the extension, which version 2026-07-28 and later have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Literal, Protocol, TypeAlias, TypeVar

from mcp_types import CallToolResult, ClientRequest, InputRequests, InputResponses, Request, RequestParams, Result

from callgate.errors import ToolError, ToolFailed
from callgate.hooks.tool_view import ToolView
from callgate.runtime.remote.mcp.definitions import visible
from callgate.runtime.remote.mcp.under_way import CLEANS_UP

R = TypeVar("R", bound=Result)

POLL, LEAST_POLL, LONGEST_POLL = 1.0, 0.05, 10.0
"""Seconds between two polls: where the server suggests none, and the bounds of what it suggests."""


class Task(Result):
    """The state of a task. As the response to ``tools/call``, its ``resultType`` is ``task``."""

    result_type: str = "complete"
    task_id: str
    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    status_message: str | None = None
    poll_interval_ms: float | None = None
    input_requests: InputRequests | None = None
    result: CallToolResult | None = None


class RemoteTaskParams(RequestParams):
    """The parameters of ``tasks/get`` and ``tasks/cancel``."""

    task_id: str


class AnswerParams(RemoteTaskParams):
    """The parameters of ``tasks/update``."""

    input_responses: InputResponses


class GetTask(Request[RemoteTaskParams, Literal["tasks/get"]]):
    """Asks for the state of a task."""

    method: Literal["tasks/get"] = "tasks/get"
    params: RemoteTaskParams
    name_param = "taskId"


class UpdateTask(Request[AnswerParams, Literal["tasks/update"]]):
    """Answers the questions of a task."""

    method: Literal["tasks/update"] = "tasks/update"
    params: AnswerParams
    name_param = "taskId"


class CancelTask(Request[RemoteTaskParams, Literal["tasks/cancel"]]):
    """Cancels a task."""

    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: RemoteTaskParams
    name_param = "taskId"


Sent: TypeAlias = ClientRequest | GetTask | UpdateTask | CancelTask
"""A request to a remote server."""


class Send(Protocol):
    """Sends a request, and returns its result of a type; errors are those of a tool."""

    async def __call__(self, request: Sent, expected: type[R], /) -> R:
        """Send a request."""
        ...


async def follow(
    task: Task, send: Send, ctx: ToolView, within: float | None, answered: Collection[str]
) -> CallToolResult | Task:
    """Poll a task until it ends or asks something that is not *answered*; return its result, or the task that asks.

    Its messages are the progress of the call. A call that is cancelled cancels the task.

    Raises:
        ToolError: the task was cancelled at the server.
        ToolFailed: it failed, is gone, or took longer than *within* seconds.
    """
    reports, shown = 0, ""
    try:
        async with asyncio.timeout(within):
            while True:
                if task.status not in ("working", "input_required"):
                    return _ended(task)
                if questions(task, answered):
                    return task
                message = visible(task.status_message)
                if message and message != shown:
                    reports, shown = reports + 1, message
                    ctx.progress(reports, None, message)
                await asyncio.sleep(_pause(task))
                task = await send(GetTask(params=RemoteTaskParams(task_id=task.task_id)), Task)
    except TimeoutError:
        await _cancel(task, send)
        raise ToolFailed("the task of the MCP server did not end in time") from None
    except asyncio.CancelledError:
        await _cancel(task, send)
        raise


def questions(task: Task, answered: Collection[str]) -> InputRequests:
    """Return what a task asks now. A server may show a question for a while after its answer."""
    asked = task.input_requests if task.status == "input_required" else None
    return {key: one for key, one in (asked or {}).items() if key not in answered}


async def update(task_id: str, answers: InputResponses, send: Send) -> Task:
    """Send the answers to a task; return its state."""
    params = AnswerParams(task_id=task_id, input_responses=answers)
    await send(UpdateTask(params=params), Result)
    return await send(GetTask(params=RemoteTaskParams(task_id=task_id)), Task)


def _ended(task: Task) -> CallToolResult:
    if task.status == "cancelled":
        raise ToolError("The server cancelled the task.", code="remote_cancelled")
    if task.status == "failed" or task.result is None:
        raise ToolFailed("the task of the MCP server failed")
    return task.result


def _pause(task: Task) -> float:
    wanted = POLL if task.poll_interval_ms is None else task.poll_interval_ms / 1_000
    return max(LEAST_POLL, min(wanted, LONGEST_POLL))


async def _cancel(task: Task, send: Send) -> None:
    """Cancel a task; the caller waits for it a short time only."""

    async def cancel() -> None:
        with suppress(Exception):  # the call has ended in any case
            await send(CancelTask(params=RemoteTaskParams(task_id=task.task_id)), Result)

    # asyncio: the request goes on after its caller has left
    await asyncio.wait([asyncio.ensure_future(cancel())], timeout=CLEANS_UP)
