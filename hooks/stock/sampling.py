"""A hook for a share of calls, so that a new policy can be let loose bit by bit."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Literal, TypeVar

from callgate.errors import HookError
from callgate.hooks.base import FunctionHook, Hook, name_of
from callgate.hooks.context import InvokeContext

H = TypeVar("H")

_PARTS = 1_000_000


def sampled(hook: H, percent: float, *, by: Literal["user", "call"] | Callable[[InvokeContext], str] = "user") -> H:
    """*hook*, for *percent* of 100 users or calls: a copy of it with a filter. Who is in is decided by a hash.

    The same user (of the same tenant), or request id, is in at every stage, in every process, after every restart; who is
    in at 10 percent is in at 20. Hooks of another name draw others. A hook that guards the tool guards it for its share
    only: use it on policies that come on top of others, or on ones in shadow mode.

    Raises:
        HookError: no percentage, or nothing to draw by.
    """
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
        raise HookError(f"sampled({name_of(hook)}): {percent!r} is no percentage; give a number from 0 to 100")
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


def _filter_of(hook: Any) -> Any:
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
    """The filter of a hook class, which is asked of its instance in each invocation."""
    inner = cls.filter is not Hook.filter

    def filter(ctx: InvokeContext) -> Any:
        return drawn(ctx) and (not inner or ctx.hook(cls).filter(ctx))

    return filter
