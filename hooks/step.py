"""One step of a plan, and the kinds of step that the lifecycle tells apart."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any, TypeAlias

from callgate.hooks.stages import STAGES, Row, Stage

SYNC, ASYNC, SYNC_LEASE, ASYNC_LEASE, QUICK_LEASE, QUICK = range(6)
"""Kinds of step: how the lifecycle calls it. Lease kinds put ``step.release`` on the ledger when they return; a quick
step is a coroutine that never waits, so nobody can cancel it half-way and nothing has to carry it."""

Compiled: TypeAlias = tuple[int, Callable[..., Any], "Step"]


class Step:
    """Where the lifecycle is: one hook in one stage, or the runtime itself (``hook`` is None)."""

    __slots__ = ("hook", "name", "release", "row", "shadow", "stage")

    def __init__(self, stage: Stage, name: str, hook: Any = None, *, shadow: bool = False) -> None:
        self.stage = stage
        self.row: Row = STAGES[stage]
        self.name = name
        self.hook = hook
        self.shadow = shadow
        self.release: Compiled | None = None

    def __repr__(self) -> str:
        return f"<{self.stage} {self.name}>"


def is_silent(function: Any) -> bool:
    """Whether a function can be seen to return nothing but None; False when that cannot be told."""
    code = getattr(function, "__code__", None)
    return code is not None and _returns_none(code)


@lru_cache(maxsize=8192)
def _returns_none(code: CodeType) -> bool:
    return all(
        (op.argval if op.opname == "RETURN_CONST" else before.argval if before.opname == "LOAD_CONST" else code) is None
        for before, op in pairwise(dis.get_instructions(code))
        if op.opname in ("RETURN_VALUE", "RETURN_CONST")
    )


_WAITING = frozenset(
    dis.opmap[name]
    for name in ("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "SEND", "YIELD_VALUE")
    if name in dis.opmap
)


def never_waits(function: Any) -> bool:
    """Whether an ``async def`` function can be seen to hold no ``await``; False when that cannot be told."""
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_flags & inspect.CO_COROUTINE) and _WAITING.isdisjoint(code.co_code[::2])
