"""What is refused when a hook is registered: whatever would be a silent hole at run time."""

from __future__ import annotations

from typing import Any, cast

import pytest

from callgate import Gate, Hook, InvokeContext, Stage, invoke_tool, on
from callgate.errors import HookError
from callgate.hooks.base import FunctionHook, stages_of
from callgate.hooks.linter import lint
from callgate.hooks.selection import register, register_by_stage
from callgate.hooks.stages import RELEASE_OF
from tests.hooks.making import acting, at, call, plan_of, record


def misspellings(stage: Stage) -> list[str]:
    """One letter lost, one doubled, a plural, and the documents' spelling."""
    head, *tail = stage.value.split("_")
    camel = head + "".join(part.title() for part in tail)
    return [stage.value[:-1], stage.value[:3] + stage.value[2:], stage.value + "s", camel]


def nothing(ctx: InvokeContext) -> None: ...


# Names


@pytest.mark.parametrize("stage", Stage)
def test_a_method_that_nearly_names_a_stage_is_refused_with_the_right_name(stage: Stage) -> None:
    """Contract C33."""
    for wrong in misspellings(stage):
        cls = type("Typo", (Hook,), {wrong: lambda self, ctx: None, "will_audit": lambda self, ctx: None})
        for hook in (cls, cls()):
            with pytest.raises(HookError, match=f"Typo.{wrong} is not a stage.*{stage.value}"):
                Gate([record()], [hook])


@pytest.mark.parametrize("stage", Stage)
def test_an_unknown_stage_is_refused_wherever_it_is_named(stage: Stage) -> None:
    """Contract 94, C33."""
    wrong, hook = stage.value[:-1], at(stage, nothing)
    with pytest.raises(HookError, match=f"there is no stage '{wrong}'.*{stage.value}"):
        Gate([record()], hooks=[{wrong: [hook]}])
    with pytest.raises(HookError, match=f"there is no stage '{wrong}'"):
        Gate([record(hooks_by_stage={wrong: [hook]})])
    with pytest.raises(HookError, match=f"there is no stage '{wrong}'"):
        on(wrong)


async def test_invoke_tool_refuses_an_unknown_stage() -> None:
    """Contract 83, C33."""
    hook = at(Stage.WILL_AUDIT, nothing)
    with pytest.raises(HookError, match="there is no stage 'will_audited'"):
        await invoke_tool(record(), {"n": 2}, global_hooks_by_stage={"will_audited": [hook]})


@pytest.mark.parametrize("stage", Stage)
def test_a_hook_listed_under_a_stage_that_it_lacks_is_refused(stage: Stage) -> None:
    """Contract 94, C33."""
    other = Stage.WILL_AUDIT if stage is not Stage.WILL_AUDIT else Stage.DID_AUDIT
    cls = acting({other: nothing}, name="Listed")
    for hook in (cls, cls()):
        with pytest.raises(HookError, match=f"Listed is listed under {stage.value} but has no such method"):
            Gate([record()], hooks=[{stage: [hook]}])
        with pytest.raises(HookError, match="it would never run"):
            Gate([record(hooks_by_stage={stage.value: [hook]})])


def test_a_hook_that_implements_no_stage_is_refused() -> None:
    """Contract C33."""

    class Empty(Hook):
        def helper(self) -> None: ...

    for hook in (Empty, Empty(), object()):
        with pytest.raises(HookError, match="implements no stage"):
            Gate([record()], [hook])
        with pytest.raises(HookError, match="implements no stage"):
            Gate([record(hooks=[hook])])


def test_a_stage_method_that_is_put_on_the_object_is_not_overlooked() -> None:
    """Contract C33."""

    class Configured(Hook):
        def __init__(self) -> None:
            vars(self).update(will_authorize=nothing)

        def will_audit(self, ctx: InvokeContext) -> None: ...

    with pytest.raises(HookError, match=r"Configured\.will_authorize is set on the object"):
        Gate([record()], [Configured()])


@pytest.mark.parametrize("stage", Stage)
def test_a_stage_method_that_yields_is_refused(stage: Stage) -> None:
    """Contract C33."""

    def plain(self: Any, ctx: Any, *rest: Any) -> Any:
        yield

    async def asynchronous(self: Any, ctx: Any, *rest: Any) -> Any:
        yield

    for method in (plain, asynchronous):
        cls = type("Yields", (Hook,), {stage.value: method})
        for hook in (cls, cls()):
            with pytest.raises(HookError, match=f"Yields.{stage.value} yields"):
                Gate([record()], [hook])
    with pytest.raises(HookError, match="yields"):
        Gate([record()], [on(stage)(lambda ctx: (yield))])  # pyright: ignore[reportReturnType]


async def test_a_hook_need_not_inherit() -> None:
    """Contract 90."""
    seen: list[str] = []

    class Duck:
        def will_authorize(self, ctx: InvokeContext) -> None:
            seen.append(ctx.tool_id)

        def helper(self) -> None: ...

    assert (await call(record(), Duck())).ok
    assert (await call(record(), Duck)).ok
    assert seen == ["double", "double"]


# Options


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("on_failure", "shrug"),
        ("on_error", "deny!"),
        ("mode", "dry-run"),
        ("timeout", 0),
        ("timeout", -1),
        ("tools", "double"),
        ("tags", "money"),
        ("tenants", "acme"),
    ],
)
def test_an_option_that_means_nothing_is_refused(option: str, wrong: Any) -> None:
    """Contract C33."""
    cls = acting({Stage.WILL_AUDIT: nothing}, name="Odd", **{option: wrong})
    for hook in (cls, cls()):
        with pytest.raises(HookError, match="Odd"):
            Gate([record()], [hook])
        with pytest.raises(HookError, match="Odd"):
            Gate([record()], hooks=[{"will_audit": [hook]}])


def test_on_knows_its_options_and_says_which_was_meant() -> None:
    """Contract 91, C33."""
    with pytest.raises(HookError, match=r"no option 'prioritty'.*priority"):
        on(Stage.WILL_AUDIT, prioritty=1)
    hook = on("will_audit", priority=7, on_error="ignore", tags={"maths"})(nothing)
    assert isinstance(hook, FunctionHook)
    assert (hook.priority, hook.on_failure, hook.__name__) == (7, "ignore", "nothing")
    assert stages_of(hook) == (Stage.WILL_AUDIT,)
    assert hook(cast("Any", None)) is None


def test_a_wrapper_cannot_be_a_shadow() -> None:
    """Contract 93."""
    with pytest.raises(HookError, match="cannot run in shadow mode"):
        Gate([record()], [acting({Stage.AROUND_EXECUTE: nothing}, mode="shadow")])


def test_a_tool_has_at_most_512_hooks() -> None:
    """Contract C33."""
    hook = at(Stage.WILL_AUDIT, nothing)
    Gate([record()], [hook] * 512)
    with pytest.raises(HookError, match="513 hooks; 512 is the most"):
        Gate([record()], [hook] * 513)


async def test_a_hook_that_is_refused_later_leaves_the_gate_as_it_was() -> None:
    """Contract C33."""
    async with Gate([record()], allow_unguarded=True) as gate:
        bad = acting({Stage.WILL_AUDIT: nothing}, priority="high")
        with pytest.raises(HookError):
            gate.use(bad)
        assert await gate.invoke("double", {"n": 3}) == 6


# The explicit form


@pytest.mark.parametrize(("acquire", "release"), RELEASE_OF.items())
def test_an_acquire_hook_is_enrolled_in_its_release(acquire: Stage, release: Stage) -> None:
    """Contract C1e."""
    hook = acting({acquire: nothing, release: nothing, Stage.WILL_AUDIT: nothing})()
    (made,) = register_by_stage({acquire: [hook]}, "here")
    assert made.all_stages() == (acquire, release)
    (bare,) = register_by_stage({acquire: [at(acquire, nothing)]}, "here")
    assert bare.all_stages() == (acquire,)


def test_a_hook_runs_only_where_it_is_listed() -> None:
    """Contract 94."""
    hook = acting({Stage.WILL_AUTHORIZE: nothing, Stage.WILL_AUDIT: nothing})()
    (made,) = register_by_stage({"will_audit": [hook]}, "here")
    assert made.all_stages() == (Stage.WILL_AUDIT,)
    assert register(hook, "here").all_stages() == (Stage.WILL_AUTHORIZE, Stage.WILL_AUDIT)
    plan = plan_of(record(), {"will_audit": [hook]})
    assert [step.stage for _, _, step in plan.steps() if step.hook is not None] == [Stage.WILL_AUDIT]
    assert not lint(plan)
