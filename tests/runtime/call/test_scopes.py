"""The record of cancel scopes that anyio keeps: the installed version still has it, and its absence breaks nothing."""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from callgate import Gate, Hook, InvokeContext, tool
from callgate.runtime.call import scopes


class Waits(Hook):
    """A lease that is given back through a checkpoint of anyio."""

    def __init__(self) -> None:
        self.held = 0

    async def will_acquire_semaphore(self, ctx: InvokeContext) -> None:
        self.held += 1

    async def did_release_semaphore(self, ctx: InvokeContext) -> None:
        await anyio.lowlevel.checkpoint()
        self.held -= 1


async def test_a_scope_is_hidden_and_restored() -> None:
    """The canary: a version of anyio that keeps its scopes elsewhere fails here."""
    assert scopes.hide() is None
    with anyio.CancelScope(deadline=anyio.current_time() + 1000.0):  # noqa: ASYNC100
        hidden = scopes.hide()
        assert hidden is not None, "anyio keeps its record of scopes elsewhere: see runtime/call/scopes.py"
        assert anyio.current_effective_deadline() == math.inf
        assert scopes.hide() is None
        hidden.restore()
        assert anyio.current_effective_deadline() < math.inf
    assert scopes.hide() is None


@pytest.mark.parametrize(
    "backend",
    [types.SimpleNamespace(), types.SimpleNamespace(_task_states={}), None],
    ids=["no record", "empty", "none"],
)
async def test_without_a_record_leases_are_given_back_all_the_same(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, scopes.ANYIO, backend)
    assert scopes.hide() is None
    monkeypatch.undo()

    @tool(effect="read")
    async def work() -> int:
        """Work."""
        monkeypatch.setitem(sys.modules, scopes.ANYIO, backend)
        return 1

    waits = Waits()
    async with Gate([work], [waits]) as gate:
        assert await gate.invoke("work") == 1
    monkeypatch.undo()
    assert waits.held == 0
