"""In which order hooks run: against a list model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate import Gate, Hook, InvokeContext, Stage, ToolCall
from callgate.errors import HookError
from callgate.hooks.selection import Registration, register, select_by_stage, sort_for_stage
from callgate.hooks.stages import STAGES
from tests.hooks.making import DEFINITION, USER, Act, acting, call, record, refusing

Seen = list[tuple[Stage, int]]


@dataclass(frozen=True)
class Registered:
    """One hook of an example: where it is registered, how it is written."""

    priority: float
    where: str
    form: str


PRIORITIES = st.sampled_from([-10, -1, 0, 0.5, 1, 10])
HOOKS = st.lists(
    st.builds(
        Registered,
        PRIORITIES,
        st.sampled_from(["gate", "use", "tool"]),
        st.sampled_from(["object", "class", "async object", "async class", "method"]),
    ),
    max_size=8,
)
ORIGINS = ["gate", "use", "tool"]


def model(stage: Stage, hooks: list[Registered]) -> list[int]:
    """Put each hook in front of the first of a lower priority; turn the list over for ``did_*``."""
    order: list[int] = []
    for index in sorted(range(len(hooks)), key=lambda i: ORIGINS.index(hooks[i].where)):
        lower = [hooks[other].priority < hooks[index].priority for other in order]
        order.insert(lower.index(True) if True in lower else len(order), index)
    return order[::-1] if stage.value.startswith("did_") else order


def written(hook: Registered, number: int, seen: Seen) -> Any:
    """The hook as its form says, noting each stage it sees."""

    def note(stage: Stage) -> Act:
        return lambda ctx: seen.append((stage, number))

    options: dict[str, Any] = {"priority": hook.priority, "name": f"H{number}"}
    if hook.form == "method":
        options["priority"] = lambda self: hook.priority
    made = acting({stage: note(stage) for stage in Stage}, is_async="async" in hook.form, **options)
    return made if "class" in hook.form else made()


async def run(hooks: list[Registered], fails: bool) -> Seen:
    """One call through all of them."""
    seen: Seen = []
    made = [(hook.where, written(hook, number, seen)) for number, hook in enumerate(hooks)]

    async def execute(n: int) -> int:
        return 1 // (0 if fails else 1)

    tool = record(execute, hooks=[hook for where, hook in made if where == "tool"])
    gate = Gate([tool], [hook for where, hook in made if where == "gate"], allow_unguarded=True)
    for where, hook in made:
        if where == "use":
            gate.use(hook, tags={"maths"})
    async with gate:
        result = await gate.call(ToolCall(id="c", name="double", arguments={"n": 1}), user=USER)
        assert result.ok is not fails
    return seen


def check(hooks: list[Registered], fails: bool) -> None:
    seen = asyncio.run(run(hooks, fails))
    stages = [stage for stage, _ in seen]
    assert stages == sorted(stages, key=list(Stage).index) or not hooks
    for stage in dict.fromkeys(stages):
        assert [number for at, number in seen if at is stage] == model(stage, hooks), stage


@settings(max_examples=60, deadline=None)
@given(HOOKS, st.booleans())
def test_hooks_of_every_stage_run_in_the_order_of_the_model(hooks: list[Registered], fails: bool) -> None:
    """Contract 91, 94, C23, I18."""
    check(hooks, fails)


@pytest.mark.soak
@settings(max_examples=100_000, deadline=None)
@given(HOOKS, st.booleans())
def test_hooks_of_every_stage_run_in_the_order_of_the_model_100_000_times(hooks: list[Registered], fails: bool) -> None:
    """Contract 91, 94, C23, I18."""
    check(hooks, fails)


@settings(max_examples=100, deadline=None)
@given(st.lists(PRIORITIES, max_size=8), st.sampled_from(list(Stage)))
def test_the_sorting_helper_is_stable_and_mirrored(priorities: list[float], stage: Stage) -> None:
    """Contract 91, 95, C23."""
    hooks = [Registered(priority, "gate", "object") for priority in priorities]
    made = [register(written(hook, number, []), "gate") for number, hook in enumerate(hooks)]
    expected = [made[index] for index in model(stage, hooks)]
    assert sort_for_stage(stage, made) == expected
    assert sort_for_stage(stage.value, made) == expected
    assert select_by_stage(DEFINITION, made)[stage] == expected
    assert sort_for_stage(stage, [one.hook for one in made]) == [one.hook for one in expected]
    mirror = next(one for one in Stage if STAGES[one].mirrored is not STAGES[stage].mirrored)
    assert sort_for_stage(mirror, made) == expected[::-1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PRIORITIES, st.booleans()), min_size=1, max_size=8), st.booleans())
def test_wrappers_nest_and_are_torn_down_in_exact_reverse(wrappers: list[tuple[float, bool]], fails: bool) -> None:
    """Contract 93, C21, I18."""
    log: list[str] = []

    def wrapper(number: int, priority: float, reraises: bool) -> Hook:
        class Wrapper(Hook):
            async def around_execute(self, ctx: InvokeContext, next: Callable[[], Any]) -> Any:
                log.append(f"in {number}")
                try:
                    return await next()
                except ValueError as error:
                    if reraises:
                        raise ValueError(number) from error
                    raise
                finally:
                    log.append(f"out {number}")

        made = Wrapper()
        made.priority = priority
        return made

    async def execute(n: int) -> int:
        log.append("tool")
        if fails:
            raise ValueError
        return n

    hooks = [wrapper(number, *options) for number, options in enumerate(wrappers)]
    result = asyncio.run(call(record(execute), *hooks))
    assert result.ok is not fails
    order = model(Stage.AROUND_EXECUTE, [Registered(priority, "gate", "object") for priority, _ in wrappers])
    assert log == [*(f"in {n}" for n in order), "tool", *(f"out {n}" for n in order[::-1])]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([stage for stage in Stage if STAGES[stage].gives_back is None]),
        st.lists(st.integers(0, 3), unique=True, min_size=1),
    )
)
def test_ties_in_the_explicit_form_run_as_each_stage_lists_them(listed: dict[Stage, list[int]]) -> None:
    """Contract 94, C23."""
    pool: list[Any] = [acting({stage: lambda ctx: None for stage in Stage}, name=f"H{i}")() for i in range(4)]
    gate = Gate([record()], hooks=[{stage: [pool[i] for i in numbers] for stage, numbers in listed.items()}])
    plan = gate.explain("double").plan
    for stage, numbers in listed.items():
        ran = [pool.index(step.hook) for _, _, step in plan.steps() if step.stage is stage and step.hook is not None]
        assert ran == (numbers[::-1] if STAGES[stage].mirrored else numbers), stage


async def test_global_hooks_run_before_a_tools_own_and_are_mirrored_in_did_stages() -> None:
    """Contract 94, C23."""
    log: list[str] = []

    def both(name: str) -> Hook:
        return acting(
            {
                Stage.WILL_EXECUTE: lambda ctx: log.append(f"{name} before"),
                Stage.DID_EXECUTE: lambda ctx: log.append(f"{name} after"),
            }
        )()

    await call(record(hooks=[both("tool")]), both("gate"))
    assert log == ["gate before", "tool before", "tool after", "gate after"]


@pytest.mark.parametrize("stage", [Stage.WILL_BIND_PROVIDERS, Stage.WILL_AUTHORIZE, Stage.ON_ERROR])
async def test_the_higher_priority_runs_first_in_will_and_on_stages(stage: Stage) -> None:
    """Contract 91, C23, C24."""
    log: list[int] = []

    def note(number: int) -> Act:
        return lambda ctx: log.append(number)

    hooks = [acting({stage: note(priority)}, priority=priority)() for priority in (1, 3, 2)]
    await call(record(), *hooks, acting({Stage.WILL_EXECUTE: refusing(ValueError())})())
    assert log == [3, 2, 1]


def test_a_priority_may_be_a_method_of_a_class_hook() -> None:
    """Contract 91."""

    class Early(Hook):
        def priority(self) -> float:
            return 5

        def will_audit(self, ctx: InvokeContext) -> None: ...

    made: list[Registration] = [register(Early, "gate"), register(Early(), "gate")]
    assert [one.priority for one in made] == [5, 5]


@pytest.mark.parametrize("wrong", [float("nan"), "high", None, lambda self: "high"])
def test_a_priority_that_has_no_place_in_an_order_is_refused(wrong: Any) -> None:
    """Contract 91, C33."""
    with pytest.raises(HookError, match="priority"):
        Gate([record()], [acting({Stage.WILL_AUDIT: lambda ctx: None}, priority=wrong)])
