"""Instances of hook classes: a class that is registered as a hook is made once in each call."""

from __future__ import annotations

from typing import Any

from callgate.errors import HookError
from callgate.hooks.base import stages_of
from callgate.hooks.context import InvokeContext


def instance_of(ctx: InvokeContext, cls: Any) -> Any:
    """Return the instance of a hook class in an invocation."""
    if ctx.run.hooks is None:
        ctx.run.hooks = {}
    found = ctx.run.hooks.get(cls)
    if found is None:
        supply = ctx.run.plan.supplies.get(cls)
        made = _resolved(ctx.run.plan.host.resolve(cls), cls) if supply is None else cls(**supply.take(ctx))
        found = ctx.run.hooks[cls] = made
    return found


def _resolved(made: object, cls: type) -> object:
    """Return what ``resolve`` made; it may be an object of another class with the same stages.

    Raises:
        HookError: it lacks a stage of the class. No hook of the call would run.
    """
    if isinstance(made, cls) or all(callable(getattr(made, stage.value, None)) for stage in stages_of(cls)):
        return made
    raise HookError(
        f"resolve({cls.__name__}) returned {type(made).__name__}, which has not the stages of {cls.__name__}; it makes an "
        "object of the class: resolve=lambda cls: cls()"
    )


async def instance_made(ctx: InvokeContext, cls: Any) -> Any:
    """Return the instance of a hook class whose constructor has asynchronous dependencies."""
    supply = ctx.run.plan.supplies.get(cls)
    if supply is not None and (ctx.run.hooks is None or cls not in ctx.run.hooks):
        made = cls(**await supply.get(ctx))
        ctx.run.hooks = {**(ctx.run.hooks or {}), cls: made}
    return instance_of(ctx, cls)
