"""``ExecutionContext``: the thread and trace of a planned call. ``TaskIds``: the task that a call belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class ExecutionContext:
    """The thread, trace, user and session of a call.

    ``user_id`` is None for an anonymous user, ``session_id`` for a plan without a session.
    """

    thread_id: str
    trace_id: str
    user_id: str | None = None
    session_id: str | None = None

    @classmethod
    def current(cls) -> ExecutionContext | None:
        """Return the context of the plan that runs now, for tools and hooks; None outside a tool system."""
        return CURRENT.get()


class TaskIds(NamedTuple):
    """The ids of the A2A task that a call belongs to, and of the task's context; None outside A2A."""

    task_id: str | None = None
    context_id: str | None = None


NO_TASK = TaskIds()
"""The ids of a call outside A2A."""


CURRENT: ContextVar[ExecutionContext | None] = ContextVar("callgate_execution", default=None)
