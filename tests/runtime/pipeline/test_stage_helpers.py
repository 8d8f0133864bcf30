"""The helpers that the documents export beside ``invoke_tool``: contract 95."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from callgate import Hook, InvokeContext, Stage, User
from callgate.errors import HookError, StageError
from callgate.hooks import collect_hooks_for_stage, sort_for_stage, will_bind_providers_stage, wrap_with_around
from callgate.hooks.instances import instance_of
from callgate.hooks.stages import STAGES, May
from tests.hooks.making import Act, acting, at, call, plan_of, record

Next = Callable[[], Awaitable[Any]]
SPARE = Stage.WILL_EXECUTE  # where the helpers are called from, in a whole invocation


def around(name: str, log: list[str], **options: Any) -> type[Hook]:
    """A class whose objects note when they begin and end."""

    class Around(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
            log.append(f"{name} in")
            try:
                return await next()
            finally:
                log.append(f"{name} out")

    for option, value in options.items():
        setattr(Around, option, value)
    Around.__name__ = name
    return Around


def asking(*log: Any, **options: Any) -> type[Hook]:
    """A class that authorises."""
    return acting({Stage.WILL_AUTHORIZE: lambda ctx: None}, **options)


def bare_context(tool: Any = None) -> InvokeContext:
    """A context that nothing has run yet."""
    return InvokeContext(plan_of(tool or record()), {"n": 1}, User("u"), 0.0)


async def inside(act: Act, stage: Stage = SPARE, **options: Any) -> Any:
    """The result of a whole call in which a hook does *act* in a stage."""
    return await call(record(), at(stage, act, **options))


# ---------------------------------------------------------------------- collecting


def test_the_hooks_of_a_stage_are_collected_global_first_and_sorted() -> None:
    """Contract 94, 95, C23."""
    low, high, own = asking(name="Low")(), asking(name="High", priority=5)(), asking(name="Own")()
    listed = {Stage.WILL_AUTHORIZE: [low, high]}
    tool = record(hooks=[own], hooks_by_stage={"will_authorize": [late := asking(name="Late")()]})
    found = collect_hooks_for_stage(Stage.WILL_AUTHORIZE, tool, lambda cls: cls(), listed)
    assert found == [high, low, own, late]
    assert found == sort_for_stage("will_authorize", [low, high, own, late])
    assert collect_hooks_for_stage("will_audit", tool, lambda cls: cls(), listed) == []
    assert collect_hooks_for_stage(Stage.WILL_AUTHORIZE, tool, lambda cls: cls()) == [own, late]


def test_a_hook_class_is_made_by_resolve_and_an_object_is_taken_as_it_is() -> None:
    """Contract 82, 95."""
    kind, made = asking(), asking()()
    tool = record(hooks_by_stage={Stage.WILL_AUTHORIZE: [kind, made]})
    asked: list[Any] = []

    def resolve(cls: Any) -> Any:
        asked.append(cls)
        return cls()

    first, second = collect_hooks_for_stage(Stage.WILL_AUTHORIZE, tool, resolve)
    assert isinstance(first, kind)
    assert second is made
    assert asked == [kind]


def test_what_is_collected_is_what_the_plan_runs() -> None:
    """Contract 95, C1e: releases of hooks listed under their acquire alone, and hooks limited to other tools."""
    both = acting({Stage.WILL_ACQUIRE_QUOTA: lambda ctx: None, Stage.DID_RELEASE_QUOTA: lambda ctx: None})()
    elsewhere = asking(tools={"other"})()
    listed = {Stage.WILL_ACQUIRE_QUOTA: [both], Stage.WILL_AUTHORIZE: [elsewhere]}
    tool = record()
    plan = plan_of(tool, listed)
    for stage in Stage:
        ran = [step.hook for _, _, step in plan.steps() if step.stage is stage and step.hook is not None]
        assert collect_hooks_for_stage(stage, tool, lambda cls: cls(), listed) == ran
    assert collect_hooks_for_stage(Stage.DID_RELEASE_QUOTA, tool, lambda cls: cls(), listed) == [both]


def test_a_function_will_do_for_a_tool() -> None:
    """Contract 95."""

    async def lonely(n: int) -> int:
        """Alone."""
        return n

    hook = asking()()
    assert collect_hooks_for_stage("will_authorize", lonely, lambda cls: cls(), {"will_authorize": [hook]}) == [hook]


@pytest.mark.parametrize("stage", ["will_autorize", "willAuthorize"])
def test_a_stage_that_does_not_exist_is_refused(stage: str) -> None:
    """Contract 95, C33."""
    with pytest.raises(HookError, match="will_authorize"):
        collect_hooks_for_stage(stage, record(), lambda cls: cls())
    with pytest.raises(HookError, match="will_authorize"):
        sort_for_stage(stage, [])
    with pytest.raises(HookError, match="no such method"):
        collect_hooks_for_stage("will_audit", record(), lambda cls: cls(), {"will_audit": [asking()]})


def test_sorting_takes_objects_and_classes_and_refuses_what_has_no_place_in_an_order() -> None:
    """Contract 91, 95, C23."""
    low, high = asking(priority=1), asking(priority=2)()
    assert sort_for_stage("will_authorize", [low, high]) == [high, low]
    assert sort_for_stage("did_audit", [low, high]) == [low, high]
    for wrong in (float("nan"), "high"):
        with pytest.raises(HookError, match="priority"):
            sort_for_stage("will_authorize", [asking(priority=wrong)])


# ---------------------------------------------------------------------- wrapping


async def test_any_async_function_can_be_wrapped_higher_priority_further_out() -> None:
    """Contract 93, 95."""
    log: list[str] = []
    hooks = [around("second", log)(), around("first", log, priority=1), around("third", log)()]

    async def work() -> str:
        log.append("work")
        return "done"

    ctx = bare_context()
    wrapped = wrap_with_around(hooks, ctx, work)
    assert log == []
    assert await wrapped() == "done"
    assert log == ["first in", "second in", "third in", "work", "third out", "second out", "first out"]
    assert ctx.output is None
    assert await wrap_with_around((), ctx, work)() == "done"


async def test_wrapping_by_hand_keeps_the_rules_of_the_roundabout() -> None:
    """Contract 92, 93, 95, C21, C1f: filter, limits to tools, ``next`` once, and one object a class."""
    seen: list[Any] = []

    class Noting(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
            seen.append(self)
            return await next()

    class Twice(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
            await next()
            return await next()

    async def work() -> int:
        return len(seen)

    ctx = bare_context()
    skipped = acting({Stage.AROUND_EXECUTE: refusing_to_run}, filter=lambda self, ctx: False)()
    elsewhere = acting({Stage.AROUND_EXECUTE: refusing_to_run}, tools={"other"})()
    wrapped = wrap_with_around([skipped, elsewhere, Noting], ctx, work)
    assert (await wrapped(), await wrapped()) == (1, 2)
    assert seen == [instance_of(ctx, Noting)] * 2
    with pytest.raises(StageError, match="repeats = True"):
        await wrap_with_around([Twice()], ctx, work)()
    again = Twice()
    again.repeats = True
    assert await wrap_with_around([again], ctx, work)() == 2


def refusing_to_run(ctx: InvokeContext) -> None:
    raise AssertionError("it takes no part")


async def test_a_hook_that_wraps_nothing_is_refused() -> None:
    """Contract 95, C33."""
    with pytest.raises(HookError, match="has no around_execute"):
        wrap_with_around([asking()()], bare_context(), refused)
    with pytest.raises(HookError, match="implements no stage"):
        wrap_with_around([object()], bare_context(), refused)


async def refused() -> None:
    raise AssertionError("it must not run")


async def test_in_a_running_call_the_context_stands_where_it_stood() -> None:
    """Contract 95: also for the function that is wrapped, and after an error."""
    stood: list[Any] = []

    async def act(ctx: InvokeContext) -> None:
        here = ctx.run.step

        async def work() -> None:
            stood.append(ctx.run.step is here)
            raise KeyError

        try:
            await wrap_with_around([around("outer", [])()], ctx, work)()
        except KeyError:
            stood.append(ctx.run.step is here)

    result = await inside(act)
    assert result.output == 4
    assert stood == [True, True]


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("stage", [Stage.WILL_EXECUTE, Stage.DID_EXECUTE, Stage.WILL_AUDIT])
async def test_a_wrapper_gets_the_powers_of_the_stage_in_which_the_context_stands(stage: Stage, shadow: bool) -> None:
    """Contract 95, I2: a helper is no way round the stage table, nor out of shadow mode."""
    refusals: list[type[Exception]] = []

    class Setting(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
            try:
                ctx.output = 0
            except StageError as error:
                refusals.append(type(error))
            return await next()

    async def act(ctx: InvokeContext) -> None:
        async def work() -> None: ...

        await wrap_with_around([Setting()], ctx, work)()

    result = await inside(act, stage, **({"mode": "shadow"} if shadow else {}))
    may = May.OUTPUT in STAGES[stage].may and not shadow
    assert May.OUTPUT in STAGES[Stage.AROUND_EXECUTE].may
    assert refusals == ([] if may else [StageError])
    assert result.output == (0 if may else 4)


async def test_wrappers_run_by_hand_are_in_the_trace() -> None:
    """Contract 95."""

    async def act(ctx: InvokeContext) -> None:
        async def work() -> None: ...

        await wrap_with_around([around("Outer", [])()], ctx, work)()

    result = await call(record(), at(SPARE, act), trace=True)
    assert result.trace is not None
    assert [row[1] for row in result.trace if row[0] is Stage.AROUND_EXECUTE] == ["Outer"]


# ---------------------------------------------------------------------- binding


async def test_hooks_bind_by_hand_through_the_context_or_by_what_they_return() -> None:
    """Contract 89, 95, C24."""
    binds = Stage.WILL_BIND_PROVIDERS
    through = at(binds, lambda ctx: ctx.bind_provider("a", 1))
    returned = acting({binds: lambda ctx: {"b": 2, "a": 3}}, is_async=True, priority=-1)
    skipped = acting({binds: refusing_to_run}, filter=lambda self, ctx: False)()
    ctx = bare_context(record(hooks_by_stage={binds: [returned]}))
    await will_bind_providers_stage(ctx.run.plan.record, ctx, partial(instance_of, ctx), {binds: [skipped, through]})
    assert (ctx.get("a"), ctx.get("b")) == (3, 2)
    await will_bind_providers_stage(record(), ctx, partial(instance_of, ctx))
    with pytest.raises(TypeError, match="will_bind_providers returned"):
        await will_bind_providers_stage(record(), ctx, partial(instance_of, ctx), {binds: [at(binds, lambda ctx: 7)]})


@pytest.mark.parametrize("stage", [Stage.WILL_AUTHORIZE, Stage.WILL_READ_CACHE, Stage.WILL_AUDIT])
async def test_nobody_binds_by_hand_where_nobody_may_bind(stage: Stage) -> None:
    """Contract 95, I2."""
    ended: list[str] = []
    binds = Stage.WILL_BIND_PROVIDERS

    async def act(ctx: InvokeContext) -> None:
        here = ctx.run.step
        try:
            await will_bind_providers_stage(
                record(), ctx, partial(instance_of, ctx), {binds: [at(binds, lambda ctx: {"a": 1})]}
            )
            ended.append("bound")
        except StageError:
            ended.append("refused")
        assert ctx.run.step is here

    assert (await inside(act, stage)).output == 4
    assert ended == (["bound"] if May.BIND in STAGES[stage].may else ["refused"])
