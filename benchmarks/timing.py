"""Interleaved timing: ratios that hold on a shared machine, whose speed drifts by two within seconds.

A case's batch stands between two batches of every reference, and its ratio to them is taken on the spot, in CPU time
of this thread; what is reported is the median over many rounds, each in a fresh random order.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import thread_time_ns
from typing import Any

Call = Callable[[], Awaitable[Any]]
EXPECTED = {"sum": 3}


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int = 150
    batch_us: float = 2_000.0
    in_flight: int = 10_000
    pairs: int = 8
    tools: int = 100_000
    builds: int = 200


FULL = Effort()
QUICK = Effort(rounds=30, batch_us=1_500.0, in_flight=2_000, pairs=2, builds=50)


@dataclass
class Measured:
    """One case: CPU microseconds a call, and its ratio to each reference, round by round."""

    cpu: list[float] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=dict)

    @property
    def us(self) -> float:
        """CPU microseconds a call, at the 10th percentile: a quiet machine."""
        return sorted(self.cpu)[len(self.cpu) // 10]

    def x(self, reference: str) -> float:
        """How many times the reference."""
        return median(self.ratios[reference])

    def minus(self, other: Measured, reference: str) -> float:
        """What it costs more than another case of the same run, in units of the reference."""
        return median(a - b for a, b in zip(self.ratios[reference], other.ratios[reference], strict=True))


WARM_UP = 5
"""Calls before the clock starts: the batch before has left the processor's caches to other code."""


async def batch(call: Call, n: int) -> float:
    """CPU microseconds a call, over *n* calls."""
    for _ in range(WARM_UP):
        await call()
    began = thread_time_ns()
    for _ in range(n):
        await call()
    return (thread_time_ns() - began) / n / 1e3


async def calibrate(call: Call, target_us: float) -> int:
    """How many calls make a batch of about *target_us*; checks their result first."""
    result = await call()
    if result != EXPECTED:
        raise SystemExit(f"the benchmark is broken: {call} gave {result!r} instead of {EXPECTED!r}")
    n = 1
    while True:
        us = min([await batch(call, n) for _ in range(3)])
        if us * n >= target_us / 8:
            return max(1, math.ceil(target_us / us))
        n *= 4


@contextmanager
def quiet_heap() -> Iterator[None]:
    """What lives already is not traversed by the collector while measuring; the collector itself stays on."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def interleave(
    cases: Mapping[str, Call], references: Mapping[str, Call], effort: Effort, *, seed: int = 1
) -> dict[str, Measured]:
    """Time every case against every reference; the references are in the answer, too."""
    sizes = {name: await calibrate(call, effort.batch_us) for name, call in cases.items()}
    flank = {name: await calibrate(call, effort.batch_us / 4) for name, call in references.items()}
    found = {name: Measured(ratios={other: [] for other in references}) for name in cases}
    floors = {name: Measured() for name in references}

    async def measure_references() -> dict[str, float]:
        taken = {name: await batch(call, flank[name]) for name, call in references.items()}
        for name, us in taken.items():
            floors[name].cpu.append(us)
        return taken

    order = list(cases)
    shuffle = random.Random(seed).shuffle
    with quiet_heap():
        before = await measure_references()
        for _ in range(effort.rounds):
            shuffle(order)
            for name in order:
                us = await batch(cases[name], sizes[name])
                after = await measure_references()
                found[name].cpu.append(us)
                for other in references:
                    found[name].ratios[other].append(2 * us / (before[other] + after[other]))
                before = after
    return found | floors
