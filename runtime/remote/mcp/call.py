"""One call of a remote tool: its question, its progress, its cancellation, and what its failures mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import httpx2
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    TextContent,
)

from callgate.errors import StageError, ToolError, ToolFailed
from callgate.hooks.tool_view import ToolView
from callgate.runtime.remote.mcp.credentials import TOKEN
from callgate.runtime.remote.mcp.definitions import visible
from callgate.runtime.remote.mcp.face import McpServer
from callgate.runtime.remote.mcp.owner import Owner

PATIENCE = 1.0
"""Seconds that a call waits for a server that is being connected again."""
RETRY_AFTER = 2_000
"""Milliseconds after which a call may be repeated while the server is not connected."""
LATER = 1.0
"""Seconds after the deadline of a call at which the SDK gives up: the gate cancels the call before."""
MAX_QUESTIONS = 10
"""Maximum number of questions of one call."""

_STATE, _KEY, _ROUND = "x-mcp-state", "x-mcp-key", "x-mcp-round"
_REFUSED = frozenset({-32600, -32601, -32602, -32020, -32021, -32022})
"""Codes of errors with which a server says that it has not run the tool."""


@cache
def _result_type() -> Any:
    """Return the type of a result; pydantic takes its time to compile it."""
    from pydantic import TypeAdapter

    return TypeAdapter(InputRequiredResult | CallToolResult)


class RemoteTool:
    """The body of one remote tool. *is_current* is False once another definition is mounted in its place."""

    def __init__(self, server: McpServer, owner: Owner, name: str, is_current: Callable[[], bool]) -> None:
        self._server, self._owner, self._name, self._is_current = server, owner, name, is_current

    async def call(self, arguments: dict[str, Any], ctx: ToolView) -> Any:
        """Send the call, or the answer to the server's question, and return the output."""
        await self._take_credential(ctx)
        question, answers = _previous_question(ctx)
        session = await self._session(ctx)
        params = CallToolRequestParams(name=self._name, arguments=arguments)
        if answers:
            answer = ElicitResult(action="accept", content=answers[-1])
            params.input_responses = {question[_KEY]: answer}
            params.request_state = question[_STATE] or None
        result = await self._send(session, CallToolRequest(params=params), ctx)
        if isinstance(result, InputRequiredResult):
            return self._suspend(result, ctx, len(answers) + 1)
        return _output(result)

    async def _take_credential(self, ctx: ToolView) -> None:
        if self._server.credential is None:
            return
        token = self._server.credential(ctx.user)
        TOKEN.set(await token if inspect.isawaitable(token) else token)

    async def _session(self, ctx: ToolView) -> ClientSession:
        """Return the session. The definition is compared after the wait: the server may have come back with another one."""
        left = ctx.remaining()
        session = await self._owner.wait_up(PATIENCE if left is None else min(PATIENCE, left))
        if session is None:
            ctx.retry_after(
                RETRY_AFTER,
                f"the MCP server {self._server.name!r} is not connected",
                public="The server of this tool cannot be reached now.",
            )
        if not self._is_current():
            raise ToolError(
                "The definition of this tool has changed. Read the tools again.", code="remote_changed", no_effect=True
            )
        return session

    async def _send(
        self, session: ClientSession, request: CallToolRequest, ctx: ToolView
    ) -> InputRequiredResult | CallToolResult:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            ctx.progress(progress, total, visible(message) or None)

        left = ctx.remaining()
        timeout = self._server.timeout if left is None else left + LATER
        try:
            result: InputRequiredResult | CallToolResult = await session.send_request(
                request, _result_type(), request_read_timeout_seconds=timeout, progress_callback=note
            )
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._owner.lose(session)
            if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise ToolFailed(f"the MCP server {self._server.name!r} did not answer ({error.code})") from error
            raise ToolError(
                "The server refused the call.", code="remote_refused", no_effect=error.code in _REFUSED
            ) from error
        except ValueError as error:  # pydantic's: it is no result
            raise ToolFailed(f"the MCP server {self._server.name!r} answered with no result") from error
        except (httpx2.HTTPError, OSError, RuntimeError, ExceptionGroup) as error:
            self._owner.lose(session)
            raise ToolFailed(f"the connection to the MCP server {self._server.name!r} was lost") from error
        return result

    def _suspend(self, result: InputRequiredResult, ctx: ToolView, number: int) -> Any:
        """Suspend the call until the question is answered. The schema keeps the state: a resumed call starts again."""
        pairs = list((result.input_requests or {}).items())
        key, asked = pairs[0] if len(pairs) == 1 else ("", None)
        if (
            not isinstance(asked, ElicitRequest)
            or not isinstance(asked.params, ElicitRequestFormParams)
            or number > MAX_QUESTIONS
        ):
            raise ToolError("The server waits for something that it cannot be given here.", code="remote_waits")
        state = {_STATE: result.request_state or "", _KEY: key, _ROUND: number}
        prompt = f"The server {self._server.name} asks: {visible(asked.params.message)[:500]}"
        try:
            return ctx.suspend("input", prompt, schema={**asked.params.requested_schema, **state})
        except StageError:
            raise ToolError(
                "The server asks for input, and this call cannot be suspended.", code="remote_waits"
            ) from None


def _previous_question(ctx: ToolView) -> tuple[Mapping[str, Any], list[Any]]:
    """Return the server's last question before this run of the call, and all answers so far."""
    question: Mapping[str, Any] = ctx.resumed_schema or {}
    if _ROUND not in question:
        return {}, []
    return question, [ctx.suspend("input", "") for _ in range(question[_ROUND])]  # returns the recorded answer


def _output(result: CallToolResult) -> Any:
    """Return the output of a result: what has a schema, else the text, else the blocks.

    Raises:
        ToolError: the tool failed; its text is the server's.
    """
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    if result.is_error:
        raise ToolError(visible("\n".join(texts)) or "The tool failed.", code="remote_error")
    if "structured_content" in result.model_fields_set:
        return result.structured_content
    if len(texts) == len(result.content):
        return "\n".join(texts)
    return [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in result.content]
