"""Threads: their enabled tools, their planned calls, and the context of a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from callgate.tools.calls import ToolCall


class StateManager(Protocol):
    """The application's store of the tools that a thread may use."""

    async def enabled_tools(self, thread_id: str, /) -> Collection[str] | None:
        """Return the wire names of the thread's tools. An empty collection, or None for an unknown thread, allows no tool."""
        ...


class InMemoryState:
    """A ``StateManager`` in the memory of the process: ``InMemoryState({"thread": ["get_weather"]})``."""

    def __init__(self, enabled: Mapping[str, Collection[str]] | None = None) -> None:
        self._enabled: dict[str, frozenset[str]] = {}
        for thread_id, names in (enabled or {}).items():
            self.enable_only(thread_id, names)

    async def enabled_tools(self, thread_id: str, /) -> Collection[str] | None:
        """See ``StateManager``."""
        return self._enabled.get(thread_id)

    async def is_tool_enabled(self, thread_id: str, name: str, /) -> bool:
        """Return True for a tool that is enabled for the thread."""
        return name in self._enabled.get(thread_id, ())

    def enable_only(self, thread_id: str, names: Collection[str]) -> None:
        """Enable these tools, and no others, for the thread.

        Raises:
            TypeError: *names* is one string.
        """
        self._enabled[thread_id] = _names(names)

    def forget(self, thread_id: str) -> None:
        """Remove the thread; no tool is enabled for it from then on."""
        self._enabled.pop(thread_id, None)


@dataclass(frozen=True, slots=True)
class EnabledTools:
    """The tools that a thread may see and run: ``name in enabled``.

    ``names`` is None when every tool is enabled. ``reason`` tells developers why a tool is not enabled: ``not_listed``,
    ``not_configured`` or ``state_failed``.
    """

    names: frozenset[str] | None
    reason: str = "not_listed"

    @classmethod
    def of(cls, names: Collection[str] | None) -> Self:
        """Make this of the response of a ``StateManager``.

        Raises:
            TypeError: the response is not a collection of names.
        """
        return cls(frozenset(), "not_configured") if names is None else cls(_names(names))

    def __contains__(self, name: object) -> bool:
        return self.names is None or (isinstance(name, str) and name in self.names)


ALL_TOOLS = EnabledTools(None)


@dataclass(frozen=True, slots=True)
class ParsedToolCall:
    """A call as a planner makes it. The tool system takes a ``ToolCall`` as well.

    ``arguments`` is a JSON object, the JSON text of one, or None for no arguments; untrusted until validated.
    """

    call_id: str
    tool_name: str
    arguments: object = None

    @classmethod
    def of(cls, planned: Mapping[str, Any]) -> Self:
        """Read ``{"callId": ..., "toolName": ..., "arguments": ...}``; a missing field is empty."""
        return cls(planned.get("callId", ""), planned.get("toolName", ""), planned.get("arguments"))

    def to_call(self) -> ToolCall:
        """Return the same call as a ``ToolCall``."""
        return ToolCall(id=self.call_id, name=self.tool_name, arguments=self.arguments)


def _names(names: Collection[str]) -> frozenset[str]:
    if isinstance(names, str | bytes):
        raise TypeError("the enabled tools are a collection of names, not one string")
    return frozenset(names)
