"""The clock of a SQLite file: a step of the machine's clock changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from callgate import Gate, tool
from callgate.providers.stores import sql_clock
from callgate.providers.stores.base import AuditRow
from callgate.providers.stores.effects import EffectState
from callgate.providers.stores.sql import SqlStore
from callgate.providers.stores.sql_clock import FileClock

BEGAN = 1_800_000_000.0


class Machine:
    """A clock that may be set, and one that cannot."""

    def __init__(self) -> None:
        self.wall, self.elapsed = BEGAN, 5.0

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.elapsed += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine of all stores that the test opens."""
    made = Machine()
    monkeypatch.setattr(sql_clock.FileClock.__init__, "__defaults__", (lambda: made.wall, lambda: made.elapsed))
    return made


@pytest.mark.parametrize("step", [3600.0, -3600.0, 1e9])
def test_a_step_of_the_clock_does_nothing_to_an_open_file(machine: Machine, step: float) -> None:
    """Issue 34, 6."""
    clock = FileClock()
    clock.begin(None)
    machine.wall += step
    machine.passes(7.0)
    clock.begin(None)
    assert clock() == BEGAN + 7.0


@pytest.mark.parametrize(
    ("newest", "begins"),
    [
        (None, BEGAN),
        (BEGAN - 3600.0, BEGAN),
        (BEGAN + 3600.0, BEGAN + 3600.0),
        (BEGAN + 30 * 86_400.0, BEGAN),
    ],
)
def test_a_process_that_starts_goes_on_at_the_newest_time_in_the_file(newest: float | None, begins: float) -> None:
    """Issue 34, 6: but a row of another month is wrong itself."""
    clock = FileClock(lambda: BEGAN, lambda: 0.0)
    clock.begin(newest)
    assert clock() == begins


@pytest.mark.parametrize("step", [3600.0, -3600.0])
async def test_leases_and_jobs_outlive_a_step_of_the_clock(machine: Machine, step: float, tmp_path: Path) -> None:
    """Issue 34, 6: a step of an hour made running effects `unknown`, or delayed jobs by an hour."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect="irreversible")
    async def pay() -> str:
        """Pay."""
        begun.set()
        await go_on.wait()
        return "paid"

    address = f"sqlite:///{tmp_path}/store.db"
    async with Gate([pay], store=address, mode="development", signing_keys=["k" * 32]) as gate:
        paying = asyncio.ensure_future(gate.call("pay", {}))
        await begun.wait()
        machine.wall += step
        await gate.maintain()
        ((_, effect),) = await gate.store.effects.list(None)
        assert effect.state is EffectState.RUNNING
        job = await gate.submit("pay", {})
        assert abs((await job.status()).run_at.timestamp() - BEGAN) < 60.0
        go_on.set()
        assert (await paying).ok


async def test_the_newest_time_is_read_from_the_file(machine: Machine, tmp_path: Path) -> None:
    """Issue 34, 6: the clock was set back while no process was open."""
    for _ in range(2):
        store = SqlStore(f"sqlite:///{tmp_path}/store.db")
        await store.open()
        assert store.time() == BEGAN
        if not [row async for row in store.audit.read(None)]:
            await store.audit.append("t", [AuditRow("s", 1, BEGAN, {}, "", "h")])
        await store.close()
        machine.wall -= 3600.0
