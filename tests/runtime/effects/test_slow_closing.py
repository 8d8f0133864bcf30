"""A gate that closes on a slow server writes the outcomes that it holds, and says how many it could not write."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, Options, tool
from callgate.providers.stores import group_commit
from callgate.providers.stores.sql.batches import _PostgresBatch
from callgate.runtime.effects.ledger import Ledger
from callgate.stores import store_at
from tests.providers.stores.backends import place
from tests.runtime.effects.scene_desk import ANN

NUMBER, SIZE, PAUSE = 40, 10_000, 0.05
"""Outcomes, bytes of each, and seconds for each of the batches, which take two outcomes."""


class Slow:
    """A server that takes some time for each batch, from a moment on; the size of each batch with outcomes in bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_slow, self.sizes = False, list[int]()
        run = _PostgresBatch._run_all

        async def run_slowly(batch: Any, steps: Any) -> Any:
            sizes = [len(one["receipt"] or "") for _, values in steps for one in values if "receipt" in one]
            if self.is_slow and sizes:
                self.sizes.append(sum(sizes))
                await asyncio.sleep(PAUSE)
            return await run(batch, steps)

        monkeypatch.setattr(_PostgresBatch, "_run_all", run_slowly)
        monkeypatch.setattr(group_commit, "MAX_BYTES", 5 * SIZE)


async def states_after_closing(address: str, slow: Slow, drain: float) -> list[str]:
    begun, go = 0, asyncio.Event()

    @tool(effect="irreversible")
    async def pay(n: int) -> str:
        """Pay."""
        nonlocal begun
        begun += 1
        if begun == NUMBER:
            go.set()
        await go.wait()
        slow.is_slow = True
        return "x" * SIZE

    store = store_at(address)
    gate = Gate([pay], allow_unguarded=True, store=store, options=Options(drain=drain, closing=1.0))
    await gate.open()
    under_way = [
        asyncio.create_task(gate.call("pay", {"n": n}, user=ANN, idempotency_key=f"k{n}")) for n in range(NUMBER)
    ]
    await go.wait()
    try:
        await gate.close()
    except TimeoutError:
        assert drain < 1.0
    await asyncio.gather(*under_way, return_exceptions=True)
    await store.open()
    try:
        return [effect.state.value for _, effect in await store.effects.list(None, limit=NUMBER)]
    finally:
        await store.close()


def unrecorded(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "effect.unsettled" in one.getMessage()]


@pytest.mark.parametrize("known", [True, False], ids=["", "control: it forgets what the store goes on writing"])
async def test_outcomes_are_written_once_while_the_gate_drains(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 34: 72 of 200 outcomes of 1 MB stayed ``running``. The calls gave up, and their outcomes were sent again."""
    slow = Slow(monkeypatch)
    if not known:
        monkeypatch.setattr(Ledger, "_write_late", lambda *_: None)
    with place("postgresql", tmp_path) as (address, _):
        states = await states_after_closing(address, slow, drain=20.0)
    assert states == ["committed"] * NUMBER
    assert unrecorded(caplog) == []
    assert max(slow.sizes) <= group_commit.MAX_BYTES
    assert (sum(slow.sizes) < (NUMBER + 1) * SIZE) == known


async def test_one_line_says_how_many_outcomes_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tests.runtime.effects.test_slow_closing.PAUSE", 0.3)
    with place("postgresql", tmp_path) as (address, _):
        states = await states_after_closing(address, Slow(monkeypatch), drain=0.1)
    (line,) = unrecorded(caplog)
    number = int(line.partition("number=")[2].split()[0])
    assert number >= states.count("running") > 0
    assert number <= states.count("running") + 4, "a batch under way may be written after all"
