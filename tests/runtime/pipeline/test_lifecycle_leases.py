"""What hooks take is given back: by whom, in which order, exactly once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Self, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate import Denied, Gate, Hook, InvokeContext, Options, Outcome, RetryLater, Stage, ToolCall, invoke_tool
from callgate.errors import StageError
from callgate.hooks.stages import RELEASE_OF, STAGES, May, Section, stages_in
from tests.hooks.making import USER, Act, Watch, acting, at, call, echoing, record, refusing

QUOTA, SEMAPHORE = Stage.WILL_ACQUIRE_QUOTA, Stage.WILL_ACQUIRE_SEMAPHORE
WAYS = ["plain", "async", "waits", "plain class", "async class"]
RELEASES = ["plain", "async", "waits"]


def taker(
    name: str,
    log: list[str],
    stage: Stage = QUOTA,
    *,
    way: str = "plain",
    back: str = "plain",
    fails: bool = False,
    **more: Any,
) -> Any:
    """A hook that takes at *stage* and gives back; *fails* means that it could not take."""

    def take(ctx: InvokeContext) -> None:
        if more.get("breaks"):
            raise KeyError(name)
        if fails:
            log.append(f"no {name}")
            ctx.retry_after(10, "full")
        log.append(f"+{name}")

    async def take_later(self: Any, ctx: InvokeContext) -> None:
        if way == "waits":
            await asyncio.sleep(0)
        take(ctx)

    async def give_later(self: Any, ctx: InvokeContext) -> None:
        if back == "waits":
            await asyncio.sleep(0)
        log.append(f"-{name}")

    methods: dict[str, Any] = {
        stage.value: (lambda self, ctx: take(ctx)) if way.startswith("plain") else take_later,
        RELEASE_OF[stage].value: (lambda self, ctx: log.append(f"-{name}")) if back == "plain" else give_later,
    }
    cls = type(name, (Hook,), {**methods, **more})
    return cls if way.endswith("class") else cls()


# Which are given back


@dataclass(frozen=True)
class Taker:
    stage: Stage
    way: str
    back: str
    mood: str
    priority: int


TAKERS = st.lists(
    st.builds(
        Taker,
        st.sampled_from([QUOTA, SEMAPHORE]),
        st.sampled_from(WAYS),
        st.sampled_from(RELEASES),
        st.sampled_from(["takes", "takes", "takes", "is filtered", "is elsewhere", "breaks and is ignored", "refuses"]),
        st.integers(-1, 1),
    ),
    max_size=8,
)


MOODS: dict[str, dict[str, Any]] = {
    "takes": {},
    "is filtered": {"filter": lambda self, ctx: False},
    "is elsewhere": {"tenants": {"beta"}},
    "breaks and is ignored": {"on_failure": "ignore", "breaks": True},
    "refuses": {"fails": True},
}


def ledger(takers: list[Taker]) -> tuple[list[str], bool]:
    """What must be in the log: those before the first that fails, and back in reverse."""
    log: list[str] = []
    held: list[int] = []
    order = sorted(range(len(takers)), key=lambda i: (STAGES[takers[i].stage].position, -takers[i].priority))
    for index in order:
        if takers[index].mood == "refuses":
            return [*log, f"no {index}", *(f"-{number}" for number in held[::-1])], False
        if takers[index].mood == "takes":
            log.append(f"+{index}")
            held.append(index)
    return [*log, *(f"-{number}" for number in held[::-1])], True


@settings(max_examples=150, deadline=None)
@given(TAKERS, st.sampled_from([None, Stage.WILL_EXECUTE, Stage.WILL_REDACT_OUTPUT, Stage.WILL_FINALIZE_INVOKE]))
def test_whoever_took_gives_back_once_in_reverse(takers: list[Taker], breaks: Stage | None) -> None:
    """Contract 96, C1, C1a, I1, I11."""
    log: list[str] = []
    hooks = [
        taker(str(n), log, one.stage, way=one.way, back=one.back, priority=one.priority, **MOODS[one.mood])
        for n, one in enumerate(takers)
    ]
    broken = [at(breaks, refusing(KeyError()))] if breaks else []
    result = asyncio.run(call(record(), *hooks, *broken))
    expected, whole = ledger(takers)
    assert log == expected
    assert (result.outcome is Outcome.RETRY_LATER) is not whole


@pytest.mark.parametrize("acquire", RELEASE_OF)
async def test_a_hook_that_could_not_take_does_not_give_back(acquire: Stage) -> None:
    """Contract C1a, I11."""
    log: list[str] = []
    result = await call(
        record(), taker("a", log, acquire), taker("b", log, acquire, fails=True), taker("c", log, acquire)
    )
    assert result.retry_after == 10
    assert log == ["+a", "no b", "-a"]


@pytest.mark.parametrize("stage", [s for s in stages_in(Section.BEFORE) if STAGES[s].position < STAGES[QUOTA].position])
@pytest.mark.parametrize("act", [lambda ctx: ctx.abort(), lambda ctx: ctx.respond(9), refusing(KeyError())])
async def test_who_stops_before_capacity_is_taken_gives_none_back(stage: Stage, act: Act) -> None:
    """Contract 99, C1a."""
    log: list[str] = []
    alone = [at(release, lambda ctx: log.append("release alone")) for release in RELEASE_OF.values()]
    await call(record(), at(stage, act), taker("a", log), taker("b", log, SEMAPHORE), *alone)
    assert log == []


@pytest.mark.parametrize("acquire", RELEASE_OF)
async def test_a_release_by_itself_runs_when_the_acquire_stage_is_over(acquire: Stage) -> None:
    """Contract C1a."""
    log: list[str] = []
    alone = at(RELEASE_OF[acquire], lambda ctx: log.append("alone"))
    await call(record(), alone, taker("a", log, acquire))
    assert sorted(log) == ["+a", "-a", "alone"]
    log.clear()
    await call(record(), alone)
    await call(record(), alone, at(Stage.WILL_EXECUTE, refusing(KeyError())))
    assert log == ["alone", "alone"]
    log.clear()
    await call(record(), alone, taker("a", log, acquire), taker("b", log, acquire, fails=True))
    assert log == ["+a", "no b", "-a"]


async def test_releases_by_themselves_run_once_each_in_mirrored_order() -> None:
    """Contract 91, C1a, C23."""
    log: list[int] = []

    def alone(number: int) -> Hook:
        return at(Stage.DID_RELEASE_QUOTA, lambda ctx: log.append(number), priority=number)

    await call(record(), alone(1), alone(3), alone(2))
    assert log == [1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("acquire", RELEASE_OF)
async def test_an_acquire_that_returns_a_value_has_taken_nothing(acquire: Stage, way: str) -> None:
    """Contract C1a, C22."""
    log: list[str] = []

    async def answers(self: Any, ctx: InvokeContext) -> bool:
        if way == "waits":
            await asyncio.sleep(0)
        return False

    methods = {
        acquire.value: (lambda self, ctx: False) if way.startswith("plain") else answers,
        RELEASE_OF[acquire].value: lambda self, ctx: log.append("released"),
    }
    cls = type("Answers", (Hook,), methods)
    watch = Watch(Stage.ON_ERROR)
    result = await call(record(), cls if way.endswith("class") else cls(), watch.hook)
    assert result.outcome is Outcome.ERROR
    assert "returned bool, which decides nothing" in str(watch.ctx.error and watch.ctx.error.__cause__)
    assert log == []


# What goes wrong in a release


@pytest.mark.parametrize("back", RELEASES)
@pytest.mark.parametrize("fails", [False, True])
async def test_a_release_that_fails_is_kept_and_changes_nothing(back: str, fails: bool) -> None:
    """Contract C1c, I1, I10."""
    log: list[str] = []
    errors = [KeyError("a"), SystemExit("b"), asyncio.CancelledError("c"), Denied("d"), GeneratorExit("e")]

    def broken(error: BaseException) -> Hook:
        async def give_back(self: Any, ctx: InvokeContext) -> None:
            if back == "waits":
                await asyncio.sleep(0)
            raise error

        def give_back_now(self: Any, ctx: InvokeContext) -> None:
            raise error

        release = give_back_now if back == "plain" else give_back
        cls = type("B", (Hook,), {QUOTA.value: lambda self, ctx: None, RELEASE_OF[QUOTA].value: release})
        return cast("Hook", cls())

    tool_error = at(Stage.WILL_EXECUTE, refusing(ValueError("the tool's own")))
    watch = Watch(Stage.WILL_FINALIZE_INVOKE)
    hooks = [taker("first", log), *map(broken, errors), taker("last", log), watch.hook, *[tool_error] * fails]
    result = await call(record(), *hooks)
    assert result.outcome is (Outcome.ERROR if fails else Outcome.SUCCESS)
    if fails:
        assert str(watch.ctx.error and watch.ctx.error.__cause__) == "the tool's own"
    assert log == ["+first", "+last", "-last", "-first"]
    assert [one.error for one in watch.ctx.cleanup_errors] == errors[::-1]
    assert {(one.stage, one.hook) for one in watch.ctx.cleanup_errors} == {(RELEASE_OF[QUOTA], "B")}


# Enrolment and identity


@pytest.mark.parametrize("where", ["gate", "tool", "bare"])
@pytest.mark.parametrize("way", ["plain", "async", "plain class", "async class"])
@pytest.mark.parametrize("acquire", RELEASE_OF)
async def test_a_hook_listed_under_its_acquire_alone_gives_back(acquire: Stage, way: str, where: str) -> None:
    """Contract 94, C1e, I1."""
    log: list[str] = []
    listed = {acquire: [taker("a", log, acquire, way=way)]}
    if where == "bare":
        await invoke_tool(record(), {"n": 1}, global_hooks_by_stage=listed)
    elif where == "gate":
        await call(record(), listed)
    else:
        await call(record(hooks_by_stage=listed))
    assert log == ["+a", "-a"]


@pytest.mark.parametrize("acquire", RELEASE_OF)
async def test_a_hook_listed_under_both_gives_back_once(acquire: Stage) -> None:
    """Contract C1a, C1e."""
    for stages in ([acquire, RELEASE_OF[acquire]], [RELEASE_OF[acquire], acquire]):
        log: list[str] = []
        hook = taker("a", log, acquire)
        await call(record(), {stage: [hook] for stage in stages})
        assert log == ["+a", "-a"]


class Counting(Hook):
    """Notes which instance each method is called on."""

    made: list[Counting] = []  # noqa: RUF012
    seen: list[tuple[Stage, Counting]] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.made.append(self)

    def filter(self, ctx: InvokeContext) -> bool:
        self.seen.append((ctx.run.step.stage, self))
        return True

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        self.seen.append((ctx.run.step.stage, self))
        return await next()


for _stage in Stage:
    if _stage is not Stage.AROUND_EXECUTE:
        setattr(Counting, _stage.value, lambda self, ctx: self.seen.append((ctx.run.step.stage, self)))


async def test_a_hook_class_is_made_once_an_invocation() -> None:
    """Contract 82, C1f."""
    for fails in (False, True):
        Counting.made.clear()
        Counting.seen.clear()
        asked: list[Any] = []

        def resolve(cls: Any) -> Any:
            asked.append(cls)  # noqa: B023
            return cls()

        failing = [at(Stage.WILL_EXECUTE, refusing(KeyError()))] * fails
        async with Gate([record(hooks=[Counting])], [Counting, *failing], options=Options(resolve=resolve)) as gate:
            for number in (1, 2):
                await gate.call(ToolCall(id="c", name="double", arguments={"n": number}), user=USER)
                assert len(Counting.made) == len(asked) == number
                assert {id(hook) for _, hook in Counting.seen} == {id(Counting.made[-1])}
                seen = {stage for stage, _ in Counting.seen}
                assert seen >= {QUOTA, SEMAPHORE, *RELEASE_OF.values(), Stage.WILL_FINALIZE_INVOKE}
                Counting.seen.clear()
    assert Counting.made[0] is not Counting.made[1]


async def test_a_class_that_is_not_needed_is_not_made() -> None:
    """Contract C1f."""

    class Late(Hook):
        def __init__(self) -> None:
            raise AssertionError("made in vain")

        def will_execute(self, ctx: InvokeContext) -> None: ...

    hook = at(Stage.WILL_AUTHORIZE, lambda ctx: ctx.abort("no"))
    assert (await call(record(), hook, Late)).outcome is Outcome.DENIED


@pytest.mark.parametrize("stage", [*stages_in(Section.BEFORE), *RELEASE_OF.values(), Stage.WILL_AUDIT])
async def test_a_class_that_cannot_be_made_fails_as_its_stage_does(stage: Stage) -> None:
    """Contract C1f, C22, I6."""

    class Broken(Hook):
        def __init__(self) -> None:
            raise KeyError("no settings")

    setattr(Broken, stage.value, lambda self, ctx: None)
    watch = Watch(Stage.WILL_FINALIZE_INVOKE)
    result = await call(record(), Broken, watch.hook)
    if STAGES[stage].section is Section.CLOSING:
        assert result.ok
        assert [one.stage for one in watch.ctx.suppressed] == [stage]
    else:
        assert result.outcome is (Outcome.DENIED if STAGES[stage].phase == "policy" else Outcome.ERROR)


# ctx.lease


class Resource:
    """Notes how it is entered and left."""

    def __init__(
        self, name: str, log: list[str], *, enters: bool = True, leaves: bool = True, answer: Any = None
    ) -> None:
        self.name, self.log, self.enters, self.leaves, self.answer = name, log, enters, leaves, answer

    async def __aenter__(self) -> Self:
        await asyncio.sleep(0)
        if not self.enters:
            raise RuntimeError("cannot enter")
        self.log.append(f"+{self.name}")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> Any:
        await asyncio.sleep(0)
        self.log.append(f"-{self.name} {kind and kind.__name__}")
        if not self.leaves:
            raise RuntimeError("cannot leave")
        return self.answer


def leasing(stage: Stage, *resources: Resource) -> Hook:
    async def act(ctx: InvokeContext) -> None:
        for resource in resources:
            assert await ctx.lease(resource) is resource

    return acting({stage: act}, is_async=True)()


@pytest.mark.parametrize(
    "stage",
    [
        s
        for s in Stage
        if May.LEASE in STAGES[s].may and s not in {Stage.DID_CACHE_HIT, Stage.DID_CACHE_MISS, Stage.ON_RETRY}
    ],
)
async def test_a_lease_taken_in_any_stage_is_left_after_the_records_in_reverse(stage: Stage) -> None:
    """Contract 96, C1, I1."""
    for fails in (False, True):
        log: list[str] = []
        late = [at(Stage.WILL_REDACT_OUTPUT, refusing(KeyError()))] * fails
        records = at(Stage.ON_METRICS, lambda ctx: log.append("records"))  # noqa: B023
        last = at(Stage.WILL_FINALIZE_INVOKE, lambda ctx: log.append("last word"))  # noqa: B023
        hook = leasing(stage, Resource("a", log), Resource("b", log))
        await call(record(), hook, records, last, *late)
        what = "KeyError" if fails else None
        assert log == ["+a", "+b", "records", f"-b {what}", f"-a {what}", "last word"]


async def test_leases_and_acquired_capacity_are_one_stack() -> None:
    """Contract C1a, C23, I1."""
    log: list[str] = []
    hooks = [
        leasing(Stage.WILL_AUTHORIZE, Resource("first", log)),
        taker("quota", log),
        leasing(SEMAPHORE, Resource("between", log)),
        taker("semaphore", log, SEMAPHORE),
        leasing(Stage.WILL_EXECUTE, Resource("last", log)),
    ]
    await call(record(), *hooks)
    assert log[:5] == ["+first", "+quota", "+between", "+semaphore", "+last"]
    assert log[5:] == ["-last None", "-semaphore", "-between None", "-quota", "-first None"]


async def test_what_could_not_be_entered_is_not_left() -> None:
    """Contract C1a, I1."""
    log: list[str] = []
    result = await call(record(), leasing(Stage.WILL_EXECUTE, Resource("a", log), Resource("b", log, enters=False)))
    assert result.outcome is Outcome.ERROR
    assert log == ["+a", "-a RuntimeError"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_lease_that_cannot_be_left_or_wants_to_swallow_the_error_changes_nothing(fails: bool) -> None:
    """Contract C1c, I10."""
    log: list[str] = []
    watch = Watch(Stage.WILL_FINALIZE_INVOKE)
    hook = leasing(Stage.WILL_AUTHORIZE, Resource("a", log, leaves=False), Resource("b", log, answer=True))
    failing = [at(Stage.WILL_EXECUTE, refusing(KeyError()))] * fails
    result = await call(record(), hook, watch.hook, *failing)
    assert result.outcome is (Outcome.ERROR if fails else Outcome.SUCCESS)
    assert [str(one.error) for one in watch.ctx.suppressed] == ["cannot leave"]


@pytest.mark.parametrize("stage", stages_in(Section.SHAPING, Section.CLOSING))
async def test_no_lease_is_taken_where_nothing_would_give_it_back(stage: Stage) -> None:
    """Contract 96, C1a."""
    log: list[str] = []

    async def act(ctx: InvokeContext) -> None:
        with pytest.raises(StageError, match=f"{stage} may not take a lease"):
            await ctx.lease(Resource("a", log))

    watch = Watch(Stage.WILL_FINALIZE_INVOKE, priority=-1)
    assert (await call(record(), acting({stage: act}, is_async=True)(), watch.hook)).ok
    assert log == []
    assert watch.ctx.suppressed == ()


async def test_nested_calls_have_ledgers_of_their_own() -> None:
    """Contract 96, I1."""
    log: list[str] = []

    async def ask(ctx: InvokeContext) -> None:
        if ctx.tool_id == "echo":
            await ctx.call("double", {"n": 3})

    hook = taker("x", log)
    async with Gate([record(), echoing()], [hook, acting({Stage.WILL_EXECUTE: ask}, is_async=True)()]) as gate:
        await gate.invoke("echo", {})
    assert log == ["+x", "+x", "-x", "-x"]


async def test_capacity_is_held_until_the_records_are_written() -> None:
    """Contract 97, 104, C1."""
    log: list[str] = []
    hooks = [
        taker("q", log),
        *(at(s, lambda ctx: log.append(ctx.run.step.stage.value)) for s in (Stage.WILL_AUDIT, Stage.ON_METRICS)),
    ]
    await call(record(), *hooks)
    assert log == ["+q", "will_audit", "on_metrics", "-q"]
    with pytest.raises(RetryLater):
        await invoke_tool(record(), {"n": 1}, global_hooks_by_stage={QUOTA: [taker("f", log, fails=True)]})
