"""MCP: a gate as a server of MCP hosts, and remote MCP servers as tools of a gate. Each name is imported on first use. Needs the extra ``mcp``."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.runtime.hosts.mcp.face import LargeResults as LargeResults
    from callgate.runtime.hosts.mcp.face import Resumption as Resumption
    from callgate.runtime.hosts.mcp.face import ServedGate as ServedGate
    from callgate.runtime.hosts.mcp.face import server as server
    from callgate.runtime.hosts.mcp.oauth import OAuth as OAuth
    from callgate.runtime.remote.mcp.face import McpServer as McpServer
    from callgate.runtime.remote.mcp.face import Mounted as Mounted
    from callgate.runtime.remote.mcp.face import dpop as dpop
    from callgate.runtime.remote.mcp.face import mcp_tools as mcp_tools
    from callgate.runtime.remote.mcp.oauth_tokens import OAuthTokens as OAuthTokens
    from callgate.runtime.remote.mcp.sampling import Sampling as Sampling
    from callgate.runtime.remote.mcp.sampling import SamplingRequest as SamplingRequest
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "LargeResults": "callgate.runtime.hosts.mcp.face",
            "Resumption": "callgate.runtime.hosts.mcp.face",
            "ServedGate": "callgate.runtime.hosts.mcp.face",
            "McpServer": "callgate.runtime.remote.mcp.face",
            "Mounted": "callgate.runtime.remote.mcp.face",
            "OAuthTokens": "callgate.runtime.remote.mcp.oauth_tokens",
            "Sampling": "callgate.runtime.remote.mcp.sampling",
            "SamplingRequest": "callgate.runtime.remote.mcp.sampling",
            "dpop": "callgate.runtime.remote.mcp.face",
            "mcp_tools": "callgate.runtime.remote.mcp.face",
            "OAuth": "callgate.runtime.hosts.mcp.oauth",
            "server": "callgate.runtime.hosts.mcp.face",
        },
    )
