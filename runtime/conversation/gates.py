"""``ConversationGate``: the methods of a gate that a conversation uses."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, Unpack

from callgate.errors import InvocationError
from callgate.runtime.call.options import CallOptions
from callgate.tools.arguments.hydration import HydrationResult, Repairer
from callgate.tools.calls import ToolCall, ToolResult, User
from callgate.tools.definition import ToolDefinition
from callgate.tools.registry import ToolRegistry


class ConversationGate(Protocol):
    """The interface of a gate that a conversation uses; ``Gate`` implements and documents it."""

    registry: ToolRegistry

    @property
    def is_open(self) -> bool:
        """True while the gate accepts calls."""
        ...

    def under_way(self) -> AbstractContextManager[None]:
        """Count a block as a call under way."""
        ...

    def tools_for(self, user: User = ...) -> list[ToolDefinition]:
        """Return the tools that a user may see."""
        ...

    def hydrate(self, call: ToolCall, *, wire: str | None = None) -> HydrationResult:
        """Parse and validate one call without running it."""
        ...

    async def repair(self, hydrated: HydrationResult, repair: Repairer) -> HydrationResult:
        """Repair a call whose parse or validation failed, once."""
        ...

    def keep_hydration(self, hydrated: HydrationResult) -> HydrationResult:
        """Record a hydration attempt; return the result unchanged."""
        ...

    def runs_in_parallel(self, call: ToolCall | HydrationResult) -> bool:
        """Return whether a call may run beside others."""
        ...

    def deadline_of(self, tool: str) -> float | None:
        """Return the seconds that a call of a tool may take."""
        ...

    async def refuse(
        self, call: ToolCall, error: InvocationError, *, user: User = ..., **options: Unpack[CallOptions]
    ) -> ToolResult:
        """End a call with an error before anything runs, and record it."""
        ...

    async def record_elsewhere(self, call: ToolCall, *, user: User = ..., **options: Unpack[CallOptions]) -> ToolResult:
        """Record a call that ran elsewhere."""
        ...
