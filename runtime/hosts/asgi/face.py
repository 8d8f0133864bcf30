"""``callgate.asgi`` and ``callgate.bound``: a gate in a web application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeAlias

from callgate.errors import RegistrationError
from callgate.providers.kinds import checks_kinds
from callgate.runtime.gate import Gate
from callgate.runtime.gate.bound import Bound
from callgate.runtime.hosts.http_requests import Authenticate, check_settings

Message: TypeAlias = MutableMapping[str, Any]
AsgiApp: TypeAlias = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


@checks_kinds(RegistrationError, skip=("gate",))
def asgi(
    gate: Gate,
    *,
    authenticate: Authenticate | None = None,
    challenge: str | None = "Bearer",
    read_timeout: float = 10.0,
    write_timeout: float = 30.0,
    ping: float = 15.0,
) -> AsgiApp:
    """Make an ASGI application that lists, calls and streams the tools of *gate*. Needs the extra ``asgi``.

    Served by itself, the application opens and closes the gate. Mounted in another application, it uses the gate
    that the other application has opened.

    Args:
        gate: the gate; a request body is bounded by the ``Limits`` of its tool.
        authenticate: takes a Starlette ``Request`` without its body, and returns a ``User``, or None for a 401.
            Without it, every request is refused.
        challenge: the header ``WWW-Authenticate`` of a 401.
        read_timeout: seconds for a whole request body.
        write_timeout: seconds for a client to accept a part of a response.
        ping: seconds without an event after which a stream sends a keep-alive.

    Raises:
        RegistrationError: Starlette is not installed, or a setting is of another type or no time above 0.
    """
    from callgate.runtime.hosts.asgi import application

    if not hasattr(gate, "under_way"):
        raise TypeError(f"asgi takes a gate, not {type(gate).__name__}; write callgate.asgi(Gate([tool, ...]), ...)")
    check_settings("asgi", challenge, read_timeout=read_timeout, write_timeout=write_timeout, ping=ping)
    return application(
        gate, authenticate, challenge=challenge, read_timeout=read_timeout, write_timeout=write_timeout, ping=ping
    )


@checks_kinds(RegistrationError)
def bound(
    gate: Gate, *, authenticate: Authenticate | None, challenge: str | None = "Bearer"
) -> Callable[[Any], Coroutine[object, None, Bound]]:
    """Make a FastAPI dependency that gives a gate for the user of the request. Needs the extra ``asgi``.

    Keep the result: ``current = callgate.bound(gate, authenticate=...)``, then ``Depends(current)``. A request without a
    user is refused with 401 and the header ``WWW-Authenticate: challenge``, and each request with 503 while the gate is
    not open.

    Raises:
        RegistrationError: *authenticate* is None, a setting is of another type, or Starlette is not installed.
    """
    from callgate.runtime.hosts.asgi import user_dependency

    check_settings("bound", challenge)
    return user_dependency(gate, authenticate, challenge)
