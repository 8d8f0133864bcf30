"""The matrix of verbs, stages and kinds of calls: what a hook may do depends on the stage table, and on nothing else.

``tests/runtime/pipeline/test_lifecycle_matrix.py`` has what becomes of a call after each verb; here is whether it is let
through, for a result, in a nested call, in a stream, in a job, and for a part of an output.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, Jobs, Outcome, Stage, ToolCall, ToolContext, ToolError
from callgate.errors import Control, Denied, RetryLater, StageError
from callgate.hooks.stages import STAGES, May, Row, Section, stages_in
from callgate.runtime.pipeline.shadow import PartialContext
from tests.harness.gate_options import gate_options
from tests.hooks.making import ANYTHING, DEFINITION, USER, Act, acting, at, record
from tests.hooks.verbs import POWER, VERBS

KINDS = ("result", "nested", "stream", "job", "part")
OUTPUT_STAGES = (Stage.WILL_REDACT_OUTPUT, Stage.WILL_VALIDATE_OUTPUT, Stage.WILL_TRANSFORM_OUTPUT)
LET_THROUGH, ENDS, RECORDED, REPLACES = "is let through", "ends the call", "is recorded", "replaces the error"


async def _call(ctx: InvokeContext) -> None:
    if ctx.depth < 2:
        assert await ctx.call("other", {"n": 1}) == {"n": 1}


NEEDS: dict[str, tuple[May | None, Act]] = {
    **{verb: (POWER[verb], VERBS[verb]) for verb in POWER if verb not in {"respond wrongly", "respond unchecked"}},
    "mask_output": (May.OUTPUT, lambda ctx: ctx.mask_output(78)),
    "bind_providers": (May.BIND, lambda ctx: ctx.bind_providers({"colour": "red"}.items())),
    "bind for the session": (May.BIND, lambda ctx: ctx.bind_provider("colour", "red", "session")),
    "set error": (May.REPLACE_ERROR, lambda ctx: setattr(ctx, "error", ToolError("another"))),
    "resolve": (None, lambda ctx: ctx.resolve("given")),
    "get": (None, lambda ctx: ctx.get("given")),
    "data": (None, lambda ctx: ctx.data.update(mine=1)),
    "session": (None, lambda ctx: ctx.session.update(mine=1)),
    "progress": (None, lambda ctx: ctx.progress(0.5)),
    "send": (None, lambda ctx: ctx.send(5)),
    "call": (None, _call),
}
"""What each verb needs of the stage table, and the verb. The others are let through everywhere."""
STEERS: dict[str, Outcome] = {
    "respond": Outcome.SUCCESS,
    "abort": Outcome.DENIED,
    "retry_after": Outcome.RETRY_LATER,
    "suspend": Outcome.SUSPENDED,
}
"""Verbs that raise, and the outcome of the call that they end."""


class Cell:
    """One verb in one stage of one kind of call, and the answer to it."""

    def __init__(self, verb: str, stage: Stage, kind: str) -> None:
        self.verb, self.stage, self.kind = verb, stage, kind
        self.answer, self.runs = "not reached", 0
        self.over = asyncio.Event()

    async def act(self, ctx: InvokeContext) -> None:
        """Do the verb once; a part of an output is met by a context of its own."""
        if self.answer != "not reached" or (self.kind == "part") is not isinstance(ctx, PartialContext):
            return
        ctx.data["log"] = []
        try:
            answer = NEEDS[self.verb][1](ctx)
            _ = await answer if inspect.isawaitable(answer) else answer
        except StageError as error:
            self.answer = str(error)
        except (Control, Denied, RetryLater):
            self.answer = "raised"
            raise
        else:
            self.answer = LET_THROUGH

    def end(self, ctx: InvokeContext) -> None:
        """See what became of a verb that raised."""
        if self.answer == "raised" and self.kind != "part":
            section = STAGES[self.stage].section
            wanted = STEERS[self.verb]
            if (self.verb, self.kind) == ("suspend", "nested"):
                wanted = Outcome.DENIED  # a call within a call cannot wait
            ended = ctx.outcome is wanted and (self.verb != "respond" or ctx.output == 99)
            changed = REPLACES if section is Section.ERROR else ENDS
            self.answer = changed if ended else RECORDED if ctx.suppressed else "is lost"
        self.over.set()

    async def double(self, n: int, ctx: ToolContext) -> int:
        """Fail as often as the stage needs, and send a part."""
        self.runs += 1
        if (
            self.stage is Stage.ON_ERROR
            or self.stage is Stage.ON_GIVE_UP
            or (self.stage is Stage.ON_RETRY and self.runs == 1)
        ):
            raise ValueError
        if self.kind == "part":
            try:
                await ctx.send(4)
            except (Denied, RetryLater):
                self.answer = ENDS
        return 2 * n

    def hooks(self) -> list[Any]:
        """The hook of the cell, and those that make a call come to its stage."""
        only: dict[str, Any] = {"tools": {"double"}}
        made: list[Any] = [acting({self.stage: self.act}, is_async=True, **only)()]
        hit = self.stage is Stage.DID_CACHE_HIT
        made.append(at(Stage.WILL_READ_CACHE, lambda ctx: ctx.respond(8) if hit else None, priority=-9, **only))
        if self.stage in {Stage.ON_RETRY, Stage.ON_GIVE_UP}:
            made.append(Again())
        return [*made, at(Stage.WILL_FINALIZE_INVOKE, self.end, priority=-1e9, **only)]


class Again(Hook):
    """Tries a failed attempt once more."""

    repeats = True
    tools = frozenset({"double"})

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        try:
            return await next()
        except ValueError:
            return await next()


async def other(**arguments: Any) -> Any:
    return arguments


async def outer(ctx: ToolContext, **_: Any) -> Any:
    return await ctx.call("double", {"n": 2})


async def answer_of(verb: str, stage: Stage, kind: str) -> str:
    """Make a call of a kind in which a hook does the verb in the stage; return the answer to it."""
    cell = Cell(verb, stage, kind)
    tools = [
        record(cell.double, DEFINITION, context_parameter="ctx"),
        record(other, replace(ANYTHING, name="other")),
        record(outer, replace(ANYTHING, name="outer"), context_parameter="ctx"),
    ]
    options = gate_options(lazy=True, job_options=Jobs(max_attempts=1), durable=False)
    async with Gate(tools, cell.hooks(), allow_unguarded=True, provide={"given": int}, **options) as gate:
        call = ToolCall(id="c1", name="outer" if kind == "nested" else "double", arguments={"n": 2})
        match kind:
            case "result" | "nested":
                await gate.call(call, user=USER)
            case "stream" | "part":
                async for _ in gate.stream(call, user=USER):
                    pass
            case _:
                await gate.submit(call, user=USER)
                await asyncio.wait_for(cell.over.wait(), 60)
    return LET_THROUGH if cell.answer == "raised" and kind == "part" else cell.answer


def expected(verb: str, row: Row, kind: str) -> str | set[str]:
    """Return the answer that the table foretells; for a refusal, the stages that its text names."""
    power = NEEDS[verb][0]
    if power is None:
        return LET_THROUGH
    if power in row.may:
        replaced = kind == "part" and verb == "respond"  # the response takes the place of the part
        return ENDS if verb in STEERS and not replaced else LET_THROUGH
    if verb in {"respond", "abort", "retry_after"}:  # where the call has ended: raising is all that they do
        return REPLACES if row.section is Section.ERROR and verb != "respond" else RECORDED
    frozen = verb == "set input" and row.position >= STAGES[Stage.WILL_AUTHORIZE_INPUT].position
    if frozen:
        return {Stage.WILL_NORMALIZE_INPUT, Stage.WILL_AUTHORIZE_INPUT}
    return {row.stage, *(stage for stage in Stage if power in STAGES[stage].may)}


def named_in(text: str) -> set[str]:
    """Return the stages that an error names, whole words only."""
    words = {word.strip(".,;:()") for word in text.split()}
    return {stage for stage in Stage if stage in words}


def stages_of(verb: str, kind: str) -> tuple[Stage, ...]:
    """Return a third of the stages of a kind of call; three verbs that follow each other have all of them.

    So every verb meets every stage in a result, and every kind of call meets every verb and every stage.
    """
    if kind in {"part", "result"}:
        return OUTPUT_STAGES if kind == "part" else tuple(Stage)
    turn = list(NEEDS).index(verb) + KINDS.index(kind)
    return tuple(Stage)[turn % 3 :: 3]


def test_each_kind_of_call_meets_every_stage_with_a_third_of_the_verbs() -> None:
    for kind in {*KINDS} - {"part"}:
        for stage in Stage:
            assert sum(stage in stages_of(verb, kind) for verb in NEEDS) >= len(NEEDS) // 3


async def table_of(verb: str, kind: str, stages: Iterable[Stage]) -> dict[Stage, Any]:
    """Return the answers to a verb in *stages* of a kind of call; a refusal by the stages that it names."""
    table: dict[Stage, Any] = {}
    for stage in stages:
        found = await answer_of(verb, stage, kind)
        short = {LET_THROUGH, ENDS, RECORDED, REPLACES, "not reached", "is lost"}
        table[stage] = found if found in short else named_in(found)
    return table


def foretold(verb: str, kind: str, stages: Iterable[Stage]) -> dict[Stage, Any]:
    return {stage: expected(verb, STAGES[stage], kind) for stage in stages}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", NEEDS)
async def test_a_verb_is_let_through_where_the_table_says_in_every_kind_of_call(verb: str, kind: str) -> None:
    """Contract 87, 88, C12, C16: a refusal names the stages that may."""
    stages = stages_of(verb, kind)
    assert await table_of(verb, kind, stages) == foretold(verb, kind, stages)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", NEEDS)
async def test_soak_a_verb_in_every_stage_of_every_kind_of_call(verb: str, kind: str) -> None:
    """Contract 87, 88, C12, C16: all of them."""
    stages = OUTPUT_STAGES if kind == "part" else tuple(Stage)
    assert await table_of(verb, kind, stages) == foretold(verb, kind, stages)


ASKED = {
    verb: power
    for verb, (power, _) in NEEDS.items()
    if power is not None and verb not in {"respond", "abort", "retry_after"}
}


DIFFERS = [(verb, kind) for verb in ASKED for kind in KINDS if (verb, kind) != ("set input", "part")]
"""The arguments are frozen long before a part of an output: there the table is not asked."""


@pytest.mark.parametrize(("verb", "kind"), DIFFERS)
async def test_another_table_gives_another_answer(verb: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the runtime has a table that differs in one cell."""
    power = ASKED[verb]
    stage = Stage.WILL_REDACT_OUTPUT if kind == "part" else Stage.WILL_CHECK_CONSENT
    stage = Stage.ON_ERROR if verb == "set error" and kind != "part" else stage
    row = STAGES[stage]
    monkeypatch.setattr("callgate.hooks.state.step.STAGES", {**STAGES, stage: replace(row, may=row.may ^ {power})})
    stages = {stage, *stages_of(verb, "nested" if kind == "result" else kind)}
    found = await table_of(verb, kind, stages)
    assert {one for one, answer in foretold(verb, kind, stages).items() if found[one] != answer} == {stage}


def test_the_matrix_has_every_power_of_the_table() -> None:
    """Nothing that the table names is left out."""
    assert {power for power, _ in NEEDS.values() if power is not None} == set(May)
    assert set(OUTPUT_STAGES) < set(stages_in(Section.SHAPING))
