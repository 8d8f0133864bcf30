"""Two stages as functions, exported beside ``invoke_tool``.

Their hooks run exactly as in a plan. They have only the powers of the context's current stage. A helper therefore
cannot bind, lease or set more than that stage allows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from callgate.errors import HookError
from callgate.hooks.context import InvokeContext
from callgate.hooks.selection import Registration, collect_hooks_for_stage, register, sort_for_stage, why_not
from callgate.hooks.stages import Stage
from callgate.hooks.state.step import PlanStep, StepCall, plan_step
from callgate.runtime.pipeline.around import nested
from callgate.runtime.pipeline.guards import guarded_step
from callgate.runtime.pipeline.run import walk

__all__ = ["will_bind_providers_stage", "wrap_with_around"]


def wrap_with_around(
    hooks: Iterable[object], ctx: InvokeContext, execute: Callable[[], Awaitable[object]]
) -> Callable[[], Awaitable[object]]:
    """Wrap *execute*, an async function without parameters, in the ``around_execute`` of *hooks*.

    *hooks* are objects or classes, for instance from ``collect_hooks_for_stage``. Higher priority is further out, and a
    class becomes its instance of the invocation. Call and await the returned function. It returns the result of the
    outermost hook, and does not change ``ctx.output``.

    Raises:
        HookError: a hook has no ``around_execute``, or is refused.
    """
    stage = Stage.AROUND_EXECUTE
    chosen = [one for one in _registered(stage, hooks) if why_not(one, ctx.tool) is None]

    async def wrapped() -> object:
        here = _standing(ctx, stage)

        async def inner(_: object) -> object:
            ctx.run.step = here
            return await execute()

        try:
            return await nested(zip(_compiled(stage, chosen, ctx, here), chosen, strict=True), inner)(ctx)
        finally:
            ctx.run.step = here

    return wrapped


async def will_bind_providers_stage(
    tool: object,
    ctx: InvokeContext,
    resolve: Callable[[Any], object],
    global_hooks_by_stage: Mapping[Any, Sequence[object]] | None = None,
) -> None:
    """Run the hooks of ``will_bind_providers``, which bind through *ctx* or by their return values.

    The hooks are those of ``collect_hooks_for_stage``, with the same arguments.

    Raises:
        HookError: a hook is refused.
        StageError: the context is in a stage that may not bind.
        TypeError: a hook returned a value that is not a binding.
    """
    stage = Stage.WILL_BIND_PROVIDERS
    chosen = _registered(stage, collect_hooks_for_stage(stage, tool, resolve, global_hooks_by_stage))
    here = _standing(ctx, stage)
    try:
        await walk(ctx, tuple(_compiled(stage, chosen, ctx, here)))
    finally:
        ctx.run.step = here


def _registered(stage: Stage, hooks: Iterable[object]) -> list[Registration]:
    made = sort_for_stage(stage, [register(hook, "by hand") for hook in {id(one): one for one in hooks}.values()])
    for one in made:
        if stage not in one.all_stages():
            raise HookError(f"{one.name} has no {stage}; it would never run")
    return made


def _standing(ctx: InvokeContext, stage: Stage) -> PlanStep:
    """Return the current step of the context; a context that has not run yet gets a step of *stage*."""
    return getattr(ctx.run, "step", None) or plan_step(stage, "callgate")


def _compiled(stage: Stage, chosen: Iterable[Registration], ctx: InvokeContext, here: PlanStep) -> Iterable[StepCall]:
    row = replace(here.row, may=frozenset()) if here.shadow else here.row
    for one in chosen:
        yield guarded_step(one, stage, trace=ctx.run.trace is not None, row=row)
