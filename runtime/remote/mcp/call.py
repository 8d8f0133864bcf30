"""The body of a remote tool: its connection and credential, its definition, and the output of its result."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from mcp.client.session import ClientSession
from mcp_types import CallToolRequestParams, CallToolResult, ReadResourceRequest, ReadResourceResult, TextContent

from callgate.errors import ToolError, ToolFailed
from callgate.hooks.tool_view import ToolView
from callgate.runtime.remote.mcp.credentials import TOKEN
from callgate.runtime.remote.mcp.definitions import visible
from callgate.runtime.remote.mcp.exchange import Exchange, put_off
from callgate.runtime.remote.mcp.face import McpServer
from callgate.runtime.remote.mcp.held_parts import with_parts
from callgate.runtime.remote.mcp.owner import Owner
from callgate.runtime.remote.mcp.questions import Asked, asked_before
from callgate.runtime.remote.mcp.under_way import CallUnderWay

PATIENCE = 1.0
"""Seconds that a call waits for a server that is being connected again."""
_TOKEN = re.compile(r"[\x21-\x7e]*")
MAX_PARTS = 32 * 1024 * 1024
"""Maximum size of the parts of one result, in bytes."""


class RemoteTool:
    """The body of one remote tool. *is_current* is False once another definition is mounted in its place."""

    def __init__(self, server: McpServer, owner: Owner, name: str, is_current: Callable[[], bool]) -> None:
        self._server, self._owner, self._name, self._is_current = server, owner, name, is_current

    async def call(self, arguments: dict[str, object], ctx: ToolView) -> object:
        """Send the call, or the answer to the server's question, and return the output."""
        await self._take_credential(ctx)
        asked = asked_before(ctx)
        call = self._call(asked, ctx)
        try:
            session = await self._session(ctx, begun=asked.way != "repeat")
            exchange = Exchange(self._server, self._owner, session, call, ctx)
            result = await exchange.run(CallToolRequestParams(name=self._name, arguments=arguments), asked)

            async def read(request: ReadResourceRequest) -> ReadResourceResult:
                return await exchange.send_later(request, ReadResourceResult)

            return _output(await with_parts(result, read, MAX_PARTS))
        finally:
            if call.ctx is not None:  # it is not suspended
                self._owner.calls.discard(call)

    def _call(self, asked: Asked, ctx: ToolView) -> CallUnderWay:
        """Return the call; one whose request is open goes on with it.

        Raises:
            ToolFailed: the request is no longer open, or another process has it.
        """
        if asked.way != "open":
            call = CallUnderWay(ctx, self._name, asked.sampled)
            self._owner.calls.add(call)
            return call
        held = self._owner.calls.take_up(asked.state, ctx)
        if held is None:
            raise ToolFailed(
                f"the MCP server {self._server.name!r} no longer waits for this answer, or it waits in another process",
                public="The server no longer waits for this answer here.",
            )
        return held

    async def _take_credential(self, ctx: ToolView) -> None:
        if self._server.credential is None:
            return
        token: object = self._server.credential(ctx.user)
        token = await token if inspect.isawaitable(token) else token
        if not (token is None or (isinstance(token, str) and _TOKEN.fullmatch(token))):  # it ends the connection of all
            raise ToolError("The credential is no bearer token.", code="remote_credential", no_effect=True)
        TOKEN.set(token or "")

    async def _session(self, ctx: ToolView, *, begun: bool) -> ClientSession:
        """Return the session. The definition is compared after the wait: the server may have come back with another one.

        Raises:
            ToolError: the definition has changed.
            ToolFailed: the server is away, and the call had *begun* there.
        """
        left = ctx.remaining()
        session = await self._owner.wait_up(PATIENCE if left is None else min(PATIENCE, left))
        if session is None and begun:
            raise ToolFailed(f"the MCP server {self._server.name!r} is not connected")
        if session is None:
            put_off(ctx, self._server.name)
        if not begun and not self._is_current():
            raise ToolError(
                "The definition of this tool has changed. Read the tools again.", code="remote_changed", no_effect=True
            )
        return session


def _output(result: CallToolResult) -> object:
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
