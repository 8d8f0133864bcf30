"""Soft deadlines: contract 77, C14, C1d; design 5, 10.4; invariants I12, I13."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterable
from typing import Any

import pytest

from callgate import DeadlineExceeded, Gate, Hook, InvokeContext, Outcome, ToolCall, ToolContext, User, tool
from callgate.runtime.pipeline import deadlines
from callgate.runtime.pipeline.deadlines import TICK, expire_all
from tests.harness.gate_options import gate_options
from tests.harness.steploop import StepLoop, close_loop, on_virtual_time, run_virtual

USER = User("u")


class LoopClock:
    """The running loop's clock: no real time passes between making a call and arming its deadline."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.monotonic = self.time = loop.time


def gate_of(tools: Iterable[Any], hooks: Iterable[Any] = (), **options: Any) -> Gate:
    return Gate(tools, hooks, **gate_options(clock=LoopClock(), **options))


async def forever() -> int:
    """Sleep."""
    await asyncio.sleep(1e9)
    return 7


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


def read(function: Any, **options: Any) -> Any:
    return tool(effect="read", **options)(function)


@on_virtual_time
async def test_a_tool_that_overruns_is_ended_at_the_deadline(loop: StepLoop) -> None:
    """Contract 77, C14. I12."""
    cleaned: list[str] = []

    async def sleeps() -> int:
        """Sleep."""
        try:
            await asyncio.sleep(1e9)
        finally:
            cleaned.append("up")
        return 7

    async with gate_of([read(sleeps)]) as gate:
        began = loop.time()
        with pytest.raises(DeadlineExceeded) as raised:
            await gate.invoke("sleeps", {}, user=USER, deadline=3.0)
        assert 3.0 <= loop.time() - began <= 3.0 + TICK + 0.05
        assert isinstance(raised.value, TimeoutError)
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)
        assert cleaned == ["up"]
        assert cancelling() == 0
        result = await gate.call(ToolCall(id="c", name="sleeps"), user=USER, deadline=1.0)
        assert result.outcome is Outcome.ERROR
        assert result.error is not None
        assert result.error.code == "deadline_exceeded"
        await asyncio.sleep(100)  # nothing is left that would hit us


@on_virtual_time
async def test_the_calls_deadline_wins_over_the_tools_and_that_over_the_gates(loop: StepLoop) -> None:
    """Contract 77, C14."""

    async def took(gate: Gate, **options: Any) -> float:
        began = loop.time()
        with pytest.raises(DeadlineExceeded):
            await gate.invoke("forever", {}, user=USER, **options)
        return round(loop.time() - began, 1)

    async with gate_of([read(forever)], deadline=5) as gate:
        assert await took(gate) == 5
        assert await took(gate, deadline=2) == 2
    async with gate_of([read(forever, deadline=3)], deadline=5) as gate:
        assert await took(gate) == 3
        assert await took(gate, deadline=8) == 8


@on_virtual_time
async def test_an_inner_deadline_ends_the_inner_call_alone(loop: StepLoop) -> None:
    """Design 5: nested deadlines."""

    async def outer(ctx: ToolContext) -> str:
        """Call another."""
        try:
            await ctx.call("forever", {})
        except DeadlineExceeded:
            await asyncio.sleep(1.0)
            return f"handled {cancelling()}"
        return "not reached"

    async with gate_of([read(outer), read(forever, deadline=2)]) as gate:
        began = loop.time()
        assert await gate.invoke("outer", {}, user=USER, deadline=10) == "handled 0"
        assert 3.0 <= loop.time() - began < 3.2


@on_virtual_time
async def test_the_outer_deadline_ends_both_however_patient_the_inner(loop: StepLoop) -> None:
    """Design 5: nested deadlines."""
    errors: list[str] = []

    async def outer(ctx: ToolContext) -> int:
        """Call another."""
        try:
            answer: int = await ctx.call("forever", {})
        except Exception as error:
            errors.append(type(error).__name__)  # an inner call cut off by the outer deadline raises no such thing
            raise
        return answer

    async with gate_of([read(outer), read(forever, deadline=100)]) as gate:
        began = loop.time()
        with pytest.raises(DeadlineExceeded):
            await gate.invoke("outer", {}, user=USER, deadline=2)
        assert loop.time() - began < 2.2
        assert errors in ([], ["DeadlineExceeded"])  # both may be due in the same turn
        assert cancelling() == 0


@pytest.mark.parametrize("inner", [1.0, 5.0, 9.0])
@on_virtual_time
async def test_deadlines_at_the_same_moment_end_the_outer_call_once(loop: StepLoop, inner: float) -> None:
    """Design 5."""

    async def outer(ctx: ToolContext) -> int:
        """Call another."""
        answer: int = await ctx.call("forever", {})
        return answer

    async with gate_of([read(outer), read(forever, deadline=inner)]) as gate:
        calling = asyncio.ensure_future(gate.invoke("outer", {}, user=USER, deadline=5.0))
        await asyncio.sleep(0.5)
        expire_all(loop)  # both
        await asyncio.wait([calling])
        assert isinstance(calling.exception(), DeadlineExceeded)
        assert calling.cancelling() == 0


@on_virtual_time
async def test_what_remains_is_shared_by_hooks_attempts_and_nested_calls(loop: StepLoop) -> None:
    """Design 5: ``ctx.remaining()``."""
    seen: list[float | None] = []

    class Hooked(Hook):
        repeats = True

        async def will_authorize(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(1)
            seen.append(ctx.remaining())

        async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
            if ctx.depth:
                return await next()
            try:
                return await next()
            except ConnectionError:
                return await next()

    async def outer(ctx: ToolContext) -> int:
        """Call another, at the second attempt."""
        await asyncio.sleep(1)
        seen.append(ctx.remaining())
        if ctx.attempt == 1:
            raise ConnectionError
        answer: int = await ctx.call("inner", {})
        return answer

    async def inner(ctx: ToolContext) -> int:
        """Look."""
        seen.append(ctx.remaining())
        return 1

    async with gate_of([read(outer), read(inner, deadline=100)], [Hooked()]) as gate:
        assert await gate.invoke("outer", {}, user=USER, deadline=10) == 1
        #       hook, two attempts, the inner call's hook, the inner tool
        assert [round(left or 0) for left in seen] == [9, 8, 7, 6, 6]
        assert await gate.invoke("inner", {}, user=USER, deadline=None) == 1
        seen.clear()
    async with gate_of([read(inner)]) as gate:
        await gate.invoke("inner", {}, user=USER)
        assert seen == [None]


@on_virtual_time
async def test_an_outside_cancellation_in_the_same_turn_wins(loop: StepLoop) -> None:
    """I13."""
    async with gate_of([read(forever)]) as gate:
        for first in ("deadline", "outside"):
            calling = asyncio.ensure_future(gate.invoke("forever", {}, user=USER, deadline=10))
            await asyncio.sleep(1)
            if first == "deadline":
                expire_all(loop)
                calling.cancel()
            else:
                calling.cancel()
                expire_all(loop)
            await asyncio.wait([calling])
            assert calling.cancelled()
            assert calling.cancelling() == 1


@on_virtual_time
async def test_a_time_limit_around_the_call_wins_over_its_deadline(loop: StepLoop) -> None:
    """I13: ``asyncio.timeout`` gets its ``TimeoutError``, and nothing is left over."""
    async with gate_of([read(forever)]) as gate:
        limit = asyncio.timeout(5)
        with pytest.raises(TimeoutError) as raised:
            async with limit:
                await gate.invoke("forever", {}, user=USER, deadline=5)
        assert limit.expired() or isinstance(raised.value, DeadlineExceeded)
        assert cancelling() == 0
        limit = asyncio.timeout(1)
        with pytest.raises(TimeoutError) as raised:
            async with limit:
                await gate.invoke("forever", {}, user=USER, deadline=5)
        assert limit.expired()
        assert not isinstance(raised.value, DeadlineExceeded)
        assert cancelling() == 0


@on_virtual_time
async def test_a_deadline_that_fires_as_the_body_ends_is_taken_back(loop: StepLoop) -> None:
    """I12, I13: a result stands, and nobody else is hit."""

    async def at_the_last_moment() -> int:
        """Let the deadline pass without waiting any more."""
        expire_all(loop)
        return 7

    seen: list[int] = []

    class Closing(Hook):
        async def will_audit(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(0.1)
            seen.append(cancelling())

    async with gate_of([read(at_the_last_moment)], [Closing()]) as gate:
        assert await gate.invoke("at_the_last_moment", {}, user=USER, deadline=10) == 7
        await asyncio.sleep(0.1)
        assert seen == [0]
        assert cancelling() == 0


@on_virtual_time
async def test_a_deadline_in_an_error_hook_does_not_become_a_cancellation(loop: StepLoop) -> None:
    """I10, I13: the tool's error stays."""

    async def fails() -> int:
        """Raise."""
        raise ConnectionError

    class Slow(Hook):
        async def on_error(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(2)

    async with gate_of([read(fails)], [Slow()]) as gate:
        result = await gate.call(ToolCall(id="c", name="fails"), user=USER, deadline=1.0)
        assert result.outcome is Outcome.ERROR
        assert result.error is not None
        assert result.error.code == "tool_failed"
        assert cancelling() == 0


@pytest.mark.parametrize("stage", ["will_authorize", "will_acquire_quota", "will_execute", "will_transform_output"])
@on_virtual_time
async def test_a_deadline_ends_a_hook_that_hangs_in_any_stage(loop: StepLoop, stage: str) -> None:
    """I12."""

    async def hangs(self: Any, ctx: InvokeContext) -> None:
        await asyncio.sleep(1e9)

    async def seven() -> int:
        """Seven."""
        return 7

    hook = type("Hangs", (Hook,), {stage: hangs})
    async with gate_of([read(seven)], [hook()]) as gate:
        began = loop.time()
        result = await gate.call(ToolCall(id="c", name="seven"), user=USER, deadline=2.0)
        assert result.error is not None
        assert not result.ok
        assert loop.time() - began <= 2.0 + 1.0 + 0.1  # an acquire has its grace
        assert cancelling() == 0


@on_virtual_time
async def test_a_tool_that_suppresses_its_deadline_ends_late_and_the_deadline_wins(loop: StepLoop) -> None:
    """I12. ``hard_deadline=True`` bounds such a tool (test_bodies.py)."""

    async def stubborn() -> int:
        """Suppress one cancellation."""
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        return 7

    recorded: list[Any] = []

    class Records(Hook):
        def on_error(self, ctx: InvokeContext) -> None:
            recorded.append((ctx.error.code, ctx.outcome, ctx.executed))

    async with gate_of([read(stubborn)], [Records()]) as gate:
        began = loop.time()
        with pytest.raises(DeadlineExceeded, match="suppressed the cancellation of its deadline"):
            await gate.invoke("stubborn", {}, user=USER, deadline=1.0)
        assert 6.0 <= loop.time() - began < 6.2
        assert cancelling() == 0
    assert recorded == [("deadline_exceeded", Outcome.ERROR, True)]


async def _call_with_a_failed_group() -> None:
    async def grouped() -> int:
        """Go on after a failed group."""
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(_fails())
        await asyncio.sleep(1e9)
        return 7

    async with gate_of([read(grouped)]) as gate:
        await gate.invoke("grouped", {}, user=USER, deadline=1.0)


@on_virtual_time
async def test_a_task_group_that_failed_before_the_deadline_leaves_no_bare_cancellation(loop: StepLoop) -> None:
    with pytest.raises(DeadlineExceeded):
        await asyncio.ensure_future(_call_with_a_failed_group())


async def _fails() -> None:
    raise ValueError("a child")


@on_virtual_time
async def test_the_probe_finds_the_request_that_a_failed_task_group_leaves(loop: StepLoop) -> None:
    """The control: without the mend, the versions that leave a request report a cancellation."""
    if not deadlines.LEAKS:
        pytest.skip("this version of Python leaves no request")
    with pytest.MonkeyPatch.context() as patched, pytest.raises(asyncio.CancelledError):
        patched.setattr(deadlines, "LEAKS", False)
        await asyncio.ensure_future(_call_with_a_failed_group())


@pytest.mark.parametrize("before", [True, False])
@on_virtual_time
async def test_a_cancellation_from_outside_wins_while_the_tool_cleans_up_past_its_deadline(
    loop: StepLoop, before: bool
) -> None:
    async def cleans() -> int:
        """Clean up slowly."""
        try:
            await asyncio.sleep(1e9)
        finally:
            await asyncio.sleep(5)
        return 7

    async with gate_of([read(cleans)]) as gate:
        calling = asyncio.ensure_future(gate.invoke("cleans", {}, user=USER, deadline=1.0))
        await asyncio.sleep(0.5 if before else 1.5)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling


@on_virtual_time
async def test_a_tool_that_turns_the_deadline_into_an_error_of_its_own_is_believed(loop: StepLoop) -> None:
    """I10."""

    async def converts() -> int:
        """Raise something else."""
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            raise ConnectionError from None
        return 7

    async with gate_of([read(converts)]) as gate:
        result = await gate.call(ToolCall(id="c", name="converts"), user=USER, deadline=1.0)
        assert result.error is not None
        assert result.error.code == "tool_failed"
        assert cancelling() == 0


@on_virtual_time
async def test_a_cancellation_that_came_before_the_call_is_not_the_deadlines_business(loop: StepLoop) -> None:
    """I13: a caller that cleans up after its own cancellation may still call tools with deadlines."""

    async def caller(gate: Gate) -> Any:
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            return await gate.call(ToolCall(id="c", name="forever"), user=USER, deadline=1.0)

    async with gate_of([read(forever)]) as gate:
        task = asyncio.ensure_future(caller(gate))
        await asyncio.sleep(0.1)
        task.cancel()
        result = await task
        assert result.error.code == "deadline_exceeded"
        assert task.cancelling() == 1


# ---------------------------------------------------------------------- the table


@on_virtual_time
async def test_many_deadlines_share_one_timer(loop: StepLoop) -> None:
    """performance.md 6.5."""
    async with gate_of([read(forever)]) as gate:
        calls = [
            asyncio.ensure_future(gate.invoke("forever", {}, user=USER, deadline=10 + n / 100)) for n in range(100)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        table = deadlines._TABLES[loop]
        assert len(table.live) == 100
        timers: list[Any] = [handle for handle in loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        looking = [handle for handle in timers if getattr(handle._args[0], "__self__", None) is table]
        assert len(looking) == 1
        steps = loop.steps
        await asyncio.sleep(9)
        assert loop.steps - steps < 10  # nothing looks at them before the first is due
        began = loop.time()
        await asyncio.wait(calls)
        assert all(isinstance(one.exception(), DeadlineExceeded) for one in calls)
        assert loop.time() - began < 2.5
        assert not table.live


@pytest.mark.parametrize("order", [(1.0, 2.0, 3.0), (3.0, 2.0, 1.0), (2.0, 3.0, 1.0)])
@on_virtual_time
async def test_each_deadline_passes_at_its_own_time_in_whatever_order_they_were_set(
    loop: StepLoop, order: tuple[float, ...]
) -> None:
    """I12: overshoot."""

    async def took(gate: Gate, seconds: float) -> float:
        began = loop.time()
        with pytest.raises(DeadlineExceeded):
            await gate.invoke("forever", {}, user=USER, deadline=seconds)
        return loop.time() - began

    async with gate_of([read(forever)]) as gate:
        times = await asyncio.gather(*(took(gate, seconds) for seconds in order))
    assert all(0 <= time - seconds < TICK + 0.02 for time, seconds in zip(times, order, strict=True))


def test_deadlines_do_not_keep_closed_loops_alive() -> None:
    """A service that makes loops (a test suite, a worker) does not collect them."""
    seen: list[Any] = []

    async def main() -> None:
        seen.append(weakref.ref(asyncio.get_running_loop()))

        async def quick() -> int:
            """Be quick."""
            return 7

        async with gate_of([read(quick)]) as gate:
            assert await gate.invoke("quick", {}, user=USER, deadline=100) == 7

    for _ in range(5):
        run_virtual(main())
    gc.collect()
    assert sum(ref() is not None for ref in seen) <= 1


def test_a_deadline_armed_inside_a_step_is_the_steps_own() -> None:
    """I12, I13: a nested call's deadline reaches the nested call, though it is made by an acquire."""
    log: list[str] = []

    class Asking(Hook):
        tools = ("outer",)

        async def will_acquire_quota(self, ctx: InvokeContext) -> None:
            try:
                await ctx.call("forever", {})
            except DeadlineExceeded:
                log.append("inner deadline")

        async def did_release_quota(self, ctx: InvokeContext) -> None:
            log.append("given")

    async def outer() -> int:
        """Seven."""
        return 7

    async def main() -> None:
        async with gate_of([read(outer), read(forever, deadline=1.0)], [Asking()]) as gate:
            assert await gate.invoke("outer", {}, user=USER, deadline=10) == 7
            assert log == ["inner deadline", "given"]
            assert cancelling() == 0

    run_virtual(main())


def test_a_deadline_needs_a_task() -> None:
    """Programming error, told at once."""
    loop = StepLoop()
    with pytest.raises(RuntimeError, match="running task"):
        deadlines.DeadlineTable().arm(loop, 1.0)
    close_loop(loop)


@on_virtual_time
async def test_a_body_that_ends_after_its_deadline_leaves_no_hook_without_one(loop: StepLoop) -> None:
    """Its own result counts within the grace period; a hook after it that hangs does not hold the call."""

    @tool(effect="read", hard_deadline=True)
    async def late() -> int:
        """End a little after the deadline."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1e9)
        await asyncio.sleep(0.1)
        return 7

    class Hangs(Hook):
        async def did_execute(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(1e9)

    began = loop.time()
    for hooks, ends in (([], (7, None)), ([Hangs()], (None, "deadline_exceeded"))):
        async with gate_of([late], hooks) as gate:
            result = await gate.call(ToolCall(name="late", arguments={}), user=USER, deadline=0.2)
            assert (result.output, result.error and result.error.code) == ends
    assert loop.time() - began < 2
