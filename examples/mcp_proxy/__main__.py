"""Two MCP servers of others behind one gate, and the gate as one MCP server for its clients.

The gate decides who may see and call which tool, asks a lead before an order, and records every call with its user. The
servers know nothing of it. ``make example-mcp`` runs it and prints what happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import uvicorn
from mcp import Client
from mcp_types import CallToolResult, TextContent
from rich.console import Console
from rich.table import Table

import callgate.mcp
from callgate import Approval, Approve, Effects, Gate, InvokeContext, Options, User
from callgate.hooks import Audit, Authorize, permit
from callgate.mcp import McpServer
from examples.mcp_proxy.mailing import app

HERE = Path(__file__).parent
CLERK = User("ann", "acme", roles={"clerk"})
LEAD = User("lea", "acme", roles={"lead"})


class LeadOrders:
    """Ask a lead before anything is ordered."""

    def approval_for(self, ctx: InvokeContext) -> Approval | None:
        """Return the approval that a call needs; None for none."""
        return Approval(roles={"lead"}, reason="Orders are for a lead.") if ctx.tool_id == "warehouse_order" else None


def make_gate() -> Gate:
    """Make the gate: clerks may read the stock and order, leads may also send letters."""
    rules = [
        permit("clerks", roles={"clerk", "lead"}, tools={"warehouse_stock", "warehouse_order"}),
        permit("leads", roles={"lead"}),
    ]
    return Gate(
        [],
        [Authorize(*rules), LeadOrders(), Audit()],
        signing_keys=["only for the example"],
        effects=Effects(durable=False),
        options=Options(dynamic_tools=True),  # the tools come with the servers
    )


@contextlib.asynccontextmanager
async def mailing_served() -> AsyncGenerator[str]:
    """Serve the letters on a free port of this machine; return the address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:  # noqa: ASYNC110  (uvicorn has no event for it)
            await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            await serving


async def main(console: Console) -> None:
    """Run the example."""
    gate = make_gate()
    async with mailing_served() as url, gate:
        effects = {"stock": "read", "order": "irreversible"}
        for remote in (
            McpServer(name="warehouse", command=[sys.executable, str(HERE / "warehouse.py")], effects=effects),
            McpServer(name="mailing", url=url, effects={"send_letter": "irreversible"}),
        ):
            mounted = await gate.mount(remote)
            console.print(f"mounted {remote.name}: {', '.join(mounted.tools)}")
        for user in (CLERK, LEAD):
            await visit(gate, user, console)
        await show_audit(gate, console)


async def visit(gate: Gate, user: User, console: Console) -> None:
    """Use the endpoint as a client of this user does, such as an editor."""
    served = callgate.mcp.server(gate, name="desk", user=user)
    async with Client(served.sdk) as client:
        console.print(f"\n{user.id} sees: {', '.join(one.name for one in (await client.list_tools()).tools)}")
        console.print(f"  warehouse_stock: {text_of(await client.call_tool('warehouse_stock', {'item': 'nut'}))}")
        if "clerk" in user.roles:
            order = {"item": "nut", "pieces": 100}
            waits = await client.call_tool("warehouse_order", order)
            console.print(f"  warehouse_order: {text_of(waits)}")
            await gate.resume((waits.meta or {})["callgate/handle"], Approve(), approver=LEAD)
            console.print(
                f"  lea approves it. The same call again, by its handle: {await taken_up(client, order, waits)}"
            )
        else:
            letter = {"to": "the supplier", "text": "Thank you."}
            console.print(f"  mailing_send_letter: {text_of(await client.call_tool('mailing_send_letter', letter))}")


async def taken_up(client: Client, arguments: dict[str, Any], waits: CallToolResult) -> str:
    """Return the outcome of a call that has waited."""
    meta: Any = {"callgate/handle": (waits.meta or {})["callgate/handle"]}
    return text_of(await client.call_tool("warehouse_order", arguments, meta=meta))


async def show_audit(gate: Gate, console: Console) -> None:
    """Print the records of the calls."""
    table = Table("user", "tool", "outcome", title="\naudit", title_justify="left")
    async for row in gate.store.audit.read(None):
        if row.body.get("kind") == "outcome":
            table.add_row(str(row.body["user"]), str(row.body["tool"]), str(row.body["outcome"]))
    console.print(table)


def text_of(result: CallToolResult) -> str:
    """Return the text of a result in one line."""
    return " ".join(" ".join(one.text for one in result.content if isinstance(one, TextContent)).split())


if __name__ == "__main__":
    asyncio.run(main(Console(width=110)))
