"""Authentication in hosts: call the function that finds the user of a request."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from callgate.tools.calls import User

Authenticate: TypeAlias = Callable[[Any], User | Awaitable[User | None] | None]
"""Takes the request of a host and returns its user, or None for an unknown caller. It sees headers, never the body.
It may be plain or async. A plain function runs in the event loop, so a function that does I/O has to be async."""


async def principal(authenticate: Authenticate | None, request: object) -> User | None:
    """Return the user of a request; None without *authenticate*, or when it knows no user.

    Raises:
        TypeError: *authenticate* returned neither a ``User`` nor None.
    """
    if authenticate is None:
        return None
    found: object = authenticate(request)
    if inspect.isawaitable(found):
        found = await found
    if found is not None and not isinstance(found, User):
        raise TypeError(
            f"authenticate returned {type(found).__name__}; it has to return a User, or None for an unknown caller"
        )
    return found
