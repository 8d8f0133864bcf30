"""Threads: which tools a thread of a conversation may use, and its plans of calls. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.runtime.tool_system.observations import (
        InMemoryObservations,
        Observation,
        ObservationManager,
        ToolSystemFault,
    )
    from callgate.runtime.tool_system.system import ToolSystem
    from callgate.runtime.tool_system.threads import InMemoryState, ParsedToolCall, StateManager
    from callgate.tools.execution import ExecutionContext
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "ExecutionContext": "callgate.tools.execution",
            "InMemoryObservations": "callgate.runtime.tool_system.observations",
            "InMemoryState": "callgate.runtime.tool_system.threads",
            "Observation": "callgate.runtime.tool_system.observations",
            "ObservationManager": "callgate.runtime.tool_system.observations",
            "ParsedToolCall": "callgate.runtime.tool_system.threads",
            "StateManager": "callgate.runtime.tool_system.threads",
            "ToolSystem": "callgate.runtime.tool_system.system",
            "ToolSystemFault": "callgate.runtime.tool_system.observations",
        },
    )

__all__ = [
    "ExecutionContext",
    "InMemoryObservations",
    "InMemoryState",
    "Observation",
    "ObservationManager",
    "ParsedToolCall",
    "StateManager",
    "ToolSystem",
    "ToolSystemFault",
]
