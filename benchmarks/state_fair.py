"""Fairness: how late the latest of many concurrent callers is, and whether their load ends the leases of slow calls."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from benchmarks.state_place import ANN, Make, pay, store_of
from callgate import Effects, Gate, Outcome, tool
from callgate.hooks import Audit
from callgate.providers.stores.effects import EffectState

CALLERS = (30, 100)
SLOW_CALLERS = 5
LEASE = 1.0
SLOW_S = 1.5
"""Seconds that the slow tool takes: longer than a lease."""


@tool(effect="irreversible")
async def pay_slowly(n: int) -> dict[str, int]:
    """Pay by a service that takes its time."""
    await asyncio.sleep(SLOW_S)
    return {"n": n}


@dataclass
class Seen:
    """Latencies of the calls of one run, how many calls failed, and how many leases ended while their call ran."""

    latencies: list[float] = field(default_factory=list)
    failed: int = 0
    starved: int = 0

    @property
    def p99_x_mean(self) -> float:
        """The 99th percentile of the latency over its mean."""
        return sorted(self.latencies)[int(len(self.latencies) * 0.99)] / fmean(self.latencies)


async def load(store: Any, callers: int, seconds: float) -> Seen:
    """Call for so long, while a few slow calls hold leases."""
    seen, numbers = Seen(), itertools.count()
    async with Gate(
        [pay, pay_slowly], [Audit()], store=store, effects=Effects(lease=LEASE), allow_unguarded=True
    ) as gate:

        async def call(name: str) -> float:
            began = time.perf_counter()
            try:
                fine = (await gate.call(name, {"n": next(numbers)}, user=ANN)).outcome == Outcome.SUCCESS
            except Exception:  # a failed call is a figure
                fine = False
            seen.failed += not fine
            return time.perf_counter() - began

        async def caller(until: float) -> None:
            while time.perf_counter() < until:
                seen.latencies.append(await call("pay"))

        await asyncio.gather(*(call("pay") for _ in range(callers)))  # connections
        until = time.perf_counter() + seconds
        slow = (call("pay_slowly") for _ in range(SLOW_CALLERS))
        await asyncio.gather(*slow, *(caller(until) for _ in range(callers)))
        seen.starved = starved(record for _, record in await store.effects.list(None, limit=1_000_000))
    return seen


def starved(effects: Iterable[Any]) -> int:
    """Count the effects whose lease ended while their call ran: the ledger has raised their tokens."""
    return sum(one.state == EffectState.UNKNOWN or one.token > 1 for one in effects)


async def measure(make: Make, seconds: float, rounds: int) -> dict[str, float]:
    """Measure all levels in turn: the store now, and with its former changes, each of which takes a connection."""
    logging.getLogger("callgate").setLevel(logging.CRITICAL)  # what fails is counted
    cases = [(callers, before) for callers in CALLERS for before in (False, True)]
    found: dict[tuple[int, bool], list[Seen]] = {case: [] for case in cases}
    for _ in range(rounds):
        for callers, before in cases:
            found[callers, before].append(await load(store_of(make(), before=before), callers, seconds))
    ratios = {case: median(one.p99_x_mean for one in seen) for case, seen in found.items()}
    ours = [one for (_, before), seen in found.items() if not before for one in seen]
    return {
        "fair_p99_x_mean": max(ratios[callers, False] for callers in CALLERS),
        "fair_pool_p99_x_mean": max(ratios[callers, True] for callers in CALLERS),
        **{f"fair_{callers}_p99_x_mean": ratios[callers, False] for callers in CALLERS},
        **{f"fair_pool_{callers}_p99_x_mean": ratios[callers, True] for callers in CALLERS},
        "fair_failed": float(sum(one.failed for one in ours)),
        "fair_starved": float(sum(one.starved for one in ours)),
    }
