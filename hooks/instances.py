"""Instances of hook classes in an invocation: one per class, made on first use."""

from __future__ import annotations

from typing import Any

from callgate.hooks.context import InvokeContext


def instance_of(ctx: InvokeContext, cls: Any) -> Any:
    """Return the instance of a hook class in an invocation."""
    if ctx.run.hooks is None:
        ctx.run.hooks = {}
    found = ctx.run.hooks.get(cls)
    if found is None:
        supply = ctx.run.plan.supplies.get(cls)
        found = ctx.run.hooks[cls] = ctx.run.plan.resolve(cls) if supply is None else cls(**supply.take(ctx))
    return found


async def instance_made(ctx: InvokeContext, cls: Any) -> Any:
    """Return the instance of a hook class whose constructor has asynchronous dependencies."""
    supply = ctx.run.plan.supplies.get(cls)
    if supply is not None and (ctx.run.hooks is None or cls not in ctx.run.hooks):
        made = cls(**await supply.get(ctx))
        ctx.run.hooks = {**(ctx.run.hooks or {}), cls: made}
    return instance_of(ctx, cls)
