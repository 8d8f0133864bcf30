"""What the tool system asks of a thread: its enabled tools, its planned calls, who they run for (contract 73, 75)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, Self

from callgate.tools.calls import ToolCall

__all__ = ["ALL_TOOLS", "EnabledTools", "ExecutionContext", "InMemoryState", "ParsedToolCall", "StateManager"]


class StateManager(Protocol):
    """Where an application keeps which tools a thread may use."""

    async def enabled_tools(self, thread_id: str, /) -> Collection[str] | None:
        """The wire names of the thread's tools; empty, or None for a thread that is not configured: no tool at all."""
        ...


class InMemoryState:
    """A ``StateManager`` that forgets when the process ends: ``InMemoryState({"thread": ["get_weather"]})``."""

    def __init__(self, enabled: Mapping[str, Collection[str]] | None = None) -> None:
        self._enabled: dict[str, frozenset[str]] = {}
        for thread_id, names in (enabled or {}).items():
            self.enable_only(thread_id, names)

    async def enabled_tools(self, thread_id: str, /) -> Collection[str] | None:
        """See ``StateManager``."""
        return self._enabled.get(thread_id)

    def enable_only(self, thread_id: str, names: Collection[str]) -> None:
        """From now on these tools, and no others, are enabled for the thread.

        Raises:
            TypeError: *names* is one string.
        """
        self._enabled[thread_id] = _names(names)

    def forget(self, thread_id: str) -> None:
        """The thread is over; nothing is enabled for it any more."""
        self._enabled.pop(thread_id, None)


@dataclass(frozen=True, slots=True)
class EnabledTools:
    """The answer to both questions, what a thread may see and what it may run (contract C28): ``name in enabled``.

    ``names`` is None where every tool is enabled. ``reason`` says, for developers, why others are not: ``not_listed``,
    ``not_configured`` or ``state_failed``.
    """

    names: frozenset[str] | None
    reason: str = "not_listed"

    @classmethod
    def of(cls, names: Collection[str] | None) -> Self:
        """What a ``StateManager`` said.

        Raises:
            TypeError: it said something that is no collection of names.
        """
        return cls(frozenset(), "not_configured") if names is None else cls(_names(names))

    def __contains__(self, name: object) -> bool:
        return self.names is None or (isinstance(name, str) and name in self.names)


ALL_TOOLS = EnabledTools(None)


@dataclass(frozen=True, slots=True)
class ParsedToolCall:
    """A call as a planner makes it (contract 75); the tool system takes a ``ToolCall`` as well.

    ``arguments`` is a JSON object, the JSON text of one, or None for no arguments; untrusted until validated.
    """

    call_id: str
    tool_name: str
    arguments: Any = None

    @classmethod
    def of(cls, planned: Mapping[str, Any]) -> Self:
        """Read ``{"callId": ..., "toolName": ..., "arguments": ...}``; what is missing is empty, and names no tool."""
        return cls(planned.get("callId", ""), planned.get("toolName", ""), planned.get("arguments"))

    def to_call(self) -> ToolCall:
        """The same call, as the gate takes it."""
        return ToolCall(self.call_id, self.tool_name, self.arguments)


@dataclass(frozen=True, slots=True)
class ExecutionContext:
    """Which thread and trace a call belongs to, and who asks (contract 75).

    ``user_id`` is None for a user that nobody named, ``session_id`` for a plan without a session.
    """

    thread_id: str
    trace_id: str
    user_id: str | None = None
    session_id: str | None = None

    @classmethod
    def current(cls) -> ExecutionContext | None:
        """The one of the plan that is being run here, for tools and hooks; None outside a tool system."""
        return CURRENT.get()


CURRENT: ContextVar[ExecutionContext | None] = ContextVar("callgate_execution", default=None)


def _names(names: Collection[str]) -> frozenset[str]:
    if isinstance(names, str | bytes):
        raise TypeError("the enabled tools are a collection of names, not one string")
    return frozenset(names)
