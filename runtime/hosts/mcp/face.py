"""``callgate.mcp.server``: a gate as an MCP server."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Any, Protocol

from callgate.errors import RegistrationError
from callgate.runtime.faces.principal import Authenticate
from callgate.runtime.gate import Gate
from callgate.runtime.hosts.mcp.oauth import OAuth
from callgate.tools.calls import User

MAX_BODY = 4_194_304
"""Maximum size of an HTTP request, in bytes."""
READ_TIMEOUT = 10.0
"""Timeout for the arrival of an HTTP request, in seconds."""
MAX_SESSIONS = 10_000
"""Maximum number of concurrent HTTP sessions of clients up to protocol version 2025-11-25."""
PAGE = 200
"""Tools on one page of ``tools/list``."""


class ServedGate(Protocol):
    """A gate as an MCP server. ``sdk`` is the low-level server of the SDK, for what this class does not offer."""

    sdk: Any

    async def run_stdio(self) -> None:
        """Serve one client over standard input and output, until it closes them. Opens and closes the gate."""
        ...

    def asgi(self, path: str = "/mcp") -> Any:
        """Return a Starlette application that serves the gate over HTTP; see ``server``."""
        ...

    async def tools_changed(self) -> None:
        """Tell the clients that listen that their list of tools has changed, such as after a change of roles.

        The server does so itself when a tool of the gate is added, replaced or removed.
        """
        ...


def server(
    gate: Gate,
    *,
    name: str = "callgate",
    version: str = "1",
    title: str | None = None,
    instructions: str | None = None,
    user: User | None = None,
    authenticate: Authenticate | None = None,
    oauth: OAuth | None = None,
    challenge: str | None = "Bearer",
    allowed_hosts: Collection[str] = (),
    approvals_url: str | None = None,
    page: int = PAGE,
    max_body: int = MAX_BODY,
    read_timeout: float = READ_TIMEOUT,
    max_sessions: int = MAX_SESSIONS,
) -> ServedGate:
    """Serve the tools of *gate* over MCP, in every protocol version of the SDK; needs the extra ``mcp``.

    A client sees the tools that its user may see, and each call passes the whole lifecycle. A call that waits for its own
    user asks them through the client. ``_meta`` is not trusted, except for ``callgate/idempotencyKey``.

    Args:
        gate: opened and closed with the server, unless it is already open.
        name: the name of the server, for its clients.
        version: the version of the server.
        title: the name for people.
        instructions: text for the model about the server as a whole.
        user: the user of requests over stdio; and over HTTP without *authenticate* and *oauth*, which then serves this
            machine only.
        authenticate: finds the user of an HTTP request, from its headers. A request without a user is refused with 401.
        oauth: instead of *authenticate*: the server is an OAuth resource server.
        challenge: the ``WWW-Authenticate`` header of a 401 of *authenticate*; None for no header.
        allowed_hosts: values of ``Host`` that are accepted over HTTP; a port of ``*`` means any. Default: any with
            *authenticate* or *oauth*, which a web page of another site cannot satisfy; else those of this machine.
        approvals_url: the page that shows a suspended call to its requester, with ``{handle}`` in it.
        page: tools on one page of ``tools/list``.
        max_body: maximum size of an HTTP request, in bytes.
        read_timeout: timeout for the arrival of an HTTP request, in seconds.
        max_sessions: maximum number of concurrent HTTP sessions of clients up to version 2025-11-25.

    Raises:
        RegistrationError: the extra is missing, *authenticate* and *oauth* are both given, or a number is not positive.
    """
    try:
        import_module("mcp.server.lowlevel")
    except ImportError as error:
        raise RegistrationError("MCP needs its SDK: pip install 'callgate[mcp]'") from error
    if authenticate is not None and oauth is not None:
        raise RegistrationError("mcp.server: give authenticate= or oauth=, not both: a request has one user")
    if min(page, max_body, read_timeout, max_sessions) <= 0:
        raise RegistrationError("mcp.server: page, max_body, read_timeout and max_sessions are positive numbers")
    from callgate.runtime.hosts.mcp.access import Access
    from callgate.runtime.hosts.mcp.server import GateServer

    access = Access(gate, user, authenticate, oauth, challenge, allowed_hosts, max_body, read_timeout)
    shown = {"version": version, "title": title, "instructions": instructions}
    return GateServer(gate, access, name, shown, approvals_url, page, max_sessions)
