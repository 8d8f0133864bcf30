"""A remote MCP server of the official SDK that is not ours: it can lie, change, hang and die. ``toy.py`` serves stdio."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

INTEGER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
OUT = {"type": "object", "properties": {"y": {"type": "integer"}}, "required": ["y"]}
ANY = {"type": "object"}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def text(value: str, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=value)], **more)


class Toy:
    """The server; tests change ``tools`` and ``answers``."""

    def __init__(self) -> None:
        self.tools = {
            "double": types.Tool(name="double", description="Double.", input_schema=INTEGER, output_schema=OUT),
            "say": types.Tool(name="say", description="Say.", input_schema=ANY),
            "liar": types.Tool(name="liar", description="Break the schema.", input_schema=ANY, output_schema=OUT),
            "picture": types.Tool(name="picture", description="Draw.", input_schema=ANY),
            "fail": types.Tool(name="fail", description="Fail.", input_schema=ANY),
            "refuse": types.Tool(name="refuse", description="Refuse.", input_schema=ANY),
            "slow": types.Tool(name="slow", description="Report progress.", input_schema=ANY),
            "hang": types.Tool(name="hang", description="Hang.", input_schema=ANY),
            "ask": types.Tool(name="ask", description="Ask.", input_schema=ANY),
            "die": types.Tool(name="die", description="Die.", input_schema=ANY),
            "token": types.Tool(name="token", description="Show the credential.", input_schema=ANY),
        }
        self.answers: dict[str, Callable[[], Any]] = {}
        self.pages: Callable[[str | None], types.ListToolsResult] | None = None
        self.began, self.cancelled = asyncio.Event(), asyncio.Event()
        self.calls: list[str] = []
        self.bus = InMemorySubscriptionBus()
        self.server: Server[Any] = Server(
            "toy",
            version="1",
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_subscriptions_listen=ListenHandler(self.bus),
            get_tool_input_schema=lambda _: None,
        )

    async def list_tools(self, _ctx: Any, params: Any) -> types.ListToolsResult:
        if self.pages is not None:
            return self.pages(params.cursor if params else None)
        return types.ListToolsResult(tools=list(self.tools.values()))

    async def call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        name = params.name
        self.calls.append(name)
        if name in self.answers:
            found = self.answers[name]()
            return await found if asyncio.iscoroutine(found) else found
        return await getattr(self, f"_{name}", self._say)(ctx, params)

    async def _say(self, _ctx: Any, params: Any) -> Any:
        return text(f"said {params.arguments}")

    async def _double(self, _ctx: Any, params: Any) -> Any:
        doubled = 2 * params.arguments["x"]
        return text(str(doubled), structured_content={"y": doubled})

    async def _liar(self, _ctx: Any, _params: Any) -> Any:
        return text("x", structured_content={"y": "no integer"})

    async def _picture(self, _ctx: Any, _params: Any) -> Any:
        return types.CallToolResult(content=[types.ImageContent(data="iVBORw0KGgo=", mime_type="image/png")])

    async def _fail(self, _ctx: Any, _params: Any) -> Any:
        return text("The disk is full.", is_error=True)

    async def _refuse(self, _ctx: Any, _params: Any) -> Any:
        raise MCPError(types.INVALID_PARAMS, "secret internals")

    async def _slow(self, ctx: Any, _params: Any) -> Any:
        for step in range(1, 4):
            await ctx.session.report_progress(step, 3, f"step {step}")
        return text("done")

    async def _hang(self, _ctx: Any, _params: Any) -> Any:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    async def _ask(self, ctx: Any, params: Any) -> Any:
        assert ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        if params.input_responses:
            return text(f"hello {params.input_responses['who'].content['name']} in {params.request_state}")
        form = types.ElicitRequestFormParams(message="Your name?", requested_schema=NAME)
        return types.InputRequiredResult(
            request_state="state 1", input_requests={"who": types.ElicitRequest(params=form)}
        )

    async def _die(self, _ctx: Any, _params: Any) -> Any:
        os._exit(1)

    async def _token(self, ctx: Any, _params: Any) -> Any:
        return text(ctx.request.headers.get("authorization", "none"))

    async def change(self) -> None:
        """Say that the tools have changed."""
        await self.bus.publish(ToolsListChanged())


async def main() -> None:
    toy = Toy()
    async with stdio_server() as (read, write):
        options = toy.server.create_initialization_options(NotificationOptions(tools_changed=True))
        await toy.server.run(read, write, options)


COMMAND = (sys.executable, str(Path(__file__)))

if __name__ == "__main__":
    asyncio.run(main())
