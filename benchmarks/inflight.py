"""Ten thousand calls in flight, each asleep for 10 ms in its tool: CPU and memory for one, against floor2s."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from contextlib import AsyncExitStack
from statistics import median
from time import thread_time_ns
from typing import Any

from benchmarks.floors import Body, Sum, add_slowly, floor2s
from benchmarks.timing import EXPECTED, Call, Effort, quiet_heap
from benchmarks.twelve import call_of, make_tool, twelve_gate
from callgate import Gate

Make = Callable[[Body, AsyncExitStack], Any]


async def _floor(fn: Body, stack: AsyncExitStack) -> Call:
    return floor2s(fn)


async def _zero(fn: Body, stack: AsyncExitStack) -> Call:
    return call_of(await stack.enter_async_context(Gate([make_tool(fn)])))


async def _twelve(fn: Body, stack: AsyncExitStack) -> Call:
    gate, _ = twelve_gate(fn, quota=1_000_000)
    return call_of(await stack.enter_async_context(gate))


async def cpu(call: Call, n: int) -> float:
    """CPU microseconds a call, with all of them in flight at once."""
    gc.collect()
    began = thread_time_ns()
    results = await asyncio.gather(*[call() for _ in range(n)])
    us = (thread_time_ns() - began) / n / 1e3
    if any(result != EXPECTED for result in results):
        raise SystemExit("the benchmark is broken: a call in flight gave a wrong result")
    return us


async def kilobytes(make: Make, n: int) -> float:
    """Kilobytes a call, at the moment when the last of them falls asleep."""
    asleep, peak = 0, 0

    async def add(a: int, b: int, note: str | None = None) -> Sum:
        nonlocal asleep, peak
        asleep += 1
        if asleep == n:
            peak = tracemalloc.get_traced_memory()[0]
        await asyncio.sleep(0.01)
        return {"sum": a + b}

    async with AsyncExitStack() as stack:
        call = await make(add, stack)
        await call()
        asleep = 0
        gc.collect()
        tracemalloc.start()
        try:
            began = tracemalloc.get_traced_memory()[0]
            await asyncio.gather(*[call() for _ in range(n)])
        finally:
            tracemalloc.stop()
    return (peak - began) / n / 1000


async def measure(effort: Effort) -> dict[str, float]:
    n = effort.in_flight
    async with AsyncExitStack() as stack:
        floor = await _floor(add_slowly, stack)
        cases = {"zero": await _zero(add_slowly, stack), "twelve": await _twelve(add_slowly, stack)}
        ratios: dict[str, list[float]] = {name: [] for name in cases}
        floors = []
        with quiet_heap():
            before = await cpu(floor, n)
            for _ in range(effort.pairs):
                for name, call in cases.items():
                    us = await cpu(call, n)
                    after = await cpu(floor, n)
                    ratios[name].append(2 * us / (before + after))
                    floors.append(after)
                    before = after
    return {
        "inflight_calls": n,
        "inflight_floor_us": median(floors),
        "inflight_cpu_x_floor": median(ratios["zero"]),
        "inflight_twelve_cpu_x_floor": median(ratios["twelve"]),
        "inflight_floor_kb": await kilobytes(_floor, n),
        "inflight_kb": await kilobytes(_zero, n),
        "inflight_twelve_kb": await kilobytes(_twelve, n),
    }
