"""The roundabout: ``around_execute`` hooks nested about the attempt, composed once, at registration (contract 93, C21)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from callgate.errors import StageError
from callgate.hooks.guards import applies_to
from callgate.hooks.plan import Plan
from callgate.hooks.step import Compiled

Inner: TypeAlias = Callable[[Any], Awaitable[Any]]


def wrap_with_around(plan: Plan, arounds: Sequence[Compiled], attempt: Inner) -> Inner:
    """The attempt inside its wrappers, the first of *arounds* outermost (contract 95)."""
    inner = attempt
    by_hook = {id(one.hook): one for one in plan.registrations}
    for _, call, step in reversed(arounds):
        inner = _layer(call, step, inner, by_hook[id(step.hook)])
    return _outermost(inner)


def _layer(call: Callable[..., Any], step: Any, inner: Inner, registration: Any) -> Inner:
    applies = applies_to(registration)
    repeats = bool(registration.option("repeats", False))
    limit = registration.option("timeout")
    ignores = registration.option("on_failure", "deny") == "ignore"

    async def layer(ctx: Any) -> Any:
        if applies is not None and not await applies(ctx):
            return await inner(ctx)
        state = "new"

        async def proceed() -> Any:
            nonlocal state
            if state == "running":
                raise StageError(f"{step.name} called next() while its first call was still running")
            if state == "done" and not repeats:
                raise StageError(f"{step.name} called next() twice; a hook that retries declares repeats = True")
            state = "running"
            try:
                return await inner(ctx)
            finally:
                state = "done"
                ctx.step = step

        ctx.step = step
        async with asyncio.timeout(limit):
            try:
                return await call(ctx, proceed)
            except Exception as error:
                if not ignores or state != "new":
                    raise
                ctx.suppress(error)
        return await inner(ctx)

    return layer


def _outermost(inner: Inner) -> Inner:
    async def execute(ctx: Any) -> Any:
        output = await inner(ctx)
        if output is not ctx._output:
            ctx._output = output
        return output

    return execute
