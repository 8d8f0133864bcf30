"""MCP: a gate as a server of MCP hosts, and remote MCP servers as tools of a gate. Each name is imported on first use. Needs the extra ``mcp``."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.runtime.hosts.mcp.face import ServedGate as ServedGate
    from callgate.runtime.hosts.mcp.face import server as server
    from callgate.runtime.hosts.mcp.oauth import OAuth as OAuth
    from callgate.runtime.remote.mcp.face import McpServer as McpServer
    from callgate.runtime.remote.mcp.face import Mounted as Mounted
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "ServedGate": "callgate.runtime.hosts.mcp.face",
            "McpServer": "callgate.runtime.remote.mcp.face",
            "Mounted": "callgate.runtime.remote.mcp.face",
            "OAuth": "callgate.runtime.hosts.mcp.oauth",
            "server": "callgate.runtime.hosts.mcp.face",
        },
    )
