"""Facts that an invocation keeps: the state of its input, its suspension, and recorded failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from callgate.hooks.stages import Stage
from callgate.tools.approval import Approval
from callgate.tools.definition import NoSchemaMode

LIVE, RAW, FROZEN = range(3)
"""States of the input: parsed, raw, frozen. LIVE is 0 because most reads test for it."""


@dataclass(frozen=True, slots=True)
class Suspension:
    """The suspension of an invocation, as ``result.pending`` returns it.

    ``prompt`` is the text for the approver, ``schema`` describes the answer, and ``expires`` is in seconds from the
    suspension. ``handle`` is the argument of ``gate.resume``; it is None until the suspension is stored.
    ``rules`` name the users who may answer; without rules, the caller may. ``place`` is the point of the lifecycle.
    """

    kind: str
    prompt: str
    schema: Mapping[str, Any] | None = None
    expires: float | None = None
    handle: str | None = None
    rules: tuple[Approval, ...] = ()
    place: str = ""


OnRepair: TypeAlias = Literal["approve", "run", "refuse"]
"""What a gate does with a call whose arguments a repairer wrote: ask for approval, run it, or refuse it."""


class NoSchemaVerdict(NamedTuple):
    """The mode that holds for a call of a tool without a schema, and the rule for its approval."""

    mode: NoSchemaMode | None
    approval: Approval | None = None


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A failure that was recorded and did not change the outcome."""

    stage: Stage
    hook: str
    error: BaseException
