"""One call of a remote tool with its server: the request, what the server asks, its task, and what failures mean."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from functools import cache
from typing import TYPE_CHECKING, NoReturn, TypeVar

import httpx2
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    CreateMessageRequest,
    ElicitRequest,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
    InputResponses,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from callgate.errors import ToolError, ToolFailed
from callgate.hooks.tool_view import ToolView
from callgate.runtime.remote.mcp import tasks
from callgate.runtime.remote.mcp.definitions import visible
from callgate.runtime.remote.mcp.face import McpServer
from callgate.runtime.remote.mcp.owner import Owner
from callgate.runtime.remote.mcp.questions import MAX_QUESTIONS, Asked, Asking, suspend
from callgate.runtime.remote.mcp.under_way import CLEANS_UP, HELD, CallUnderWay

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

R = TypeVar("R", bound="BaseModel")

LATER = 1.0
"""Seconds after the deadline of a call at which the SDK gives up: the gate cancels the call before."""
RETRY_AFTER = 2_000
"""Milliseconds after which a call may be repeated while the server is not connected."""
OPEN = ""
"""The key of the question of an open call: such a call asks one at a time."""

_REFUSED = frozenset({-32600, -32601, -32602, -32020, -32021, -32022})
"""Codes of errors with which a server says that it has not run the tool."""


@cache
def _result_type() -> TypeAdapter[InputRequiredResult | CallToolResult | tasks.Task]:
    """Return the type of a result; pydantic takes its time to compile it."""
    from typing import Annotated

    from pydantic import Discriminator, Tag, TypeAdapter

    def kind(value: object) -> str:
        found = value.get("resultType") if isinstance(value, dict) else getattr(value, "result_type", None)
        return found if found in ("task", "input_required") else "complete"

    return TypeAdapter(
        Annotated[
            Annotated[InputRequiredResult, Tag("input_required")]
            | Annotated[CallToolResult, Tag("complete")]
            | Annotated[tasks.Task, Tag("task")],
            Discriminator(kind),
        ]
    )


class Exchange:
    """One run of a call, over one connection."""

    def __init__(
        self, server: McpServer, owner: Owner, session: ClientSession, call: CallUnderWay, ctx: ToolView
    ) -> None:
        self._server, self._owner, self._session, self._call, self._ctx = server, owner, session, call, ctx
        self._answered = set[str]()

    async def run(self, params: CallToolRequestParams, asked: Asked) -> CallToolResult:
        """Send the call, or the answers to what the server asked before; return the result.

        Raises:
            ToolError: the server refused the call, or waits for something that it cannot have.
            ToolFailed: it is not known how the call ended.
        """
        if asked.way == "repeat":
            params.input_responses = asked.answers or None
            params.request_state = asked.state or None
            step = await self._call_tool(params)
        else:
            step = await self._reply(params, Asking({}, asked.way, asked.state), asked.answers)
        for _ in range(MAX_QUESTIONS):
            if not isinstance(step, Asking):
                return step
            step = await self._reply(params, step, await self._answers(step, asked))
        raise ToolError("The server asks without end.", code="remote_waits")

    async def send(self, request: tasks.Sent, expected: type[R] | TypeAdapter[R], *, within: float | None = None) -> R:
        """Send a request; its errors are those of a tool. *within* is its timeout; default: the limit of the call."""

        async def note(progress: float, total: float | None, message: str | None) -> None:
            if self._call.ctx is not None:
                self._call.ctx.progress(progress, total, visible(message) or None)

        session = self._session
        limit = self._limit() if within is None else within
        try:
            return await _leaving(
                session.send_request(request, expected, request_read_timeout_seconds=limit, progress_callback=note)
            )
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._owner.lose(session)
            if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise ToolFailed(f"the MCP server {self._server.name!r} did not answer ({error.code})") from error
            if error.code == PARSE_ERROR:  # it may have run the tool
                raise ToolFailed(f"the MCP server {self._server.name!r} sent no message, or a too large one") from error
            raise ToolError(
                "The server refused the call.", code="remote_refused", no_effect=error.code in _REFUSED
            ) from error
        except ValueError as error:  # pydantic's: it is no result
            raise ToolFailed(f"the MCP server {self._server.name!r} answered with no result") from error
        except (httpx2.HTTPError, OSError, RuntimeError, ExceptionGroup) as error:
            self._owner.lose(session)
            raise ToolFailed(f"the connection to the MCP server {self._server.name!r} was lost") from error

    async def send_later(self, request: tasks.Sent, expected: type[R]) -> R:
        """Send a request about a call that has begun. A refusal does not say that the tool has not run."""
        try:
            return await self.send(request, expected)
        except ToolError as error:
            raise ToolFailed(f"the MCP server {self._server.name!r} no longer holds a part of this call") from error

    def _limit(self) -> float:
        """Return the timeout of a request."""
        left = self._ctx.remaining()
        if left is None and self._ctx.idle is not None:  # the limit of the SDK is not reset by progress
            return math.inf
        return self._server.timeout if left is None else left + LATER

    async def _call_tool(self, params: CallToolRequestParams) -> CallToolResult | Asking:
        try:
            with self._call.current():
                return await self._sent(params)
        except ToolFailed:
            if self._call.unsent:
                put_off(self._ctx, self._server.name)
            raise

    async def _sent(self, params: CallToolRequestParams) -> CallToolResult | Asking:
        request = CallToolRequest(params=params)
        if self._session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self._call.start(self.send(request, CallToolResult, within=math.inf))
            return await self._opened()
        result = await self.send(request, _result_type())
        if isinstance(result, InputRequiredResult):
            return Asking(result.input_requests or {}, "repeat", result.request_state or "")
        if isinstance(result, tasks.Task):
            return await self._follow(result)
        return result

    async def _opened(self) -> CallToolResult | Asking:
        """Wait for the end of the open request, or for a question."""
        limit = self._limit()
        try:
            if await self._call.ended_or_asks(None if limit == math.inf else limit):
                return self._call.response()
        except TimeoutError:
            raise ToolFailed(f"the MCP server {self._server.name!r} did not answer in time") from None
        assert self._call.question is not None
        return Asking({OPEN: ElicitRequest(params=self._call.question)}, "open", self._call.token)

    async def _follow(self, task: tasks.Task) -> CallToolResult | Asking:
        limit = None if self._ctx.remaining() is not None or self._ctx.idle is not None else self._server.timeout
        found = await tasks.follow(task, self.send_later, self._ctx, limit, self._answered)
        if isinstance(found, tasks.Task):
            return Asking(tasks.questions(found, self._answered), "task", found.task_id)
        return found

    async def _reply(
        self, params: CallToolRequestParams, asking: Asking, answers: InputResponses
    ) -> CallToolResult | Asking:
        """Give the answers to the server, and go on."""
        if asking.way == "task":
            self._answered.update(answers)
            return await self._follow(await tasks.update(asking.state, answers, self.send_later))
        if asking.way == "open":
            given = answers[OPEN]
            assert isinstance(given, ElicitResult)
            self._call.answer(given)
            return await self._opened()
        params.input_responses, params.request_state = answers or None, asking.state or None
        return await self._call_tool(params)

    async def _answers(self, asking: Asking, asked: Asked) -> InputResponses:
        """Return the answers that the gate's owner allows; suspend the call for those of its user.

        An open call goes on when its question cannot be asked: the server learns that there is no answer.
        """
        calls = self._owner.calls
        own: InputResponses = {}
        for key, one in asking.requests.items():
            if isinstance(one, ElicitRequest):
                continue
            answer = await (
                calls.completion(self._call, self._ctx, one.params)
                if isinstance(one, CreateMessageRequest)
                else calls.roots(self._call)
            )
            if isinstance(answer, ErrorData):
                raise ToolError("The server waits for something that it cannot be given here.", code="remote_waits")
            own[key] = answer
        if len(own) == len(asking.requests):
            return own
        asked.sampled = self._call.sampled
        is_open = asking.way == "open"
        if not is_open or (self._ctx.can_be_resumed and calls.hold(self._call)):
            try:
                await suspend(asking, own, asked, self._server.name, self._ctx, HELD if is_open else None)
            except ToolError:
                if not is_open:
                    raise
                calls.take_up(self._call.token, self._ctx)
        return {OPEN: ElicitResult(action="cancel")}


def put_off(ctx: ToolView, server: str) -> NoReturn:
    """Refuse a call for now, because its server cannot be reached."""
    ctx.retry_after(
        RETRY_AFTER,
        f"the MCP server {server!r} is not connected",
        public="The server of this tool cannot be reached now.",
    )


async def _leaving(request: Coroutine[object, None, R]) -> R:
    """Wait for a request; a caller that is cancelled waits for its clean-up a short time only.

    The SDK notifies the server, and waits 5 seconds for a server that keeps the connection busy.
    """
    # asyncio: the clean-up goes on after its caller has left
    sending = asyncio.ensure_future(request)
    try:
        return await asyncio.shield(sending)
    except asyncio.CancelledError:
        sending.cancel()
        await asyncio.wait([sending], timeout=CLEANS_UP)
        raise
