"""Gradual rollout: ``sampled`` limits a hook to a percentage of users or calls."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Literal, TypeVar

from callgate.errors import HookError
from callgate.hooks.base import FunctionHook, Hook, name_of
from callgate.hooks.context import InvokeContext
from callgate.hooks.instances import instance_of

H = TypeVar("H")

_PARTS = 1_000_000


def sampled(hook: H, percent: float, *, by: Literal["user", "call"] | Callable[[InvokeContext], str] = "user") -> H:
    """Copy a hook and limit the copy to a percentage of users or calls.

    A hash selects them. The selection is the same at every stage, in every process and after every restart, and a user
    who is selected at 10 percent is also selected at 20. Hooks with different names select different users. A sampled
    hook guards only its share of the calls, so use it for an additional policy, or for a hook in shadow mode.

    Args:
        hook: a hook object, a hook class, or a function with ``@on``. It stays unchanged.
        percent: from 0 to 100.
        by: ``"user"`` (within a tenant), ``"call"`` (by request id), or a function from the context to a text.

    Raises:
        HookError: *percent* or *by* has an invalid value.
    """
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
        raise HookError(f"sampled({name_of(hook)}): percent is {percent!r}; give a number from 0 to 100")
    if by not in ("user", "call") and not callable(by):
        raise HookError(f'sampled({name_of(hook)}): by is {by!r}; choose "user" or "call", or give a function of ctx')
    drawn = _drawing(name_of(hook), percent, by)
    inner = _filter_of(hook)

    def filter(ctx: InvokeContext) -> Any:
        return drawn(ctx) and (inner is None or inner(ctx))

    made: H = _subclass(hook, drawn) if inspect.isclass(hook) else _clone(hook, filter)
    return made


def _subclass(hook: type[Any], drawn: Callable[[InvokeContext], bool]) -> Any:
    made: Any = type(hook.__name__, (hook,), {"filter": staticmethod(_of_class(drawn, hook)), "guards": False})
    made.__qualname__, made.__module__ = hook.__qualname__, hook.__module__
    return made


def _clone(hook: Any, filter: Callable[[InvokeContext], Any]) -> Any:
    clone = copy.copy(hook)
    if isinstance(hook, FunctionHook):
        clone.filter, clone.guards = filter, False
        return clone
    cls = type(hook)
    own = {"filter": lambda _, ctx: filter(ctx), "guards": False, "__slots__": ()}
    clone.__class__ = type(cls.__name__, (cls,), own)
    vars(clone).pop("filter", None)
    return clone


def _filter_of(hook: object) -> Any:
    found = getattr(hook, "filter", None)
    return None if found is None or getattr(found, "__func__", found) is Hook.filter else found


def _drawing(name: str, percent: float, by: Any) -> Callable[[InvokeContext], bool]:
    below, salt = round(percent / 100 * _PARTS), blake2b(name.encode(), digest_size=16).digest()

    def drawn(ctx: InvokeContext) -> bool:
        if by == "user":
            key = f"{len(ctx.user.tenant or '')}:{ctx.user.tenant or ''}{ctx.user.id}"
        else:
            key = ctx.request_id if by == "call" else by(ctx)
        mark = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, salt=salt).digest()
        return int.from_bytes(mark, "big") % _PARTS < below

    return drawn


def _of_class(drawn: Callable[[InvokeContext], bool], cls: Any) -> Callable[..., Any]:
    """Filter of a hook class. Each invocation calls the filter of its own instance."""
    inner = cls.filter is not Hook.filter

    def filter(ctx: InvokeContext) -> object:
        return drawn(ctx) and (not inner or instance_of(ctx, cls).filter(ctx))

    return filter
