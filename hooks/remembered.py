"""A cache by function or class that keeps neither alive: gates, hooks and tools come and go in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

P = ParamSpec("P")
R = TypeVar("R")


def remembered(compute: Callable[P, R]) -> Callable[P, R]:
    """Cache *compute* by its first argument, a function or a class, for as long as that lives.

    A bound method counts as its function. Other objects are not cached.
    """
    kept: WeakKeyDictionary[Any, dict[Any, R]] = WeakKeyDictionary()

    @wraps(compute)
    def cached(*args: P.args, **_: P.kwargs) -> R:
        asked, *rest = args
        key = getattr(asked, "__func__", asked)
        if not isinstance(key, FunctionType | type):
            return compute(*args)
        known, others = kept.setdefault(key, {}), tuple(rest)
        if others not in known:
            known[others] = compute(*args)
        return known[others]

    return cached
