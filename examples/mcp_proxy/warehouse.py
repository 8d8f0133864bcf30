"""A server of others, over standard input and output: a warehouse, written with the official SDK alone."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("warehouse", log_level="ERROR")


@server.tool()
def stock(item: str) -> int:
    """Return how many pieces of an item there are."""
    return {"bolt": 120, "nut": 7}.get(item, 0)


@server.tool()
def order(item: str, pieces: int) -> str:
    """Order pieces of an item."""
    return f"{pieces} x {item} ordered"


if __name__ == "__main__":
    server.run("stdio")
