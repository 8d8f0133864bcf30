"""The values of a history as they are kept, and their entries."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, Protocol

from callgate.hooks.stages import Stage
from callgate.hooks.state.step import PlanStep
from callgate.tools.values import SCALARS, canonical


class Entry(NamedTuple):
    """One value of the input or the output.

    ``at`` is in seconds on the gate's monotonic clock. ``stage`` and ``by`` name the stage and the step that set it: a
    hook, ``"tool"`` or a built-in step; for the caller's arguments they are None and ``"caller"``.
    """

    at: float
    stage: Stage | None
    value: Any
    by: str


class _Clock(Protocol):
    def now(self) -> float: ...


class _Clocked(Protocol):
    """The part of ``Run`` that dates a value."""

    step: PlanStep

    @property
    def plan(self) -> _Clock: ...


class Kept(NamedTuple):
    """One value of a history, which the run alone holds."""

    at: float
    step: PlanStep
    kept: Any

    def entry(self) -> Entry:
        """Return an entry with a fresh copy of the value."""
        return Entry(self.at, self.step.stage, self.value(), self.step.name)

    def value(self) -> Any:
        """Return a fresh copy of the value."""
        return snapshot(self.kept)


def kept_own(run: _Clocked, value: object) -> Kept:
    """Keep a value that the run alone holds; it needs no snapshot."""
    return Kept(run.plan.now(), run.step, value)


def snapshot(value: object) -> object:
    """Return a copy of a value, or the value itself if it cannot be copied."""
    if value.__class__ in SCALARS:
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  (a value that cannot be copied is kept itself)
        return value


def without_repeats(entries: list[Entry]) -> tuple[Entry, ...]:
    """Return the entries without those that equal the one before."""
    kept = entries[:1]
    for entry in entries[1:]:
        if not _same(entry.value, kept[-1].value):
            kept.append(entry)
    return tuple(kept)


def _same(one: object, other: object) -> bool:
    """Compare as JSON: ``1`` and ``True`` differ."""
    try:
        return canonical(one) == canonical(other)
    except (TypeError, ValueError):
        return type(one) is type(other) and bool(one == other)
