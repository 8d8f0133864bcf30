"""Who asks: the function that a host gives, called; what every host of a gate shares."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from callgate.tools.calls import User

Authenticate: TypeAlias = Callable[[Any], User | Awaitable[User | None] | None]
"""Takes the host's request, gives its user, or None for nobody; plain or async. It sees headers, never the body.
A plain one runs in the event loop: one that waits, for a database say, is to be async."""


async def principal(authenticate: Authenticate | None, request: Any) -> User | None:
    """The user of a request; None where there is nobody to ask.

    Raises:
        TypeError: *authenticate* gave something else: no call may run for it.
    """
    if authenticate is None:
        return None
    found: Any = authenticate(request)
    if inspect.isawaitable(found):
        found = await found
    if found is not None and not isinstance(found, User):
        raise TypeError(f"authenticate gave {type(found).__name__}, which is neither a User nor None")
    return found
