"""The clock of a SQLite file: a step of the machine's clock changes nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from callgate import Approval, Gate, Jobs, User, tool
from callgate.hooks import Audit, Cache, Concurrency, Quota
from callgate.jobs import EmbeddedJobs
from callgate.providers.stores.base import AuditRow
from callgate.providers.stores.effects import EffectState
from callgate.providers.stores.sql.database import clock as sql_clock
from callgate.providers.stores.sql.database.clock import FileClock
from callgate.providers.stores.sql.store import SqlStore

BEGAN = 1_800_000_000.0


class Machine:
    """A clock that may be set, and one that cannot."""

    def __init__(self) -> None:
        self.wall, self.elapsed = BEGAN, 5.0
        self.boot: str | None = "this boot"

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.elapsed += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine of all stores that the test opens."""
    made = Machine()
    clocks = (lambda: made.wall, lambda: made.elapsed, lambda: made.boot)
    monkeypatch.setattr(sql_clock.FileClock.__init__, "__defaults__", clocks)
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


STEPS = [120.0, 3600.0, -120.0, -3600.0]
SHARES = {"of one boot": "this boot", "the control: without a name of the boot": None}


@pytest.mark.parametrize("what", ["effect", "job"])
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("step", STEPS)
async def test_a_process_that_opens_after_a_step_leaves_to_others_what_they_run(
    machine: Machine, step: float, share: str, what: str, tmp_path: Path
) -> None:
    """Issue 34, 6: after a step forward it made running effects `unknown`, and ran running jobs a second time."""
    machine.boot, runs = SHARES[share], 0
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect="irreversible" if what == "effect" else "read")
    async def work() -> str:
        """Work."""
        nonlocal runs
        runs += 1
        begun.set()
        await go_on.wait()
        return "done"

    def gate() -> Gate:
        store = SqlStore(f"sqlite:///{tmp_path}/store.db")
        jobs = Jobs(engine=EmbeddedJobs(1, grace=0.0))
        return Gate([work], store=store, mode="development", signing_keys=["k" * 32], jobs=jobs)

    async with gate() as first:
        asked = first.call("work", {}) if what == "effect" else await first.submit("work", {})
        waiting = asyncio.ensure_future(asked)
        await begun.wait()
        machine.wall += step
        async with gate() as second:
            assert isinstance(first.store, SqlStore)
            assert isinstance(second.store, SqlStore)
            agree = abs(second.store.time() - first.store.time()) < 1.0
            await second.maintain()
            again = None if what == "effect" else await second.jobs.run_invocation()
            states = [one.state for _, one in await second.store.effects.list(None)]
            safe = again is None and states == ([EffectState.RUNNING] if what == "effect" else []) and runs == 1
            go_on.set()
            await waiting
    assert agree or machine.boot is None
    assert safe is (machine.boot is not None or step < 0), "the control: only a step back is seen in the file"


async def test_a_corrected_clock_counts_once_no_process_has_the_file_open(machine: Machine, tmp_path: Path) -> None:
    """One that was killed counts for two minutes, one that closed not at all, one of another boot never."""

    def store() -> SqlStore:
        return SqlStore(f"sqlite:///{tmp_path}/store.db")

    async def time_of_another() -> float:
        other = store()
        await other.open()
        found = other.time()
        await other.close()
        return found - machine.elapsed

    first = store()
    await first.open()
    old = first.time() - machine.elapsed
    machine.wall += 3600.0
    assert await time_of_another() == old
    machine.passes(sql_clock.ALIVE - 1.0)
    await first.synchronise()
    machine.passes(sql_clock.ALIVE - 1.0)
    assert await time_of_another() == old, "it has renewed its entry"
    machine.boot = "another boot"
    assert await time_of_another() == old + 3600.0
    machine.boot = "this boot"
    await first.synchronise()
    machine.passes(sql_clock.ALIVE + 1.0)  # as if it had been killed
    assert await time_of_another() == old + 3600.0
    await first.synchronise()  # as if it had only been stopped
    assert await time_of_another() == old
    machine.wall += 2 * sql_clock.MOST_AHEAD
    assert await time_of_another() == old + 3600.0 + 2 * sql_clock.MOST_AHEAD, "no step is of more than a day"
    machine.wall -= 2 * sql_clock.MOST_AHEAD
    await first.close()
    assert await time_of_another() == old + 3600.0


async def test_a_store_that_opens_again_reads_the_clock_again(machine: Machine, tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/store.db")
    for _ in range(2):
        await store.open()
        assert store.time() == machine.wall
        await store.close()
        machine.wall += 3600.0


def test_processes_of_one_machine_name_one_boot() -> None:
    if sys.platform != "linux":
        pytest.skip("other systems do not name a boot")
    code = "from callgate.providers.stores.sql.database.clock import _boot; print(_boot())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=60)
    assert other.stdout.strip() == sql_clock._boot()
    assert sql_clock._boot() is not None


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


async def test_no_row_of_a_gate_puts_the_clock_of_the_next_process_ahead(machine: Machine, tmp_path: Path) -> None:
    """A suspended call has rows whose time is the end of the wait: the next process expired all approvals at once."""

    @tool(effect="irreversible", key=("order",), requires_approval=Approval(roles={"lead"}))
    async def pay(order: str) -> str:
        """Pay."""
        return order

    @tool(effect="read")
    async def look() -> int:
        """Look."""
        return 1

    hooks, ann = [Cache(3600), Quota("5/hour"), Concurrency(2), Audit()], User("ann")
    options: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/store.db", "signing_keys": ["k" * 32]}
    async with Gate([pay, look], hooks, **options) as gate:
        await gate.call("look", user=ann)
        await gate.submit("look", user=ann, delay=3600.0)
        waiting = await gate.call("pay", {"order": "A1"}, user=ann, idempotency_key="k", joins_waiting=True)
    machine.passes(10.0)
    async with Gate([pay, look], hooks, **options) as gate:
        assert (await gate.call("look", user=ann)).ok
        assert gate.waits.now() < BEGAN + 60.0
        lea = User("lea", roles={"lead"})
        assert (await gate.resume(waiting.pending.handle, "approve", approver=lea)).output == "A1"
