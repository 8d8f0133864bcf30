"""Types for the pytest fixtures that are functions, to annotate the parameters of a test with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Unpack

from callgate.runtime.gate import Gate
from callgate.runtime.pipeline.options import CallOptions
from callgate.runtime.testing.cancel import Scenario, SweepReport
from callgate.runtime.testing.cancel_modes import Mode
from callgate.runtime.testing.model.requests import ModelRequest
from callgate.runtime.testing.model.script import ScriptItem, TurnParts
from callgate.runtime.testing.model.scripted import ScriptedModel
from callgate.runtime.testing.trace import Trace
from callgate.runtime.testing.virtual_time import Stepping
from callgate.tools.arguments.hydration import HydrationResult
from callgate.tools.calls import ToolCall, User


class EveryCancelPoint(Protocol):
    """The fixture ``every_cancel_point``; see the function of that name."""

    def __call__(
        self,
        scenario: Scenario,
        modes: Sequence[type[Mode]] | None = ...,
        *,
        deadline: bool = ...,
        paired: Sequence[type[Mode]] | None = ...,
        pairs: int | None = ...,
        stop_after: int = ...,
        loop: Callable[[], Stepping] = ...,
    ) -> SweepReport:
        """Cancel *scenario* at each point, and record the number of points with the test."""
        ...


class OpenScriptedModel(Protocol):
    """The fixture ``scripted_model``; see ``ScriptedModel``."""

    def __call__(
        self, script: Sequence[ScriptItem] | Callable[[ModelRequest], TurnParts], *, repeat: bool = ...
    ) -> ScriptedModel:
        """Open a scripted model until the test ends."""
        ...


class TraceCall(Protocol):
    """The fixture ``callgate_trace``; see ``trace``."""

    async def __call__(
        self,
        gate: Gate,
        call: ToolCall | HydrationResult | object,
        arguments: Mapping[str, object] | str | None = ...,
        *,
        user: User = ...,
        as_text: bool = ...,
        **options: Unpack[CallOptions],
    ) -> Trace:
        """Trace one call, and show the trace with the test if it fails."""
        ...
