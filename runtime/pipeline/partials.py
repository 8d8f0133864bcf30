"""Parts of an output, as ``ctx.send`` and streaming tools emit them."""

from __future__ import annotations

import asyncio

from callgate.errors import ControlRespond, InvocationError
from callgate.hooks.context import InvokeContext
from callgate.runtime.pipeline.failure import crashed
from callgate.runtime.pipeline.guards import closes
from callgate.runtime.pipeline.run import follows, walk
from callgate.runtime.pipeline.shadow import PartialContext


async def shaped(ctx: InvokeContext, partial: object) -> object:
    """Return a part after the hooks that redact, validate and transform outputs; the call itself does not change.

    Raises:
        Invalid: the part is not JSON, or the parts of this attempt are too large together.
        Exception: a hook refuses the part.
    """
    part, task = PartialContext(ctx), asyncio.current_task()
    try:
        part.run.put_output(partial)
        await _shape(part)
        ctx.run.sent = ctx.run.plan.builtins.measure(part.run.output, ctx.run.sent)
    except InvocationError as error:
        error.no_effect = False  # that is for the tool to say
        raise
    except (GeneratorExit, KeyboardInterrupt, SystemExit) as error:  # in a task of the tool it would stop the loop
        if closes(error, task):
            raise
        raise crashed(part, error) from error
    return part.run.output


async def _shape(part: PartialContext) -> None:
    plan = part.run.plan
    steps = plan.partial_shaping
    while steps:
        try:
            await walk(part, steps)
            break
        except ControlRespond as response:
            stopped = part.run.step
            part.run.put_output(response.value)
            steps = tuple(one for one in plan.partial_shaping if follows(one[2], stopped))
