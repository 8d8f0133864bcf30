"""Time in tests: a loop whose clock jumps, and a clock that moves when told to."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from callgate import DeadlineExceeded, Gate, InvokeContext, Options, Stage, on, tool
from callgate.runtime.testing import virtual_time as loops
from callgate.testing import FakeClock, Stuck, VirtualTime, run_virtual, trace


@tool(effect="read")
async def slow(seconds: float) -> str:
    """Take your time."""
    await asyncio.sleep(seconds)
    return "done"


def test_hours_pass_at_once_and_deadlines_with_them(virtual_time: VirtualTime) -> None:
    """Design 5: a deadline is kept, on the loop's clock."""
    left: list[float | None] = []

    @on(Stage.DID_EXECUTE)
    def look(ctx: InvokeContext) -> None:
        left.append(ctx.remaining())

    async def run() -> None:
        async with Gate([slow], [look], deadline=7200, options=Options(clock=virtual_time.clock)) as gate:
            seen = await trace(gate, slow, {"seconds": 3600})
            assert seen.output == "done"
            assert seen.result.duration == pytest.approx(3600, abs=1)
            with pytest.raises(DeadlineExceeded):
                await gate.invoke(slow, {"seconds": 9000})

    began = time.monotonic()
    virtual_time.run(run())
    assert time.monotonic() - began < 60
    assert virtual_time.elapsed == pytest.approx(10_800, abs=2)
    assert left[0] == pytest.approx(3600, abs=1)


def test_what_waits_for_nothing_is_stuck_not_silent() -> None:
    """Control: a test on this loop ends."""

    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck, match="nothing can wake the loop"):
        run_virtual(forever())


def test_a_loop_is_closed_with_what_is_left_on_it_and_only_once() -> None:
    cancelled = []

    async def left() -> None:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async def run() -> object:
        task = asyncio.ensure_future(left())
        await asyncio.sleep(1)
        return task

    with VirtualTime() as virtual:
        virtual.run(run())
        virtual.close()
    assert cancelled == [1]
    assert virtual.loop.is_closed()


async def test_a_fake_clock_moves_only_when_told_to(fake_clock: FakeClock) -> None:
    """Contract C35: duration is the clock's."""

    @on(Stage.WILL_EXECUTE)
    def a_while(ctx: InvokeContext) -> None:
        fake_clock.advance(42)

    async with Gate([slow], [a_while], options=Options(clock=fake_clock)) as gate:
        assert (await trace(gate, slow, {"seconds": 0})).result.duration == 42


@pytest.mark.parametrize("run", [run_virtual, "fixture"])
def test_a_run_that_never_ends_is_an_error_that_says_what_to_do(
    run: Any, monkeypatch: pytest.MonkeyPatch, virtual_time: VirtualTime
) -> None:
    """Such as a tool that polls; the tasks of the run are ended."""
    monkeypatch.setattr(loops, "STUCK", 500)
    ended = list[str]()

    async def polls() -> None:
        try:
            while True:  # noqa: ASYNC110  (the fault that the test needs)
                await asyncio.sleep(0)
        finally:
            ended.append("polls")

    with pytest.raises(Stuck, match=r"not over after 500 callbacks .* split a long scenario"):
        (virtual_time.run if run == "fixture" else run)(polls())
    if run != "fixture":
        assert ended == ["polls"]
