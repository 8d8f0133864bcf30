"""Idle limits: a call that reports no progress for so long is cancelled, and a call that reports it goes on."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from callgate import (
    DeadlineExceeded,
    DefinitionError,
    Gate,
    Hook,
    InvocationError,
    InvokeContext,
    Options,
    RegistrationError,
    ToolContext,
    User,
    invoke_tool,
)
from callgate.hooks import Deadline
from callgate.hooks.state.facts import IdleLimit
from callgate.runtime.models.wire.result_text import result_text
from callgate.runtime.pipeline.deadlines import TICK
from tests.harness.steploop import StepLoop, on_virtual_time
from tests.runtime.pipeline.test_deadlines import cancelling, gate_of, read

USER = User("u")
IDLE, STEPS = 3.0, 10
WAYS: dict[str, Callable[[StepLoop], list[Any]]] = {}


def way(make: Callable[[StepLoop], list[Any]]) -> Callable[[StepLoop], list[Any]]:
    """The tools of one way to report progress; the first one is called."""
    WAYS[make.__name__.replace("_", " ")] = make
    return make


async def steps(pause: float, ctx: ToolContext) -> int:
    """Report progress after each pause."""
    for step in range(STEPS):
        await asyncio.sleep(pause)
        ctx.progress(step)
    return STEPS


async def sends(pause: float, ctx: ToolContext) -> int:
    """Send a part after each pause."""
    for step in range(STEPS):
        await asyncio.sleep(pause)
        await ctx.send(step)
    return STEPS


@way
def progress(_: StepLoop) -> list[Any]:
    return [read(steps)]


@way
def progress_of_an_abandonable_body(_: StepLoop) -> list[Any]:
    return [read(steps, hard_deadline=True)]


@way
def parts(_: StepLoop) -> list[Any]:
    return [read(sends)]


@way
def parts_of_a_generator(_: StepLoop) -> list[Any]:
    async def generates(pause: float) -> Any:
        """Yield after each pause."""
        for step in range(STEPS):
            await asyncio.sleep(pause)
            yield step

    return [read(generates)]


@way
def progress_of_a_task_beside(_: StepLoop) -> list[Any]:
    async def works(pause: float, ctx: ToolContext) -> int:
        """Wait for a task that reports."""
        await asyncio.gather(steps(pause, ctx), asyncio.sleep(STEPS * pause))
        return STEPS

    return [read(works)]


@way
def progress_of_a_nested_call(_: StepLoop) -> list[Any]:
    async def outer(pause: float, ctx: ToolContext) -> int:
        """Call another."""
        answer: int = await ctx.call("steps", {"pause": pause})
        return answer

    return [read(outer), read(steps)]


@way
def progress_of_a_nested_call_with_a_longer_limit(_: StepLoop) -> list[Any]:
    return [*progress_of_a_nested_call(_)[:1], read(steps, idle=20 * IDLE)]


class Metronome(Hook):
    """Lets a plain body take one step after each pause; the loop's clock stands still while the thread works."""

    def __init__(self, loop: StepLoop) -> None:
        self.begun, self.go, self.reported, self.ended = (threading.Semaphore(0) for _ in range(4))
        self._wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = self._woken  # type: ignore[method-assign]
        self.beating: asyncio.Task[None] | None = None

    async def will_execute(self, ctx: InvokeContext) -> None:
        self.beating = asyncio.create_task(self._beat(ctx.input["pause"]))

    def _woken(self, callback: Any, *args: Any, **options: Any) -> object:
        handle = self._wake(callback, *args, **options)
        if callback.__name__ == "_set_state":  # of the future of the thread
            self.ended.release()
        return handle

    async def _beat(self, pause: float) -> None:
        assert self.begun.acquire(timeout=10)
        for _ in range(STEPS):
            await asyncio.sleep(pause)
            self.go.release()
            assert self.reported.acquire(timeout=10)
        assert self.ended.acquire(timeout=10)


@way
def progress_from_a_thread(loop: StepLoop) -> list[Any]:
    metronome = Metronome(loop)

    def plain(pause: float, ctx: ToolContext) -> int:
        """Report progress from a thread."""
        metronome.begun.release()
        for step in range(STEPS):
            metronome.go.acquire(timeout=10)
            ctx.progress(step)
            metronome.reported.release()
        return STEPS

    return [read(plain, hooks=[metronome])]


@pytest.mark.parametrize("consumer", ["call", "stream", "job", "invoke_tool"])
@pytest.mark.parametrize("how", WAYS)
@on_virtual_time
async def test_progress_resets_the_idle_limit_and_silence_does_not(loop: StepLoop, how: str, consumer: str) -> None:
    """Steps below the limit run to the end, for several times the limit; longer ones end at the limit (the control)."""
    tools = WAYS[how](loop)
    if consumer == "invoke_tool" and len(tools) > 1:
        pytest.skip("a nested call needs a gate")

    async def took(pause: float, **options: Any) -> tuple[str, float]:
        began = loop.time()
        code = await _code_of(gate, tools[0], consumer, pause, options)
        after = loop.time() - began
        await asyncio.sleep(STEPS * pause)  # a thread that was left behind ends
        return code, after

    left = ("outcome_unknown",) if "thread" in how else ()  # a thread cannot be cancelled
    async with gate_of(tools) as gate:
        code, after = await took(2.0, idle=IDLE)
        assert code == "success"
        assert after == pytest.approx(STEPS * 2.0, abs=1.5)
        assert (await took(IDLE + 1.0))[0] == "success"
        code, after = await took(IDLE + 1.0, idle=IDLE)
        assert code in ("idle_timeout", *left)
        assert IDLE <= after <= IDLE + 1.5
        code, after = await took(2.0, idle=IDLE, deadline=7.0)
        assert code in ("deadline_exceeded", *left)
        assert 7.0 <= after <= 8.5
        assert cancelling() == 0


async def _code_of(gate: Gate, target: Any, consumer: str, pause: float, options: dict[str, Any]) -> str:
    """Run the call in one way, and return the code of its error, or its outcome."""
    given = {"pauses": options.pop("pauses")} if "pauses" in options else {"pause": pause}
    if consumer == "invoke_tool":
        try:
            await invoke_tool(target, given, user=USER, registry=gate.providers, **options)
        except InvocationError as error:
            return error.code
        return "success"
    if consumer == "stream":
        *_, last = [one async for one in gate.stream(target, given, user=USER, **options)]
        result = last.result  # type: ignore[union-attr]
    elif consumer == "job":
        result = await (await gate.submit(target, given, user=USER, **options))
    else:
        result = await gate.call(target, given, user=USER, **options)
    return result.outcome.value if result.error is None else result.error.code


async def walks(pauses: list[float], ctx: ToolContext) -> int:
    """Report progress after each pause."""
    for pause in pauses:
        await asyncio.sleep(pause)
        ctx.progress(pause)
    return len(pauses)


def end_of(pauses: list[float], idle: float | None, deadline: float | None) -> tuple[str, float]:
    """The end that a call should have, and its time."""
    at = 0.0
    for pause in pauses:
        limits = [(at + idle, "idle_timeout")] if idle is not None else []
        limits += [(deadline, "deadline_exceeded")] if deadline is not None else []
        when, code = min(limits, default=(at + pause + 1, ""))
        if when < at + pause:
            return code, when
        at += pause
    return "success", at


@pytest.mark.parametrize("consumer", ["call", "stream", "job"])
@pytest.mark.parametrize("how", WAYS)
@on_virtual_time
async def test_the_idle_limit_of_the_hook_is_reset_by_the_same_progress(
    loop: StepLoop, how: str, consumer: str
) -> None:
    """``Deadline(idle=)`` beside the limits above; without progress it ends the call, and so does its deadline."""
    tools = WAYS[how](loop)
    name = tools[0].definition.name
    left = ("outcome_unknown",) if "thread" in how else ()  # a thread cannot be cancelled
    for pause, seconds, expected, ends in (
        (2.0, None, "success", STEPS * 2.0),
        (IDLE + 1.0, None, "idle_timeout", IDLE),
        (2.0, 7.0, "deadline_exceeded", 7.0),
    ):
        async with gate_of(tools, [Deadline(seconds, idle=IDLE, tools=[name])]) as gate:
            began = loop.time()
            code = await _code_of(gate, name, consumer, pause, {})
            assert code in (expected, *left)
            assert ends <= loop.time() - began <= ends + 1.5
            assert cancelling() == 0
            await asyncio.sleep(STEPS * pause)  # a thread that was left behind ends


@pytest.mark.parametrize("outer", [2.0, 9.0])
@on_virtual_time
async def test_the_shorter_of_two_idle_limits_ends_the_call(loop: StepLoop, outer: float) -> None:
    """Progress resets the limit of the call and that of the hook."""
    async with gate_of([read(steps)], [Deadline(idle=5.0)]) as gate:
        assert await _code_of(gate, "steps", "call", 1.5, {"idle": outer}) == "success"
        began = loop.time()
        assert await _code_of(gate, "steps", "call", 20.0, {"idle": outer}) == "idle_timeout"
        assert loop.time() - began == pytest.approx(min(outer, 5.0), abs=0.1)


@pytest.mark.parametrize("seed", range(20))
@on_virtual_time
async def test_a_call_ends_at_the_first_gap_that_is_too_long_or_at_its_deadline(loop: StepLoop, seed: int) -> None:
    """Against an oracle, with random pauses and limits."""
    dice = random.Random(seed)
    async with gate_of([read(walks)]) as gate:
        for _ in range(10):
            pauses = [float(dice.randrange(1, 8)) for _ in range(dice.randrange(1, 12))]
            limits: dict[str, Any] = {"idle": dice.randrange(2, 9) + 0.5}
            if dice.random() < 0.5:
                limits["deadline"] = dice.randrange(2, 40) + 0.25
            began = loop.time()
            code = await _code_of(gate, "walks", "call", 0.0, limits | {"pauses": pauses})
            expected, after = end_of(pauses, limits["idle"], limits.get("deadline"))
            assert code == expected
            assert loop.time() - began == pytest.approx(after, abs=0.1 + 2 * TICK * len(pauses))


@on_virtual_time
async def test_progress_that_does_not_count_ends_the_same_call(loop: StepLoop) -> None:
    """The control: without the reset, the steps of the matrix end at the first limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IdleLimit, "progressed", lambda _: None)
        async with gate_of([read(steps)]) as gate:
            began = loop.time()
            assert await _code_of(gate, "steps", "call", 2.0, {"idle": IDLE}) == "idle_timeout"
            assert loop.time() - began == pytest.approx(IDLE, abs=0.1)


@on_virtual_time
async def test_the_calls_idle_limit_wins_over_the_tools_and_that_over_the_gates(loop: StepLoop) -> None:
    """As with deadlines."""

    async def forever() -> None:
        """Sleep."""
        await asyncio.sleep(1e9)

    async def took(gate: Gate, **options: Any) -> float:
        began = loop.time()
        with pytest.raises(DeadlineExceeded) as raised:
            await gate.invoke("forever", {}, user=USER, **options)
        assert raised.value.code == "idle_timeout"
        return round(loop.time() - began, 1)

    async with gate_of([read(forever)], idle=5.0) as gate:
        assert await took(gate) == 5
        assert await took(gate, idle=2.0) == 2
    async with gate_of([read(forever, idle=3.0)], idle=5.0) as gate:
        assert await took(gate) == 3
        assert await took(gate, idle=8.0) == 8


@pytest.mark.parametrize("handled", [True, False])
@on_virtual_time
async def test_the_idle_limit_of_a_nested_call_ends_that_call_alone(loop: StepLoop, handled: bool) -> None:
    """The outer call may handle it, and its own limit goes on."""

    async def inner() -> None:
        """Sleep."""
        await asyncio.sleep(1e9)

    async def outer(ctx: ToolContext) -> str:
        """Call another."""
        try:
            await ctx.call("inner", {})
        except DeadlineExceeded as error:
            if not handled:
                await asyncio.sleep(1e9)
            return error.code
        return "not reached"

    async with gate_of([read(inner, idle=2.0), read(outer)]) as gate:
        began = loop.time()
        result = await gate.call("outer", {}, user=USER, idle=5.0)
        took = round(loop.time() - began, 1)
    if handled:
        assert (result.output, took) == ("idle_timeout", 2.0)
    else:
        assert result.error is not None
        assert (result.error.code, took) == ("idle_timeout", 5.0)


@on_virtual_time
async def test_a_model_reads_neither_values_nor_names_and_a_developer_reads_what_to_write(loop: StepLoop) -> None:
    """Both texts of the error."""
    async with gate_of([read(steps)]) as gate:
        result = await gate.call("steps", {"pause": 99.0}, user=USER, idle=1.25)
        assert "The call made no progress for too long." in result_text(result)
        assert "1.25" not in result_text(result)
        with pytest.raises(
            DeadlineExceeded, match=r"steps reported no progress for 1.25 s; call ctx.progress more often"
        ):
            await gate.invoke("steps", {"pause": 99.0}, user=USER, idle=1.25)


@on_virtual_time
async def test_a_tool_that_suppresses_its_idle_limit_ends_late_and_the_limit_wins(loop: StepLoop) -> None:
    """As with deadlines."""

    async def stubborn() -> str:
        """Swallow the cancellation."""
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            await asyncio.sleep(1.0)
        return "ended"

    async with gate_of([read(stubborn)]) as gate:
        with pytest.raises(DeadlineExceeded) as raised:
            await gate.invoke("stubborn", {}, user=USER, idle=1.0)
        assert raised.value.code == "idle_timeout"
        assert cancelling() == 0


@on_virtual_time
async def test_the_time_of_a_hook_in_shadow_mode_does_not_count(loop: StepLoop) -> None:
    """Its time counts for no limit of the call."""

    class Slow(Hook):
        mode = "shadow"
        timeout = 60.0

        async def did_execute(self, ctx: InvokeContext) -> None:
            await asyncio.sleep(30.0)

    async with gate_of([read(steps)], [Slow()]) as gate:
        assert await _code_of(gate, "steps", "call", 2.0, {"idle": IDLE}) == "success"


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "3"])
@on_virtual_time
async def test_an_idle_limit_is_a_number_of_seconds(loop: StepLoop, value: Any) -> None:
    """Refused where it is written, and in a call as a mistake of the caller."""
    with pytest.raises(DefinitionError, match="idle"):
        read(steps, idle=value)
    with pytest.raises(RegistrationError, match="idle"):
        Options(idle=value)
    async with gate_of([read(steps)]) as gate:
        assert await _code_of(gate, "steps", "call", 1.0, {"idle": value}) == "bad_call"
        with pytest.raises(TypeError, match="idle"):
            await gate.submit("steps", {"pause": 1.0}, user=USER, idle=value)
