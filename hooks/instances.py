"""Hook classes in an invocation: one instance of each, made when it is first needed (contract C1f)."""

from __future__ import annotations

from typing import Any


def instance_of(ctx: Any, cls: Any) -> Any:
    """The instance of a hook class in an invocation."""
    if ctx._hooks is None:
        ctx._hooks = {}
    found = ctx._hooks.get(cls)
    if found is None:
        supply = ctx.plan.supplies.get(cls)
        found = ctx._hooks[cls] = ctx.plan.resolve(cls) if supply is None else cls(**supply.take(ctx))
    return found


async def instance_made(ctx: Any, cls: Any) -> Any:
    """``instance_of``, for a class whose constructor has dependencies that are made asynchronously."""
    supply = ctx.plan.supplies.get(cls)
    if supply is not None and (ctx._hooks is None or cls not in ctx._hooks):
        made = cls(**await supply.get(ctx))
        ctx._hooks = {**(ctx._hooks or {}), cls: made}
    return instance_of(ctx, cls)
