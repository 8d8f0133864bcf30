"""``callgate.bound``: a FastAPI dependency that gives the gate, bound to the user of the request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib import import_module

from callgate.errors import RegistrationError
from callgate.runtime.gate import Gate
from callgate.runtime.gate.bound import Bound
from callgate.runtime.hosts.http_requests import Authenticate, principal
from callgate.runtime.hosts.not_open import OPENS, NotOpen


def require_starlette(what: str) -> None:
    """Check at startup that Starlette is installed.

    Raises:
        RegistrationError: Starlette is not installed.
    """
    try:
        import_module("starlette")
    except ImportError as error:
        raise RegistrationError(f"{what} needs Starlette: pip install 'callgate[asgi]'") from error


def user_dependency(
    gate: Gate, authenticate: Authenticate | None, challenge: str | None = "Bearer"
) -> Callable[[object], Coroutine[object, None, Bound]]:
    """Return a dependency that gives the ``Bound`` of the request's user.

    It refuses a request without a user with 401, and each one with 503 while the gate is not open.
    FastAPI reads the signature of a dependency. The annotation is set here, so that Starlette stays optional; it covers
    requests and web sockets.

    Raises:
        RegistrationError: *authenticate* is None, or Starlette is not installed.
    """
    require_starlette("callgate.bound")
    from starlette.exceptions import HTTPException
    from starlette.requests import HTTPConnection

    if authenticate is None:
        raise RegistrationError(
            "callgate.bound finds the user of a request: give callgate.bound(gate, authenticate=...) a function"
        )
    headers = None if challenge is None else {"WWW-Authenticate": challenge}

    closed = NotOpen("bound", OPENS)

    async def bound(connection: object) -> Bound:
        if not gate.is_open:
            closed.log()
            raise HTTPException(503, "The service is not available.")
        user = await principal(authenticate, connection)
        if user is None:
            raise HTTPException(401, "Not authenticated.", headers)
        return Bound(gate, user)

    bound.__annotations__ = {"connection": HTTPConnection, "return": Bound}
    return bound
