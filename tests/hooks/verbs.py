"""Everything that a hook may do to an invocation, by name."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from callgate import InvokeContext, ToolError
from callgate.hooks.stages import May
from callgate.runtime.pipeline import deadlines
from tests.hooks.making import Act


class Lease:
    """An async context manager that notes when it is entered and left."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    async def __aenter__(self) -> Self:
        self.log.append("taken")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.log.append("given back")


def _set(name: str, value: Any) -> Act:
    def act(ctx: InvokeContext) -> None:
        setattr(ctx, name, value)

    return act


def _raise(error: type[Exception]) -> Act:
    def act(ctx: InvokeContext) -> None:
        raise error("raised by a hook")

    return act


async def _lease(ctx: InvokeContext) -> None:
    await ctx.lease(Lease(ctx.data["log"]))


async def outlast(ctx: InvokeContext | None = None) -> None:
    """Let the deadline of the call that this task runs pass, and wait for more."""
    table = deadlines._TABLES[asyncio.get_running_loop()]
    (alarm,) = [alarm for alarm in table.live if alarm.task is asyncio.current_task()]
    alarm.disarm()
    alarm.fire()
    await asyncio.Event().wait()


VERBS: dict[str, Act] = {
    "respond": lambda ctx: ctx.respond(99),
    "respond wrongly": lambda ctx: ctx.respond("no number"),
    "respond unchecked": lambda ctx: ctx.respond("prove who you are", validate=False),
    "abort": lambda ctx: ctx.abort("no"),
    "retry_after": lambda ctx: ctx.retry_after(500, "busy"),
    "suspend": lambda ctx: ctx.suspend("approval", "May it?"),
    "raise ValueError": _raise(ValueError),
    "raise ToolError": _raise(ToolError),
    "return False": lambda ctx: False,
    "set input": _set("input", {"n": 5}),
    "set output": _set("output", 77),
    "set masked_input": _set("masked_input", "***"),
    "bind_provider": lambda ctx: ctx.bind_provider("colour", "red"),
    "lease": _lease,
}
"""``lease`` finds its log in ``ctx.data`` and must be awaited."""

OUTLAST, NOTHING = "outlast the deadline", "do nothing"
DOES: dict[str, Act] = {**VERBS, OUTLAST: outlast, NOTHING: lambda ctx: None}
"""The first must be awaited, in a call with a deadline, and before its closing."""

POWER: dict[str, May] = {
    "respond": May.RESPOND,
    "respond wrongly": May.RESPOND,
    "respond unchecked": May.RESPOND,
    "abort": May.ABORT,
    "retry_after": May.ABORT,
    "suspend": May.SUSPEND,
    "set input": May.INPUT,
    "set output": May.OUTPUT,
    "set masked_input": May.MASK,
    "bind_provider": May.BIND,
    "lease": May.LEASE,
}
"""What the stage table calls each verb; the others need no permission."""
