"""Two MCP servers of others behind one gate, and the gate as one MCP server for its clients.

The gate decides who may see and call which tool, asks a lead before an order, and records every call with its user. The
servers know nothing of it. ``make example-mcp`` runs ``published`` with servers from PyPI; where they cannot be installed, it
runs this module, whose servers are here.
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
from mcp_types import CallToolResult
from rich.console import Console

import callgate.mcp
from callgate import Approval, Approve, Effects, Gate, InvokeContext, Options, User
from callgate.hooks import Audit, Authorize, permit
from callgate.mcp import McpServer
from examples.mcp_proxy import published
from examples.mcp_proxy.mailing import app
from examples.mcp_proxy.shown import show_audit, text_of

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


def programs() -> Path | None:
    """Return where the published servers are installed: the folder of the first argument; None if they are not there."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    return folder if folder is not None and (folder / "mcp-server-git").exists() else None


if __name__ == "__main__":
    shown = Console(width=110)
    installed = programs()
    asyncio.run(main(shown) if installed is None else published.main(shown, installed))
