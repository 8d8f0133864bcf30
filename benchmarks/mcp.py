"""``make bench-mcp``: what a call and a list through our MCP server cost beside the SDK's own servers.

Client and server share one event loop and an in-memory transport, so the ratios have the client's half in both. They are
taken in rounds in which each side has its turn (``timing``).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from time import thread_time_ns
from typing import Any, Literal

from mcp import Client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
)

import callgate.mcp
from benchmarks.table import Row, show
from benchmarks.timing import Effort, interleave, quiet_heap
from callgate import Effects, Gate, Hook, InvokeContext, Options, User, tool
from callgate.hooks import Authorize, permit
from callgate.runtime.hosts.mcp.listing import tool_of

OUT = Path(__file__).parent / "out" / "mcp.json"
TOOLS = 1_000
HOOKS = 8
ERAS: dict[str, Literal["auto", "legacy"]] = {"modern": "auto", "handshake": "legacy"}
INTEGERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
INPUT = {"type": "object", "properties": INTEGERS, "required": ["a", "b"], "additionalProperties": False}
OUTPUT = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
ROWS = [
    Row("call_modern_x_bare", "a call, modern era, × a bare low-level server", most=1.5),
    Row("call_handshake_x_bare", "a call, handshake era, × a bare low-level server", most=1.3),
    Row("eight_hooks_x_fastmcp", "a call with 8 hooks × fastmcp with 8 middleware", most=0.5),
    Row("eight_hooks_x_mcpserver", "the same × the SDK's MCPServer with 8 middleware"),
    Row("list_again_x_bare", "1,000 tools listed again × a bare low-level server", most=1.2),
    Row("call_modern_us", "a call, modern era, µs of CPU with the client's half", form="{:.0f}"),
    Row("bare_modern_us", "the same through the bare server", form="{:.0f}"),
]


def add_tool(name: str = "add") -> Any:
    """The tool of the comparison."""

    @tool(name=name, effect="read", parameters=INPUT, output_schema=OUTPUT)
    async def add(a: int, b: int) -> dict[str, int]:
        """Add two numbers, and return their sum in an object."""
        return {"sum": a + b}

    return add


class Pass(Hook):
    """Passes each call on, as the middleware of the others does."""

    async def around_execute(self, ctx: InvokeContext, next: Callable[[], Awaitable[Any]]) -> Any:
        return await next()


def gate_of(names: list[str], hooks: int = 0) -> Gate:
    """A gate with an authorising hook, and *hooks* more that pass each call on."""
    more = [type(f"Pass{number}", (Pass,), {})() for number in range(hooks)]
    options = {"effects": Effects(durable=False), "signing_keys": ["k" * 32], "options": Options()}
    return Gate([add_tool(name) for name in names], [Authorize(permit("everybody")), *more], **options)  # type: ignore[arg-type]


def ours(names: list[str], hooks: int = 0) -> Any:
    """Our server of such a gate."""
    return callgate.mcp.server(gate_of(names, hooks), user=User("ann"), page=TOOLS).sdk


def bare(names: list[str]) -> Server[Any]:
    """A low-level server that does nothing but the work."""
    tools = [tool_of(add_tool(name).definition, modern=True) for name in names]  # the same definitions, made once

    async def listed(_: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        del params
        return ListToolsResult(tools=tools)

    async def called(_: Any, params: CallToolRequestParams) -> CallToolResult:
        given = params.arguments or {}
        output = {"sum": given["a"] + given["b"]}
        return CallToolResult(content=[TextContent(text=json.dumps(output))], structured_content=output)

    return Server("bare", on_list_tools=listed, on_call_tool=called)


def high_level(middleware: int) -> Any:
    """The SDK's high-level server, with middleware that passes each message on."""

    def passing() -> Any:
        async def on(ctx: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
            return await call_next(ctx)

        return on

    server: MCPServer[Any] = MCPServer("fast", middleware=[passing() for _ in range(middleware)])
    server.add_tool(add_integers, name="add", description="Add two numbers.")
    return server


def fastmcp(middleware: int) -> Any:
    """A server of the package fastmcp, with its own middleware; None where the package is not installed."""
    try:
        fast, base = import_module("fastmcp"), import_module("fastmcp.server.middleware")
    except ImportError:
        return None

    async def on_call_tool(_: Any, context: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        return await call_next(context)

    passing = type("Passing", (base.Middleware,), {"on_call_tool": on_call_tool})
    server = fast.FastMCP("fast", middleware=[passing() for _ in range(middleware)])
    server.tool(add_integers, name="add")
    return server._mcp_server  # its own client has a transport of its own: both sides get the same one


async def add_integers(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


async def caller(stack: AsyncExitStack, server: Any, mode: Literal["auto", "legacy"]) -> Callable[[], Awaitable[Any]]:
    """Connect a client, and return its call of ``add``."""
    session = (await stack.enter_async_context(Client(server, mode=mode))).session
    await session.list_tools()

    async def call() -> Any:
        return (await session.call_tool("add", {"a": 1, "b": 2})).structured_content

    return call


async def calls(effort: Effort) -> dict[str, float]:
    """Measure calls."""
    found: dict[str, float] = {}
    for era, mode in ERAS.items():
        async with AsyncExitStack() as stack:
            cases = {"ours": await caller(stack, ours(["add"]), mode)}
            done = await interleave(cases, {"bare": await caller(stack, bare(["add"]), mode)}, effort)
            found[f"call_{era}_x_bare"] = done["ours"].x("bare")
            found |= {f"call_{era}_us": done["ours"].us, f"bare_{era}_us": done["bare"].us}
    found |= await with_hooks(effort)
    return found


async def with_hooks(effort: Effort) -> dict[str, float]:
    """Measure calls with hooks beside servers with as much middleware."""
    found: dict[str, float] = {}
    for name, peer in (("mcpserver", high_level(HOOKS)), ("fastmcp", fastmcp(HOOKS))):
        if peer is not None:
            async with AsyncExitStack() as stack:
                cases = {"ours": await caller(stack, ours(["add"], HOOKS), "auto")}
                done = await interleave(cases, {"peer": await caller(stack, peer, "auto")}, effort)
                found[f"eight_hooks_x_{name}"] = done["ours"].x("peer")
                found |= {"eight_hooks_us": done["ours"].us, f"{name}_us": done["peer"].us}
    return found


async def lists(rounds: int) -> dict[str, float]:
    """Measure lists of many tools, each after a first one."""
    names = [f"tool_{number:04}" for number in range(TOOLS)]
    async with AsyncExitStack() as stack:
        clients = {
            "ours": await stack.enter_async_context(Client(ours(names))),
            "bare": await stack.enter_async_context(Client(bare(names))),
        }
        taken: dict[str, list[float]] = {name: [] for name in clients}
        with quiet_heap():
            for _ in range(rounds + 1):
                for name, client in clients.items():
                    gc.collect()  # a collection of the other side's garbage would count here
                    began = thread_time_ns()
                    listed = await client.list_tools(cache_mode="bypass")
                    taken[name].append((thread_time_ns() - began) / 1e6)
                    assert len(listed.tools) == TOOLS
    middle = {name: sorted(times[1:])[rounds // 2] for name, times in taken.items()}
    return {
        "list_again_x_bare": middle["ours"] / middle["bare"],
        "list_again_ms": middle["ours"],
        "bare_list_ms": middle["bare"],
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the figures; 1 if one misses its target."""
    parser = argparse.ArgumentParser(prog="make bench-mcp", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--json", type=Path, metavar="PATH", default=OUT, help="where to; default: out/mcp.json")
    args = parser.parse_args(arguments)
    effort = Effort(rounds=4, batch_us=4_000.0) if args.quick else Effort(rounds=40, batch_us=20_000.0)
    found = asyncio.run(calls(effort)) | asyncio.run(lists(2 if args.quick else 15))
    missed = show("MCP: a gate beside the SDK's own servers, in memory", ROWS, found)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
