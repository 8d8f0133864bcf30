"""One step of a plan, and the kinds of step that the lifecycle distinguishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from callgate.hooks.stages import STAGES, Row, Stage

SYNC, ASYNC, SYNC_LEASE, ASYNC_LEASE = range(4)
"""Kinds of step: how the lifecycle calls it. Lease kinds record ``step.release`` on the ledger if they return None."""

Compiled: TypeAlias = tuple[int, Callable[..., Any], "Step"]


class Step:
    """The current position in the lifecycle: one hook in one stage, or the runtime itself (``hook`` is None)."""

    __slots__ = ("hook", "name", "release", "row", "shadow", "stage", "stays", "waits")

    def __init__(self, stage: Stage, name: str, hook: object = None, *, shadow: bool = False) -> None:
        self.stage = stage
        self.row: Row = STAGES[stage]
        self.name = name
        self.hook = hook
        self.shadow = shadow
        self.release: Compiled | None = None
        self.waits = False  # whether it is a coroutine function, which may wait
        self.stays: bool | None = None  # of a lease: whether its hook has records, which may use it

    def __repr__(self) -> str:
        return f"<{self.stage} {self.name}>"
