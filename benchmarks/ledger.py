"""The effect ledger in memory: what it costs that a tool runs once."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack

from benchmarks.floors import ARGS_JSON, IN_SCHEMA, OUT_SCHEMA, add, floor2
from benchmarks.timing import Call, Effort, interleave
from benchmarks.twelve import USER, call_of, make_tool
from callgate import Effects, Gate, tool


def effectful(gate: Gate) -> Call:
    """A call like no other, as most are."""
    return call_of(gate)


def keyed(gate: Gate) -> Call:
    """A call with a key of its own."""
    number, invoke = itertools.count(), gate.invoke
    return lambda: invoke("add", ARGS_JSON, user=USER, idempotency_key=f"k{next(number)}")


def repeated(gate: Gate) -> Call:
    """The same key every time: all but the first are answered with its receipt."""
    invoke = gate.invoke
    return lambda: invoke("add", ARGS_JSON, user=USER, idempotency_key="k")


async def measure(effort: Effort) -> dict[str, float]:
    effect = tool(name="add", parameters=IN_SCHEMA, output_schema=OUT_SCHEMA, effect="irreversible")(add)
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(Gate([make_tool()]))
        gates = [
            await stack.enter_async_context(Gate([effect], allow_unguarded=True, effects=Effects(durable=False)))
            for _ in range(3)
        ]
        cases = {"none": call_of(plain)}
        cases |= {
            name: make(gate)
            for (name, make), gate in zip(
                {"ledger": effectful, "keyed": keyed, "receipt": repeated}.items(), gates, strict=True
            )
        }
        found = await interleave(cases, {"floor2": floor2()}, effort)
    ratios = {name: found[name].x("floor2") for name in cases}
    return {
        "ledger_memory_x_floor2": ratios["ledger"],
        "ledger_keyed_x_floor2": ratios["keyed"],
        "ledger_receipt_x_floor2": ratios["receipt"],
        "ledger_own_x_floor2": ratios["ledger"] - ratios["none"],
    }
