"""``Depends(gate.bound)``: FastAPI's way to a gate for the user of the request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any

from callgate.errors import RegistrationError
from callgate.runtime.faces.bound import Bound
from callgate.runtime.faces.principal import principal


def require_starlette(what: str) -> None:
    """Say at the start what is missing, and not at the first request.

    Raises:
        RegistrationError: Starlette is not installed.
    """
    try:
        import_module("starlette")
    except ImportError as error:
        raise RegistrationError(f"{what} needs Starlette: pip install 'callgate[asgi]'") from error


def user_dependency(gate: Any, challenge: str | None = "Bearer") -> Callable[[Any], Coroutine[Any, Any, Bound]]:
    """A dependency that gives the ``Bound`` of the request's user, or refuses the request with 401.

    FastAPI reads what it wants from its signature, so its parameter has Starlette's type, set here: requests and web
    sockets alike.

    Raises:
        RegistrationError: the gate has no ``authenticate``, or Starlette is not installed.
    """
    require_starlette("gate.bound")
    from starlette.exceptions import HTTPException
    from starlette.requests import HTTPConnection

    if gate.authenticate is None:
        raise RegistrationError("gate.bound needs to know who asks: Gate(..., authenticate=...)")
    headers = None if challenge is None else {"WWW-Authenticate": challenge}

    async def bound(connection: Any) -> Bound:
        user = await principal(gate.authenticate, connection)
        if user is None:
            raise HTTPException(401, "Not authenticated.", headers)
        return Bound(gate, user)

    bound.__annotations__ = {"connection": HTTPConnection, "return": Bound}
    return bound
