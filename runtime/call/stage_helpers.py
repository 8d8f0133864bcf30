"""Two stages run by hand: what the documents export beside ``invoke_tool`` (contract 95).

Their hooks are called exactly as a plan calls them. They get the powers of the stage in which the context stands, and
no others: nobody binds, leases or sets through a helper what may not be bound, leased or set there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from callgate.errors import HookError
from callgate.hooks.context import InvokeContext
from callgate.hooks.guards import surrounded
from callgate.hooks.selection import Registration, collect_hooks_for_stage, register, sort_for_stage, why_not
from callgate.hooks.stages import Stage
from callgate.hooks.step import ASYNC, SYNC, Compiled, Step
from callgate.runtime.call.around import nested
from callgate.runtime.call.invoke import walk

__all__ = ["will_bind_providers_stage", "wrap_with_around"]


def wrap_with_around(
    hooks: Iterable[Any], ctx: InvokeContext, execute: Callable[[], Awaitable[Any]]
) -> Callable[[], Awaitable[Any]]:
    """*execute*, an async function without parameters, inside the ``around_execute`` of *hooks* (contract 93, 95).

    *hooks* are objects or classes, for instance those that ``collect_hooks_for_stage`` gives; higher priority is
    further out, and a class becomes its instance of the invocation. Call and await what this returns: it gives what
    the outermost hook returns, and leaves ``ctx.output`` alone.

    Raises:
        HookError: a hook has no ``around_execute``, or is refused.
    """
    stage = Stage.AROUND_EXECUTE
    chosen = [one for one in _registered(stage, hooks) if why_not(one, ctx.tool) is None]

    async def wrapped() -> Any:
        here = _standing(ctx, stage)

        async def inner(_: Any) -> Any:
            ctx.step = here
            return await execute()

        try:
            return await nested(zip(_compiled(stage, chosen, ctx, here), chosen, strict=True), inner)(ctx)
        finally:
            ctx.step = here

    return wrapped


async def will_bind_providers_stage(
    tool: Any,
    ctx: InvokeContext,
    resolve: Callable[[Any], Any],
    global_hooks_by_stage: Mapping[Any, Sequence[Any]] | None = None,
) -> None:
    """Let the hooks of ``will_bind_providers`` bind, through *ctx* or by what they return (contract 89, 95).

    The hooks are those of ``collect_hooks_for_stage``, with the same arguments.

    Raises:
        HookError: a hook is refused.
        StageError: the context stands in a stage that may not bind.
        TypeError: a hook returned what binds nothing.
    """
    stage = Stage.WILL_BIND_PROVIDERS
    chosen = _registered(stage, collect_hooks_for_stage(stage, tool, resolve, global_hooks_by_stage))
    here = _standing(ctx, stage)
    try:
        await walk(ctx, tuple(_compiled(stage, chosen, ctx, here)))
    finally:
        ctx.step = here


def _registered(stage: Stage, hooks: Iterable[Any]) -> list[Registration]:
    made = sort_for_stage(stage, [register(hook, "by hand") for hook in hooks])
    for one in made:
        if stage not in one.all_stages():
            raise HookError(f"{one.name} has no {stage}; it would never run")
    return made


def _standing(ctx: InvokeContext, stage: Stage) -> Step:
    """Where the context stands; a context that nothing has run yet stands at the stage itself."""
    return getattr(ctx, "step", None) or Step(stage, "callgate")


def _compiled(stage: Stage, chosen: Iterable[Registration], ctx: InvokeContext, here: Step) -> Iterable[Compiled]:
    row = replace(here.row, may=frozenset()) if here.shadow else here.row
    for one in chosen:
        coroutine, call, step = surrounded(one, stage, trace=ctx.trace is not None)
        step.row = row
        yield ASYNC if coroutine else SYNC, call, step
