"""Threads: which tools a thread of a conversation may use, and its plans of calls. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.runtime.tool_system.observations import InMemoryObservations as InMemoryObservations
    from callgate.runtime.tool_system.observations import Observation as Observation
    from callgate.runtime.tool_system.observations import ObservationManager as ObservationManager
    from callgate.runtime.tool_system.observations import ToolSystemFault as ToolSystemFault
    from callgate.runtime.tool_system.system import ToolSystem as ToolSystem
    from callgate.runtime.tool_system.threads import InMemoryState as InMemoryState
    from callgate.runtime.tool_system.threads import ParsedToolCall as ParsedToolCall
    from callgate.runtime.tool_system.threads import StateManager as StateManager
    from callgate.tools.execution import ExecutionContext as ExecutionContext
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
