"""A mixed load of misbehaving tools, hooks, providers and callers leaves permits, ledger and jobs in balance.

``make soak ARGS="tests/runtime/effects/test_mixed_load.py -s --soak-seconds 60"`` runs it for another time than ten minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.flatness import FILES, MEMORY, Flatness, Held, held
from tests.providers.stores.backends import place
from tests.runtime.effects.kill_findings import problems_of
from tests.runtime.effects.kill_loop import FATES, loop_on
from tests.runtime.effects.mixed_load import Load

DATABASES = ("sqlite-file", "postgresql")
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # a coroutine that a cancelled program never awaits
]


@pytest.fixture(autouse=True)
def _quiet() -> Generator[None]:
    """Most calls fail, and each failure would be logged."""
    logger = logging.getLogger("callgate")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)
    gc.collect()  # coroutines of cancelled calls warn here, and not in the next test


async def killing(kind: str, folder: Path, seconds: float) -> list[str]:
    """Kill workers on a database of their own for so long; return what is wrong."""
    (own := folder / f"killed-{kind}").mkdir()
    until = asyncio.get_running_loop().time() + seconds
    with place(kind, own) as (address, _):
        async with loop_on(address, own, 5) as loop:
            while asyncio.get_running_loop().time() < until:
                await loop.run(loop.left.kills.total() + len(FATES))
            return problems_of(await loop.finish())


@pytest.mark.soak
@pytest.mark.timeout(0)  # its length is an option
async def test_ten_minutes_of_mixed_load_leave_everything_in_balance(
    tmp_path: Path, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """I1, I3, I4, I10: in memory, on SQLite and on PostgreSQL at once; an oracle outside of the gate counts effects.

    The databases fail now and then. Beside them, workers on two databases more are killed, with an oracle of their own.
    """
    seconds = float(str(pytestconfig.getoption("--soak-seconds")))
    before, flat = held(), Flatness()
    with contextlib.ExitStack() as places:
        addresses = [places.enter_context(place(kind, tmp_path))[0] for kind in DATABASES]
        loads = [Load("memory://", 0), *(Load(address, seed, every=53) for seed, address in enumerate(addresses, 1))]
        sampling = asyncio.ensure_future(flat.sample(seconds))
        work = [*(load.run(seconds) for load in loads), *(killing(kind, tmp_path, seconds) for kind in DATABASES)]
        found = await asyncio.gather(*work)
        await sampling
    gc.collect()
    after = held()
    with capsys.disabled():
        print("", *(load.figures() for load in loads), f"growth: {flat.growth()}, {before}, {after}", sep="\n")
    assert found == [[]] * len(found)
    assert all(load.oracle.paid for load in loads)
    assert all(load.faults.injected for load in loads[1:])
    assert flat.problems() == []
    assert (after.tasks, after.files) <= (before.tasks, before.files + FILES)


async def test_a_second_of_mixed_load_leaves_everything_in_balance() -> None:
    """I1, I3, I4, I10: the same, for a moment."""
    load = Load("memory://", 1)
    assert await load.run(1.0) == []
    assert {"success", "error", "conflict", "unknown"} <= set(load.outcomes)


async def test_a_second_of_mixed_load_on_a_store_that_fails_pays_nothing_twice(tmp_path: Path) -> None:
    """I1, I3, I4, I10."""
    with place("sqlite-file", tmp_path) as (address, _):
        load = Load(address, 1, every=53)
        assert await load.run(1.0) == []
    assert load.faults.injected
    assert load.oracle.paid


async def test_control_what_grows_is_found() -> None:
    """Memory, tasks and files, as the samples of a load would have them."""
    flat = Flatness([Held(10 * n * n * MEMORY, 50 * n, 50 * n) for n in range(20)])
    assert [one.split()[0] for one in flat.problems()] == ["memory", "tasks", "files"]
    assert Flatness([held()] * 20).problems() == []


async def test_a_ledger_that_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: the oracle sees second effects."""

    def claim(self: Any, tenant: str, effect: Any, retry: bool = False) -> Any:
        self._write((tenant, effect.key), effect)
        return True, effect

    monkeypatch.setattr("callgate.providers.stores.memory.effects.MemoryEffects.claim_now", claim)
    found = await Load("memory://", 1).run(1.0)
    assert any(one.startswith("second effects") for one in found)
