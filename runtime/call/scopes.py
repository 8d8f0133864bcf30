"""anyio's cancel scopes around a task, put out of sight of a step that is carried through (``leases.py``).

A scope that was cancelled cancels at *every* checkpoint inside it: code that gives capacity back with anyio's own
primitives would turn for ever at its first one, since the cancellation that it waits for is held back. A shield would
help, but costs more than the step; so the task's scope is taken out of anyio's record, and put back after the step.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

_MODULES = sys.modules


def current() -> Any:
    """anyio's record of the running task if it stands in a cancel scope, else None."""
    backend = _MODULES.get("anyio._backends._asyncio")  # where nobody uses anyio, nothing is imported
    if backend is None or not backend._task_states.data:
        return None
    record = backend._task_states.get(asyncio.current_task())
    return None if record is None or record.cancel_scope is None else record


class Hidden:
    """The scopes around the running task, out of sight until ``restore``."""

    __slots__ = ("record", "scope")

    def __init__(self, record: Any) -> None:
        self.record = record
        self.scope, record.cancel_scope = record.cancel_scope, None

    def restore(self) -> None:
        """The step is over."""
        self.record.cancel_scope = self.scope


def hide() -> Hidden | None:
    """Put the scopes around the running task, if any, out of sight."""
    record = current()
    return None if record is None else Hidden(record)
