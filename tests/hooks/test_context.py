"""What hooks see and may do: identity, frozen arguments, providers, time."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from dependency_injector import containers, providers

from callgate import Gate, Hook, InvokeContext, Options, Outcome, ProviderRegistry, Stage, ToolCall, User, invoke_tool
from callgate.errors import ProviderError, ProviderMissing, StageError
from callgate.hooks import Audit, Authorize, Cache, Concurrency, Metrics, OutputPolicy, Quota
from callgate.hooks.stages import STAGES, May, Section, stages_in
from callgate.providers.clock import FakeClock
from tests.hooks.making import DEFINITION, USER, Act, Watch, acting, at, call, echo, echoing, invoke, record

FREEZING = STAGES[Stage.WILL_AUTHORIZE_INPUT].position
LAST_BEFORE_THE_TOOL = STAGES[Stage.WILL_EXECUTE].position
NOT_REACHED = {Stage.DID_CACHE_HIT, Stage.DID_CACHE_MISS, Stage.ON_RETRY}
ROAD = [s for s in Stage if STAGES[s].position <= LAST_BEFORE_THE_TOOL and s not in NOT_REACHED]
FROZEN = [stage for stage in ROAD if STAGES[stage].position >= FREEZING]


# Identity


async def test_the_context_says_who_calls_what() -> None:
    """Contract 87."""
    clock = FakeClock(1_000.0)
    watch = Watch()
    titled = record(definition=DEFINITION)
    async with Gate([titled], [watch.hook], options=Options(clock=clock)) as gate:
        asked = ToolCall(id="c9", name="double", arguments={"n": 4})
        await gate.call(asked, user=USER, session_id="s", request_id="r", idempotency_key="k")
    ctx = watch.ctx
    assert ctx.tool is DEFINITION
    assert (ctx.tool_id, ctx.tool_name) == ("double", "double")
    assert ctx.tool_call == asked
    assert (ctx.user, ctx.tenant, ctx.session_id, ctx.request_id) == (USER, "acme", "s", "r")
    assert (ctx.idempotency_key, ctx.attempt, ctx.depth) == ("k", 1, 0)
    assert (ctx.input, ctx.output, ctx.error, ctx.data) == ({"n": 4}, 8, None, {})
    assert ctx.outcome is Outcome.SUCCESS
    assert ctx.executed
    assert ctx.remaining() is None
    assert (ctx.started_at.timestamp(), ctx.duration) == (1_000.0, 0.0)


async def test_ids_that_nobody_gave_are_made_once() -> None:
    """Contract 87."""
    seen: list[tuple[str, str]] = []
    hook = acting(
        {
            Stage.WILL_AUTHORIZE: lambda ctx: seen.append((ctx.request_id, ctx.tool_call.id)),
            Stage.WILL_AUDIT: lambda ctx: seen.append((ctx.request_id, ctx.tool_call.id)),
        }
    )()
    async with Gate([record()], [hook]) as gate:
        await gate.invoke("double", {"n": 1})
        await gate.invoke("double", {"n": 1})
    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert len(seen[0][0]) == 32


async def test_data_is_shared_by_the_hooks_of_one_invocation() -> None:
    """Contract 87."""

    def count(ctx: InvokeContext) -> None:
        ctx.data["seen"] = ctx.data.get("seen", 0) + 1

    found: list[int] = []
    hooks = [at(stage, count) for stage in (Stage.WILL_AUTHORIZE, Stage.WILL_EXECUTE, Stage.DID_EXECUTE)]
    hooks.append(at(Stage.WILL_FINALIZE_INVOKE, lambda ctx: found.append(ctx.data["seen"])))
    async with Gate([record()], hooks) as gate:
        await gate.invoke("double", {"n": 1})
        await gate.invoke("double", {"n": 1})
    assert found == [3, 3]


# Arguments


def mutate(value: Any) -> None:
    """Try to change a JSON value at every depth; a view refuses."""
    if isinstance(value, dict):
        for item in value.values():
            mutate(item)
        with contextlib.suppress(StageError):
            value["n"] = 666
            value["evil"] = True
    elif isinstance(value, list):
        for item in value:
            mutate(item)
        with contextlib.suppress(StageError):
            value.append("evil")


NESTED = {"n": 2, "list": [1, {"deep": [2]}], "map": {"x": {"y": 1}}}
FLAT = replace(DEFINITION, output_schema=None)
TOOLS: dict[str, tuple[Callable[[], Any], Mapping[str, Any]]] = {
    "flat": (lambda: record(echo, FLAT), {"n": 2}),
    "nested": (echoing, NESTED),
}


@pytest.mark.parametrize("kind", TOOLS)
@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("kept_at", ["by the caller", *ROAD])
async def test_what_was_kept_earlier_does_not_reach_frozen_arguments(kept_at: str, as_text: bool, kind: str) -> None:
    """Contract C16, I2."""
    make, arguments = TOOLS[kind]
    for stage in FROZEN:
        raw = json.loads(json.dumps(arguments))
        kept: list[Any] = [raw]
        hashes: list[str] = []

        def keep(ctx: InvokeContext) -> None:
            parsed = STAGES[ctx.stage].position > STAGES[Stage.WILL_PARSE_INPUT].position
            kept.append(ctx.input if parsed else ctx.raw_input)  # noqa: B023

        def change(ctx: InvokeContext) -> None:
            hashes.append(ctx.input_hash)  # noqa: B023
            for value in kept:  # noqa: B023
                mutate(value)
            mutate(ctx.input)
            hashes.append(ctx.input_hash)  # noqa: B023

        hooks = [at(stage, change)] if kept_at == "by the caller" else [at(Stage(kept_at), keep), at(stage, change)]
        result = await call(make(), *hooks, arguments=json.dumps(raw) if as_text else raw)
        assert result.output == arguments, stage
        assert len(set(hashes)) == 1


async def test_hooks_that_change_their_view_change_it_for_hooks_alone() -> None:
    """Contract C16, I2."""
    for stage in Stage:
        if STAGES[stage].position >= FREEZING:
            watch = Watch(Stage.WILL_FINALIZE_INVOKE, priority=-1)
            result = await call(echoing(), at(stage, lambda ctx: mutate(ctx.input)), watch.hook, arguments=NESTED)
            assert result.output == NESTED


async def test_a_tool_that_changes_its_arguments_changes_nobody_elses() -> None:
    """Contract C16, I2."""

    async def evil(**arguments: Any) -> int:
        mutate(arguments)
        return 1

    raw = json.loads(json.dumps(NESTED))
    seen: list[Any] = []
    audit = at(Stage.WILL_AUDIT, lambda ctx: seen.append((ctx.input, ctx.input_hash)))
    tool = record(evil, echoing().definition)
    early: list[str] = []
    hashing = at(Stage.WILL_AUTHORIZE_INPUT, lambda ctx: early.append(ctx.input_hash))
    assert (await call(tool, audit, hashing, arguments=raw)).output == 1
    assert seen == [(NESTED, early[0])]
    assert raw == NESTED


@pytest.mark.parametrize("stage", FROZEN)
async def test_setting_frozen_arguments_says_what_to_do_instead(stage: Stage) -> None:
    """Contract C16."""

    def act(ctx: InvokeContext) -> None:
        with pytest.raises(StageError, match=r"frozen.*will_normalize_input.*masked_input"):
            ctx.input = {"n": 666}

    assert (await call(record(), at(stage, act))).output == 4


@pytest.mark.parametrize("wrong", [{"n": "x"}, {}, {"n": 1, "m": 2}, [], "text", None, 5])
@pytest.mark.parametrize("stage", [stage for stage in Stage if May.INPUT in STAGES[stage].may])
async def test_what_a_hook_sets_is_validated_like_what_came_in(stage: Stage, wrong: Any) -> None:
    """Contract C16, I2, I7."""
    runs: list[int] = []

    async def execute(n: int) -> int:
        runs.append(n)
        return n

    def act(ctx: InvokeContext) -> None:
        ctx.input = wrong

    result = await call(record(execute), at(stage, act))
    assert result.outcome is Outcome.INVALID
    assert runs == []


async def test_what_a_normalising_hook_sets_is_validated_again() -> None:
    """Contract C16, I2."""

    def act(value: Any) -> Act:
        def set_input(ctx: InvokeContext) -> None:
            ctx.input = {**ctx.input, "n": value}

        return set_input

    assert (await call(record(), at(Stage.WILL_NORMALIZE_INPUT, act(5)))).output == 10
    assert (await call(record(), at(Stage.WILL_NORMALIZE_INPUT, act("5")))).outcome is Outcome.INVALID
    kept: dict[str, Any] = {"n": 2}

    def keep(ctx: InvokeContext) -> None:
        ctx.input = kept

    late = at(Stage.WILL_EXECUTE, lambda ctx: kept.update(n=666))
    assert (await call(record(), at(Stage.WILL_NORMALIZE_INPUT, keep), late)).output == 4


async def test_the_mask_is_what_records_see_and_the_tool_does_not() -> None:
    """Contract 87, C15b."""

    def mask(ctx: InvokeContext) -> None:
        ctx.masked_input = {"n": "***"}

    seen: list[Any] = []
    audit = at(Stage.WILL_AUDIT, lambda ctx: seen.append((ctx.masked_input, ctx.input)))
    assert (await call(record(), at(Stage.WILL_REDACT_INPUT, mask), audit)).output == 4
    assert (await call(record(), audit)).output == 4
    assert seen == [({"n": "***"}, {"n": 2}), ({"n": 2}, {"n": 2})]


async def test_secrets_are_bound_and_never_in_the_input() -> None:
    """Contract C15b."""
    seen: list[str] = []

    def read_cache(ctx: InvokeContext) -> None:
        seen.append(json.dumps([ctx.input, [entry.value for entry in ctx.input_history], ctx.input_hash]))

    inject = at(Stage.WILL_INJECT_SECRETS, lambda ctx: ctx.bind_provider("key", "s3cr3t"))
    got: list[str] = []
    use = at(Stage.WILL_EXECUTE, lambda ctx: got.append(ctx.get("key")))
    assert (await call(record(), inject, use, at(Stage.WILL_READ_CACHE, read_cache))).ok
    assert got == ["s3cr3t"]
    assert "s3cr3t" not in seen[0]


# Providers


def registry() -> ProviderRegistry:
    made = ProviderRegistry()
    made.register_singletons({"all": "global", "two": "global", "one": "global"})
    made.register_session_providers("s", {"all": "session", "two": "session", "own": "session"})
    return made


async def through(act: Act, *, stage: Stage = Stage.WILL_BIND_PROVIDERS, session: str | None = "s", **more: Any) -> Any:
    """Run an act in a stage of a bare ``invoke_tool``; what it returned."""
    answers: list[Any] = []
    hook = at(stage, lambda ctx: answers.append(act(ctx)))
    found = {stage: [hook], **more}
    await invoke_tool(record(), {"n": 1}, session_id=session, registry=registry(), global_hooks_by_stage=found)
    return answers[0]


async def test_look_up_goes_request_session_global() -> None:
    """Contract 84, 85."""

    def act(ctx: InvokeContext) -> list[Any]:
        ctx.bind_provider("all", "request")
        return [ctx.get(token) for token in ("all", "two", "one", "own")]

    assert await through(act) == ["request", "session", "global", "session"]
    with pytest.raises(ProviderMissing, match="no provider for 'nobody'"):
        await through(lambda ctx: ctx.get("nobody"))
    assert await through(lambda ctx: (ctx.try_get("nobody"), ctx.try_get("nobody", 5), ctx.try_get("one"))) == (
        None,
        5,
        "global",
    )
    with pytest.raises(ProviderMissing):
        await through(lambda ctx: ctx.get("own"), session=None)


@pytest.mark.parametrize("falsy", [None, 0, False, "", [], {}])
@pytest.mark.parametrize("scope", ["request", "session"])
async def test_a_falsy_instance_is_an_instance(scope: Any, falsy: Any) -> None:
    """Contract C25."""

    def act(ctx: InvokeContext) -> tuple[Any, Any]:
        ctx.bind_provider("all", falsy, scope)
        return ctx.get("all"), ctx.try_get("all", "default")

    assert await through(act) == (falsy, falsy)
    made = ProviderRegistry()
    made.register_singletons({"x": falsy})
    seen: list[Any] = []
    hook = at(Stage.WILL_AUTHORIZE, lambda ctx: seen.append((ctx.get("x"), ctx.try_get("x", "default"))))
    await invoke_tool(record(), {"n": 1}, registry=made, global_hooks_by_stage={"will_authorize": [hook]})
    assert seen == [(falsy, falsy)]


async def test_try_get_hides_no_error_of_a_factory() -> None:
    """Contract C25."""

    def broken() -> None:
        raise KeyError("inside the factory")

    class Container(containers.DeclarativeContainer):
        db = providers.Factory(broken)

    seen: list[str] = []

    def act(ctx: InvokeContext) -> None:
        for look in (ctx.get, ctx.try_get):
            with pytest.raises(KeyError, match="inside the factory"):
                look(Container.db)
            seen.append(look.__name__)

    assert (await call(record(), at(Stage.WILL_AUTHORIZE, act), container=Container())).ok
    assert seen == ["get", "try_get"]


async def test_session_providers_are_shared_by_the_session_and_request_providers_by_nobody() -> None:
    """Contract 84, 86, I8."""

    def bind(ctx: InvokeContext) -> None:
        if ctx.raw_input["n"] == 1:
            ctx.bind_provider("own", "request")
            ctx.bind_providers([("a", 1), ("b", 2)], scope="session")

    seen: list[Any] = []
    read = at(Stage.WILL_AUTHORIZE, lambda ctx: seen.append([ctx.try_get(token) for token in ("own", "a", "b")]))
    async with Gate([record()], [at(Stage.WILL_BIND_PROVIDERS, bind), read]) as gate:
        for number, session in [(1, "s"), (2, "s"), (2, "t"), (2, None), (1, None), (2, None)]:
            await gate.invoke("double", {"n": number}, session_id=session)
    none = [None] * 3
    assert seen == [["request", 1, 2], [None, 1, 2], none, none, ["request", 1, 2], none]


async def test_the_global_scope_cannot_be_changed_while_invoking() -> None:
    """Contract 84, 86."""

    def act(ctx: InvokeContext) -> None:
        with pytest.raises(ProviderError, match="global scope cannot be changed"):
            ctx.bind_provider("one", 1, "global")
        with pytest.raises(ProviderError, match="no scope 'galaxy'"):
            ctx.bind_provider("one", 1, "galaxy")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            ctx.run.plan.host.registry.get_all_singletons()["one"] = 1  # type: ignore[index]

    await through(act)


PAIRS = {"a": 1, "b": None}


@pytest.mark.parametrize("shape", [dict, list, iter, dict.items])
@pytest.mark.parametrize("is_async", [False, True])
async def test_bindings_may_be_returned(shape: Callable[[Any], Any], is_async: bool) -> None:
    """Contract 89, C24, C25."""
    answer = shape(PAIRS if shape in {dict, dict.items} else list(PAIRS.items()))
    hook = acting({Stage.WILL_BIND_PROVIDERS: lambda ctx: answer}, is_async=is_async)()
    seen: list[Any] = []
    read = at(Stage.WILL_AUTHORIZE, lambda ctx: seen.append((ctx.get("a"), ctx.try_get("b", "missing"))))
    assert (await call(record(), hook, read)).ok
    assert seen == [(1, None)]


@pytest.mark.parametrize("answer", [None, {}, [], ()])
async def test_binding_nothing_is_fine(answer: Any) -> None:
    """Contract 89, C24."""
    assert (await call(record(), at(Stage.WILL_BIND_PROVIDERS, lambda ctx: answer))).output == 4


@pytest.mark.parametrize("answer", [5, False, "ab", ["a"], [("a", 1, 2)], object()])
async def test_anything_else_that_is_returned_is_refused(answer: Any) -> None:
    """Contract 89."""
    watch = Watch(Stage.ON_ERROR)
    result = await call(record(), at(Stage.WILL_BIND_PROVIDERS, lambda ctx: answer), watch.hook)
    assert result.outcome is Outcome.ERROR
    assert watch.ctx.error is not None
    assert "return a mapping or an iterable of pairs" in str(watch.ctx.error.__cause__)


async def test_session_and_global_providers_can_be_read_when_the_context_is_made() -> None:
    """Contract 84, C13."""
    for stage in (Stage.WILL_CREATE_INVOKE_CONTEXT, Stage.DID_CREATE_INVOKE_CONTEXT):
        assert await through(lambda ctx: (ctx.get("one"), ctx.get("own")), stage=stage) == ("global", "session")


async def test_binding_is_refused_where_the_table_says_so() -> None:
    """Contract 86."""
    refused = [s for s in stages_in(Section.SHAPING, Section.CLOSING) if May.BIND not in STAGES[s].may]
    assert refused

    def act(ctx: InvokeContext) -> None:
        with pytest.raises(
            StageError, match=f"{ctx.run.step.stage} may not bind providers; stages that may: will_create"
        ):
            ctx.bind_provider("a", 1)

    for stage in refused:
        watch = Watch(Stage.WILL_FINALIZE_INVOKE, priority=-1)
        assert (await call(record(), at(stage, act), watch.hook)).ok
        assert watch.ctx.suppressed == ()


# Time


async def test_remaining_time_counts_down_to_the_deadline_and_not_below() -> None:
    """Contract C14."""
    clock = FakeClock(10.0)
    seen: list[float | None] = []

    def act(ctx: InvokeContext) -> None:
        seen.append(ctx.remaining())
        clock.advance(40)

    hooks = [at(Stage.WILL_AUTHORIZE, act), at(Stage.DID_EXECUTE, act), at(Stage.WILL_AUDIT, act)]
    assert await invoke(record(), *hooks, clock=clock, deadline=60) == 4
    assert seen == [60.0, 20.0, 0.0]
    seen.clear()
    assert await invoke(record(deadline=50), *hooks, clock=clock, deadline=60) == 4
    assert seen == [50.0, 10.0, 0.0]


async def test_user_and_tenant_belong_to_the_invocation() -> None:
    """Contract 87, I8."""
    seen: list[Any] = []
    hook = at(Stage.WILL_AUTHORIZE, lambda ctx: seen.append((ctx.user.id, ctx.tenant)))
    async with Gate([record()], [hook]) as gate:
        for user in (User("a", tenant="x"), User("b"), User("c", tenant="y")):
            await gate.invoke("double", {"n": 1}, user=user)
    assert seen == [("a", "x"), ("b", None), ("c", "y")]


# Memory


USUAL = (
    lambda: Authorize(scopes={"maths"}),
    lambda: Quota("9999/hour"),
    lambda: Concurrency(9),
    lambda: Cache(9.0),
    lambda: OutputPolicy(999),
    Audit,
    Metrics,
)
READER = User("ann", tenant="acme", scopes={"maths"})


async def test_usual_calls_keep_their_state_in_slots() -> None:
    """A dict in each call costs 1 kB, and a tenth of the time of a call."""
    kept: list[set[str]] = []

    class Looks(Hook):
        def will_finalize_invoke(self, ctx: InvokeContext) -> None:
            assert (ctx.input, ctx.raw_input, ctx.output) == ({"n": 4}, '{"n": 4}', 8)
            kept.append(set(vars(ctx.run)))

    async with Gate([record()], [*(make() for make in USUAL), Looks()]) as gate:
        for _ in range(2):  # a miss and a hit
            assert await gate.invoke("double", '{"n": 4}', user=READER) == 8
        await gate.call("double", '{"n": 4}', user=READER, deadline=9.0)
    assert kept == [set(), set(), {"alarm"}]


@pytest.mark.parametrize("is_circle", [False, True])
async def test_usual_calls_leave_nothing_for_the_collector(is_circle: bool) -> None:
    """What a call made is freed as it ends; a control has a hook that makes circles."""

    class Circles(Hook):
        def will_finalize_invoke(self, ctx: InvokeContext) -> None:
            ctx.data["itself"] = ctx.data if is_circle else None

    calls = 50
    async with Gate([record()], [*(make() for make in USUAL), Circles()]) as gate:
        for n in range(calls):
            await gate.invoke("double", {"n": n}, user=READER)
        gc.collect()
        gc.disable()
        try:
            for n in range(2 * calls):  # misses and hits
                await gate.invoke("double", {"n": calls // 2 + n}, user=READER)
            found = gc.collect()
        finally:
            gc.enable()
    assert (found >= calls) is is_circle
