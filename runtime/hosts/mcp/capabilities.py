"""The capabilities of a client, and those that a tool needs."""

from __future__ import annotations

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from callgate.tools.definition import ToolDefinition

TASKS = "io.modelcontextprotocol/tasks"
"""The identifier of the extension for tasks, which client and server declare."""
REQUIRES = "mcp_requires"
"""The key of a tool's metadata that lists what its client must be capable of."""
ASKS_FIRST = "mcp_asks_first"
"""The key of the metadata of a tool of workers that asks in the response of its call, before the call is a task."""


def check_capabilities(ctx: ServerRequestContext, definition: ToolDefinition) -> None:
    """Check that a client has what a tool needs: ``metadata={"mcp_requires": ["elicitation", "tasks"]}``.

    Raises:
        MCPError: it lacks a capability; the error names it.
    """
    for name in definition.metadata.get(REQUIRES, ()):
        offered = ctx.session.client_capabilities
        if not (declares_tasks(ctx) if name == "tasks" else getattr(offered, name, None) is not None):
            raise missing_capability(name)


def declares_tasks(ctx: ServerRequestContext) -> bool:
    """Return True if the client of a request declares tasks. They belong to version 2026-07-28 and later."""
    offered = ctx.session.client_capabilities
    extensions = None if offered is None else offered.extensions
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and extensions is not None and TASKS in extensions


def missing_capability(name: str) -> MCPError:
    """Return the error for a client that lacks a capability."""
    needed: dict[str, object] = {"extensions": {TASKS: {}}} if name == "tasks" else {name: {}}
    text = f"The client has to support {name}."
    return MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, text, {"requiredCapabilities": needed})
