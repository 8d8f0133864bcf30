"""A shield against anyio's cancel scopes around a shielded step (``leases.py``).

A cancelled scope cancels at *every* checkpoint inside it. A release that uses anyio's primitives would loop forever at
its first checkpoint, because its cancellation is deferred. The scopes around the task are therefore kept off by a shield
of anyio's. They cancel the task at its next checkpoint after the step. A scope can only exist where anyio runs on this
event loop, so nothing else pays for the shield.
"""

from __future__ import annotations

import asyncio
import sys
from contextvars import Context
from functools import cache
from typing import Any

ANYIO = "anyio._backends._asyncio"
"""The module without which there is no cancel scope. Only its presence counts: anyio is not imported for the check."""


def shield() -> Any:
    """Enter a shield in the running task and return it; None where there can be no cancel scope."""
    if ANYIO not in sys.modules or _task() is None:
        return None
    scope = _scope_class()(shield=True)
    scope.__enter__()
    return scope


@cache
def _scope_class() -> Any:
    """Return the class of scopes in this event loop: anyio takes longer to find it than to enter a scope."""
    from anyio import CancelScope

    return type(CancelScope())


def leave(scope: Any) -> bool:
    """Leave a shield. Return False if a scope inside it was left open: the shield ends, and its place is taken.

    A scope around it that was cancelled meanwhile now cancels the task. It does so in a context of its own, because it
    comes from outside of every step (see ``leases.INSIDE``).
    """
    try:
        Context().run(scope.__exit__, None, None, None)
    except RuntimeError:
        scope.shield = False
        return False
    return True


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # the coroutine of a call is closed without its loop
        return None
