"""A gate as an MCP server, and official clients of it: over memory, stdio and HTTP, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

import callgate.mcp
from callgate import Approval, Gate, ToolContext, ToolError, User, tool
from callgate.hooks import Authorize, permit
from callgate.runtime.hosts.mcp.face import ServedGate
from tests.harness.gate_options import gate_options
from tests.runtime.hosts.serving import served

TRANSPORTS = ("memory", "stdio", "http")
ERAS = ("modern", "handshake")
WAYS = [(transport, era) for transport in TRANSPORTS for era in ERAS]
PEOPLE = {
    "ann": User("ann", "acme", roles={"clerk"}),
    "lea": User("lea", "acme", roles={"lead"}),
    "eve": User("eve", "evil", roles={"clerk"}),
}
MODULE = Path(__file__).with_name("desk.py")


def who(request: Any) -> User | None:
    """The user of a request: a bearer token is a name."""
    return PEOPLE.get(request.headers.get("authorization", "").removeprefix("Bearer "))


class Desk:
    """Tools of each kind; ``ran`` lists the effects that took place."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.cleaned: list[str] = []
        self.started = asyncio.Event()

    def tools(self) -> list[Any]:
        @tool(effect="read")
        async def add(a: int, b: int = 1) -> int:
            """Add."""
            return a + b

        @tool(effect="read", title="Who calls")
        async def whoami(*, ctx: ToolContext) -> dict[str, Any]:
            """Who calls."""
            return {"id": ctx.user.id, "tenant": ctx.user.tenant, "roles": sorted(ctx.user.roles)}

        @tool(effect="read", output_schema=False)
        async def note(text: str) -> str:
            """Return a text."""
            return text

        @tool(effect="read")
        async def fails() -> int:
            """Fail."""
            raise ToolError("The till is closed.", code="closed")

        @tool(effect="read")
        async def crashes() -> int:
            """Crash."""
            raise RuntimeError("password=hunter2")

        @tool(effect="read", allowed_roles={"lead"})
        async def ledger() -> str:
            """A tool for leads."""
            return "42"

        @tool(effect="irreversible", key=("order",), requires_approval=Approval(requester=True, reason="Confirm it."))
        async def refund(order: str, cents: int) -> str:
            """Give money back, after the caller's own confirmation."""
            self.ran.append(f"{order} {cents}")
            return f"{cents} for {order}"

        @tool(
            effect="irreversible", key=("order",), requires_approval=Approval(roles={"lead"}, reason="A lead decides.")
        )
        async def payout(order: str) -> str:
            """Pay, after the approval of a lead."""
            self.ran.append(f"payout {order}")
            return f"paid {order}"

        @tool(effect="irreversible")
        async def count(*, ctx: ToolContext) -> int:
            """Count the calls."""
            self.ran.append("count")
            return len(self.ran)

        @tool(effect="read", resumable=True)
        async def flight(to: str, *, ctx: ToolContext) -> str:
            """Ask for a day and a seat."""
            day: Any = ctx.suspend("input", "Which day?", schema={"type": "string", "minLength": 3})
            seat: Any = ctx.suspend(
                "input",
                "Which seat?",
                schema={
                    "type": "object",
                    "properties": {"seat": {"type": "string", "enum": ["aisle", "window"]}},
                    "required": ["seat"],
                },
            )
            return f"to {to} on {day}, {seat['seat']}"

        @tool(effect="read")
        async def steps(count: int, *, ctx: ToolContext) -> int:
            """Report progress."""
            for step in range(1, count + 1):
                ctx.progress(step, count, f"step {step}")
                await asyncio.sleep(0.001)
            return count

        @tool(effect="read")
        async def hangs() -> int:
            """Never return; clean up with a wait when cancelled."""
            self.started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                for _ in range(5):
                    await asyncio.sleep(0.001)
                self.cleaned.append("hangs")
                raise
            return 1

        return [add, whoami, note, fails, crashes, ledger, refund, payout, count, flight, steps, hangs]

    def gate(self, *hooks: Any, **options: Any) -> Gate:
        known: dict[str, Any] = {
            "signing_keys": ["k" * 32],
            "durable": False,
            "store": "memory://",
            **options,
        }
        return Gate(
            self.tools(), [Authorize(permit("staff", roles={"clerk", "lead"})), *hooks], **gate_options(**known)
        )


Answers = Callable[[types.ElicitRequestParams], types.ElicitResult]


@contextlib.asynccontextmanager
async def client_of(
    server: ServedGate | None,
    transport: str,
    era: str,
    *,
    user: str = "ann",
    answers: Answers | None = None,
    **more: Any,
) -> AsyncGenerator[Client]:
    """Connect an official client. Over stdio the server is ``desk.py`` in a process of its own."""

    async def asked(_ctx: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert answers is not None
        return answers(params)

    options: dict[str, Any] = {
        "mode": "auto" if era == "modern" else "legacy",
        "elicitation_callback": None if answers is None else asked,
        "read_timeout_seconds": 60,
        **more,
    }
    if transport == "memory":
        assert server is not None
        async with Client(server.sdk, **options) as client:
            yield client
    elif transport == "stdio":
        command = StdioServerParameters(command=sys.executable, args=[str(MODULE)])
        async with Client(command, **options) as client:
            yield client
    else:
        assert server is not None
        async with served(server.asgi()) as running, http_client(running.port, user, **options) as client:
            yield client


@contextlib.asynccontextmanager
async def http_client(port: int, user: str, **options: Any) -> AsyncGenerator[Client]:
    """Connect an official client to a server on this machine, in a user's name."""
    headers = {"authorization": f"Bearer {user}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)
        async with Client(transport, **options) as client:
            yield client


def server_of(gate: Gate, transport: str, **options: Any) -> ServedGate:
    """Make the server: over HTTP a user authenticates, else Ann is configured."""
    access: dict[str, Any] = {"authenticate": who} if transport == "http" else {"user": PEOPLE["ann"]}
    return callgate.mcp.server(gate, name="desk", **{**access, **options})


@contextlib.asynccontextmanager
async def desk_at(
    transport: str, era: str, *, answers: Answers | None = None, client: Mapping[str, Any] | None = None, **options: Any
) -> AsyncGenerator[tuple[Desk, Client]]:
    """A desk, served on a way, and a client of it in Ann's name."""
    desk = Desk()
    server = None if transport == "stdio" else server_of(desk.gate(), transport, **options)
    async with client_of(server, transport, era, answers=answers, **(client or {})) as connected:
        yield desk, connected


def text_of(result: types.CallToolResult) -> str:
    """The text of a result."""
    return "".join(one.text for one in result.content if isinstance(one, types.TextContent))
