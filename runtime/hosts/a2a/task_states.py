"""The states of an A2A task, and whether it is stored."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

from callgate.tools.calls import User

if TYPE_CHECKING:
    from a2a.types import Task, TaskStatusUpdateEvent

STORED = "callgate.stored"
"""The key of a future in the state of a call. Its result says whether the new task of the call is stored."""


class AgentUser(Protocol):
    """The user of a request; the SDK calls it ``User``."""

    @property
    def principal(self) -> User:
        """The principal of the gate."""
        ...


class AgentCall(Protocol):
    """One request, with its user and a state that handlers share: the ``ServerCallContext`` of the SDK."""

    state: MutableMapping[str, Any]

    @property
    def user(self) -> AgentUser:
        """The user of the request."""
        ...


def is_over(task: Task | TaskStatusUpdateEvent) -> bool:
    """Return True if a task has ended."""
    from a2a.types import TaskState

    ended = ("COMPLETED", "CANCELED", "FAILED", "REJECTED")
    return task.status.state in {TaskState.Value(f"TASK_STATE_{name}") for name in ended}


def is_cancelled(task: Task) -> bool:
    """Return True if a task was cancelled."""
    from a2a.types import TaskState

    return bool(task.status.state == TaskState.TASK_STATE_CANCELED)
