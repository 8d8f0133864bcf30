"""What a hook may ask for about itself: shadow mode, ``on_failure``, a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any

import pytest

from callgate import DeadlineExceeded, Denied, Hook, InvokeContext, Outcome, Stage, ToolResult, on
from callgate.hooks.stages import RELEASE_OF, STAGES, OnFailure, Section
from tests.hooks.making import Watch, acting, at, call, invoke, record, refusing
from tests.hooks.verbs import POWER, VERBS

HAPPY = [
    stage for stage in Stage if stage not in {Stage.DID_CACHE_HIT, Stage.ON_RETRY, Stage.ON_GIVE_UP, Stage.ON_ERROR}
]
STEPS = [stage for stage in HAPPY if stage is not Stage.AROUND_EXECUTE]


def looks() -> Hook:
    return at(Stage.WILL_READ_CACHE, lambda ctx: None, name="Looks")


def fails() -> Hook:
    return at(Stage.WILL_EXECUTE, refusing(ValueError("the base case fails")), name="Fails", priority=-1)


def essence(result: ToolResult) -> Any:
    return result.outcome, result.output, result.error and (result.error.code, result.error.public), result.pending


# Shadow


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.AROUND_EXECUTE])
async def test_a_shadow_never_changes_anything(stage: Stage) -> None:
    """Contract 90, 92, I10."""
    base = [looks(), fails()] if STAGES[stage].section is Section.ERROR else [looks()]
    before = Watch()
    plain = await call(record(), *base, before.hook)
    for verb, is_async in product(VERBS, (False, True)):
        if verb == "lease" and not is_async:
            continue
        leases: list[str] = []

        def act(ctx: InvokeContext) -> Any:
            ctx.data["log"] = leases  # noqa: B023
            return VERBS[verb](ctx)  # noqa: B023

        after = Watch()
        shadow = acting({stage: act}, is_async=is_async, mode="shadow", priority=1)()
        shadowed = await call(record(), *base, after.hook, shadow)
        assert essence(shadowed) == essence(plain), verb
        assert after.stages == before.stages
        assert leases == []
        assert after.ctx.try_get("colour") is None
        assert after.ctx.masked_input == {"n": 2}
        reached = stage in after.stages
        raises = verb in POWER or verb.startswith("raise")
        assert [one.stage for one in after.ctx.suppressed] == [stage] * (reached and raises), verb


async def test_a_shadow_that_looks_into_a_cache_has_not_looked() -> None:
    """Contract C15a."""
    watch = Watch(Stage.DID_CACHE_HIT, Stage.DID_CACHE_MISS)
    for act in (lambda ctx: None, lambda ctx: ctx.respond(50)):
        assert (await call(record(), at(Stage.WILL_READ_CACHE, act, mode="shadow"), watch.hook)).output == 4
    assert watch.stages == []


@pytest.mark.parametrize("acquire", RELEASE_OF)
async def test_a_shadow_gives_back_what_it_took(acquire: Stage) -> None:
    """Contract C1a, I1."""
    log: list[str] = []
    acts = {acquire: lambda ctx: log.append("taken"), RELEASE_OF[acquire]: lambda ctx: log.append("given back")}
    assert (await call(record(), acting(acts, mode="shadow")())).ok
    assert log == ["taken", "given back"]
    refused = acting({acquire: refusing(Denied("full")), RELEASE_OF[acquire]: lambda ctx: log.append("never")})()
    refused.mode = "shadow"
    assert (await call(record(), refused)).ok
    assert log == ["taken", "given back"]


# on_failure


@pytest.mark.parametrize("spelling", ["on_failure", "on_error"])
@pytest.mark.parametrize("stage", STEPS)
async def test_a_failure_that_is_ignored_is_recorded_and_changes_nothing(stage: Stage, spelling: str) -> None:
    """Contract C1c, I10."""
    for is_async in (False, True):
        watch = Watch(Stage.WILL_FINALIZE_INVOKE, priority=-1)
        broken = acting({stage: refusing(KeyError())}, is_async=is_async, **{spelling: "ignore"})()
        assert (await call(record(), looks(), watch.hook, broken)).output == 4
        assert [(one.stage, one.hook, type(one.error)) for one in watch.ctx.suppressed] == [(stage, "Acting", KeyError)]


@pytest.mark.parametrize("stage", HAPPY)
async def test_a_decision_is_not_ignored(stage: Stage) -> None:
    """Contract 88, C22."""
    decisions = [verb for verb in ("abort", "retry_after", "respond", "suspend") if POWER[verb] in STAGES[stage].may]
    for verb, is_async in product(decisions, (False, True)):
        strict = await call(record(), looks(), acting({stage: VERBS[verb]}, is_async=is_async)())
        ignoring = acting({stage: VERBS[verb]}, is_async=is_async, on_failure="ignore")()
        tolerant = await call(record(), looks(), ignoring)
        assert tolerant.outcome is strict.outcome
        assert tolerant.output == strict.output
        assert strict.outcome is not Outcome.SUCCESS or verb == "respond"


class Wrapper(Hook):
    """Fails before, instead of, or after going on."""

    on_failure = "ignore"

    def __init__(self, when: str) -> None:
        self.when = when

    async def around_execute(self, ctx: InvokeContext, next: Callable[[], Awaitable[Any]]) -> Any:
        if self.when == "before":
            raise KeyError
        output = await next()
        if self.when == "again":
            await next()
        raise KeyError(output)


@pytest.mark.parametrize("when", ["before", "after", "again"])
async def test_a_wrapper_that_is_ignored_is_as_good_as_absent(when: str) -> None:
    """Contract 93, C21, I10."""
    runs: list[int] = []

    async def execute(n: int) -> int:
        runs.append(n)
        return 2 * n

    watch = Watch(Stage.WILL_FINALIZE_INVOKE)
    assert (await call(record(execute), Wrapper(when), watch.hook)).output == 4
    assert runs == [2]
    assert [one.stage for one in watch.ctx.suppressed] == [Stage.AROUND_EXECUTE]


async def test_what_the_tool_raises_is_not_the_wrappers_failure() -> None:
    """Contract 93, I10."""

    async def execute(n: int) -> int:
        raise ValueError(n)

    watch = Watch(Stage.WILL_FINALIZE_INVOKE)
    result = await call(record(execute), Wrapper("after"), watch.hook)
    assert result.outcome is Outcome.ERROR
    assert result.error is not None
    assert result.error.code == "tool_failed"
    assert watch.ctx.suppressed == ()


async def test_the_default_is_to_fail() -> None:
    """Contract C22."""
    assert (await call(record(), at(Stage.WILL_AUTHORIZE, refusing(KeyError())))).outcome is Outcome.DENIED
    assert (await call(record(), on("will_execute")(refusing(KeyError())))).outcome is Outcome.ERROR


# timeout


def hanging(stage: Stage, **options: Any) -> Hook:
    async def hang(ctx: InvokeContext) -> None:
        await asyncio.Event().wait()

    return acting({stage: hang}, is_async=True, timeout=0.001, name="Hangs", **options)()


@pytest.mark.parametrize("stage", HAPPY)
async def test_a_hook_that_takes_too_long_fails_as_its_stage_does(stage: Stage) -> None:
    """Contract C14, C22, I6."""
    row, watch = STAGES[stage], Watch(Stage.WILL_FINALIZE_INVOKE, priority=-1)
    result = await call(record(), hanging(stage), looks(), watch.hook)
    if row.section is Section.CLOSING:
        assert result.ok
        assert [(one.stage, type(one.error)) for one in watch.ctx.suppressed] == [(stage, DeadlineExceeded)]
        return
    error = watch.ctx.error
    assert error is not None
    if row.on_failure is OnFailure.DENY:
        assert result.outcome is Outcome.DENIED
        error = error.__cause__ or error
    else:
        assert result.outcome is Outcome.ERROR
    assert isinstance(error, DeadlineExceeded)
    assert str(error) == f"Hangs.{stage} took longer than 0.001 s"


@pytest.mark.parametrize("stage", HAPPY)
async def test_a_hook_that_takes_too_long_is_ignored_where_it_says_so(stage: Stage) -> None:
    """Contract C14, I10."""
    watch = Watch(Stage.WILL_FINALIZE_INVOKE, priority=-1)
    assert (await call(record(), hanging(stage, on_failure="ignore"), looks(), watch.hook)).output == 4
    assert [(one.stage, type(one.error)) for one in watch.ctx.suppressed] == [(stage, DeadlineExceeded)]


async def test_a_policy_that_takes_too_long_denies_by_type_too() -> None:
    """Contract C22, I6."""
    with pytest.raises(Denied) as denied:
        await invoke(record(), hanging(Stage.WILL_AUTHORIZE))
    assert isinstance(denied.value.__cause__, DeadlineExceeded)


async def test_a_timeout_of_the_hooks_own_is_not_taken_for_the_limit() -> None:
    """Contract C14."""

    async def times_out(ctx: InvokeContext) -> None:
        raise TimeoutError("upstream")

    hook = acting({Stage.WILL_EXECUTE: times_out}, is_async=True, timeout=60)()
    watch = Watch(Stage.ON_ERROR)
    await call(record(), hook, watch.hook)
    assert watch.ctx.error is not None
    assert type(watch.ctx.error.__cause__) is TimeoutError
