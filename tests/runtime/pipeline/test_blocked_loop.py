"""A call that blocks the event loop is named in the log, and on stderr in development mode, wherever in the call it does."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

from callgate import Gate, Hook, InvokeContext, Provide, Scoped, ToolContext, User, tool
from callgate.errors import ProviderError
from callgate.providers.clock import FakeClock
from callgate.runtime.lifespan.loop_watch import LoopWatch
from tests.harness.gate_options import gate_options

USER = User("u")
PLACES = (
    "body",
    "body after a wait",
    "body in its own task",
    "nested call",
    "provider",
    "exit of a provider",
    "will_authorize",
    "around_execute",
    "around_execute after a wait",
    "will_audit",
    "will_finalize_invoke",
)


def held(seconds: float) -> None:
    """Keep the interpreter lock in one call of C code: no other thread runs.

    Other processes may take the processor meanwhile. The watch then sees a thread that waits, so there is another try.
    """
    size = 200_000
    for _ in range(50):
        began, used = time.perf_counter(), time.thread_time()
        sum(range(size))
        took, used = time.perf_counter() - began, time.thread_time() - used
        if took >= seconds and used > 0.7 * took:
            return
        size = max(int(size * min(seconds / used, 50) * 1.1), 1000)


def python(seconds: float) -> None:
    """Compute in Python."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Db:
    """A dependency."""


class Slow(Hook):
    """Block in one stage of the outer call."""

    def __init__(self, at: Callable[[str], None]) -> None:
        self.block = at

    def at(self, ctx: InvokeContext, stage: str) -> None:
        if ctx.tool_id == "work":
            self.block(stage)

    def will_authorize(self, ctx: InvokeContext) -> None:
        self.at(ctx, "will_authorize")

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        self.at(ctx, "around_execute")
        output = await next()
        await asyncio.sleep(0.001)
        self.at(ctx, "around_execute after a wait")
        return output

    def will_audit(self, ctx: InvokeContext) -> None:
        self.at(ctx, "will_audit")

    async def will_finalize_invoke(self, ctx: InvokeContext) -> None:
        self.at(ctx, "will_finalize_invoke")


def gate_that_blocks(place: str, block: Callable[[], None]) -> Gate:
    def at(here: str) -> None:
        if here == place:
            block()

    async def make() -> AsyncGenerator[Db]:
        at("provider")
        yield Db()
        at("exit of a provider")

    @tool(effect="read")
    async def inner() -> int:
        at("nested call")
        return 1

    @tool(effect="read", hard_deadline=place == "body in its own task")
    async def work(ctx: ToolContext, *, db: Annotated[Db, Provide[Db]]) -> int:
        at("body")
        await asyncio.sleep(0.001)
        at("body after a wait")
        at("body in its own task")
        await ctx.call("inner", {})
        return 1

    provide = {Db: Scoped("request", make)}
    return Gate([work, inner], [Slow(at)], provide=provide, **gate_options(mode="development"))


def named(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "call.blocked" in one.getMessage()]


def threads() -> Iterator[threading.Thread]:
    return (one for one in threading.enumerate() if one.name == "callgate-loop-watch")


async def called(gate: Gate, deadline: float | None = None) -> None:
    async with gate:
        await asyncio.sleep(0)
        with suppress(TimeoutError):
            await gate.call("work", {}, user=USER, deadline=deadline)
        await asyncio.sleep(0.06)  # the watch looks at the loop every 50 ms


@pytest.mark.parametrize("place", PLACES)
async def test_a_call_that_blocks_the_loop_is_named_with_its_stage_and_line(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """Before its first wait and after it, in the tool, a nested call, a provider, and in hooks up to the last."""
    await called(gate_that_blocks(place, lambda: time.sleep(0.3)))
    found = named(caplog)
    assert len(found) == 1, found
    assert f"tool='{'inner' if place == 'nested call' else 'work'}'" in found[0]
    assert re.search(r"where='.*test_blocked_loop.py:\d+ in ", found[0])
    if place in Slow.__dict__:
        assert f"stage='{place}'" in found[0]
    assert capsys.readouterr().err.count(" blocked the event loop for ") == 1


def blocks_on_making() -> Db:
    time.sleep(0.3)
    return Db()


def blocks_on_closing() -> Iterator[Db]:
    yield Db()
    time.sleep(0.3)


@pytest.mark.parametrize("factory", [blocks_on_making, blocks_on_closing])
@pytest.mark.parametrize("scope", ["request", "session"])
async def test_a_plain_factory_that_blocks_the_loop_is_named_also_for_a_tool_in_a_thread(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], scope: Any, factory: Callable[[], Any]
) -> None:
    @tool(effect="read")
    def work(db: Annotated[Db, Provide[Db]]) -> int:
        """Work."""
        return 1

    await called(Gate([work], provide={Db: Scoped(scope, factory)}, **gate_options(mode="development")))
    (found,) = named(caplog)
    assert f"in {factory.__name__}" in found
    assert "a factory of a provider runs on the loop, so write it with `async def`" in capsys.readouterr().err


@pytest.mark.parametrize("how", [time.sleep, python, held])
async def test_each_way_to_block_is_named(caplog: pytest.LogCaptureFixture, how: Callable[[float], None]) -> None:
    """Also code in C that keeps the interpreter lock, which stops the watching thread, too."""
    await called(gate_that_blocks("body after a wait", lambda: how(0.4)))
    assert len(named(caplog)) >= 1


@pytest.mark.parametrize("blocked", [True, False])
def test_a_block_that_begins_while_the_watch_asks_is_named(monkeypatch: pytest.MonkeyPatch, blocked: bool) -> None:
    """To ask gives the interpreter lock away, and the block is over once the watch has it back: a wait would not see it."""
    reported: list[object] = []

    def ask(answer: Any, *, context: object) -> None:
        answered = answer.__self__
        answered.wait = lambda _seconds: answered.set() or True  # the loop answers as soon as the watch waits

    watch = object.__new__(LoopWatch)
    monkeypatch.setattr(watch, "_stopped", threading.Event(), raising=False)
    monkeypatch.setattr(watch, "_loop", SimpleNamespace(call_soon_threadsafe=ask), raising=False)
    monkeypatch.setattr(watch, "_sample", lambda: "the call")
    monkeypatch.setattr(watch, "_report", lambda found, _seconds: reported.append(found))
    watch._ask(time.monotonic() + (-0.4 if blocked else 3600.0))  # so long ago, or never long ago
    assert reported == ["the call" if blocked else None]


@pytest.mark.parametrize(("seconds", "deadline", "count"), [(0.1, None, 0), (0.15, 0.05, 1), (0.1, 2.0, 0)])
async def test_what_counts_is_the_deadline_if_it_is_shorter_than_250_ms(
    caplog: pytest.LogCaptureFixture, seconds: float, deadline: float | None, count: int
) -> None:
    """Shorter blocks are not named."""
    await called(gate_that_blocks("body after a wait", lambda: time.sleep(seconds)), deadline)
    assert len(named(caplog)) == count


async def test_calls_that_wait_and_code_beside_calls_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    """Time that a call waits is no blocking, and neither is another task that blocks while it waits."""

    @tool(effect="read")
    async def waits() -> int:
        await asyncio.sleep(0.4)
        return 1

    async def blocks() -> None:
        await asyncio.sleep(0.01)
        time.sleep(0.3)  # noqa: ASYNC251

    async with Gate([waits], **gate_options()) as gate:
        await asyncio.gather(gate.call("waits", {}, user=USER), blocks())
        await asyncio.sleep(0.06)
    assert named(caplog) == []


async def test_the_watch_ends_with_its_gate_also_when_it_does_not_open() -> None:
    """No thread is left, whatever ends the gate; and the clock of the gate plays no part."""
    before = set(threads())
    gate = gate_that_blocks("", lambda: None)
    for _ in range(3):
        async with gate:
            assert len(set(threads()) - before) == 1
        assert not set(threads()) - before
    async with Gate([], **gate_options(clock=FakeClock())):
        assert len(set(threads()) - before) == 1

    def fails() -> Db:
        raise RuntimeError("no database")

    with pytest.raises(ProviderError, match="the factory of Db failed"):
        await Gate([], provide={Db: Scoped("global", fails)}, **gate_options()).open()
    assert not set(threads()) - before


@pytest.mark.parametrize("calls", [0, 1])
async def test_a_thread_that_no_longer_has_a_loop_ends(calls: int) -> None:
    """A loop that is closed stops its watch, in the middle of a call and between calls."""
    before = set(threads())
    watches: list[threading.Thread] = []

    def other() -> None:
        loop = asyncio.new_event_loop()
        gate = gate_that_blocks("", lambda: None)

        async def leave_open() -> None:
            await gate.open()
            gate._services.under_way.update({object(): None for _ in range(calls)})
            watches.extend(set(threads()) - before)

        loop.run_until_complete(leave_open())
        loop.close()

    await asyncio.to_thread(other)
    assert len(watches) == 1
    await asyncio.to_thread(watches[0].join, 5)
    assert not watches[0].is_alive()
