"""``callgate.mcp.server``: a gate as an MCP server."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Protocol

from callgate.errors import RegistrationError
from callgate.providers.kinds import check_fields, checks_kinds
from callgate.runtime.gate import Gate
from callgate.runtime.hosts.http_requests import Authenticate, check_settings
from callgate.runtime.hosts.mcp.oauth import OAuth
from callgate.tools.calls import User

MAX_BODY = 4_194_304
"""Maximum size of an HTTP request, in bytes."""
READ_TIMEOUT = 10.0
"""Timeout for the arrival of an HTTP request, in seconds."""
MAX_SESSIONS = 10_000
"""Maximum number of concurrent HTTP sessions of clients up to protocol version 2025-11-25."""
MAX_USER_SESSIONS = 100
"""Maximum number of them of one user."""
MAX_USER_STREAMS = 32
"""Maximum number of concurrent streams of changes of one user, for clients since version 2026-07-28."""
PAGE = 200
"""Tools on one page of ``tools/list``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeResults:
    """The bounds of results that are too large for one answer; their largest parts become resources in memory.

    The user of the call reads such a part once, with ``resources/read`` of the same server process. A client lowers
    *max_result* for a call with ``callgate/maxResult`` in ``_meta``.

    Args:
        max_result: maximum size of a result in an answer, in bytes of JSON.
        ttl: seconds that a part is held.
        max_bytes: maximum size of the parts of all users together.
        max_count: maximum number of them.

    Raises:
        RegistrationError: a bound is not positive.
    """

    max_result: int = 1_000_000
    ttl: float = 600.0
    max_bytes: int = 67_108_864
    max_count: int = 1_000

    def __post_init__(self) -> None:
        _check_positive(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The bounds of the messages that clients of version 2025-11-25 read again after a lost connection, over HTTP.

    They are in memory, by session. The client of the same user reads what it has missed, with ``Last-Event-ID``, from the
    same server process. Older clients have no streams to take up.

    Args:
        ttl: seconds that a message is held.
        max_bytes: maximum size of the messages of all users together.
        max_count: maximum number of them.
        retry: seconds after which the server asks clients to come back.
        close_after: seconds after which the server closes the stream of a call that is not over. The client comes back for
            the rest, so no proxy cuts a long call. None: the server closes none.

    Raises:
        RegistrationError: a number is not positive.
    """

    ttl: float = 300.0
    max_bytes: int = 33_554_432
    max_count: int = 10_000
    retry: float = 1.0
    close_after: float | None = None

    def __post_init__(self) -> None:
        _check_positive(self)


def _check_positive(bounds: LargeResults | Resumption) -> None:
    check_fields(bounds, RegistrationError)
    for field in fields(bounds):
        value = getattr(bounds, field.name)
        if value is not None and value <= 0:
            raise RegistrationError(f"{type(bounds).__name__}: {field.name} must be above 0")


_LARGE, _RESUMPTION = LargeResults(), Resumption()


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


@checks_kinds(RegistrationError, skip=("allowed_hosts",))
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
    allowed_hosts: Collection[str] | None = None,
    approvals_url: str | None = None,
    page: int = PAGE,
    max_body: int = MAX_BODY,
    read_timeout: float = READ_TIMEOUT,
    max_sessions: int = MAX_SESSIONS,
    max_user_sessions: int = MAX_USER_SESSIONS,
    max_user_streams: int = MAX_USER_STREAMS,
    large_results: LargeResults | None = _LARGE,
    resumption: Resumption | None = _RESUMPTION,
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
        user: the user of stdio; and of HTTP without *authenticate* and *oauth*, which then serves this machine only.
        authenticate: finds the user of an HTTP request, from its headers. A request without a user is refused with 401.
        oauth: instead of *authenticate*: the server is an OAuth resource server.
        challenge: the ``WWW-Authenticate`` header of a 401 of *authenticate*; None for no header.
        allowed_hosts: values of ``Host`` that are accepted over HTTP; a port of ``*`` means any. Default: any with
            *authenticate* or *oauth*, which a web page of another site cannot satisfy; else those of this machine.
        approvals_url: the page that shows a suspended call to its requester, with ``{handle}`` in it.
        page: tools on one page of ``tools/list``.
        max_body: maximum size of an HTTP request, in bytes; one of 30,000 values is refused, too.
        read_timeout: timeout for the arrival of an HTTP request, in seconds.
        max_sessions: maximum number of concurrent HTTP sessions of clients up to version 2025-11-25.
        max_user_sessions: the same of one user of *authenticate* or *oauth*; the least recently used idle one ends first.
        max_user_streams: maximum number of streams of one user that tell of changes; a further one is refused.
        large_results: the bounds above which parts of a result become resources; None sends every result whole.
        resumption: how clients take up streams after a lost connection; None for not at all.

    Raises:
        RegistrationError: the extra is missing, *authenticate* and *oauth* are both given, or a setting is refused.
    """
    limits = (max_sessions, max_user_sessions, max_user_streams)
    _check(authenticate, oauth, allowed_hosts, challenge, approvals_url, read_timeout, page, max_body, *limits)
    from callgate.runtime.hosts.mcp.access import Access
    from callgate.runtime.hosts.mcp.server import GateServer

    access = Access(gate, user, authenticate, oauth, challenge, allowed_hosts, max_body, read_timeout)
    shown = {"version": version, "title": title, "instructions": instructions}
    return GateServer(gate, access, name, shown, approvals_url, page, *limits, large_results, resumption)


def _check_hosts(allowed_hosts: Collection[str] | None) -> None:
    if isinstance(allowed_hosts, str) or (allowed_hosts is not None and not allowed_hosts):
        raise RegistrationError(
            "allowed_hosts has names of hosts: write allowed_hosts=['desk.example'], or leave it out"
        )


def _check(
    authenticate: Authenticate | None,
    oauth: OAuth | None,
    allowed_hosts: Collection[str] | None,
    challenge: str | None,
    approvals_url: str | None,
    read_timeout: float,
    *numbers: int,
) -> None:
    _import_sdk()
    _check_hosts(allowed_hosts)
    check_settings("mcp.server", challenge, read_timeout=read_timeout)
    if authenticate is not None and oauth is not None:
        raise RegistrationError("mcp.server: give authenticate= or oauth=, not both: a request has one user")
    if approvals_url is not None and "{handle}" not in approvals_url:
        raise RegistrationError(
            "mcp.server: approvals_url has no {handle}, so each call has the same page; "
            "write approvals_url='https://desk.example/approvals/{handle}'"
        )
    if min(numbers) <= 0:
        raise RegistrationError("mcp.server: page, max_body and limits of sessions are positive numbers")


def _import_sdk() -> None:
    try:
        import_module("mcp.server.lowlevel")
    except ImportError as error:
        raise RegistrationError("MCP needs its SDK: pip install 'callgate[mcp]'") from error
