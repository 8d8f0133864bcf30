"""``callgate.mcp.McpServer``: a remote MCP server, for ``gate.mount`` and ``mcp_tools``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, TypeAlias

from callgate.errors import RegistrationError
from callgate.providers.kinds import check_fields
from callgate.runtime.remote.mcp.sampling import Folders, FoldersOf, Sampling, folder_uri
from callgate.tools.calls import User
from callgate.tools.client.pinning import ChangedTool, ToolPins
from callgate.tools.definition import Effect
from callgate.tools.limits import fault_of_seconds
from callgate.tools.record import ToolRecord
from callgate.tools.registry import ToolRegistry

Credential: TypeAlias = Callable[[User], str | Awaitable[str | None] | None]
"""Returns the bearer token that a user has at the server, or None for none."""


class Mounted(Protocol):
    """The tools of one remote server, in a gate or without one. They follow the server: new ones come, removed ones go."""

    on_closed: Callable[[], object]

    @property
    def is_up(self) -> bool:
        """True while the server is connected. Calls meanwhile end as ``retry_later`` if it is not."""
        ...

    @property
    def tools(self) -> Mapping[str, str]:
        """The names here, each with the name at the server."""
        ...

    @property
    def records(self) -> Sequence[ToolRecord]:
        """The tools as they are now, with their definitions: for ``invoke_tool``, or for a gate of your own."""
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
    approves it; results are validated against their schema. Its questions suspend the call until the user answers; what else
    it asks for is refused unless *sampling* or *roots* allow it.

    Args:
        url: the address of the endpoint, such as ``https://tools.example/mcp``. Redirects to other hosts are refused.
        command: the program and its arguments.
        env: environment variables of the process, beside the harmless ones of this process.
        cwd: working directory of the process.
        name: the name of the server here, for tags (``remote:NAME``), pins, logs and texts.
        prefix: goes before each tool's name. Default: ``NAME_``.
        headers: HTTP headers of every request.
        auth: an authentication of httpx2 for the connection, such as the OAuth client of the SDK.
        credential: the bearer token of a call's user, on a connection that all users share. A call of a user without one
            has no token, also if *headers* or *auth* have one for the connection. Needs a server of version 2026-07-28,
            where every call is a request of its own.
        effects: effects by the tool's name at the server. Others are undeclared.
        trust_hints: take ``readOnlyHint`` and ``idempotentHint`` of the server for the effects of tools.
        timeout: of one call without a deadline and an idle limit, in seconds. Over HTTP, a response to a call with a longer
            limit may be silent for 10 minutes, or for this time if it is longer.
        connect_timeout: of connecting and reading the definitions, in seconds.
        max_tools: maximum number of tools.
        max_memory: maximum memory that one message of the server may take, in bytes. A text takes five times its length,
            and more with wide characters: an image has at most 4 MB by default. A larger message ends its call.
        legacy: speak the versions up to 2025-11-25 only.
        sampling: answers its requests for completions of a model. Default: they are refused.
        roots: the folders of this machine that it may know of, or a function that returns them for the user of a call.
            Default: its requests for them are refused.
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
    max_memory: int = 32_000_000
    legacy: bool = False
    sampling: Sampling | None = None
    roots: Folders | FoldersOf | None = None

    def __post_init__(self) -> None:
        check_fields(self, RegistrationError, skip=("timeout", "connect_timeout"))
        if (self.url is None) == (self.command is None):
            raise RegistrationError(f"the MCP server {self.name!r}: give url= or command=, one of them")
        if not (self.url if self.command is None else self.command):
            raise RegistrationError(f"the MCP server {self.name!r}: its url or command is empty")
        kind, others = ("command", ("headers", "auth", "credential")) if self.url is None else ("url", ("env", "cwd"))
        if given := [name for name in others if getattr(self, name)]:  # users would share what they believe is theirs
            raise RegistrationError(f"the MCP server {self.name!r}: {', '.join(given)} means nothing with {kind}=")
        for tool, effect in self.effects.items():
            if effect not in list(Effect):
                text = f"effects has {effect!r} for {tool}; give {', '.join(Effect)}"
                raise RegistrationError(f"the MCP server {self.name!r}: {text}")
        for option in ("timeout", "connect_timeout"):
            if (fault := fault_of_seconds(getattr(self, option), least=0.001)) is not None:
                raise RegistrationError(f"the MCP server {self.name!r}: {option} {fault}")
        for folder in () if self.roots is None or callable(self.roots) else self.roots:
            try:
                folder_uri(folder)
            except ValueError:
                text = f"the MCP server {self.name!r}: roots has {folder!r}; give absolute paths or file:// URIs"
                raise RegistrationError(text) from None

    async def mount_on(self, gate: Any, pins: ToolPins | None = None) -> Mounted:
        """See ``Gate.mount``."""
        mounted: Mounted = await _opened(
            self, gate.registry, pins or ToolPins(gate.store.pins, definitions=gate.store.cache)
        )
        mounted.on_closed = gate.at_close(mounted.close)
        return mounted


@asynccontextmanager
async def mcp_tools(server: McpServer, *, pins: ToolPins | None = None) -> AsyncGenerator[Mounted]:
    """Connect to a remote server without a gate, and disconnect at the end of the block.

    ``records`` has its tools, with the same admission, pins and limits as behind a gate. No policy, limit or audit applies
    to a call unless ``invoke_tool`` gets hooks, or a gate of yours gets the records. Needs the extra ``mcp``.

    Args:
        server: the server.
        pins: the approved definitions, such as ``ToolPins(store.pins, definitions=store.cache)``. Default: in memory, so a definition that changes
            between two blocks is not noticed.

    Raises:
        RegistrationError: the extra is missing, the server cannot be reached, or its list of tools breaks a limit.
    """
    from callgate.providers.stores.memory.store import MemoryStore  # most programs have a gate with a store

    mounted = await _opened(server, ToolRegistry(), ToolPins(MemoryStore().pins) if pins is None else pins)
    try:
        yield mounted
    finally:
        await mounted.close()


def dpop(auth: Any, *, key: str | None = None, clock: Callable[[], float] = time.time) -> Any:
    """Return an authentication of httpx2 with DPoP (RFC 9449): a stolen access token is of no use without the key.

    It is the ``auth=`` of ``McpServer``. Each request for a token and each request with one has a proof that the key has
    signed (ES256). A server's nonce is used for the next proof. A token that is not bound to the key is refused.

    Args:
        auth: the OAuth client of the SDK, such as ``OAuthClientProvider``.
        key: the private key on the curve P-256, as PEM: ``await OAuthTokens.dpop_key(server)``, where the tokens are kept.
            Default: a new one, so tokens that are kept over a restart are refused by the server.
        clock: returns the time in seconds since the epoch.

    Raises:
        RegistrationError: the extra is missing, or the key is of another kind.
    """
    _import_sdk()
    from callgate.runtime.remote.mcp.dpop import DPoP

    return DPoP(auth, key, clock)


async def _opened(
    server: Any, registry: ToolRegistry, pins: ToolPins
) -> Mounted:  # pyright reads this module under two names
    _import_sdk()
    from callgate.runtime.remote.mcp.mounted import MountedServer

    mounted = MountedServer(server, registry, pins)
    await mounted.open()
    return mounted


def _import_sdk() -> None:
    try:
        import_module("mcp.client")
    except ImportError as error:
        raise RegistrationError("MCP needs its SDK: pip install 'callgate[mcp]'") from error
