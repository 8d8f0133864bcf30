"""A call that blocks the event loop is named in the log, and on stderr in development mode."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest

from callgate import Gate, Hook, InvokeContext, Provide, Scoped, User, tool
from callgate.providers.clock import FakeClock
from tests.harness.gate_options import gate_options

USER = User("u")


class Db:
    """A dependency."""


class Slow(Hook):
    """Block in one stage."""

    def __init__(self, clock: FakeClock, seconds: float, stage: str) -> None:
        self.clock, self.seconds, self.stage = clock, seconds, stage

    def will_authorize(self, ctx: InvokeContext) -> None:
        self._block("will_authorize")

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        self._block("around_execute")
        return await next()

    def _block(self, stage: str) -> None:
        if stage == self.stage:
            self.clock.advance(self.seconds)


def blocked(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "call.blocked" in one.getMessage()]


@pytest.mark.parametrize("place", ["body", "body, then wait", "provider", "will_authorize", "around_execute"])
@pytest.mark.parametrize(
    ("seconds", "deadline", "named"), [(0.3, None, 1), (0.2, None, 0), (0.1, 0.05, 1), (0.1, 0.5, 0), (0.3, 0.5, 1)]
)
@pytest.mark.parametrize("way", ["call", "invoke"])
async def test_a_call_that_blocks_the_loop_is_named(
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    place: str,
    seconds: float,
    deadline: float | None,
    named: int,
    way: str,
) -> None:
    """By its tool: where it took longer than 250 ms or its deadline without giving the loop back."""
    clock = FakeClock()

    def make() -> Db:
        clock.advance(seconds if place == "provider" else 0.0)
        return Db()

    @tool(effect="read")
    async def work(*, db: Annotated[Db, Provide[Db]]) -> int:
        if place.startswith("body"):
            clock.advance(seconds)
        if place.endswith("wait"):
            await asyncio.sleep(0)
        return 1

    hooks = [Slow(clock, seconds, place)]
    provide = {Db: Scoped("request", make)}
    gate = Gate([work], hooks, provide=provide, **gate_options(clock=clock, mode="development"))
    async with gate:
        await asyncio.sleep(0)
        caplog.clear()
        capsys.readouterr()
        try:
            await (gate.call if way == "call" else gate.invoke)("work", {}, user=USER, deadline=deadline)
        except TimeoutError:
            pass
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    found = blocked(caplog)
    assert len(found) == named, found
    assert all("tool='work'" in one for one in found)
    assert capsys.readouterr().err.count("work blocked the event loop for") == named


async def test_calls_that_wait_long_and_calls_beside_a_blocking_one_are_not_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Time that a call waits is no blocking; only the call that blocked is named."""
    clock = FakeClock()

    @tool(effect="read")
    async def waits() -> int:
        for _ in range(3):
            await asyncio.sleep(0)
            clock.advance(0.2)
        return 1

    @tool(effect="read")
    async def blocks() -> int:
        clock.advance(1)
        await asyncio.sleep(0)
        return 1

    @tool(effect="read")
    async def quick() -> int:
        await asyncio.sleep(0)
        return 1

    async with Gate([waits, blocks, quick], **gate_options(clock=clock)) as gate:
        await gate.call("waits", {}, user=USER)
        assert blocked(caplog) == []
        calls: list[Any] = [("quick", {}), ("blocks", {}), ("quick", {})]
        await gate.call_many(calls, user=USER)
        await asyncio.sleep(0)
        assert len(blocked(caplog)) == 1
        assert "tool='blocks'" in blocked(caplog)[0]
