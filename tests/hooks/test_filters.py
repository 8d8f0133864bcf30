"""Which hooks take part in an invocation: filters, tenants, tools and tags."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from itertools import product
from typing import Any

import pytest

from callgate import Effect, Gate, Hook, InvokeContext, Outcome, Stage, ToolCall, User, on
from callgate.errors import HookError
from callgate.hooks import RequireApproval, forbid
from callgate.hooks.selection import register
from callgate.hooks.stages import RELEASE_OF, STAGES, OnFailure, Section
from tests.hooks.making import USER, Watch, acting, at, call, echoing, plan_of, record, refusing

HAPPY = [
    stage for stage in Stage if stage not in {Stage.DID_CACHE_HIT, Stage.ON_RETRY, Stage.ON_GIVE_UP, Stage.ON_ERROR}
]
FORMS = ["object", "class", "async filter", "on"]


def filtered(stage: Stage, form: str, answer: Callable[[InvokeContext], bool], seen: list[Stage]) -> Any:
    """A hook at one stage that takes part when *answer* says so."""

    def note(ctx: InvokeContext, *rest: Any) -> Any:
        seen.append(stage)
        return rest[0]() if rest else None

    if form == "on":
        return on(stage, filter=answer)(note)

    async def asynchronous(self: Any, ctx: InvokeContext) -> bool:
        return answer(ctx)

    method = asynchronous if form == "async filter" else lambda self, ctx: answer(ctx)
    cls = type("Filtered", (Hook,), {stage.value: lambda self, ctx, *rest: note(ctx, *rest), "filter": method})
    return cls if form == "class" else cls()


def yes(ctx: InvokeContext) -> bool:
    return True


def no(ctx: InvokeContext) -> bool:
    return False


async def test_a_filter_without_return_skips_no_gate() -> None:
    """It returned None, so the hook that denies never ran."""

    def forgets(ctx: InvokeContext) -> Any:
        _ = ctx.user.id == USER.id

    def yields(ctx: InvokeContext) -> Any:
        yield True

    for form in FORMS:
        seen: list[Stage] = []
        result = await call(record(), filtered(Stage.WILL_AUTHORIZE, form, forgets, seen))
        assert (result.outcome, seen) == (Outcome.DENIED, []), form
    with pytest.raises(HookError, match="filter yields, so calling it runs nothing"):
        await call(record(), filtered(Stage.WILL_AUTHORIZE, "on", yields, []))
    kind = type("Yields", (Hook,), {"will_authorize": lambda self, ctx: None, "filter": staticmethod(yields)})
    with pytest.raises(HookError, match=r"Yields\.filter yields"):
        await call(record(), kind())


@pytest.mark.parametrize("stage", HAPPY)
async def test_a_filter_decides_in_every_stage_whether_its_hook_runs(stage: Stage) -> None:
    """Contract 92."""
    for form, takes_part in product(FORMS, (True, False)):
        seen: list[Stage] = []
        looks = at(Stage.WILL_READ_CACHE, lambda ctx: None)  # or there is no miss
        result = await call(record(), filtered(stage, form, [no, yes][takes_part], seen), looks)
        assert (result.output, seen) == (4, [stage] * takes_part), form


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stage", HAPPY)
async def test_a_filter_that_raises_fails_as_its_stage_does(stage: Stage, form: str) -> None:
    """Contract 92, C22, I6."""
    row, watch, looks = STAGES[stage], Watch(Stage.WILL_FINALIZE_INVOKE), at(Stage.WILL_READ_CACHE, lambda ctx: None)
    seen: list[Stage] = []
    denying = at(Stage.WILL_CHECK_FEATURE_FLAGS, lambda ctx: None, priority=100)
    broken = filtered(stage, form, refusing(KeyError("filter")), seen)
    result = await call(record(), denying, broken, looks, watch.hook)
    assert seen == []
    if row.section is Section.CLOSING:
        assert result.ok
        assert [(one.stage, type(one.error)) for one in watch.ctx.suppressed] == [(stage, KeyError)]
    else:
        assert result.outcome is (Outcome.DENIED if row.on_failure is OnFailure.DENY else Outcome.ERROR)
        assert watch.ctx.error is not None
        assert type(watch.ctx.error.__cause__ or watch.ctx.error) is KeyError


async def test_filters_are_asked_just_before_their_hook() -> None:
    """Contract 92, C22."""
    seen: list[Stage] = []
    opens = at(Stage.WILL_AUTHORIZE, lambda ctx: ctx.data.update(open=True), priority=1)
    follows = filtered(Stage.WILL_AUTHORIZE, "object", lambda ctx: bool(ctx.data.get("open")), seen)
    assert (await call(record(), follows, opens)).ok
    assert seen == [Stage.WILL_AUTHORIZE]


async def test_a_wrappers_filter_is_asked_when_the_wrapper_is_reached() -> None:
    """Contract 92, 93, C21."""
    asked: list[int] = []

    def wrapper(number: int, act: Callable[[InvokeContext], Any]) -> Hook:
        class Wrapper(Hook):
            priority = -number

            def filter(self, ctx: InvokeContext) -> bool:
                asked.append(number)
                return True

            async def around_execute(self, ctx: InvokeContext, next: Callable[[], Awaitable[Any]]) -> Any:
                act(ctx)
                return await next()

        return Wrapper()

    result = await call(record(), wrapper(2, lambda ctx: None), wrapper(1, lambda ctx: ctx.respond(7)))
    assert result.output == 7
    assert asked == [1]


async def test_a_filter_is_asked_again_in_every_stage() -> None:
    """Contract 92."""

    class Alternating(Hook):
        asked = 0

        def filter(self, ctx: InvokeContext) -> bool:
            self.asked += 1
            return self.asked % 2 == 0

        will_authorize = will_check_consent = will_execute = did_execute = lambda self, ctx: seen.append(
            ctx.run.step.stage
        )

    seen: list[Stage] = []
    await call(record(), Alternating())
    assert seen == [Stage.WILL_CHECK_CONSENT, Stage.DID_EXECUTE]


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("form", ["object", "class"])
@pytest.mark.parametrize("acquire", RELEASE_OF)
async def test_what_the_filter_said_at_the_acquire_holds_for_the_release(
    acquire: Stage, form: str, holds: bool
) -> None:
    """Contract C1b, I1."""
    log: list[Stage] = []

    class Flips(Hook):
        def filter(self, ctx: InvokeContext) -> bool:
            return (ctx.run.step.stage is acquire) is holds

    for stage in (acquire, RELEASE_OF[acquire]):
        setattr(Flips, stage.value, lambda self, ctx: log.append(ctx.run.step.stage))
    await call(record(), Flips if form == "class" else Flips())
    assert log == ([acquire, RELEASE_OF[acquire]] if holds else [])


@pytest.mark.parametrize("acquire", RELEASE_OF)
async def test_a_tenant_that_is_left_out_takes_and_gives_back_nothing(acquire: Stage) -> None:
    """Contract C1b, I1."""
    log: list[Stage] = []
    acts = {stage: lambda ctx: log.append(ctx.run.step.stage) for stage in (acquire, RELEASE_OF[acquire])}
    hook = acting(acts, tenants={"acme"})()
    await call(record(), hook, user=User("u", tenant="other"))
    await call(record(), hook, user=User("u"))
    assert log == []
    await call(record(), hook, user=USER)
    assert log == [acquire, RELEASE_OF[acquire]]


@pytest.mark.parametrize("stage", HAPPY)
async def test_tenants_limit_a_hook_in_every_stage(stage: Stage) -> None:
    """Contract 92."""
    watch = Watch(stage, tenants=["acme", "beta"])
    looks = at(Stage.WILL_READ_CACHE, lambda ctx: None)
    async with Gate([record()], [watch.hook, looks], allow_unguarded=True) as gate:
        for tenant in ("acme", "gamma", None, "beta"):
            assert (
                await gate.call(ToolCall(id="c", name="double", arguments={"n": 1}), user=User("u", tenant=tenant))
            ).ok
    assert watch.stages == [stage] * 2


async def test_one_wrapper_registered_for_two_tenants_runs_once_for_each() -> None:
    """Contract 93, 94."""
    watch = Watch(Stage.AROUND_EXECUTE)
    async with Gate([record()], allow_unguarded=True) as gate:
        gate.use(watch.hook, tenants={"a"})
        gate.use(watch.hook, tenants={"b"})
        for tenant in "abc":
            await gate.invoke("double", {"n": 1}, user=User("u", tenant=tenant))
            assert len(watch.stages) == {"a": 1, "b": 2, "c": 2}[tenant]


@pytest.mark.parametrize(
    ("options", "inside"),
    [
        ({}, True),
        ({"tools": {"double"}}, True),
        ({"tools": ["other", "double"]}, True),
        ({"tools": {"other"}}, False),
        ({"tools": ()}, False),
        ({"tags": {"maths", "money"}}, True),
        ({"tags": {"money"}}, False),
        ({"tools": {"double"}, "tags": {"money"}}, False),
        ({"tools": {"double"}, "tags": {"maths"}}, True),
    ],
)
def test_tools_and_tags_are_settled_when_the_plan_is_made(options: dict[str, Any], inside: bool) -> None:
    """Contract 94."""
    cls = acting({Stage.WILL_AUTHORIZE: lambda ctx: None}, **options)
    for hook in (cls, cls(), on("will_authorize", **options)(lambda ctx: None)):
        plan = plan_of(record(), hook)
        assert (hook in [step.hook for _, _, step in plan.steps()]) is inside
    gate = Gate([record()])
    gate.use(at(Stage.WILL_AUTHORIZE, lambda ctx: None), **options)
    assert gate.explain("double").choices[0].included is inside


async def test_a_policy_for_a_tag_can_be_taken_out_again() -> None:
    """Contract 94."""
    watch = Watch(Stage.WILL_AUTHORIZE)
    async with Gate([record(), echoing()], allow_unguarded=True) as gate:
        undo = gate.use(watch.hook, tags={"maths"})
        await gate.invoke("double", {"n": 1})
        await gate.invoke("echo", {})
        assert len(watch.stages) == 1
        undo()
        undo()
        await gate.invoke("double", {"n": 1})
        assert len(watch.stages) == 1


def test_explain_says_why_a_hook_is_out() -> None:
    """Contract 92, 94."""
    hooks = [
        at(Stage.WILL_AUDIT, lambda ctx: None, name="Tags", tags={"money"}),
        at(Stage.WILL_AUDIT, lambda ctx: None, name="Tools", tools={"other"}),
        at(Stage.WILL_AUDIT, lambda ctx: None, name="Tenants", tenants={"beta"}),
        filtered(Stage.WILL_AUDIT, "object", lambda ctx: True, []),
    ]
    explained = Gate([record()], hooks).explain("double", user=USER)
    assert [(choice.name, choice.included) for choice in explained.choices] == [
        ("Tags", False),
        ("Tools", False),
        ("Tenants", False),
        ("Filtered", True),
    ]
    reasons = [choice.reason for choice in explained.choices]
    assert reasons[0] == "limited to tags ['money']"
    assert reasons[1] == "limited to tools ['other']"
    assert reasons[2] == "limited to tenants ['beta']; the user's is 'acme'"
    assert reasons[3] == "priority 0, runs at will_audit when its filter says so"
    assert "out Tags (gate): limited to tags ['money']" in str(explained)


class Tools(StrEnum):
    """A class is callable, and a collection."""

    DOUBLE = "double"


class Others(StrEnum):
    PAY = "pay"


@pytest.mark.parametrize("what", ["tools", "tags", "tenants"])
async def test_an_enum_class_limits_a_hook_to_its_members(what: str) -> None:
    """It was read as a method with the name of the option, so the hook ran for all tools."""
    refuses = acting({Stage.WILL_AUTHORIZE: refusing(ValueError())})
    limited = type("Limited", (refuses,), {what: Others})()
    assert (await call(record(), limited)).ok
    assert not (await call(record(), refuses())).ok
    if what == "tools":
        assert not (await call(record(), type("Limited", (refuses,), {what: Tools})())).ok


NOWHERE: dict[str, Any] = {
    "no effects": {"effects": ()},
    "an effect in capitals": {"effects": {"IRREVERSIBLE"}},
    "an effect that does not exist": {"effects": ["read", "write"]},
}


@pytest.mark.parametrize("options", NOWHERE.values(), ids=NOWHERE)
@pytest.mark.parametrize("kind", ["hook", "approval", "function", "rule"])
def test_a_hook_that_no_call_could_meet_is_refused(kind: str, options: Any) -> None:
    """Contract C33: an approval for ``effects={"IRREVERSIBLE"}`` was asked for by no call."""
    makes: dict[str, Any] = {
        "hook": lambda given: register(type("Own", (Hook,), {"will_audit": lambda self, ctx: None, **given})(), "test"),
        "approval": lambda given: register(RequireApproval(**given), "test"),
        "function": lambda given: register(on(Stage.WILL_AUTHORIZE, **given)(lambda ctx: None), "test"),
        "rule": lambda given: forbid("r", **given),
    }
    with pytest.raises(HookError, match="effects"):
        makes[kind](options)
    for right in ({"effects": {"read"}}, {"effects": Effect}, {"effects": [Effect.READ, "keyed"]}):
        makes[kind](right)
