"""respond, abort, retry_after, suspend: what each does, and what nobody can do to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from callgate import (
    Denied,
    Gate,
    Hook,
    InvocationError,
    InvokeContext,
    Outcome,
    RetryLater,
    Stage,
    Suspended,
    ToolCall,
    ToolContext,
    ToolError,
    ToolFailed,
    invoke_tool,
    tool,
)
from callgate.errors import Control, ControlAbort, ControlRespond, ControlRetryAfter, ControlSuspend, StageError
from callgate.hooks import TOOL_ERROR_STAGES
from callgate.hooks.stages import STAGES, May, OnFailure, Section, stages_in
from tests.hooks.making import USER, Act, Watch, acting, at, call, invoke, record, refusing

STEERING = [stage for stage in Stage if May.RESPOND in STAGES[stage].may]
ENDED = stages_in(Section.ERROR, Section.CLOSING)


def reaching(stage: Stage) -> list[Any]:
    """Hooks that make an invocation reach a stage."""
    if stage is Stage.DID_CACHE_HIT:
        return [at(Stage.WILL_READ_CACHE, lambda ctx: ctx.respond(50))]
    if stage is Stage.DID_CACHE_MISS:
        return [at(Stage.WILL_READ_CACHE, lambda ctx: None)]
    if stage is Stage.ON_RETRY:
        return [Twice()]
    if stage is Stage.ON_GIVE_UP:
        return [Twice(fails=True)]
    if stage is Stage.ON_ERROR:
        return [at(Stage.WILL_EXECUTE, refusing(KeyError("base")))]
    return []


class Twice(Hook):
    """Runs the tool twice."""

    repeats = True
    priority = -100

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    async def around_execute(self, ctx: InvokeContext, next: Callable[[], Any]) -> Any:
        await next()
        output = await next()
        if self.fails:
            raise KeyError("given up")
        return output


# respond


@pytest.mark.parametrize("stage", STEERING)
async def test_respond_ends_the_work_and_is_returned(stage: Stage) -> None:
    """Contract 88, 99, C18."""
    for value in (99, 0, -1):
        watch = Watch()
        result = await call(record(), *reaching(stage), at(stage, lambda ctx: ctx.respond(value)), watch.hook)  # noqa: B023
        assert (result.outcome, result.output, result.error) == (Outcome.SUCCESS, value, None)
        after = [s for s in watch.stages if STAGES[s].position > STAGES[stage].position]
        shaping = [s for s in after if STAGES[s].section is Section.SHAPING]
        assert shaping == [s for s in stages_in(Section.SHAPING) if STAGES[s].position > STAGES[stage].position]
        assert after[-1] is Stage.WILL_FINALIZE_INVOKE
        assert Stage.ON_ERROR not in after


async def test_a_tool_may_respond() -> None:
    """Contract 99, C20."""
    reached: list[str] = []

    @tool(effect="read")
    async def answering(n: int, ctx: ToolContext) -> int:
        """Answer early."""
        try:
            ctx.respond(n + 1)
        except Exception:  # noqa: BLE001  (what a careless tool does)
            reached.append("swallowed")
        finally:
            reached.append("finally")
        return 0

    watch = Watch(Stage.DID_EXECUTE, Stage.WILL_REDACT_OUTPUT)
    assert (await call(answering, watch.hook)).output == 3
    assert reached == ["finally"]
    assert watch.stages == [Stage.WILL_REDACT_OUTPUT]
    assert not watch.ctx.executed


@pytest.mark.parametrize("careless", [lambda ctx: ctx.respond(1), lambda ctx: ctx.suspend("a", "b")])
def test_the_control_exceptions_of_respond_and_suspend_are_no_exceptions(careless: Act) -> None:
    """Contract C20."""
    for kind in (Control, ControlRespond, ControlSuspend):
        assert issubclass(kind, BaseException)
        assert not issubclass(kind, Exception)
    assert ControlAbort is Denied
    assert ControlRetryAfter is RetryLater
    assert issubclass(Denied, Exception)
    assert issubclass(RetryLater, Exception)


async def test_a_wrapper_cannot_swallow_a_response_by_accident() -> None:
    """Contract C20, C21."""

    class Careless(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Callable[[], Any]) -> Any:
            try:
                return await next()
            except Exception:  # noqa: BLE001
                return -1

    assert (await call(record(), Careless(), at(Stage.WILL_EXECUTE, lambda ctx: ctx.respond(7)))).output == 7
    assert (await call(record(), Careless(), at(Stage.WILL_EXECUTE, lambda ctx: ctx.abort("no")))).output == -1


@pytest.mark.parametrize("stage", STEERING)
async def test_a_response_is_validated_like_any_output(stage: Stage) -> None:
    """Contract C17, I15."""
    result = await call(record(), *reaching(stage), at(stage, lambda ctx: ctx.respond("no number")))
    if stage is Stage.WILL_TRANSFORM_OUTPUT:  # after the check: documented as not validated (C16)
        assert result.output == "no number"
        return
    assert result.outcome is Outcome.ERROR
    assert result.error is not None
    assert result.error.code == "invalid_output"


@pytest.mark.parametrize("stage", STEERING)
async def test_a_challenge_need_not_be_valid_and_that_is_on_record(stage: Stage) -> None:
    """Contract C17."""
    watch = Watch(*stages_in(Section.SHAPING), priority=-1)
    challenge = at(stage, lambda ctx: ctx.respond({"consent": "https://…"}, validate=False))
    result = await call(record(), *reaching(stage), challenge, watch.hook)
    assert result.output == {"consent": "https://…"}
    assert result.provenance["output_validated"] is False
    assert not watch.ctx.run.validate_response
    left = [s for s in stages_in(Section.SHAPING) if STAGES[s].position > STAGES[stage].position]
    assert [s for s in watch.stages if s in left] == left
    plain = await call(record(), at(stage, lambda ctx: ctx.respond(1)), *reaching(stage))
    assert plain.provenance["output_validated"] is True


@pytest.mark.parametrize("value", [float("nan"), object(), [{"a": object()}], b"\xff"])
async def test_even_a_challenge_is_json(value: Any) -> None:
    """Contract C17, I15."""
    result = await call(record(), at(Stage.WILL_CHECK_CONSENT, lambda ctx: ctx.respond(value, validate=False)))
    assert result.error is not None
    assert result.error.code == "invalid_output"


@pytest.mark.parametrize("stage", stages_in(Section.SHAPING))
async def test_a_response_from_an_output_stage_skips_the_rest_of_that_stage_alone(stage: Stage) -> None:
    """Contract 99, C18."""
    first, second = Watch(*stages_in(Section.SHAPING), priority=2), Watch(*stages_in(Section.SHAPING))
    runs: list[int] = []

    async def execute(n: int) -> int:
        runs.append(n)
        return n

    hook = at(stage, lambda ctx: ctx.respond(99), priority=1)
    assert (await call(record(execute), first.hook, hook, second.hook)).output == 99
    assert first.stages == [*stages_in(Section.SHAPING)]
    assert second.stages == [other for other in stages_in(Section.SHAPING) if other is not stage]
    assert runs == [2]


async def test_every_output_stage_may_respond_and_the_last_has_the_last_word() -> None:
    """Contract C18."""
    values = dict(zip(stages_in(Section.SHAPING), (10, 20, 30, 40), strict=True))

    def respond(value: int) -> Act:
        return lambda ctx: ctx.respond(value)

    seen: list[Any] = []
    look = at(Stage.WILL_AUDIT, lambda ctx: seen.append(ctx.output))
    hooks = [at(stage, respond(value)) for stage, value in values.items()]
    assert (await call(record(), *hooks, *hooks, look)).output == 40
    assert seen == [40]


@pytest.mark.parametrize("verb", ["respond", "suspend", "plain error"])
@pytest.mark.parametrize("stage", ENDED)
async def test_when_an_invocation_has_ended_it_can_only_be_recorded(stage: Stage, verb: str) -> None:
    """Contract C1c, C18, I10."""
    acts: dict[str, Act] = {
        "respond": lambda ctx: ctx.respond(1),
        "suspend": lambda ctx: ctx.suspend("approval", "?"),
        "plain error": refusing(ValueError()),
    }
    for is_async in (False, True):
        base = reaching(stage)
        plain = await call(record(), *base)
        watch = Watch(Stage.WILL_FINALIZE_INVOKE, priority=-1)
        result = await call(record(), *base, acting({stage: acts[verb]}, is_async=is_async)(), watch.hook)
        assert (result.outcome, result.output) == (plain.outcome, plain.output)
        assert [one.stage for one in watch.ctx.suppressed] == [stage]


# abort, retry_after


@pytest.mark.parametrize("stage", [stage for stage in Stage if May.ABORT in STAGES[stage].may])
async def test_abort_and_retry_after_reach_the_caller_as_they_were(stage: Stage) -> None:
    """Contract 88, 100, C19, C20."""
    watch = Watch()
    seen: list[Any] = []
    look = acting({s: lambda ctx: seen.append(ctx.error) for s in TOOL_ERROR_STAGES[:4]})()
    with pytest.raises(Denied, match="because") as denied:
        await invoke(
            record(), *reaching(stage), at(stage, lambda ctx: ctx.abort("because", "my_code", 451)), watch.hook, look
        )
    error = denied.value
    assert (error.code, error.http_status, error.public) == ("my_code", 451, "The call was denied.")
    assert seen == [error] * 4
    assert watch.ctx.error is error
    assert error.correlation_id == watch.ctx.request_id
    with pytest.raises(RetryLater, match="busy") as later:
        await invoke(record(), *reaching(stage), at(stage, lambda ctx: ctx.retry_after(1500, "busy")))
    assert later.value.retry_after == 1500
    result = await call(record(), *reaching(stage), at(stage, lambda ctx: ctx.retry_after(1500, "busy")))
    assert (result.outcome, result.retry_after) == (Outcome.RETRY_LATER, 1500)


async def test_a_tool_may_abort_and_ask_for_time() -> None:
    """Contract 88, 100."""

    @tool(effect="read")
    async def deciding(n: int, ctx: ToolContext) -> int:
        """Decide."""
        if n == 1:
            ctx.abort("no")
        ctx.retry_after(7)

    assert (await call(deciding, arguments={"n": 1})).outcome is Outcome.DENIED
    assert (await call(deciding, arguments={"n": 2})).retry_after == 7


@pytest.mark.parametrize("error", [Denied("x"), RetryLater(5), ToolError("public"), KeyError("k"), ValueError()])
@pytest.mark.parametrize("stage", [*stages_in(Section.BEFORE, Section.SHAPING), Stage.WILL_EXECUTE])
async def test_bare_invoke_tool_raises_the_very_object(stage: Stage, error: Exception) -> None:
    """Contract 83, 100, 101, C20."""
    watch = Watch(Stage.ON_ERROR)
    hooks = {stage: [at(stage, refusing(error))], Stage.ON_ERROR: [watch.hook]}
    with pytest.raises(type(error)) as caught:
        await invoke_tool(record(), {"n": 1}, global_hooks_by_stage=hooks)
    assert caught.value is error is watch.ctx.error
    assert error.__cause__ is None


@pytest.mark.parametrize(
    ("error", "raised", "code"),
    [
        (Denied("x"), Denied, "denied"),
        (RetryLater(5), RetryLater, "retry_later"),
        (ToolError("public"), Denied, "policy_error"),
        (ToolFailed("x"), Denied, "policy_error"),
        (KeyError(), Denied, "policy_error"),
    ],
)
async def test_a_gate_raises_denied_for_whatever_a_policy_raises(
    error: Exception, raised: type[Exception], code: str
) -> None:
    """Contract C12, C22, I6."""
    for stage in Stage:
        row = STAGES[stage]
        if row.on_failure is OnFailure.DENY:
            with pytest.raises(InvocationError) as caught:
                await invoke(record(), at(stage, refusing(error)))
            assert type(caught.value) is raised
            assert caught.value.code == code
            assert error in {caught.value, caught.value.__cause__}


HANGS = acting({Stage.WILL_AUTHORIZE: lambda ctx: asyncio.Event().wait()}, is_async=True, timeout=0.001)
DECIDERS: dict[str, Callable[[], Hook]] = {
    "permits": lambda: at(Stage.WILL_AUTHORIZE, lambda ctx: None),
    "abstains": lambda: at(Stage.WILL_AUTHORIZE, lambda ctx: ctx.abort(), filter=lambda self, ctx: False),
    "forbids": lambda: at(Stage.WILL_AUTHORIZE, lambda ctx: ctx.abort("no")),
    "breaks": lambda: at(Stage.WILL_AUTHORIZE, refusing(KeyError())),
    "hangs": HANGS,
    "answers": lambda: at(Stage.WILL_AUTHORIZE, lambda ctx: False),
}


@pytest.mark.parametrize("count", [0, 1, 2, 3])
async def test_one_that_does_not_permit_is_enough_to_deny_in_any_order(count: int) -> None:
    """Contract C22, I6."""
    for names in product(DECIDERS, repeat=count):
        result = await call(record(), *(DECIDERS[name]() for name in names))
        permitted = set(names) <= {"permits", "abstains"}
        assert result.outcome is (Outcome.SUCCESS if permitted else Outcome.DENIED), names


# suspend


@pytest.mark.parametrize("stage", [stage for stage in Stage if May.SUSPEND in STAGES[stage].may])
async def test_suspend_gives_capacity_back_and_a_handle_to_resume_by(stage: Stage) -> None:
    """Contract 88, 96, C1a."""
    watch = Watch()
    schema = {"type": "object"}
    hook = at(stage, lambda ctx: ctx.suspend("approval", "May it?", schema=schema, expires=60), priority=-1)
    with pytest.raises(Suspended) as suspended:
        await invoke(record(), hook, watch.hook)
    pending = suspended.value.pending
    assert (pending.kind, pending.prompt, pending.schema, pending.expires) == ("approval", "May it?", schema, 60)
    assert suspended.value.handle == pending.handle
    assert len(pending.handle) >= 32
    acquired = [s for s in watch.stages if STAGES[s].acquires]
    given_back = [STAGES[s].gives_back for s in watch.stages if STAGES[s].gives_back]
    assert given_back == acquired[::-1]


@pytest.mark.parametrize("stage", [s for s in Stage if May.SUSPEND not in STAGES[s].may and s not in ENDED])
async def test_suspending_later_is_refused(stage: Stage) -> None:
    """Contract 88."""

    def act(ctx: InvokeContext) -> None:
        with pytest.raises(StageError, match=f"{stage} may not suspend"):
            ctx.suspend("approval", "?")

    assert (await call(record(), *reaching(stage), at(stage, act))).ok


# ctx.error


@pytest.mark.parametrize("way", ["raise", "raise from", "assign", "abort"])
@pytest.mark.parametrize("stage", [stage for stage in Stage if May.REPLACE_ERROR in STAGES[stage].may])
async def test_an_error_may_be_mapped_to_another_which_keeps_it_as_its_cause(stage: Stage, way: str) -> None:
    """Contract C18."""

    def act(ctx: InvokeContext) -> None:
        if way == "raise":
            raise Denied("mapped")
        if way == "raise from":
            raise Denied("mapped") from ctx.error
        if way == "assign":
            ctx.error = Denied("mapped")
        else:
            ctx.abort("mapped")

    for is_async in (False, True):
        watch = Watch(Stage.WILL_AUDIT)
        hooks = [*reaching(stage), acting({stage: act}, is_async=is_async)(), watch.hook]
        assert (await call(record(), *hooks)).outcome is Outcome.DENIED
        with pytest.raises(Denied, match="mapped") as denied:
            await invoke(record(), *hooks)
        assert type(denied.value.__cause__) is KeyError
        assert watch.ctx.outcome is Outcome.DENIED
        assert watch.ctx.suppressed == ()


async def test_a_mapped_error_of_any_type_is_chained() -> None:
    """Contract C18, C20."""

    def act(ctx: InvokeContext) -> None:
        raise LookupError("mapped") from ctx.error

    hooks = {Stage.WILL_EXECUTE: [at(Stage.WILL_EXECUTE, refusing(KeyError("first")))]}
    hooks[Stage.ON_ERROR] = [at(Stage.ON_ERROR, act), at(Stage.ON_ERROR, act)]
    with pytest.raises(LookupError, match="mapped") as caught:
        await invoke_tool(record(), {"n": 1}, global_hooks_by_stage=hooks)
    assert str(caught.value.__cause__) == "mapped"
    assert isinstance(caught.value.__cause__, BaseException)
    assert isinstance(caught.value.__cause__.__cause__, KeyError)


@pytest.mark.parametrize("nothing", [None, "text", 5])
async def test_an_error_cannot_be_taken_away(nothing: Any) -> None:
    """Contract C18, I10."""

    def act(ctx: InvokeContext) -> None:
        ctx.error = nothing

    result = await call(record(), *reaching(Stage.ON_ERROR), at(Stage.ON_ERROR, act))
    assert result.outcome is Outcome.ERROR


async def test_an_error_is_replaced_only_where_the_table_says_so() -> None:
    """Contract 87, C18, I10."""
    wrong: list[str] = []
    for stage in Stage:
        if May.REPLACE_ERROR in STAGES[stage].may:
            continue
        refused: list[bool] = []

        def act(ctx: InvokeContext) -> None:
            try:
                ctx.error = KeyError("from nowhere")
            except StageError:
                refused.append(True)  # noqa: B023

        result = await call(record(), *reaching(stage), at(stage, act))
        if not result.ok or not refused:
            wrong.append(stage)
    assert not wrong, ", ".join(wrong)


# Principals


async def test_a_decision_is_about_one_call() -> None:
    """Contract 88, I8."""

    def decide(ctx: InvokeContext) -> None:
        n = ctx.raw_input["n"]
        if n == 1:
            ctx.abort("no")
        if n == 2:
            ctx.respond(0)
        if n == 3:
            ctx.suspend("approval", "?")
        if n == 4:
            ctx.retry_after(1)

    async with Gate([record()], [at(Stage.WILL_AUTHORIZE, decide)]) as gate:
        calls = [ToolCall(id=f"c{n}", name="double", arguments={"n": n}) for n in (1, 2, 3, 4, 5) * 2]
        results = await gate.call_many(calls, user=USER)
    assert [result.outcome.value for result in results] == [
        "denied",
        "success",
        "suspended",
        "retry_later",
        "success",
    ] * 2
    handles = {result.pending.handle for result in results if result.pending}
    assert len(handles) == 2
