"""Two published servers, ``mcp-server-time`` and ``mcp-server-git``, behind one gate.

Clerks read the clock and the history of a repository. A quota limits the clock, and a lead approves each commit.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mcp import Client
from rich.console import Console

import callgate.mcp
from callgate import Approval, Approve, Effects, Gate, InvokeContext, Options, User
from callgate.hooks import Audit, Authorize, Quota, permit
from callgate.mcp import McpServer
from examples.mcp_proxy.shown import show_audit, text_of

CLERK = User("ann", "acme", roles={"clerk"})
LEAD = User("lea", "acme", roles={"lead"})
READS = ("git_status", "git_log", "git_diff_staged")
CLOCK = ("get_current_time", "convert_time")
EFFECTS: dict[str, str] = {
    **dict.fromkeys((*CLOCK, *READS), "read"),
    "git_add": "idempotent",
    "git_commit": "irreversible",
}


class LeadCommits:
    """Ask a lead before anything is committed."""

    def approval_for(self, ctx: InvokeContext) -> Approval | None:
        """Return the approval that a call needs; None for none."""
        return Approval(roles={"lead"}, reason="Commits are for a lead.") if ctx.tool_id == "git_commit" else None


def make_gate() -> Gate:
    """Make the gate: clerks see the clock, and five of the twelve tools of git."""
    rules = [
        permit("clerks", roles={"clerk"}, tools={*CLOCK, *READS, "git_add", "git_commit"}),
        permit("leads", roles={"lead"}),
    ]
    return Gate(
        [],
        [Authorize(*rules), LeadCommits(), Quota("2/minute", by="user", tools=set(CLOCK)), Audit()],
        signing_keys=["only for the example"],
        effects=Effects(durable=False),
        options=Options(dynamic_tools=True),  # the tools come with the servers
    )


async def main(console: Console, programs: Path) -> None:
    """Run the example with the servers that are installed in *programs*."""
    with TemporaryDirectory() as folder:
        make_repository(folder)
        async with make_gate() as gate:
            for name in ("time", "git"):
                command = [str(programs / f"mcp-server-{name}")]
                mounted = await gate.mount(McpServer(name=name, command=command, prefix="", effects=EFFECTS))
                console.print(f"mounted {name}: {len(mounted.tools)} tools")
            await visit(gate, folder, console)
            await show_audit(gate, console)


def make_repository(folder: str) -> None:
    """Make a repository with one file that is not committed."""
    Path(folder, "prices.txt").write_text("bolt 3\nnut 2\n")
    git = ["git", "-C", folder]
    for command in (["init", "--quiet"], ["config", "user.name", "Ann"], ["config", "user.email", "ann@acme.example"]):
        subprocess.run([*git, *command], check=True)  # noqa: S603  (fixed arguments)


async def visit(gate: Gate, folder: str, console: Console) -> None:
    """Use the endpoint as the clerk's client does, such as an editor."""
    served = callgate.mcp.server(gate, name="desk", user=CLERK)
    async with Client(served.sdk) as client:

        async def call(name: str, meta: Any = None, **arguments: Any) -> dict[str, Any]:
            result = await client.call_tool(name, arguments, meta=meta)
            console.print(f"  {name}: {text_of(result)}", soft_wrap=True)
            return dict(result.meta or {})

        console.print(f"\nann sees: {', '.join(sorted(one.name for one in (await client.list_tools()).tools))}")
        for zone in ("Europe/Rome", "Asia/Tokyo", "America/Lima"):
            await call("get_current_time", timezone=zone)
        await call("git_add", repo_path=folder, files=["prices.txt"])
        waits = await call("git_commit", repo_path=folder, message="The new prices")
        handle = waits["callgate/handle"]
        await gate.resume(handle, Approve(), approver=LEAD)
        console.print("  lea approves it. The same call again, by its handle:")
        await call("git_commit", {"callgate/handle": handle}, repo_path=folder, message="The new prices")
        await call("git_log", repo_path=folder)
