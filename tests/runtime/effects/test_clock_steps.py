"""Leases are timed by the database: a step of a machine's clock ends none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, ToolCall, User, tool
from callgate.providers.clock import FakeClock, GateClock
from callgate.providers.stores.effects import EffectState
from callgate.providers.stores.sql.store import SqlStore
from tests.harness.gate_options import gate_options
from tests.providers.stores.backends import place

ANN, STEP = User("ann", tenant="t"), 120.0


async def running_after_a_step(store_at: Callable[[], SqlStore], monkeypatch: pytest.MonkeyPatch) -> EffectState:
    """Open a gate before a step of the clock and one after it. Return what the second one makes of the first's effect."""
    began, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect="irreversible")
    async def pay() -> str:
        """Pay."""
        began.set()
        await go_on.wait()
        return "paid"

    def gate() -> Gate:
        return Gate([pay], store=store_at(), **gate_options(open=True))

    call = ToolCall(id="c1", name="pay", arguments={})
    async with gate() as first:
        paying = asyncio.ensure_future(first.call(call, user=ANN, idempotency_key="k"))
        await began.wait()
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + STEP)
        async with gate() as second:
            await second.maintain()
            ((_, effect),) = await second.store.effects.list("t")
        go_on.set()
        result = await paying
        assert result.outcome == "success"
        return effect.state


async def test_a_step_of_a_machines_clock_ends_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 16 A3: a step of two minutes made another gate's running effect unknown at once."""
    with place("postgresql", tmp_path) as (address, _):
        assert await running_after_a_step(lambda: SqlStore(address), monkeypatch) is EffectState.RUNNING


async def test_by_the_clocks_of_the_machines_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: each process takes the time of its machine."""

    class ByMachine(SqlStore):
        def time(self) -> float:
            return time.time()

    with place("postgresql", tmp_path) as (address, _):
        assert await running_after_a_step(lambda: ByMachine(address), monkeypatch) is EffectState.UNKNOWN


async def test_a_store_that_reads_the_server_follows_it(tmp_path: Path) -> None:
    """Issue 16 A3: all parts of the store read one clock."""
    with place("postgresql", tmp_path) as (address, _):
        store = SqlStore(address)
        await store.open()
        clock: Any = store._database._clock
        assert abs(store.time() - time.time()) < 60.0
        clock.set(1000.0, time.perf_counter(), time.perf_counter())
        assert 1000.0 <= store.time() < 1060.0
        await store.synchronise()
        assert abs(store.time() - time.time()) < 60.0
        await store.close()


async def test_a_gate_follows_a_store_behind_a_wrapper(tmp_path: Path) -> None:
    """A wrapper hands all attributes through, as that of the tests of faults does. The control: a clock that was given."""

    class Wrapped:
        def __init__(self, store: object) -> None:
            self.inner = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    store = Wrapped(SqlStore(f"sqlite:///{tmp_path}/calls.db"))
    assert GateClock(None, store).follows_store
    assert not GateClock(FakeClock(), store).follows_store


async def test_a_clock_that_the_application_gives_is_kept(tmp_path: Path) -> None:
    """Issue 16 A3."""
    with place("postgresql", tmp_path) as (address, _):
        store = SqlStore(address, lambda: 7.0)
        await store.open()
        await store.synchronise()
        assert store.time() == 7.0
        await store.close()
