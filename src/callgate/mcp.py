"""MCP: a gate as a server of MCP hosts. Each name is imported on first use. Needs the extra ``mcp``."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.runtime.hosts.mcp.face import McpServer as McpServer
    from callgate.runtime.hosts.mcp.face import server as server
    from callgate.runtime.hosts.mcp.oauth import OAuth as OAuth
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "McpServer": "callgate.runtime.hosts.mcp.face",
            "OAuth": "callgate.runtime.hosts.mcp.oauth",
            "server": "callgate.runtime.hosts.mcp.face",
        },
    )
