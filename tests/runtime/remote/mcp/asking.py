"""A server of the SDK that asks its client: for completions, folders and forms, in both eras. ``asking.py`` serves stdio."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import NotificationOptions
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tests.runtime.remote.mcp.toy import ANY, NAME, Toy, text


class AskingToy(Toy):
    """``asked`` has what each form got for an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.tools = {
            name: types.Tool(name=name, description=f"Try {name}.", input_schema=ANY)
            for name in ("sample", "roots", "form", "can", "both")
        }

    async def ask(self, ctx: Any, request: Any, result: Any, *, related: bool = True) -> Any:
        """Ask in the middle of a call, as servers up to version 2025-11-25 do."""
        metadata = ServerMessageMetadata(related_request_id=ctx.request_id) if related else None
        return await ctx.session.send_request(request, result, metadata=metadata)

    async def _can(self, ctx: Any, _params: Any) -> Any:
        return text(json.dumps(ctx.session.client_capabilities.model_dump(exclude_none=True)))

    async def _sample(self, ctx: Any, params: Any) -> Any:
        """Ask for completions, one after another; return them, or the refusals."""
        wanted, found = params.arguments.get("times", 1), json.loads(params.request_state or "[]")
        message = types.SamplingMessage(role="user", content=types.TextContent(text="Say it."))
        request = types.CreateMessageRequest(
            params=types.CreateMessageRequestParams(messages=[message], max_tokens=params.arguments.get("tokens", 10))
        )
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            found += [one.content.text for one in (params.input_responses or {}).values()]
            if len(found) < wanted:
                return types.InputRequiredResult(request_state=json.dumps(found), input_requests={"it": request})
            return text(", ".join(found))
        for _ in range(wanted):
            try:
                result = await self.ask(ctx, request, types.CreateMessageResult)
                found.append(result.content.text)
            except MCPError as error:
                found.append(f"refused: {error.error.message}")
        return text(", ".join(found))

    async def _roots(self, ctx: Any, params: Any) -> Any:
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            if not params.input_responses:
                return types.InputRequiredResult(input_requests={"it": types.ListRootsRequest()})
            found = params.input_responses["it"]
        else:
            try:
                found = await self.ask(ctx, types.ListRootsRequest(), types.ListRootsResult, related=False)
            except MCPError as error:
                return text(f"refused: {error.error.message}")
        return text(" ".join(str(one.uri) for one in found.roots))

    async def _form(self, ctx: Any, params: Any) -> Any:
        """Ask for names in the middle of the call, as servers up to version 2025-11-25 do."""
        found: list[str] = []
        for number in range(params.arguments.get("times", 1)):
            form = types.ElicitRequestFormParams(message=f"Name {number}?", requested_schema=NAME)
            try:
                answer = await self.ask(ctx, types.ElicitRequest(params=form), types.ElicitResult)
            except MCPError as error:
                found.append(f"refused: {error.error.message}")
            except asyncio.CancelledError:
                self.asked.append("cancelled")
                raise
            else:
                found.append(answer.content["name"] if answer.action == "accept" else answer.action)
        self.asked += found
        return text(f"{params.arguments.get('of', '')}{', '.join(found)}")

    async def _both(self, _ctx: Any, params: Any) -> Any:
        """Ask for a completion and a name at once, as servers since version 2026-07-28 can."""
        given = params.input_responses
        if given:
            return text(f"{given['it'].content.text} {given['who'].content['name']}")
        message = types.SamplingMessage(role="user", content=types.TextContent(text="Say it."))
        form = types.ElicitRequestFormParams(message="Name?", requested_schema=NAME)
        return types.InputRequiredResult(
            input_requests={
                "it": types.CreateMessageRequest(
                    params=types.CreateMessageRequestParams(messages=[message], max_tokens=5)
                ),
                "who": types.ElicitRequest(params=form),
            }
        )


async def main() -> None:
    toy = AskingToy()
    async with stdio_server() as (read, write):
        options = toy.server.create_initialization_options(NotificationOptions(tools_changed=True))
        await toy.server.run(read, write, options)


COMMAND = (sys.executable, "-m", "tests.runtime.remote.mcp.asking")
ROOT = str(Path(__file__).parents[4])

if __name__ == "__main__":
    asyncio.run(main())
