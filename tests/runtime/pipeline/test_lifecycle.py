"""The order of the lifecycle, and what the runtime does in it by itself."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import pytest
from dependency_injector import containers, providers

from callgate import (
    Denied,
    Gate,
    Hook,
    Invalid,
    InvokeContext,
    Outcome,
    Provide,
    Stage,
    ToolCall,
    ToolContext,
    invoke_tool,
    on,
    tool,
)
from callgate.hooks import TOOL_ERROR_STAGES
from callgate.hooks.stages import STAGES, Section, stages_in
from callgate.providers.clock import FakeClock
from callgate.tools.declaring.declare import as_tool
from tests.hooks.making import DEFINITION, Watch, acting, at, call, echoing, invoke, record, refusing

EXECUTE = [Stage.AROUND_EXECUTE, Stage.WILL_EXECUTE, Stage.DID_EXECUTE]
AFTER = [*stages_in(Section.SHAPING, Section.CLOSING)]
RUNS = [*stages_in(Section.BEFORE), Stage.DID_CACHE_MISS, *EXECUTE, *AFTER]
HIT = [*stages_in(Section.BEFORE), Stage.DID_CACHE_HIT, *AFTER]


# The order


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("split", [False, True], ids=["one hook for all", "one hook a stage"])
@pytest.mark.parametrize("skipped", [None, *EXECUTE, Stage.WILL_NORMALIZE_INPUT, Stage.WILL_VALIDATE_INPUT])
async def test_stages_are_visited_in_the_order_of_the_table(skipped: Stage | None, split: bool, is_async: bool) -> None:
    """Contract 90, 97, C13."""
    stages = [stage for stage in Stage if stage is not skipped]
    seen: list[Stage] = []
    acts = {stage: lambda ctx: seen.append(ctx.run.step.stage) for stage in stages}
    groups = [{stage: act} for stage, act in acts.items()][::-1] if split else [acts]
    result = await call(record(), *(acting(group, is_async=is_async)() for group in groups))
    assert result.output == 4
    assert seen == [stage for stage in RUNS if stage is not skipped]


async def test_a_hit_skips_the_tool_and_is_shaped() -> None:
    """Contract 97, 99, C15a."""
    watch = Watch()
    hit = at(Stage.WILL_READ_CACHE, lambda ctx: ctx.respond(50), priority=-1)
    assert (await call(record(), watch.hook, hit)).output == 50
    assert watch.stages == HIT


async def test_a_hit_that_nobody_responds_with_goes_on_to_the_tool() -> None:
    """Contract 98, C15a."""

    def flag(ctx: InvokeContext) -> None:
        ctx.cache_hit = True

    watch = Watch()
    assert (await call(record(), watch.hook, at(Stage.WILL_READ_CACHE, flag))).output == 4
    assert watch.stages == [Stage.DID_CACHE_HIT if s is Stage.DID_CACHE_MISS else s for s in RUNS]


async def test_without_a_cache_there_is_neither_hit_nor_miss() -> None:
    """Contract C15a."""
    watch = Watch(*(stage for stage in Stage if stage is not Stage.WILL_READ_CACHE))
    assert (await call(record(), watch.hook)).output == 4
    assert watch.stages == [s for s in RUNS if s not in {Stage.WILL_READ_CACHE, Stage.DID_CACHE_MISS}]
    assert watch.ctx.cache_hit is None


async def test_a_failed_invocation_takes_the_error_path() -> None:
    """Contract 101, 103, 104, C1."""

    async def execute(n: int) -> int:
        raise ValueError

    watch = Watch()
    result = await call(record(execute), watch.hook)
    assert result.outcome is Outcome.ERROR
    assert tuple(watch.stages[-len(TOOL_ERROR_STAGES) :]) == TOOL_ERROR_STAGES
    road = [*stages_in(Section.BEFORE), Stage.DID_CACHE_MISS, Stage.AROUND_EXECUTE, Stage.WILL_EXECUTE]
    assert watch.stages[: -len(TOOL_ERROR_STAGES)] == road


@pytest.mark.parametrize("stage", [stage for stage in RUNS if STAGES[stage].section is not Section.CLOSING])
async def test_no_stage_of_the_error_path_runs_twice_wherever_it_began(stage: Stage) -> None:
    """Contract 103, 104, C1, C1a."""
    watch = Watch()
    result = await call(record(), watch.hook, at(stage, refusing(KeyError()), priority=-1))
    assert not result.ok
    assert len(set(watch.stages)) == len(watch.stages)
    began = watch.stages.index(Stage.ON_ERROR)
    held = {STAGES[seen].stage for seen in watch.stages[:began] if STAGES[seen].acquires}
    path = [s for s in TOOL_ERROR_STAGES if STAGES[s].gives_back is None or STAGES[s].gives_back in held]
    if stage not in {Stage.WILL_ACQUIRE_QUOTA, Stage.WILL_ACQUIRE_SEMAPHORE}:
        assert watch.stages[began:] == path


async def test_a_suspended_invocation_is_recorded_and_is_no_error() -> None:
    """Contract 88, 103, C1."""
    watch = Watch()
    hook = at(Stage.WILL_AUTHORIZE_INPUT, lambda ctx: ctx.suspend("approval", "May it?"), priority=-1)
    result = await call(record(), watch.hook, hook)
    assert result.outcome is Outcome.SUSPENDED
    assert result.pending.kind == "approval"
    assert Stage.ON_ERROR not in watch.stages
    assert watch.stages[-len(TOOL_ERROR_STAGES) + 1 :] == [*TOOL_ERROR_STAGES[1:]]


async def test_the_last_word_is_had_on_every_path_and_changes_nothing() -> None:
    """Contract 103, C1c."""
    for act in (lambda ctx: None, lambda ctx: ctx.abort(), lambda ctx: ctx.respond(9), refusing(KeyError())):
        for stage in (Stage.WILL_AUTHORIZE, Stage.WILL_EXECUTE, Stage.WILL_REDACT_OUTPUT):
            watch = Watch(Stage.WILL_FINALIZE_INVOKE)
            broken = at(Stage.WILL_FINALIZE_INVOKE, refusing(RuntimeError("finalise")), priority=1)
            plain = await call(record(), at(stage, act))
            result = await call(record(), at(stage, act), watch.hook, broken)
            assert (result.outcome, result.output) == (plain.outcome, plain.output)
            assert watch.stages == [Stage.WILL_FINALIZE_INVOKE]
            assert [str(one.error) for one in watch.ctx.cleanup_errors] == ["finalise"]


# What an error looks like


async def test_an_unknown_error_is_in_ctx_error_and_is_raised_again() -> None:
    """Contract 101, C20."""
    boom = ValueError("boom")

    async def execute(n: int) -> int:
        raise boom

    seen: list[Any] = []
    hooks = [at(stage, lambda ctx: seen.append((ctx.error, ctx.outcome))) for stage in TOOL_ERROR_STAGES[:4]]
    with pytest.raises(ValueError, match="boom") as caught:
        await invoke_tool(
            record(execute),
            {"n": 1},
            global_hooks_by_stage={s: [h] for s, h in zip(TOOL_ERROR_STAGES[:4], hooks, strict=True)},
        )
    assert caught.value is boom
    assert seen == [(boom, Outcome.ERROR)] * 4


async def test_records_know_how_it_ended() -> None:
    """Contract 87, 104, C19."""
    seen: list[Any] = []
    audit = at(Stage.WILL_AUDIT, lambda ctx: seen.append((ctx.outcome, ctx.error and type(ctx.error), ctx.executed)))
    for stage, act in {
        Stage.WILL_EXECUTE: lambda ctx: None,
        Stage.WILL_AUTHORIZE: lambda ctx: ctx.abort("no"),
        Stage.WILL_CHECK_CONSENT: refusing(KeyError()),
        Stage.WILL_ACQUIRE_QUOTA: lambda ctx: ctx.retry_after(5),
        Stage.WILL_READ_CACHE: lambda ctx: ctx.respond(9),
        Stage.WILL_REDACT_OUTPUT: refusing(KeyError()),
    }.items():
        await call(record(), at(stage, act), audit)
    assert [row[0] for row in seen] == ["success", "denied", "denied", "retry_later", "success", "error"]
    assert [row[2] for row in seen] == [True, False, False, False, False, True]
    assert [row[1] is None for row in seen] == [True, False, False, False, True, False]


@pytest.mark.parametrize(
    "stage", [s for s in RUNS if STAGES[s].section in {Section.BEFORE, Section.SHAPING}] + EXECUTE[1:]
)
async def test_a_hooks_failure_is_not_called_the_tools(stage: Stage) -> None:
    """Contract 101."""
    result = await call(record(), at(stage, refusing(KeyError())))
    assert result.error is not None
    assert result.error.code in {"hook_failed", "policy_error"}


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_tools_failure_is_called_the_tools(wrapped: bool) -> None:
    """Contract 101."""

    async def execute(n: int) -> int:
        raise KeyError

    hooks = [at(Stage.AROUND_EXECUTE, lambda ctx: None) for _ in range(2 * wrapped)]
    result = await call(record(execute), *hooks)
    assert result.error is not None
    assert result.error.code == "tool_failed"


# The runtime's own work


SHAPED = (Stage.WILL_PARSE_INPUT, Stage.WILL_VALIDATE_INPUT, Stage.WILL_NORMALIZE_INPUT)
RAW: list[tuple[Any, Outcome, Any]] = [
    ({"n": 2}, Outcome.SUCCESS, 4),
    ('{"n": 2}', Outcome.SUCCESS, 4),
    (' {"n": 2.0} ', Outcome.SUCCESS, 4),
    ('{"n": 2', Outcome.INVALID, None),
    ('{"n": 2, "n": 3}', Outcome.INVALID, None),
    ("[2]", Outcome.INVALID, None),
    ("null", Outcome.INVALID, None),
    ("", Outcome.INVALID, None),
    (None, Outcome.INVALID, None),
    ({"n": "2"}, Outcome.INVALID, None),
    ({"n": True}, Outcome.INVALID, None),
    ({"n": 2.5}, Outcome.INVALID, None),
    ({"n": None}, Outcome.INVALID, None),
    ({}, Outcome.INVALID, None),
    ({"n": 2, "m": 1}, Outcome.INVALID, None),
]


HOOKED = [(), *((stage,) for stage in (Stage.WILL_AUTHORIZE, *SHAPED, Stage.AROUND_EXECUTE)), tuple(Stage)]


@pytest.mark.parametrize(("raw", "outcome", "output"), RAW)
async def test_input_is_parsed_and_validated_whatever_hooks_there_are(raw: Any, outcome: Outcome, output: Any) -> None:
    """Contract 83, C34, I2."""
    runs: list[int] = []

    async def execute(n: int) -> int:
        runs.append(n)
        return int(2 * n)

    for hooked in HOOKED:
        hooks = [at(stage, lambda ctx: None) for stage in hooked]
        async with Gate([record(execute)], hooks) as gate:
            result = await gate.call(ToolCall(id="c", name="double", arguments=raw))
        assert (result.outcome, result.output) == (outcome, output), hooked
        by_stage = {stage: [hook] for stage, hook in zip(hooked, hooks, strict=True)}
        calling = invoke_tool(record(execute), raw, global_hooks_by_stage=by_stage)
        if outcome is Outcome.INVALID:
            with pytest.raises(Invalid):
                await calling
        else:
            assert await calling == output
    assert runs == [2] * (outcome is Outcome.SUCCESS) * 2 * len(HOOKED)


@pytest.mark.parametrize("output", ["4", 4.5, True, None, [4], {"n": 4}, float("nan"), object()])
@pytest.mark.parametrize("hooked", [(), (Stage.DID_EXECUTE,), (Stage.WILL_TRANSFORM_OUTPUT,), (Stage.AROUND_EXECUTE,)])
async def test_output_is_checked_whatever_hooks_there_are(output: Any, hooked: tuple[Stage, ...]) -> None:
    """Contract C34, I15."""

    async def execute(n: int) -> Any:
        return output

    result = await call(record(execute), *(at(stage, lambda ctx: None) for stage in hooked))
    assert result.outcome is Outcome.ERROR
    assert result.output is None
    assert result.error is not None
    assert result.error.code == "invalid_output"
    assert result.error.issues == ()


@pytest.mark.parametrize("output", [float("nan"), {"x": [float("inf")]}, b"\xff", [object()], object(), int])
async def test_without_an_output_schema_the_output_is_still_json(output: Any) -> None:
    """Contract C34, I15."""

    async def execute(n: int) -> Any:
        return output

    result = await call(record(execute, replace(DEFINITION, output_schema=None)))
    assert result.error is not None
    assert result.error.code == "invalid_output"


async def test_the_runtime_works_after_the_hooks_of_its_stage() -> None:
    """Contract 97, C34."""
    seen: list[tuple[str, Any]] = []

    def look(ctx: InvokeContext) -> None:
        early = ctx.run.step.stage is Stage.WILL_PARSE_INPUT
        seen.append((ctx.run.step.stage, ctx.raw_input if early else ctx.input))

    def mend_input(ctx: InvokeContext) -> None:
        look(ctx)
        ctx.input = {"n": int(ctx.input["n"])}

    def mend_output(ctx: InvokeContext) -> None:
        seen.append((ctx.run.step.stage, ctx.output))
        ctx.output = int(ctx.output)

    async def execute(n: int) -> Any:
        return str(2 * n)

    hooks = [
        at(Stage.WILL_PARSE_INPUT, look),
        at(Stage.WILL_VALIDATE_INPUT, mend_input, priority=-1e9),
        at(Stage.WILL_NORMALIZE_INPUT, look),
        at(Stage.WILL_VALIDATE_OUTPUT, mend_output, priority=-1e9),
    ]
    assert (await call(record(execute), *hooks, arguments='{"n": "7"}')).output == 14
    assert seen == [
        ("will_parse_input", '{"n": "7"}'),
        ("will_validate_input", {"n": "7"}),
        ("will_normalize_input", {"n": 7}),
        ("will_validate_output", "14"),
    ]


async def test_the_end_time_stands_before_metrics_and_is_brought_up_to_date() -> None:
    """Contract 87, C35."""
    for fails in (False, True):
        clock = FakeClock(1_000.0)
        seen: list[Any] = []

        def note(ctx: InvokeContext) -> None:
            finished = ctx.finished_at
            seen.append((ctx.run.step.stage.value, finished and finished.timestamp(), ctx.duration))  # noqa: B023
            clock.advance(1)  # noqa: B023

        watch = Watch(Stage.WILL_FINALIZE_INVOKE)
        stages = (Stage.WILL_AUTHORIZE, Stage.WILL_EXECUTE, Stage.ON_METRICS)
        failing = [at(Stage.WILL_REDACT_OUTPUT, refusing(KeyError()))] * fails
        result = await call(record(), *(at(stage, note) for stage in stages), *failing, watch.hook, clock=clock)
        assert seen == [
            ("will_authorize", None, None),
            ("will_execute", None, None),
            ("on_metrics", 1_002.0, 2.0),
        ]
        assert watch.ctx.finished_at is not None
        assert watch.ctx.finished_at.timestamp() == 1_003.0
        assert watch.ctx.finished_at.utcoffset() is not None
        assert result.duration == 3.0


# Denied and invalid calls


class Db: ...


made: list[Db] = []


def make_db() -> Db:
    made.append(Db())
    return made[-1]


class Container(containers.DeclarativeContainer):
    db = providers.Factory(make_db)


runs: list[int] = []


@tool(effect="read")
async def stored(n: int, *, db: Annotated[Db, Provide[Container.db]], ctx: ToolContext) -> int:
    """Read a number."""
    runs.append(n)
    return n


@pytest.mark.parametrize(
    "stage", [*stages_in(Section.BEFORE), Stage.DID_CACHE_MISS, Stage.AROUND_EXECUTE, Stage.WILL_EXECUTE]
)
async def test_a_denied_call_reaches_neither_the_tool_nor_its_dependencies(stage: Stage) -> None:
    """Contract 96, 100, I7."""
    looks = at(Stage.WILL_READ_CACHE, lambda ctx: None)
    made.clear()
    runs.clear()
    for act in (lambda ctx: ctx.abort("no"), refusing(KeyError()), lambda ctx: ctx.retry_after(1)):
        assert not (await call(stored, at(stage, act), looks, container=Container())).ok
        assert not (await call(stored, at(stage, act), looks, container=Container(), arguments={"n": "x"})).ok
    assert (made, runs) == ([], [])
    assert (await call(stored, looks, container=Container())).output == 2
    assert (len(made), runs) == (1, [2])


@pytest.mark.parametrize("arguments", [{"n": "x"}, {}, "{", {"n": 1, "db": {}}, {"n": 1, "ctx": None}])
async def test_an_invalid_call_reaches_neither_the_tool_nor_its_dependencies(arguments: Any) -> None:
    """Contract C34, I2, I7."""
    made.clear()
    runs.clear()
    assert (await call(stored, container=Container(), arguments=arguments)).outcome is Outcome.INVALID
    assert (made, runs) == ([], [])


# How hooks may be written


async def test_what_a_plain_method_returns_is_awaited_in_every_stage() -> None:
    """Contract 90."""
    missed: set[Stage] = set()
    for stage in Stage:
        started: list[Coroutine[Any, Any, None]] = []
        done: list[Stage] = []

        async def later(ctx: InvokeContext) -> None:
            done.append(ctx.run.step.stage)  # noqa: B023

        def now(ctx: InvokeContext) -> Any:
            started.append(later(ctx))  # noqa: B023
            return started[-1]  # noqa: B023

        if stage is Stage.AROUND_EXECUTE:
            continue  # what a wrapper returns is its output
        base: list[Any] = [at(Stage.WILL_READ_CACHE, lambda ctx: None)]
        if stage is Stage.DID_CACHE_HIT:
            base = [at(Stage.WILL_READ_CACHE, lambda ctx: ctx.respond(1))]
        if stage is Stage.ON_ERROR:
            base = [at(Stage.WILL_EXECUTE, refusing(KeyError()))]
        if stage in {Stage.ON_RETRY, Stage.ON_GIVE_UP}:
            base = [Again()]
        await call(record(), *base, on(stage)(now))
        if not started or len(done) != len(started):
            missed.add(stage)
        for coroutine in started:
            coroutine.close()
    assert not missed, ", ".join(sorted(missed))


class Again(Hook):
    """Runs the tool twice, then fails."""

    repeats = True

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        await next()
        await next()
        raise KeyError


async def test_functions_of_every_kind_can_be_hooks() -> None:
    """Contract 90."""
    seen: list[str] = []

    class Callable:
        async def __call__(self, ctx: InvokeContext) -> None:
            seen.append("object")

    async def with_more(name: str, ctx: InvokeContext) -> None:
        seen.append(name)

    class Methods(Hook):
        @staticmethod
        async def will_check_consent(ctx: InvokeContext) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            seen.append("static")

        @classmethod
        async def will_execute(cls, ctx: InvokeContext) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            seen.append("class")

    hooks = [on("will_authorize")(Callable()), on("will_authorize")(partial(with_more, "partial")), Methods(), Methods]
    assert (await call(record(), *hooks)).ok
    assert seen == ["object", "partial", "static", "static", "class", "class"]


async def test_a_hook_may_call_the_next_tool() -> None:
    """Contract 83, 96."""
    watch = Watch(Stage.WILL_AUTHORIZE, Stage.WILL_FINALIZE_INVOKE)

    async def ask(ctx: InvokeContext) -> None:
        if ctx.depth == 0:
            ctx.data["asked"] = await ctx.call("double", {"n": 3})

    async with Gate([record(), echoing()], [watch.hook, on("will_execute")(ask)]) as gate:
        assert await gate.invoke("echo", {"x": 1}) == {"x": 1}
    assert watch.ctx.data["asked"] == 6
    assert len(watch.stages) == 4


async def test_invoke_and_call_tell_the_same_story() -> None:
    """Contract 88, 100, C12."""
    hook = at(Stage.WILL_AUTHORIZE, lambda ctx: ctx.abort("internal", "why", 418, public="Ask the owner."))
    result = await call(record(), hook)
    with pytest.raises(Denied, match="internal") as denied:
        await invoke(record(), hook)
    assert result.error is not None
    assert (
        (denied.value.code, denied.value.public)
        == (result.error.code, result.error.public)
        == ("why", "Ask the owner.")
    )
    assert denied.value.http_status == 418
    assert as_tool(record()).id == "double"
