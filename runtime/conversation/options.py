"""The options of a conversation, with their defaults and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from typing import Any

from callgate.providers.kinds import check_fields, fault_of_kind
from callgate.runtime.conversation.provider_items import Decide
from callgate.runtime.gate.placement import RunOn
from callgate.tools.arguments.hydration import Repairer
from callgate.tools.calls import ToolResult, User
from callgate.tools.execution import TaskIds
from callgate.tools.limits import fault_of_seconds
from callgate.tools.naming import did_you_mean


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """``ConverseOptions`` with defaults."""

    user: User | None = None
    session_id: str | None = None
    task: TaskIds | None = None
    tools: Sequence[str] | AbstractSet[str] | None = None
    max_rounds: int = 16
    max_calls: int = 64
    max_failures: int = 8
    max_tokens: int | None = None
    deadline: float | None = None
    max_result_bytes: int = 65_536
    at_once: int = 16
    run_on: RunOn | None = None
    repair: Repairer | None = None
    stream: bool = False
    retry_cut: bool = False
    decide: Decide | None = None
    resume: Mapping[str, object] | None = None
    results: Mapping[str, ToolResult] = field(default_factory=dict[str, ToolResult])

    def __post_init__(self) -> None:
        if fault_of_kind(self.tools, Sequence[str] | AbstractSet[str] | None) is not None:
            raise TypeError('tools takes names of tools in a list, such as tools=["find_book"]')
        check_fields(self, TypeError, skip=("user", "tools", "deadline", "resume", "results"), where="converse")
        limits = ("max_rounds", "max_calls", "max_failures", "max_tokens", "max_result_bytes", "at_once")
        for name in limits:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value!r}; give more than 0")
        if (fault := fault_of_seconds(self.deadline)) is not None:
            raise ValueError(f"deadline {fault}")
        if not isinstance(self.results, Mapping):
            raise TypeError(
                f"results is of type {type(self.results).__name__}; write results={{result.call_id: result}}"
            )
        if self.results and self.resume is None:
            raise ValueError("results are those of a suspended conversation: give its state as resume=")


def loop_options(given: Mapping[str, Any]) -> LoopOptions:
    """Return the options of a conversation.

    Raises:
        TypeError: an option is unknown; the message names the nearest.
        ValueError: a value is invalid.
    """
    known = {one.name for one in fields(LoopOptions)}
    for name in given:
        if name not in known:
            raise TypeError(f"converse() has no option {name!r}{did_you_mean(name, known)}")
    return LoopOptions(**given)
