"""Cancel scopes of anyio around a step that takes or gives back capacity: kept off meanwhile, by anyio's public API."""

from __future__ import annotations

import asyncio
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from callgate import Gate, Hook, InvokeContext, ToolContext, tool
from callgate.runtime.pipeline import scopes
from callgate.runtime.pipeline.shield import ANYIO, enter_shield, is_inside, leave_shield, scope_class
from tests.harness.gate_options import gate_options
from tests.harness.steploop import run_virtual
from tests.runtime.pipeline.leasing import leave_out_shields

ROOT = Path(__file__).parents[3]


class Waits(Hook):
    """A lease that is given back through checkpoints of anyio."""

    def __init__(self, first: Callable[[], None] = lambda: None) -> None:
        self.first = first
        self.held = 0
        self.log: list[str] = []

    async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
        self.held += 1

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        self.first()
        await anyio.lowlevel.checkpoint()
        await anyio.sleep(0.5)
        with anyio.move_on_after(1) as own:
            await anyio.sleep(3600)
        self.log.append(f"its own scope {'cancelled' if own.cancelled_caught else 'failed'}")
        self.held -= 1

    async def will_finalize_invoke(self, ctx: InvokeContext) -> None:
        self.log += [type(one.error).__name__ for one in ctx.suppressed]


async def called(waits: Waits, *, early: bool, **options: Any) -> bool:
    """Call a tool in a scope that is cancelled in the body, or while the release waits; return whether it took effect."""
    scope = anyio.CancelScope()

    @tool(effect="read")
    async def work() -> int:
        """Work."""
        if early:
            scope.cancel()
            await anyio.lowlevel.checkpoint()
        return 1

    waits.first = (lambda: None) if early else scope.cancel
    async with Gate([work], [waits], **gate_options(**options)) as gate:
        with scope:
            await gate.invoke("work")
            waits.log.append("the call returned")
            await anyio.lowlevel.checkpoint()
            waits.log.append("the scope did not cancel")
    return scope.cancelled_caught


@pytest.mark.parametrize("early", [True, False], ids=["before the release", "during the release"])
def test_a_release_ends_in_a_cancelled_scope_which_then_cancels_its_task(early: bool) -> None:
    """I1, I13, contract C1d."""
    waits = Waits()
    assert run_virtual(called(waits, early=early))
    assert waits.held == 0
    assert waits.log == ["its own scope cancelled"] + (["the call returned"] if not early else [])


@pytest.mark.parametrize("early", [True, False], ids=["before the release", "during the release"])
async def test_without_the_shield_the_release_is_cut_off(early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the scope holds it at its first checkpoint, or ends it there."""
    leave_out_shields(monkeypatch)
    waits = Waits()
    await called(waits, early=early, closing=0.02)
    assert waits.held == 1
    assert "its own scope cancelled" not in waits.log


async def test_a_shield_keeps_scopes_off_and_gives_them_back() -> None:
    """I13: anyio's own word for it."""
    with anyio.CancelScope(deadline=anyio.current_time() + 1000.0) as around:  # noqa: ASYNC100  (no await: the shield itself is the subject)
        shield = enter_shield()
        assert shield is not None
        assert anyio.current_effective_deadline() == math.inf
        assert leave_shield(shield)
        assert anyio.current_effective_deadline() == around.deadline


async def test_a_scope_that_a_step_leaves_open_is_noticed_and_does_not_stay_shielded() -> None:
    """I13: the scopes around the task cancel it."""
    with anyio.CancelScope() as around:
        shield = enter_shield()
        assert shield is not None
        with anyio.CancelScope():
            assert not leave_shield(shield)
            around.cancel()
            with pytest.raises(asyncio.CancelledError):
                await anyio.lowlevel.checkpoint()
        assert leave_shield(shield)


def test_a_coroutine_that_is_closed_without_a_loop_gets_no_shield() -> None:
    """I13: there is no task to shield."""
    assert enter_shield() is None


async def test_where_anyio_does_not_run_nothing_is_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """I13."""
    monkeypatch.delitem(sys.modules, ANYIO)
    assert enter_shield() is None
    assert ANYIO not in sys.modules


def test_one_private_name_of_anyio_is_read_and_calls_do_without_it() -> None:
    """Its presence is asked for by its name, and whether a task is in a scope has no public question."""
    private = re.compile(r"anyio\._|from anyio import _|_task_states")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("runtime", "hooks", "tools", "providers", "src/callgate")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if private.search(line)
    ]
    assert set(found) == {
        'runtime/pipeline/shield.py: ANYIO = "anyio._backends._asyncio"',
        'runtime/pipeline/shield.py: states: Mapping[object, _State] | None = getattr(sys.modules.get(ANYIO), "_task_states", None)',
    }


@pytest.mark.parametrize("sabotaged", [False, True])
async def test_a_stream_that_a_scope_cancels_waits_for_its_tool_without_burning_a_core(
    sabotaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool cleans up to its end; without the shield the wait is a busy loop."""
    turns = 0
    ended = asyncio.Event()

    @tool(effect="read")
    async def slow() -> int:
        """Clean up for 0.1 s."""
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            ended.set()
        return 1

    wait = asyncio.wait

    async def counted(*given: Any, **more: Any) -> Any:
        nonlocal turns
        turns += 1
        return await wait(*given, **more)

    if sabotaged:
        leave_out_shields(monkeypatch)
    async with Gate([slow], allow_unguarded=True) as gate:
        monkeypatch.setattr(asyncio, "wait", counted)
        with anyio.move_on_after(0.05):
            async for _ in gate.stream("slow"):
                pass
        monkeypatch.setattr(asyncio, "wait", wait)
        await asyncio.wait_for(ended.wait(), 10)
    assert (turns > 50) is sabotaged


# ------------------------------------------------------------------ a call in a cancelled scope is cancelled once

CLEAN_UP = 0.1
"""Seconds that the tool cleans up after a cancellation."""


class Tools:
    """Tools that clean up with several waits, and what they have noted."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.began = asyncio.Event()
        self.turns = 0

    async def clean_up(self, name: str) -> None:
        for _ in range(4):
            await asyncio.sleep(CLEAN_UP / 4)
        self.log.append(name)

    def gate(self, **options: Any) -> Gate:
        @tool(effect="read")
        async def slow() -> int:
            """Wait until it is cancelled, and clean up."""
            try:
                self.began.set()
                await asyncio.Event().wait()
            finally:
                await self.clean_up("slow")
            return 1

        @tool(effect="read")
        async def scoped() -> int:
            """Wait in a scope of its own, which is not what is cancelled."""
            with anyio.CancelScope() as own:
                try:
                    self.began.set()
                    await anyio.sleep_forever()
                finally:
                    with anyio.CancelScope(shield=True):
                        await self.clean_up("inside")
            self.log.append("its own scope" if own.cancelled_caught else "wrong")
            return 1

        @tool(effect="read")
        async def grouped() -> int:
            """Wait for the children of its task group."""
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                self.began.set()
            return 1

        @tool(effect="read")
        async def nested(ctx: ToolContext) -> int:
            """Call another tool."""
            try:
                return int(await ctx.call(slow))
            finally:
                await self.clean_up("nested")

        @tool(effect="read")
        async def own_limit() -> int:
            """Have a limit of its own before."""
            with anyio.move_on_after(0.01):
                await anyio.sleep_forever()
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                await self.clean_up("after its limit")
            return 1

        return Gate([slow, scoped, grouped, nested, own_limit], **gate_options(**options))


async def streamed(gate: Gate) -> None:
    async for _ in gate.stream("slow"):
        pass


DOORS: dict[str, tuple[Callable[[Gate], Any], list[str]]] = {
    "call": (lambda gate: gate.call("slow"), ["slow"]),
    "invoke": (lambda gate: gate.invoke("slow"), ["slow"]),
    "a call with its own scope": (lambda gate: gate.call("scoped"), ["inside"]),
    "a call with its own task group": (lambda gate: gate.call("grouped"), []),
    "a nested call": (lambda gate: gate.call("nested"), ["slow", "nested"]),
    "a call after a limit of its own": (lambda gate: gate.call("own_limit"), ["after its limit"]),
    "a call with a deadline": (lambda gate: gate.call("slow", deadline=3600), ["slow"]),
    "a batch": (lambda gate: gate.call_many([("slow", {}), ("slow", {})]), ["slow", "slow"]),
    "a stream": (streamed, ["slow"]),
}


async def cancelled(tools: Tools, door: Callable[[Gate], Any], *, in_group: bool) -> int:
    """Cancel a scope around a call. Return the turns of the event loop from there to its end."""
    loop = asyncio.get_running_loop()
    async with tools.gate() as gate:

        async def call() -> None:
            await door(gate)

        async def stop() -> None:
            await tools.began.wait()
            tools.turns = loop.steps  # type: ignore[attr-defined]
            scope.cancel()

        stopping = asyncio.create_task(stop())
        with anyio.CancelScope() as scope:
            if in_group:
                async with anyio.create_task_group() as group:
                    group.start_soon(call)
            else:
                await call()
        turns: int = loop.steps - tools.turns  # type: ignore[attr-defined]
        await stopping
    assert scope.cancelled_caught
    return turns


@pytest.mark.parametrize("in_group", [False, True], ids=["in a scope", "in a task group"])
@pytest.mark.parametrize("name", DOORS)
def test_a_call_in_a_cancelled_scope_is_cancelled_once_and_cleans_up(name: str, in_group: bool) -> None:
    """Contract C1d: as in asyncio. It takes no more turns of the loop than its waits."""
    door, cleaned = DOORS[name]
    tools = Tools()
    turns = run_virtual(cancelled(tools, door, in_group=in_group))
    assert tools.log == cleaned
    if not in_group:  # anyio's own group asks again at each turn while its children end
        assert turns < 150


@pytest.mark.parametrize("name", ["call", "invoke", "a nested call", "a call after a limit of its own", "a batch"])
def test_without_the_driver_the_clean_up_is_cut_off_or_burns_a_core(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(scopes, "is_inside", lambda: False)
    tools, (door, cleaned) = Tools(), DOORS[name]
    turns = run_virtual(cancelled(tools, door, in_group=False))
    assert tools.log != cleaned or turns > 150


def test_a_stubborn_call_is_cancelled_at_each_checkpoint_when_its_time_is_up() -> None:
    """A body that never ends its clean-up does not hold the scope for ever."""

    async def scenario() -> float:
        @tool(effect="read")
        async def stubborn() -> int:
            """Clean up for an hour."""
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(3600)
            return 1

        async with Gate([stubborn], **gate_options()) as gate:
            began = anyio.current_time()
            with anyio.move_on_after(1):
                await gate.call("stubborn")
            return anyio.current_time() - began

    assert run_virtual(scenario()) == pytest.approx(1 + scopes.CLEAN_UP_LIMIT, abs=0.01)


@pytest.mark.parametrize("sabotaged", [False, True])
def test_a_gate_whose_block_a_scope_cancels_drains_its_calls(sabotaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits for calls under way, as after a cancellation of asyncio; the control closes at once."""
    if sabotaged:
        monkeypatch.setattr(scopes, "is_inside", lambda: False)
    tools = Tools()

    async def scenario() -> tuple[str, float]:
        began, running = anyio.current_time(), None
        with anyio.CancelScope() as scope:
            async with tools.gate(drain=5) as gate:
                running = asyncio.create_task(gate.call("slow", deadline=1))
                await tools.began.wait()
                scope.cancel()
                await anyio.sleep_forever()
        took = anyio.current_time() - began
        assert running is not None
        (result,) = await asyncio.gather(running, return_exceptions=True)
        return str(getattr(getattr(result, "error", None), "code", "cancelled")), took

    code, took = run_virtual(scenario())
    assert (code == "deadline_exceeded" and took >= 1) is not sabotaged


async def test_calls_work_where_the_private_name_of_anyio_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary's other half: each call pays for a scope then."""
    entered = 0
    keep = scope_class()

    class Counted(keep):  # type: ignore[misc,valid-type]
        def __enter__(self) -> Any:
            nonlocal entered
            entered += 1
            return super().__enter__()

    monkeypatch.setattr(scopes, "scope_class", lambda: Counted)
    monkeypatch.setitem(sys.modules, ANYIO, object())
    assert is_inside()
    async with Gate([tool(effect="read")(lambda_tool)], allow_unguarded=True) as gate:
        assert await gate.invoke("lambda_tool") == 1
    assert entered >= 1


async def lambda_tool() -> int:
    """Return one."""
    return 1


async def test_a_task_outside_of_scopes_pays_for_none() -> None:
    """The private name is there, and says so; if not, this canary fails."""
    assert ANYIO in sys.modules
    assert not is_inside()
    with anyio.CancelScope():  # noqa: ASYNC100  (no await: the question is the subject)
        assert is_inside()
    assert not is_inside()
