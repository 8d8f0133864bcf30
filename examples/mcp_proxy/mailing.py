"""A server of others, over HTTP: letters, written with the official SDK alone."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("mailing", log_level="ERROR")


@server.tool()
def send_letter(to: str, text: str) -> str:
    """Send a letter."""
    return f"letter to {to} is on its way"


app = server.streamable_http_app()
