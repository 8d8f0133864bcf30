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

from tests.providers.stores.backends import place
from tests.runtime.effects.mixed_load import Load

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


@pytest.mark.soak
async def test_ten_minutes_of_mixed_load_leave_everything_in_balance(
    tmp_path: Path, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """I1, I3, I4, I10: in memory, on SQLite and on PostgreSQL at once; an oracle outside of the gate counts effects."""
    seconds = float(str(pytestconfig.getoption("--soak-seconds")))
    with contextlib.ExitStack() as places:
        addresses = ["memory://", *(places.enter_context(place(k, tmp_path))[0] for k in ("sqlite-file", "postgresql"))]
        loads = [Load(address, seed) for seed, address in enumerate(addresses)]
        found = await asyncio.gather(*(load.run(seconds) for load in loads))
    with capsys.disabled():
        print("", *(load.figures() for load in loads), sep="\n")
    assert found == [[], [], []]
    assert all(load.oracle.paid for load in loads)


async def test_a_second_of_mixed_load_leaves_everything_in_balance() -> None:
    """I1, I3, I4, I10: the same, for a moment."""
    load = Load("memory://", 1)
    assert await load.run(1.0) == []
    assert {"success", "error", "conflict", "unknown"} <= set(load.outcomes)


async def test_a_ledger_that_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: the oracle sees second effects."""

    def claim(self: Any, tenant: str, effect: Any, retry: bool = False) -> Any:
        self._write((tenant, effect.key), effect)
        return True, effect

    monkeypatch.setattr("callgate.providers.stores.memory_effects.MemoryEffects.claim_now", claim)
    found = await Load("memory://", 1).run(1.0)
    assert any(one.startswith("second effects") for one in found)
