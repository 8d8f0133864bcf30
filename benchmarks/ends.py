"""The ends of the scale: a call that fails, arguments as an object, the slowest of many calls, memory that stays."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from time import perf_counter

from benchmarks.floors import ARGS_JSON, IN_SCHEMA, Sum, add
from benchmarks.timing import Call, Effort, interleave
from benchmarks.twelve import USER, call_of, make_tool, twelve_gate
from callgate import Gate, Outcome, tool
from callgate.hooks import Audit
from callgate.stores import MemoryStore


async def broken(a: int, b: int, note: str | None = None) -> Sum:
    """Fail as a tool does whose database is away; the error and its traceback are logged."""
    raise ConnectionError("the server closed the connection")


def _result_of(gate: Gate, outcome: Outcome) -> Call:
    call = gate.call

    async def once() -> Sum | None:
        result = await call("add", ARGS_JSON, user=USER)
        return {"sum": 3} if result.outcome is outcome else None

    return once


async def _worst(effort: Effort) -> float:
    """Return the slowest of many calls with twelve hooks, in milliseconds; the best of three tries on a shared machine."""
    gate, _ = twelve_gate(quota=1_000_000_000)
    async with gate:
        call = call_of(gate)
        tries: list[float] = []
        for _ in range(3):
            worst = 0.0
            for _ in range(effort.tools):
                began = perf_counter()
                await call()
                worst = max(worst, perf_counter() - began)
            tries.append(1000 * worst)
    return min(tries)


async def _audit_growth(effort: Effort) -> float:
    """Return the bytes that a call with ``Audit`` leaves behind, once the store in memory is full."""
    n = effort.in_flight
    async with Gate([make_tool()], [Audit()], store=MemoryStore(max_audit_rows=n // 2)) as gate:
        call = call_of(gate)
        for _ in range(n):
            await call()
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(n):
                await call()
            gc.collect()
            first = tracemalloc.get_traced_memory()[0]  # the rows that replaced those of before the measurement
            for _ in range(n):
                await call()
            gc.collect()
            return (tracemalloc.get_traced_memory()[0] - first) / n
        finally:
            tracemalloc.stop()


@contextmanager
def _quiet_log() -> Generator[None]:
    """Give the log a handler that throws records away: that of a service writes them elsewhere."""
    logger, handler = logging.getLogger("callgate"), logging.NullHandler()
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


async def _ratios(effort: Effort) -> dict[str, float]:
    fails = tool(name="add", parameters=IN_SCHEMA, output_schema=False, effect="read")(broken)
    async with AsyncExitStack() as stack:
        good = await stack.enter_async_context(Gate([make_tool(add)]))
        bad = await stack.enter_async_context(Gate([fails]))
        cases = {
            "failing": _result_of(bad, Outcome.ERROR),
            "objects": lambda: good.invoke("add", {"a": 1, "b": 2, "note": "x"}, user=USER),
        }
        floors = {"call": _result_of(good, Outcome.SUCCESS), "text": call_of(good)}
        found = await interleave(cases, floors, effort)
    return {"failing_x_call": found["failing"].x("call"), "objects_x_text": found["objects"].x("text")}


async def measure(effort: Effort) -> dict[str, float]:
    """Measure all of them."""
    with _quiet_log():
        ratios = await _ratios(effort)
    return {**ratios, "worst_call_ms": await _worst(effort), "audit_growth_bytes": await _audit_growth(effort)}
