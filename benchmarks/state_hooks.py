"""All seven stock hooks on one shared store, now and in the state before."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from benchmarks.floors import ARGS_JSON
from benchmarks.state_place import Call, Load, Make, compare, drive, store_of, switches
from benchmarks.stock import stock
from benchmarks.timing import EXPECTED
from benchmarks.twelve import USER, make_tool
from callgate import Gate, Hook
from callgate.hooks import Audit


@asynccontextmanager
async def hooked(address: str, *, before: bool = False, keys: Sequence[str] = ()) -> AsyncGenerator[Call]:
    """Open a gate with the hooks, and give calls of a tool that reads; the cache misses at each call."""
    hooks: dict[str, Hook] = stock()
    if address.startswith("redis"):
        hooks["audit"] = Audit(lambda _row: None)  # Redis keeps no audit rows
    store = store_of(address, before=before)
    async with Gate([make_tool()], list(hooks.values()), store=store, signing_keys=keys) as gate:

        async def call() -> None:
            if await gate.invoke("add", ARGS_JSON, user=USER) != EXPECTED:
                raise SystemExit("the benchmark is broken: a call with the stock hooks gave something else")

        yield call


async def measure(kind: str, make: Make, load: Load) -> dict[str, float]:
    """Measure the calls a second; against the state before only where the store has a switch to it."""
    if not switches(store_of(address := make())):
        async with hooked(address) as now:
            await drive(now, load.callers, load.callers)
            paces = [await drive(now, load.callers, load.now) for _ in range(load.rounds)]
        return {f"hooks_{kind}_calls_s": sorted(one.calls_s for one in paces)[len(paces) // 2]}
    async with hooked(address, before=True) as before, hooked(make()) as now:
        found = await compare(before, now, load)
    return {f"hooks_{kind}_x_before": found.x, f"hooks_{kind}_calls_s": found.now.calls_s}
