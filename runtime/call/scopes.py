"""Hiding of anyio's cancel scopes from a shielded step (``leases.py``).

A cancelled scope cancels at *every* checkpoint inside it. A release that uses anyio's primitives would loop forever at
its first checkpoint, because its cancellation is deferred. A shield would help, but costs more than the step. The
task's scope is therefore removed from anyio's record, and restored after the step.

anyio has no public way to do that. With a version that keeps no such record, nothing is hidden; a test finds it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

ANYIO = "anyio._backends._asyncio"
"""The module that has the record of cancel scopes; only where it is imported can there be one."""


def current() -> Any:
    """Return anyio's record of the running task if it is in a cancel scope, else None."""
    states = getattr(sys.modules.get(ANYIO), "_task_states", None)  # anyio is not imported only for this check
    record = states.get(asyncio.current_task()) if states else None
    return None if getattr(record, "cancel_scope", None) is None else record


class Hidden:
    """The scopes around the running task, hidden until ``restore``."""

    __slots__ = ("record", "scope")

    def __init__(self, record: Any) -> None:
        self.record = record
        self.scope, record.cancel_scope = record.cancel_scope, None

    def restore(self) -> None:
        """Restore the scopes after the step."""
        self.record.cancel_scope = self.scope


def hide() -> Hidden | None:
    """Hide the scopes around the running task, if any."""
    record = current()
    return None if record is None else Hidden(record)
