"""Hooks in shadow mode that hang, block the loop or swallow their cancellation change nothing but the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, Outcome, Stage, User, tool
from callgate.runtime.pipeline.shadow import SHADOW_LIMIT
from tests.harness.gate_options import gate_options
from tests.harness.steploop import StepLoop, on_virtual_time

USER = User("u")
SET: ContextVar[str] = ContextVar("set", default="nothing")
STAGES = (
    Stage.WILL_CREATE_INVOKE_CONTEXT,
    Stage.WILL_AUTHORIZE,
    Stage.WILL_ACQUIRE_SEMAPHORE,
    Stage.WILL_READ_CACHE,
    Stage.WILL_EXECUTE,
    Stage.WILL_REDACT_OUTPUT,
    Stage.WILL_AUDIT,
    Stage.DID_RELEASE_SEMAPHORE,
    Stage.WILL_FINALIZE_INVOKE,
)


class LoopClock:
    """The running loop's clock, which a blocking hook moves."""

    def __init__(self, loop: StepLoop) -> None:
        self.monotonic = self.time = loop.time


async def hangs(loop: StepLoop) -> None:
    await asyncio.sleep(1e6)


async def swallows(loop: StepLoop) -> None:
    for _ in range(3):
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            SET.set("swallowed")


async def waits_in_finally(loop: StepLoop) -> None:
    try:
        await asyncio.sleep(1e6)
    finally:
        await asyncio.sleep(5)


async def blocks(loop: StepLoop) -> None:
    loop.now += 30.0
    SET.set("blocked")
    await asyncio.sleep(0)
    loop.now += 30.0


async def exits(loop: StepLoop) -> None:
    await asyncio.sleep(0)
    raise SystemExit(1)


DEEDS: dict[str, Callable[[StepLoop], Awaitable[None]]] = {
    one.__name__: one for one in (hangs, swallows, waits_in_finally, blocks, exits)
}


class Shadow(Hook):
    """Do it in one stage."""

    mode = "shadow"


def shadow(stage: Stage, deed: Callable[[StepLoop], Awaitable[None]], loop: StepLoop, **attributes: Any) -> Hook:
    async def method(self: Hook, ctx: InvokeContext) -> None:
        await deed(loop)

    made: Hook = type("Shadow", (Shadow,), {stage.value: method, **attributes})()
    return made


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("stage", STAGES)
@on_virtual_time
async def test_a_shadow_changes_nothing(loop: StepLoop, stage: Stage, deed: str) -> None:
    """The call has its output in time, although its deadline is shorter than what the hook takes."""
    outer: list[str] = []

    @tool(effect="read")
    async def work() -> int:
        outer.append(SET.get())
        await asyncio.sleep(0.1)
        return 7

    hook = shadow(stage, DEEDS[deed], loop)
    async with Gate([work], [hook], **gate_options(clock=LoopClock(loop), drain=0.0)) as gate:
        began = loop.time()
        result = await gate.call("work", {}, user=USER, deadline=0.2)
        took = loop.time() - began - (60.0 if deed == "blocks" else 0.0)
        assert (result.outcome, result.output) == (Outcome.SUCCESS, 7)
        assert outer == ["nothing"]
        assert took <= 0.1 + SHADOW_LIMIT + 0.05
        late = await gate.call("work", {}, user=USER, deadline=0.05)  # its own deadline still holds
        assert late.error is not None
        assert late.error.code == "deadline_exceeded"
        await asyncio.sleep(60)


@on_virtual_time
async def test_a_filter_of_a_shadow_that_hangs_changes_nothing(loop: StepLoop) -> None:
    """A filter is part of the hook."""

    async def hanging(self: Hook, ctx: InvokeContext) -> bool:
        await asyncio.sleep(1e6)
        return True

    @tool(effect="read")
    async def work() -> int:
        return 7

    hook = shadow(Stage.WILL_AUTHORIZE, exits, loop, filter=hanging)
    async with Gate([work], [hook], **gate_options(clock=LoopClock(loop), drain=0.0)) as gate:
        result = await gate.call("work", {}, user=USER, deadline=0.05)
        assert (result.outcome, result.output) == (Outcome.SUCCESS, 7)


@on_virtual_time
async def test_a_shadow_that_was_left_behind_skips_its_other_stages_and_gives_back_what_it_took(loop: StepLoop) -> None:
    """A shadow that hangs once delays a call once; capacity that it gets later is given back."""
    log: list[str] = []

    class Late(Hook):
        mode = "shadow"

        async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                await asyncio.sleep(3)
            log.append("took")

        async def did_release_semaphore(self, ctx: InvokeContext) -> None:
            log.append("gave back")

        async def will_audit(self, ctx: InvokeContext) -> None:
            log.append("audit")

    @tool(effect="read")
    async def work() -> int:
        return 7

    async with Gate([work], [Late()], **gate_options(clock=LoopClock(loop), drain=0.0)) as gate:
        assert (await gate.call("work", {}, user=USER)).outcome is Outcome.SUCCESS
        assert log == []
        await asyncio.sleep(10)
        assert log == ["took", "gave back"]


@on_virtual_time
async def test_a_cancelled_call_does_not_wait_for_its_shadow(loop: StepLoop) -> None:
    """The cancellation of the caller ends the call at once."""

    @tool(effect="read")
    async def work() -> int:
        return 7

    hook = shadow(Stage.WILL_AUTHORIZE, swallows, loop, timeout=1e4)
    async with Gate([work], [hook], **gate_options(clock=LoopClock(loop), drain=0.0)) as gate:
        began = loop.time()
        running = asyncio.ensure_future(gate.call("work", {}, user=USER))
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert loop.time() - began == pytest.approx(1, abs=0.1)
        await asyncio.sleep(30)
