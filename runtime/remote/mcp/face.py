"""``callgate.mcp.McpServer``: a remote MCP server, for ``gate.mount``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, TypeAlias

from callgate.errors import RegistrationError
from callgate.tools.calls import User
from callgate.tools.client.pinning import ChangedTool, ToolPins
from callgate.tools.definition import Effect
from callgate.tools.limits import fault_of_seconds

Credential: TypeAlias = Callable[[User], str | Awaitable[str | None] | None]
"""Returns the bearer token that a user has at the server, or None for none."""


class Mounted(Protocol):
    """The tools of one remote server in a gate. They follow the server: new tools come, removed ones go."""

    @property
    def is_up(self) -> bool:
        """True while the server is connected. Calls meanwhile end as ``retry_later`` if it is not."""
        ...

    @property
    def tools(self) -> Mapping[str, str]:
        """The names in the gate, each with the name at the server."""
        ...

    @property
    def refused(self) -> Mapping[str, str]:
        """The tools of the server that are left out, by their name there, and why."""
        ...

    @property
    def changed(self) -> Sequence[ChangedTool]:
        """The tools whose definition has changed since it was approved. They are left out until it is approved."""
        ...

    async def approve(self, change: ChangedTool, *, by: str) -> None:
        """Approve a changed definition that *by* has reviewed, and offer the tool again."""
        ...

    async def refresh(self) -> None:
        """Read the definitions again, without waiting for the server to say that they have changed.

        Raises:
            RegistrationError: the server is not connected, or its list breaks a limit.
        """
        ...

    async def close(self) -> None:
        """Remove the tools, and disconnect. The gate does this when it closes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A remote MCP server: *url* for HTTP, or *command* for a process of its own over standard input and output.

    The server is not trusted. Names are made legal and keep the *prefix*; texts are cut to 1,024 visible characters and
    name the server; schemas pass the limits for schemas from outside; a changed definition is left out until a person
    approves it; results are validated against their schema. What it asks for beyond the question of a call is refused.

    Args:
        url: the address of the endpoint, such as ``https://tools.example/mcp``. Redirects to other hosts are refused.
        command: the program and its arguments.
        env: environment variables of the process, beside the harmless ones of this process.
        cwd: working directory of the process.
        name: the name of the server here, for tags (``remote:NAME``), pins, logs and texts.
        prefix: goes before each tool's name. Default: ``NAME_``.
        headers: HTTP headers of every request.
        auth: an authentication of httpx2 for the connection, such as the OAuth client of the SDK.
        credential: the bearer token of a call's user, on a connection that all users share. Needs a server of version
            2026-07-28, where every call is a request of its own.
        effects: effects by the tool's name at the server. Others are undeclared.
        trust_hints: take ``readOnlyHint`` and ``idempotentHint`` of the server for the effects of tools.
        timeout: of one call without a deadline, in seconds. Over HTTP, a response to a call with a longer deadline may be
            silent for 10 minutes, or for this time if it is longer.
        connect_timeout: of connecting and reading the definitions, in seconds.
        max_tools: maximum number of tools.
        legacy: speak the versions up to 2025-11-25 only.
    """

    name: str
    url: str | None = None
    command: Sequence[str] | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None
    prefix: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    auth: Any = None
    credential: Credential | None = None
    effects: Mapping[str, Effect | str] = field(default_factory=dict[str, "Effect | str"])
    trust_hints: bool = False
    timeout: float = 60.0
    connect_timeout: float = 10.0
    max_tools: int = 256
    legacy: bool = False

    def __post_init__(self) -> None:
        if (self.url is None) == (self.command is None):
            raise RegistrationError(f"the MCP server {self.name!r}: give url= or command=, one of them")
        for option in ("timeout", "connect_timeout"):
            if (fault := fault_of_seconds(getattr(self, option), least=0.001)) is not None:
                raise RegistrationError(f"the MCP server {self.name!r}: {option} {fault}")

    async def mount_on(self, gate: Any, pins: ToolPins | None = None) -> Mounted:
        """See ``Gate.mount``."""
        try:
            import_module("mcp.client")
        except ImportError as error:
            raise RegistrationError("MCP needs its SDK: pip install 'callgate[mcp]'") from error
        from callgate.runtime.remote.mcp.mounted import MountedServer

        own: Any = self  # pyright reads this module under two names
        mounted = MountedServer(own, gate, ToolPins(gate.store.pins) if pins is None else pins)
        await mounted.open()
        gate.at_close(mounted.close)
        return mounted
