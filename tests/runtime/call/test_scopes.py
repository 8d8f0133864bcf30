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

from callgate import Gate, Hook, InvokeContext, tool
from callgate.runtime.call import scopes
from tests.harness.gate_options import gate_options
from tests.harness.steploop import run_virtual

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
    monkeypatch.setattr(scopes, "shield", lambda: None)
    waits = Waits()
    await called(waits, early=early, closing=0.02)
    assert waits.held == 1
    assert "its own scope cancelled" not in waits.log


async def test_a_shield_keeps_scopes_off_and_gives_them_back() -> None:
    """I13: anyio's own word for it."""
    with anyio.CancelScope(deadline=anyio.current_time() + 1000.0) as around:  # noqa: ASYNC100  (no await: the shield itself is the subject)
        shield = scopes.shield()
        assert shield is not None
        assert anyio.current_effective_deadline() == math.inf
        assert scopes.leave(shield)
        assert anyio.current_effective_deadline() == around.deadline


async def test_a_scope_that_a_step_leaves_open_is_noticed_and_does_not_stay_shielded() -> None:
    """I13: the scopes around the task cancel it."""
    with anyio.CancelScope() as around:
        shield = scopes.shield()
        with anyio.CancelScope():
            assert not scopes.leave(shield)
            around.cancel()
            with pytest.raises(asyncio.CancelledError):
                await anyio.lowlevel.checkpoint()
        assert scopes.leave(shield)


def test_a_coroutine_that_is_closed_without_a_loop_gets_no_shield() -> None:
    """I13: there is no task to shield."""
    assert scopes.shield() is None


async def test_where_anyio_does_not_run_nothing_is_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """I13."""
    monkeypatch.delitem(sys.modules, scopes.ANYIO)
    assert scopes.shield() is None
    assert scopes.ANYIO not in sys.modules


def test_nothing_of_a_private_module_of_anyio_is_read() -> None:
    """Only the presence of one is asked for, by its name."""
    private = re.compile(r"anyio\._|from anyio import _|_task_states")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("runtime", "hooks", "tools", "providers", "src/callgate")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if private.search(line)
    ]
    assert set(found) == {'runtime/call/scopes.py: ANYIO = "anyio._backends._asyncio"'}


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
        monkeypatch.setattr(scopes, "shield", lambda: None)
    async with Gate([slow], allow_unguarded=True) as gate:
        monkeypatch.setattr(asyncio, "wait", counted)
        with anyio.move_on_after(0.05):
            async for _ in gate.stream("slow"):
                pass
        monkeypatch.setattr(asyncio, "wait", wait)
        await asyncio.wait_for(ended.wait(), 10)
    assert (turns > 50) is sabotaged
