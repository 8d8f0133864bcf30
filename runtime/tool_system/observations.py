"""Observations of every attempt to run a tool, and faults of the services around the tool system."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from callgate.tools.calls import ToolResult


class ObservationType(StrEnum):
    """The type of an observation."""

    TOOL_EXECUTION = "TOOL_EXECUTION"


@dataclass(frozen=True, slots=True)
class Observation:
    """One attempt to run a tool, and its result. ``at`` is when it ended, an aware datetime in UTC."""

    content: ToolResult
    thread_id: str
    trace_id: str
    at: datetime
    type: ObservationType = ObservationType.TOOL_EXECUTION

    def to_dict(self) -> dict[str, object]:
        """The JSON form, under the documents' names."""
        return {
            "type": self.type.value,
            "threadId": self.thread_id,
            "traceId": self.trace_id,
            "timestamp": self.at.isoformat(),
            "content": self.content.to_status(),
        }


class ObservationManager(Protocol):
    """The application's store of observations."""

    async def record(self, observation: Observation, /) -> None:
        """Store an observation, once for each call of a plan. An error is reported as a fault and changes no result."""
        ...


class InMemoryObservations:
    """An ``ObservationManager`` that keeps the last *keep* observations of this process."""

    def __init__(self, keep: int = 10_000) -> None:
        self._kept: deque[Observation] = deque(maxlen=keep)

    async def record(self, observation: Observation, /) -> None:
        """See ``ObservationManager``."""
        self._kept.append(observation)

    def of(self, thread_id: str | None = None, trace_id: str | None = None) -> list[Observation]:
        """Return the observations of a thread, a trace or both, oldest first; without arguments, all."""
        return [one for one in self._kept if thread_id in {None, one.thread_id} and trace_id in {None, one.trace_id}]


@dataclass(frozen=True, slots=True)
class ToolSystemFault:
    """A failure of a service around the tools of a plan; no model reads it.

    ``event`` is one of ``tool_system.state_failed``, ``tool_system.state_missing`` (the thread is not configured),
    ``tool_system.observation_failed`` and ``tool_system.call_failed``. The first two leave no tool enabled.
    """

    event: str
    thread_id: str
    trace_id: str | None = None
    call_id: str | None = None
    tool: str | None = None
    error: BaseException | None = None

    def to_log(self) -> dict[str, object]:
        """Return flat fields for a log: no values, and only the type of the error."""
        fields = {
            "event": self.event,
            "thread_id": self.thread_id,
            "trace_id": self.trace_id,
            "call_id": self.call_id,
            "tool": self.tool,
            "error": None if self.error is None else type(self.error).__name__,
        }
        return {name: value for name, value in fields.items() if value is not None}


async def ask(function: Callable[..., object], *arguments: object) -> object:
    """Call a method of the application, async or plain."""
    answer = function(*arguments)
    return await answer if inspect.isawaitable(answer) else answer


async def ask_within(seconds: float, function: Callable[..., object], *arguments: object) -> Any:
    """Run ``ask`` with a timeout in seconds.

    Raises:
        TimeoutError: the method took longer.
        RuntimeError: the method raised a cancellation of its own.
    """
    try:
        async with asyncio.timeout(seconds):
            return await ask(function, *arguments)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("the method raised a cancellation of its own") from error
