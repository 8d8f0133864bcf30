"""What is compiled: nothing for stages without hooks, and the runtime's own steps last in theirs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, replace
from itertools import combinations
from typing import Any

import pytest

from callgate import Gate, Stage, ToolRecord
from callgate.hooks.plan import Plan
from callgate.hooks.stages import RELEASE_OF, STAGES
from callgate.hooks.state.step import PlanStep
from tests.hooks.making import DEFINITION, Watch, acting, at, call, echoing, plan_of, record


def all_steps(plan: Plan) -> Iterator[PlanStep]:
    """Every step in any tuple of the plan, however it is called; whoever adds a section need not change this."""
    for field in fields(plan):
        value = getattr(plan, field.name)
        if isinstance(value, tuple):
            for item in value:
                if isinstance(item, tuple) and isinstance(item[-1], PlanStep):
                    yield item[-1]
                    if item[-1].release is not None:
                        yield item[-1].release[-1]


def hooks_in(plan: Plan) -> set[tuple[Stage, str]]:
    return {(step.stage, step.name) for step in all_steps(plan) if step.hook is not None}


def lines(plan: Plan) -> list[str]:
    """What a plan prints, less the white space."""
    return [" ".join(line.split()) for line in str(plan).splitlines()[1:]]


# What never changes


@pytest.mark.parametrize("part", ["plan", "step", "services"])
def test_a_plan_its_steps_and_its_services_are_made_whole_and_never_change(part: str) -> None:
    """Issue 37 §1: every field is set when it is made, and none can be set afterwards, nor a further one."""
    plan = plan_of(record(), Watch().hook)
    made: Any = {"plan": plan, "step": plan.before[0][2], "services": plan.host}[part]
    assert not hasattr(made, "__dict__")
    for field in fields(made):
        with pytest.raises(FrozenInstanceError):
            setattr(made, field.name, getattr(made, field.name))
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        made.one_more = 1


# What costs nothing


@pytest.mark.parametrize("trace", [False, True])
def test_a_tool_without_hooks_has_the_runtimes_own_steps_and_no_others(trace: bool) -> None:
    """Contract 97, C34."""
    plan = plan_of(record(), trace=trace)
    assert hooks_in(plan) == set()
    assert {step.stage for step in all_steps(plan)} <= {stage for stage in Stage if STAGES[stage].built_in}
    if not trace:
        assert lines(plan) == [
            "will_validate_input [admit]",
            "will_validate_output [validate]",
            "will_transform_output [limit]",
        ]
        assert [len(section) for section in (plan.before, plan.shaping, plan.closing, plan.on_error)] == [1, 2, 0, 0]


@pytest.mark.parametrize("stage", Stage)
def test_a_hook_is_in_the_plan_of_its_own_stages_alone(stage: Stage) -> None:
    """Contract 90, C1e."""
    for trace in (False, True):
        hook = at(stage, lambda ctx: None, name="H")
        plan = plan_of(record(), hook, trace=trace)
        if STAGES[stage].gives_back is None:  # a release by itself is kept for the ledger, see below
            assert hooks_in(plan) == {(stage, "H")}
        own = {step.stage for step in all_steps(plan) if step.hook is None}
        assert own <= {stage for stage in Stage if STAGES[stage].built_in} | {*RELEASE_OF}


def test_two_hooks_are_in_the_plan_of_what_they_implement() -> None:
    """Contract 90, 94."""
    stages = [stage for stage in Stage if STAGES[stage].gives_back is None]
    for one, two in combinations(stages[::3], 2):
        first, second = acting({one: lambda ctx: None, two: lambda ctx: None}, name="A")(), at(two, lambda ctx: None)
        plan = plan_of(record(), first, second)
        assert hooks_in(plan) == {(one, "A"), (two, "A"), (two, "Acting")}


def test_hooks_for_other_tools_and_tags_are_not_in_the_plan() -> None:
    """Contract 94."""
    hooks = [at(Stage.WILL_AUTHORIZE, lambda ctx: None, **{what: {"other"}}) for what in ("tools", "tags")]
    assert lines(plan_of(record(), *hooks)) == lines(plan_of(record()))


async def test_a_plan_is_compiled_once_and_again_when_hooks_change() -> None:
    """Contract 94."""
    async with Gate([record(), echoing()], allow_unguarded=True) as gate:
        first = gate.explain("double").plan
        await gate.invoke("double", {"n": 1})
        assert gate.explain("double").plan is first
        undo = gate.use(at(Stage.WILL_AUTHORIZE, lambda ctx: None))
        second = gate.explain("double").plan
        assert second is not first
        assert len(hooks_in(second)) == 1
        undo()
        assert hooks_in(gate.explain("double").plan) == set()


# The runtime's own steps


def own_steps(*hooks: Any, tool: ToolRecord | None = None, trace: bool = False) -> list[str]:
    return [line for line in lines(plan_of(tool or record(), *hooks, trace=trace)) if "[" in line]


@pytest.mark.parametrize(
    "stages",
    [(), *((stage,) for stage in Stage), (Stage.WILL_PARSE_INPUT, Stage.WILL_NORMALIZE_INPUT), tuple(Stage)],
    ids=lambda stages: "-".join(stages) if len(stages) < 3 else "all",
)
def test_input_is_admitted_and_output_checked_once_wherever_hooks_are(stages: tuple[Stage, ...]) -> None:
    """Contract 97, C16, C34."""
    hooks = [at(stage, lambda ctx: None) for stage in stages]
    found = own_steps(*hooks)
    assert found.count("will_validate_output [validate]") == 1
    admits = [line for line in found if line.startswith(("will_parse", "will_validate_input", "will_normalize"))]
    shaped = {Stage.WILL_VALIDATE_INPUT, Stage.WILL_NORMALIZE_INPUT} & set(stages)
    if not shaped:
        assert admits == ["will_validate_input [admit]"]
    else:
        assert admits[:2] == ["will_parse_input [parse]", "will_validate_input [validate]"]
        assert admits[2:] == ["will_normalize_input [freeze]"] * (Stage.WILL_NORMALIZE_INPUT in stages)


@pytest.mark.parametrize("trace", [False, True])
def test_the_runtimes_own_step_comes_after_every_hook_of_its_stage(trace: bool) -> None:
    """Contract C34."""
    hooks = [acting({stage: lambda ctx: None for stage in Stage}, priority=p)() for p in (-1e9, 0, 1e9)]
    plan = plan_of(record(), *hooks, trace=trace)
    steps = [step for _, _, step in plan.steps()]
    own = [step for step in steps if step.hook is None]
    assert {step.stage for step in own} >= {
        Stage.WILL_PARSE_INPUT,
        Stage.WILL_VALIDATE_INPUT,
        Stage.WILL_NORMALIZE_INPUT,
        Stage.WILL_READ_CACHE,
        Stage.WILL_VALIDATE_OUTPUT,
        Stage.WILL_TRANSFORM_OUTPUT,
    }
    for step in own:
        later = steps[steps.index(step) + 1 :]
        assert not [other for other in later if other.stage is step.stage and other.hook is not None], step


def test_an_output_that_a_transform_may_have_changed_is_limited_again() -> None:
    """Contract C16, I15."""
    assert "will_transform_output [limit]" in own_steps(at(Stage.WILL_TRANSFORM_OUTPUT, lambda ctx: None))
    wide = record(definition=replace(DEFINITION, output_schema=None))
    assert "will_transform_output [limit]" in own_steps(tool=wide)


# Reading


@pytest.mark.parametrize(
    "stages", [tuple(Stage), *((stage,) for stage in Stage)], ids=lambda s: s[0] if len(s) == 1 else "all"
)
def test_a_plan_prints_every_step_in_the_order_in_which_it_runs(stages: tuple[Stage, ...]) -> None:
    """Contract 95, 97."""
    hook = acting({stage: lambda ctx: None for stage in stages}, name="H")()
    plan = plan_of(record(), hook)
    printed = [line for line in lines(plan) if "[" not in line]
    assert sorted(printed) == sorted(f"{stage} H" for stage in stages)
    order = [Stage(line.split()[0]) for line in lines(plan)]
    assert order == sorted(order, key=lambda stage: STAGES[stage].position)


async def test_what_is_printed_is_what_runs() -> None:
    """Contract 97."""
    watch = Watch()
    printed = [Stage(line.split()[0]) for line in lines(plan_of(record(), watch.hook)) if "[" not in line]
    await call(record(), watch.hook)
    elsewhere = {Stage.DID_CACHE_HIT, Stage.ON_RETRY, Stage.ON_GIVE_UP, Stage.ON_ERROR}
    assert watch.stages == [stage for stage in printed if stage not in elsewhere]


async def test_a_trace_has_a_row_for_every_step_that_ran() -> None:
    """Contract 97."""
    hooks = [
        at(Stage.WILL_AUTHORIZE, lambda ctx: None, name="Yes"),
        at(Stage.WILL_CHECK_CONSENT, lambda ctx: None, name="Skipped", filter=lambda self, ctx: False),
        at(Stage.WILL_EXECUTE, lambda ctx: ctx.abort("no"), name="No"),
    ]
    result = await call(record(), *hooks, trace=True)
    rows = [(row[0], row[1], row[2]) for row in result.trace]
    assert rows == [
        (Stage.WILL_AUTHORIZE, "Yes", "ok"),
        (Stage.WILL_CHECK_CONSENT, "Skipped", "skipped"),
        (Stage.WILL_PARSE_INPUT, "parse", "ok"),
        (Stage.WILL_VALIDATE_INPUT, "validate", "ok"),
        (Stage.WILL_EXECUTE, "No", "Denied"),
    ]
    assert all(row[3] >= 0 for row in result.trace)
    assert (await call(record(), *hooks)).trace is None
