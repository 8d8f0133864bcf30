"""A cache by function or class that keeps neither alive: gates, hooks and tools come and go in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

K = TypeVar("K")
P = ParamSpec("P")
R = TypeVar("R")


def remembered(compute: Callable[Concatenate[K, P], R]) -> Callable[Concatenate[K, P], R]:
    """Cache *compute* by its first argument, a function or a class, for as long as that lives.

    A bound method counts as its function. Other objects are not cached.
    """
    kept: WeakKeyDictionary[object, dict[object, R]] = WeakKeyDictionary()

    @wraps(compute)
    def cached(asked: K, /, *rest: P.args, **named: P.kwargs) -> R:
        key = getattr(asked, "__func__", asked)
        if not isinstance(key, FunctionType | type):
            return compute(asked, *rest, **named)
        known, more = kept.setdefault(key, {}), (rest, *named.items())
        if more not in known:
            known[more] = compute(asked, *rest, **named)
        return known[more]

    return cached
