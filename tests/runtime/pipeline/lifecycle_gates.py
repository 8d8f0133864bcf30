"""The gates that the cells of the stage matrix run on, and what is seen of a call there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from callgate import Gate, Hook, Invalid, InvokeContext, Options, Stage, ToolCall, ToolResult
from tests.hooks.making import USER, Act, acting, record
from tests.hooks.verbs import DOES, outlast
from tests.runtime.pipeline.lifecycle_cases import ATTEMPTS, NEIGHBOURS, Cell, Flaky

# ---------------------------------------------------------------------- the real thing


class Retrying(Hook):
    """Innermost wrapper: tries again when the tool was flaky."""

    priority = -100
    repeats = True

    async def around_execute(self, ctx: InvokeContext, next: Callable[[], Any]) -> Any:
        for _ in range(ATTEMPTS - 1):
            try:
                return await next()
            except Flaky:
                continue
        return await next()


@dataclass
class Journal:
    """What happened in a cell."""

    trail: list[Any] = field(default_factory=list)
    ran_with: list[int] = field(default_factory=list)
    ctx: InvokeContext | None = None


JOURNALS: dict[str, Journal] = defaultdict(Journal)
"""By tool: of each one call is tried at a time."""


@cache
def neighbour(stages: frozenset[Stage], is_async: bool) -> type[Hook]:
    """Notes the stages it has; holds a lease from both acquire stages."""

    def note(stage: Stage) -> Act:
        def act(ctx: InvokeContext) -> None:
            journal = JOURNALS[ctx.tool_id]
            journal.trail.append(stage)
            journal.ctx = ctx

        return act

    return acting({stage: note(stage) for stage in stages}, is_async=is_async, name="Neighbour")


@cache
def meddler(stage: Stage, verb: str, is_async: bool, first: bool) -> type[Hook]:
    """Does the verb in the stage; elsewhere it does not exist."""

    def act(ctx: InvokeContext) -> Any:
        ctx.data["log"] = JOURNALS[ctx.tool_id].trail
        return DOES[verb](ctx)

    priority = 10 if first else -10
    if (stage, verb) == (Stage.AROUND_EXECUTE, "set output"):

        class Late(Hook):
            async def around_execute(self, ctx: InvokeContext, next: Callable[[], Any]) -> Any:
                await next()
                act(ctx)
                return ctx.output

        Late.priority = priority
        return Late
    return acting({stage: act}, is_async=is_async, priority=priority, name="Meddler")


class Cache(Hook):
    """Looks, after everybody else, and has it or not."""

    priority = -50

    def __init__(self, hit: bool) -> None:
        self.hit = hit

    def will_read_cache(self, ctx: InvokeContext) -> None:
        if self.hit:
            ctx.respond(50)


def body_of(cell: Cell, tool: str) -> Callable[..., Any]:
    """What the tool does."""

    async def execute(n: int) -> int:
        ran_with = JOURNALS[tool].ran_with
        ran_with.append(n)
        if cell.scenario.overruns:
            await outlast()
        if len(ran_with) <= cell.scenario.failures:
            raise Flaky
        return 2 * n

    return execute


def others(cell: Cell) -> list[Any]:
    """The hooks beside the one that meddles."""
    hooks: list[Any] = [neighbour(NEIGHBOURS[cell.neighbour], not cell.is_async)(), Cache(cell.scenario.hit)]
    return [*hooks, Retrying] if cell.scenario.retries else hooks


def put_together(cell: Cell) -> Gate:
    """A gate with the tool, the neighbour, the cache, the retrying hook, and the meddler where the cell says."""
    hooks = others(cell)
    made = meddler(cell.stage, cell.verb, cell.is_async, cell.first)
    hook = made if cell.where.endswith("class") else made()
    options: dict[str, Any] = {}
    if cell.where.startswith("tool"):
        options = {"hooks_by_stage": {cell.stage: [hook]}} if cell.where == "tool by stage" else {"hooks": [hook]}
    elif cell.where in {"gate object", "gate class"}:
        hooks.append(hook)
    elif cell.where == "gate by stage":
        hooks.append({cell.stage.value: [hook]})
    tool = record(body_of(cell, "double"), **options)
    gate = Gate([tool], hooks, allow_unguarded=True, options=Options(lazy=True))
    if cell.where == "gate use":
        gate.use(hook, tags={"maths"})
    return gate


def cause_of(error: BaseException | None) -> type[BaseException] | None:
    """The cause, unless it is a validator's own business."""
    return None if error is None or error.__cause__ is None or isinstance(error, Invalid) else type(error.__cause__)


async def observed(cell: Cell) -> dict[str, Any]:
    JOURNALS.clear()
    async with put_together(cell) as gate:
        result = await gate.call(
            ToolCall(id="c1", name="double", arguments={"n": 2}), user=USER, deadline=cell.deadline
        )
    return seen(JOURNALS["double"], result)


def seen(journal: Journal, result: ToolResult) -> dict[str, Any]:
    """What happened in a call: what ``Model.expected`` foretells."""
    ctx = journal.ctx
    assert ctx is not None
    assert result.ok is (ctx.error is None)
    assert (result.error is None) is result.ok
    return {
        "outcome": result.outcome,
        "output": result.output,
        "error": None if ctx.error is None else type(ctx.error),
        "cause": cause_of(ctx.error),
        "trail": journal.trail,
        "tool ran with": journal.ran_with,
        "suppressed": len(ctx.suppressed),
        "bound": ctx.try_get("colour") == "red",
        "masked": ctx.masked_input == "***",
    }
