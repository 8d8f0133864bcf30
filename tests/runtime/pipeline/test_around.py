"""The roundabout: wrappers about the tool, ``next``, attempts and giving up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from callgate import Denied, Gate, Hook, InvokeContext, Outcome, RetryLater, Stage, ToolError, invoke_tool
from callgate.errors import StageError
from callgate.hooks.stages import STAGES, Section, stages_in
from tests.hooks.making import Watch, acting, at, call, echoing, invoke, record, refusing

Next = Callable[[], Awaitable[Any]]
INNER = (Stage.AROUND_EXECUTE, Stage.ON_RETRY, Stage.WILL_EXECUTE, Stage.DID_EXECUTE, Stage.ON_GIVE_UP, Stage.ON_ERROR)


def wrapper(act: Callable[[InvokeContext, Next], Any], **options: Any) -> Hook:
    """A wrapper from one async function."""

    class Wrapper(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
            return await act(ctx, next)

    made = Wrapper()
    for name, value in options.items():
        setattr(made, name, value)
    return made


class Flaky:
    """A tool body that fails so many times, then gives the number of the attempt."""

    def __init__(self, failures: int, error: Callable[[], BaseException] = ValueError) -> None:
        self.failures, self.error, self.runs = failures, error, 0

    async def __call__(self, n: int) -> int:
        self.runs += 1
        if self.runs <= self.failures:
            raise self.error()
        return self.runs


class Retry(Hook):
    """Tries again after any failure but a decision."""

    repeats = True

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts

    async def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
        while True:
            try:
                return await next()
            except (Denied, RetryLater):
                raise
            except Exception:
                if ctx.attempt >= self.attempts:
                    raise


# What a wrapper answers


async def test_what_the_outermost_wrapper_returns_is_the_output() -> None:
    """Contract 93, C21."""

    async def plus_one(ctx: InvokeContext, next: Next) -> Any:
        return await next() + 1

    async def times_ten(ctx: InvokeContext, next: Next) -> Any:
        return await next() * 10

    inner = wrapper(plus_one)
    outer = wrapper(times_ten, priority=1)
    assert await invoke(record(), inner, outer) == 50
    outer.priority = -1
    assert await invoke(record(), inner, outer) == 41


async def test_none_after_next_is_none() -> None:
    """Contract 93, C21."""

    async def forgets(ctx: InvokeContext, next: Next) -> None:
        await next()

    assert (await call(echoing(), wrapper(forgets), arguments={})).output is None
    assert (await call(record(), wrapper(forgets))).outcome is Outcome.ERROR  # the output schema wants an integer


WRAPPED: dict[str, tuple[Callable[[Any], Any], int]] = {
    "an output is dropped": (lambda output: None, 1),
    "it is returned": (lambda output: output, 0),
    "it is replaced": (lambda output: 0, 0),
}


@pytest.mark.parametrize(("returns", "warnings"), WRAPPED.values(), ids=WRAPPED)
async def test_a_wrapper_that_drops_the_output_of_next_is_warned_of(
    returns: Callable[[Any], Any], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Contract C21."""

    async def after(ctx: InvokeContext, next: Next) -> Any:
        return returns(await next())

    async def responds(ctx: InvokeContext, next: Next) -> None:
        return None  # it never had an output to drop

    with caplog.at_level("WARNING", logger="callgate"):
        await call(record(), wrapper(after), arguments={"n": 1})
        await call(record(), wrapper(responds), arguments={"n": 1})
    found = [one.getMessage() for one in caplog.records if "output_dropped" in one.getMessage()]
    assert len(found) == warnings
    assert all("around_execute" in one and "tool='double'" in one for one in found)


@pytest.mark.parametrize("value", [7, 0])
@pytest.mark.parametrize("how", ["returns", "responds", "plain method"])
async def test_a_wrapper_that_does_not_go_on_leaves_the_tool_and_its_stages_out(how: str, value: int) -> None:
    """Contract 93, 99, C21."""

    async def short(ctx: InvokeContext, next: Next) -> Any:
        if how == "responds":
            ctx.respond(value)
        return value

    hook = acting({Stage.AROUND_EXECUTE: lambda ctx: value})() if how == "plain method" else wrapper(short)
    tool = Flaky(0)
    watch = Watch(*INNER, *stages_in(Section.SHAPING), priority=-1)
    assert await invoke(record(tool), hook, watch.hook) == value
    assert tool.runs == 0
    assert watch.stages == [*stages_in(Section.SHAPING)]
    assert not watch.ctx.executed


async def test_a_wrapper_written_without_async_may_pass_next_on() -> None:
    """Contract 90, 93."""

    class Plain(Hook):
        def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
            return next()

    assert await invoke(record(), Plain()) == 4
    assert await invoke(record(), Plain) == 4


async def test_a_wrapper_sees_what_the_tool_raised_and_may_answer_in_its_stead() -> None:
    """Contract 93, 101."""
    boom = ToolError("no")
    seen: list[Any] = []

    async def fallback(ctx: InvokeContext, next: Next) -> Any:
        try:
            return await next()
        except ToolError as error:
            seen.append((error, ctx.error, ctx.run.step.stage))
            return -1

    watch = Watch(Stage.ON_ERROR)
    assert await invoke(record(Flaky(1, lambda: boom)), wrapper(fallback), watch.hook) == -1
    assert seen == [(boom, None, Stage.AROUND_EXECUTE)]
    assert watch.stages == []


async def test_a_wrapper_may_replace_the_error() -> None:
    """Contract 101, C20."""

    async def translate(ctx: InvokeContext, next: Next) -> Any:
        try:
            return await next()
        except ValueError as error:
            raise RetryLater(100) from error

    result = await call(record(Flaky(1)), wrapper(translate))
    assert (result.outcome, result.retry_after) == (Outcome.RETRY_LATER, 100)


# Going on


async def test_next_runs_once() -> None:
    """Contract C21, I18."""

    async def twice(ctx: InvokeContext, next: Next) -> Any:
        await next()
        return await next()

    tool, watch = Flaky(0), Watch(Stage.ON_ERROR)
    assert (await call(record(tool), wrapper(twice), watch.hook)).outcome is Outcome.ERROR
    assert watch.ctx.error is not None
    assert isinstance(watch.ctx.error.__cause__, StageError)
    assert "called next() twice; a hook that retries declares repeats = True" in str(watch.ctx.error.__cause__)
    assert tool.runs == 1


async def test_next_after_a_failure_is_a_second_time_too() -> None:
    """Contract C21, I18."""

    async def stubborn(ctx: InvokeContext, next: Next) -> Any:
        try:
            return await next()
        except ValueError:
            return await next()

    tool = Flaky(1)
    assert (await call(record(tool), wrapper(stubborn))).outcome is Outcome.ERROR
    assert tool.runs == 1
    assert (await call(record(Flaky(1)), wrapper(stubborn, repeats=True))).output == 2


async def test_a_hook_that_repeats_may_do_so_for_itself_alone() -> None:
    """Contract C21, 102."""

    async def twice(ctx: InvokeContext, next: Next) -> Any:
        await next()
        return await next()

    async def once(ctx: InvokeContext, next: Next) -> Any:
        return await next()

    tool = Flaky(0)
    hooks = [wrapper(once, priority=3), wrapper(twice, repeats=True, priority=2), wrapper(once, priority=1)]
    assert await invoke(record(tool), *hooks) == 2
    assert (await call(record(), wrapper(twice, repeats=True), wrapper(twice))).outcome is Outcome.ERROR


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("ends", ["returns", "raises"])
async def test_next_does_not_begin_after_its_wrapper_has_ended(ends: str, before: bool) -> None:
    """A task of the wrapper ran the tool after the call had ended without an effect, so a repeat ran it again."""
    left: list[asyncio.Future[Any]] = []

    async def leave(ctx: InvokeContext, next: Next) -> Any:
        if before:
            await next()
        left.append(asyncio.ensure_future(next()))
        if ends == "raises":
            raise ValueError
        return 7

    tool = Flaky(0)
    result = await call(record(tool), wrapper(leave, repeats=before))
    assert result.outcome is (Outcome.SUCCESS if ends == "returns" else Outcome.ERROR)
    with pytest.raises(StageError, match="called next\\(\\) after it had ended; await next\\(\\)"):
        await left[0]
    assert tool.runs == before


@pytest.mark.parametrize("repeats", [False, True])
async def test_next_cannot_run_beside_itself(repeats: bool) -> None:
    """Contract C21."""
    refused: list[BaseException] = []

    async def both(ctx: InvokeContext, next: Next) -> Any:
        answers = await asyncio.gather(next(), next(), return_exceptions=True)
        refused.extend(answer for answer in answers if isinstance(answer, BaseException))
        return answers[0]

    async def slow(n: int) -> int:
        await asyncio.sleep(0)
        return n

    assert await invoke(record(slow), wrapper(both, repeats=repeats)) == 2
    (error,) = refused
    assert isinstance(error, StageError)
    assert "while its first call was still running" in str(error)


async def test_state_of_next_belongs_to_one_invocation() -> None:
    """Contract C21, I8."""

    async def once(ctx: InvokeContext, next: Next) -> Any:
        await asyncio.sleep(0)
        return await next()

    async with Gate([record()], [wrapper(once)]) as gate:
        assert await asyncio.gather(*(gate.invoke("double", {"n": n}) for n in range(5))) == [0, 2, 4, 6, 8]


# Attempts


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
async def test_stages_of_each_attempt(failures: int) -> None:
    """Contract 102, 104."""
    attempts = 3
    seen: list[tuple[Stage, int]] = []
    note = acting({stage: lambda ctx: seen.append((ctx.run.step.stage, ctx.attempt)) for stage in INNER[1:]})()
    result = await call(record(Flaky(failures)), Retry(attempts), note)
    expected: list[tuple[Stage, int]] = []
    for attempt in range(1, min(failures + 1, attempts) + 1):
        expected += [(Stage.ON_RETRY, attempt)] * (attempt > 1)
        expected.append((Stage.WILL_EXECUTE, attempt))
    if failures < attempts:
        assert result.output == failures + 1
        expected.append((Stage.DID_EXECUTE, failures + 1))
    else:
        assert result.outcome is Outcome.ERROR
        expected += [(Stage.ON_GIVE_UP, attempts), (Stage.ON_ERROR, attempts)]
    assert seen == expected


@pytest.mark.parametrize("error", [lambda: Denied("no"), lambda: RetryLater(5)])
async def test_a_decision_is_neither_retried_nor_given_up_on(error: Callable[[], BaseException]) -> None:
    """Contract 102, C20."""
    tool, watch = Flaky(9, error), Watch(Stage.ON_RETRY, Stage.ON_GIVE_UP, Stage.ON_ERROR)
    assert (await call(record(tool), Retry(3), watch.hook)).outcome in {Outcome.DENIED, Outcome.RETRY_LATER}
    assert tool.runs == 1
    assert watch.stages == [Stage.ON_ERROR]


@pytest.mark.parametrize("stage", [s for s in Stage if STAGES[s].section in {Section.BEFORE, Section.SHAPING}])
async def test_what_fails_outside_of_the_roundabout_is_not_given_up_on(stage: Stage) -> None:
    """Contract 102."""
    watch = Watch(Stage.ON_GIVE_UP, Stage.ON_ERROR)
    assert not (await call(record(), Retry(3), watch.hook, at(stage, refusing(KeyError())))).ok
    assert watch.stages == [Stage.ON_ERROR]


async def test_without_anybody_who_repeats_nobody_gives_up() -> None:
    """Contract 102."""
    watch = Watch(Stage.ON_GIVE_UP, Stage.ON_ERROR, Stage.AROUND_EXECUTE)
    assert not (await call(record(Flaky(1)), watch.hook)).ok
    assert watch.stages == [Stage.AROUND_EXECUTE, Stage.ON_ERROR]


async def test_an_attempt_that_is_refused_after_it_succeeded_can_be_given_up_on() -> None:
    """Contract 102."""

    async def never_content(ctx: InvokeContext, next: Next) -> Any:
        await next()
        await next()
        raise ValueError("not good enough")

    watch = Watch(*INNER[1:])
    assert not (await call(record(), wrapper(never_content, repeats=True), watch.hook)).ok
    once = [Stage.WILL_EXECUTE, Stage.DID_EXECUTE]
    assert watch.stages == [*once, Stage.ON_RETRY, *once, Stage.ON_GIVE_UP, Stage.ON_ERROR]


async def test_a_hook_about_each_attempt_that_fails_fails_the_attempt() -> None:
    """Contract 102."""
    tries: list[int] = []

    def fail_first(ctx: InvokeContext) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError

    for stage, runs in ((Stage.WILL_EXECUTE, 1), (Stage.DID_EXECUTE, 2)):
        tries.clear()
        tool = Flaky(0)
        assert (await call(record(tool), Retry(2), at(stage, fail_first))).output == runs
        assert (tries, tool.runs) == ([1, 2], runs)


async def test_every_attempt_gets_arguments_of_its_own() -> None:
    """Contract 102, C16, I2."""
    seen: list[Any] = []

    async def execute(**arguments: Any) -> int:
        seen.append(repr(arguments))
        arguments["list"].append("spoiled")
        arguments["n"] = 666
        if len(seen) < 3:
            raise ValueError
        return 1

    assert (await call(record(execute, echoing().definition), Retry(3), arguments={"n": 1, "list": [1]})).ok
    assert seen == ["{'n': 1, 'list': [1]}"] * 3


async def test_the_output_of_the_last_attempt_is_the_output() -> None:
    """Contract 102, C27."""
    histories: list[Any] = []

    async def twice(ctx: InvokeContext, next: Next) -> Any:
        await next()
        return await next()

    def look(ctx: InvokeContext) -> None:
        histories.append([entry.value for entry in ctx.output_history])

    hooks = [at(stage, look) for stage in (Stage.DID_EXECUTE, Stage.WILL_AUDIT)]
    assert await invoke(record(Flaky(0)), wrapper(twice, repeats=True), *hooks) == 2
    assert histories == [[1], [2], [2]]


# What goes wrong in a wrapper


@pytest.mark.parametrize("number", range(3))
async def test_a_wrapper_that_fails_is_seen_by_those_outside_of_it(number: int) -> None:
    """Contract 93, 101, I18."""
    log: list[str] = []

    def layer(name: int) -> Hook:
        async def act(ctx: InvokeContext, next: Next) -> Any:
            log.append(f"in {name}")
            if name == number:
                raise KeyError(name)
            try:
                return await next()
            finally:
                log.append(f"out {name}")

        return wrapper(act, priority=-name)

    tool = Flaky(0)
    assert (await call(record(tool), *map(layer, range(3)))).outcome is Outcome.ERROR
    assert log == [*(f"in {n}" for n in range(number + 1)), *(f"out {n}" for n in range(number)[::-1])]
    assert tool.runs == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_who_failed_is_told_through_any_number_of_wrappers(depth: int) -> None:
    """Contract 101, C20."""
    boom = KeyError("boom")

    async def through(ctx: InvokeContext, next: Next) -> Any:
        return await next()

    async def after(ctx: InvokeContext, next: Next) -> Any:
        await next()
        raise boom

    layers = [wrapper(through) for _ in range(depth)]
    codes: list[str] = []
    for hooks, tool in (
        (layers, Flaky(1, lambda: boom)),
        ([*layers, at(Stage.WILL_EXECUTE, refusing(boom))], Flaky(0)),
        ([*layers, at(Stage.DID_EXECUTE, refusing(boom))], Flaky(0)),
        ([*layers, wrapper(after)], Flaky(0)),
    ):
        result = await call(record(tool), *hooks)
        assert result.error is not None
        codes.append(result.error.code)
    assert codes == ["tool_failed", "hook_failed", "hook_failed", "hook_failed"]
    with pytest.raises(KeyError) as caught:
        await invoke_tool(record(Flaky(1, lambda: boom)), {"n": 1}, global_hooks_by_stage={"around_execute": layers})
    assert caught.value is boom


@pytest.mark.parametrize("given", ["nothing", "the context", "something else"])
async def test_a_wrapper_goes_on_with_next_alone_or_with_its_context(given: str) -> None:
    """Contract 93: Starlette's habit works as well; anything but the context is refused with the line to write."""

    class Goes(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Next) -> Any:
            handed: dict[str, tuple[Any, ...]] = {"nothing": (), "the context": (ctx,), "something else": ("x",)}
            return await next(*handed[given])

    result = await call(record(), Goes())
    if given == "something else":
        assert result.outcome is Outcome.ERROR
    else:
        assert result.output == 4
