"""One step of a plan, and the kinds of step that the lifecycle distinguishes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from callgate.hooks.stages import STAGES, Row, Stage

SYNC, ASYNC, SYNC_LEASE, ASYNC_LEASE = range(4)
"""Kinds of step: how the lifecycle calls it. Lease kinds record ``step.release`` on the ledger if they return None."""

# A tuple, and no object: the lifecycle unpacks one for each step of each call, and three reads of slots cost more.
StepCall: TypeAlias = tuple[int, Callable[..., Any], "PlanStep"]
"""The kind of a step, the function that the lifecycle calls, and the step."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PlanStep:
    """A position in the lifecycle: one hook in one stage, or the runtime itself (``hook`` is None). See ``plan_step``."""

    stage: Stage
    name: str
    hook: object
    shadow: bool
    release: StepCall | None  # gives back what the step takes
    waits: bool  # it is a coroutine function, which may wait
    stays: bool | None  # of a lease: whether its hook has records, which may use it
    row: Row

    def __repr__(self) -> str:
        return f"<{self.stage} {self.name}>"


def plan_step(
    stage: Stage,
    name: str,
    hook: object = None,
    *,
    shadow: bool = False,
    release: StepCall | None = None,
    waits: bool = False,
    stays: bool | None = None,
    row: Row | None = None,
) -> PlanStep:
    """Make a step; *row* are its rights, if they are not those of its stage."""
    # The row is kept with the step: each write to the context reads it, and a look-up by stage costs a hash.
    return PlanStep(stage, name, hook, shadow, release, waits, stays, STAGES[stage] if row is None else row)


@lru_cache(1024)  # each call takes the leases of the same hooks again
def lease_step(stage: Stage, name: str, stays: bool) -> PlanStep:
    """Return the step of a lease that a hook takes; *stays* as in ``PlanStep``."""
    return plan_step(stage, f"lease of {name}", stays=stays)
