"""Texts and records of the example."""

from __future__ import annotations

from mcp_types import CallToolResult, TextContent
from rich.console import Console
from rich.table import Table

from callgate import Gate


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
