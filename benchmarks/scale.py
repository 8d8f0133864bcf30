"""What grows: a call among 100,000 tools, registering one more tool, the making of a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from itertools import cycle
from statistics import median
from time import thread_time_ns
from typing import Any

from benchmarks.floors import ARGS_JSON, IN_SCHEMA, floor2s
from benchmarks.timing import Call, Effort, batch, interleave, quiet_heap
from benchmarks.twelve import USER, make_tool, twelve
from callgate import Gate, Options, ToolDefinition, ToolRecord, as_tool
from callgate.hooks.plan import Plan
from callgate.hooks.selection import gather_registrations
from callgate.runtime.pipeline.builtin import BuiltIns
from callgate.runtime.pipeline.compile import compile_plan
from callgate.tools.schemas.validation import compile_schema

FEW = 10
SAMPLE = 200


def twins(record: ToolRecord, n: int) -> list[ToolRecord]:
    """The same tool under *n* names; the schema, checked once, is shared."""
    made = []
    for i in range(n):
        definition = object.__new__(ToolDefinition)
        vars(definition).update(vars(record.definition), name=f"add_{i}")
        made.append(dataclasses.replace(record, definition=definition))
    return made


def fill(gate: Gate, records: list[ToolRecord]) -> float:
    """Register tools; how much dearer one is after 2,000 others.

    While that grows with the number of tools, only the first go in by the front door: all would take minutes.
    """
    first = _register(gate, records[:SAMPLE])
    _register(gate, records[SAMPLE : 10 * SAMPLE])
    last = _register(gate, records[10 * SAMPLE : 11 * SAMPLE])
    rest = records[11 * SAMPLE :]
    if last < 3 * first:
        _register(gate, rest)
    else:
        gate.registry._records.update({record.id: record for record in rest})
    return last / first


def _register(gate: Gate, records: Iterable[ToolRecord]) -> float:
    began = thread_time_ns()
    for record in records:
        gate.registry.add_inline(record)
    return thread_time_ns() - began


def rotation(gate: Gate, n: int) -> Call:
    """Calls of ten tools in turn, spread over *n*."""
    invoke = gate.invoke
    names = cycle([f"add_{i * n // FEW}" for i in range(FEW)])
    return lambda: invoke(next(names), ARGS_JSON, user=USER)


async def call_among_many(effort: Effort) -> dict[str, float]:
    record = as_tool(make_tool())
    few, many = Gate(options=Options(lazy=True)), Gate(options=Options(lazy=True))
    _register(few, twins(record, FEW))
    growth = fill(many, twins(record, effort.tools))
    async with few, many:
        cases = {"few": rotation(few, FEW), "many": rotation(many, effort.tools)}
        for call in cases.values():
            for _ in range(FEW):
                await call()  # compiles the plans
        found = await interleave(cases, {"floor2s": floor2s()}, effort)
    return {
        "tools": effort.tools,
        "tools_1e5_x_10": median(
            a / b for a, b in zip(found["many"].ratios["floor2s"], found["few"].ratios["floor2s"], strict=True)
        ),
        "registration_growth": growth,
    }


def microseconds(make: Callable[[], Any]) -> float:
    """CPU microseconds of one run."""
    began = thread_time_ns()
    make()
    return (thread_time_ns() - began) / 1e3


async def plan_build(effort: Effort) -> dict[str, float]:
    """A plan with twelve hooks; what the validator's part of it takes, though compiled before, is taken off.

    ``plan_build_ms`` is the least of many; scaled, what it would be where floor2s takes 4 µs.
    """
    record = as_tool(make_tool(output=False))
    gate = Gate([record], twelve()[0])
    floor = floor2s()

    def compiled() -> Plan:
        hooks = gather_registrations(record.definition, record, gate._plans.current.shared)
        return compile_plan(record, hooks, gate._services, builtins=BuiltIns.of(record, gate._services))

    whole, known, scaled = [], [], []
    with quiet_heap():
        for _ in range(effort.builds):
            whole.append(microseconds(compiled))
            known.append(microseconds(lambda: compile_schema(IN_SCHEMA)))
            scaled.append((whole[-1] - known[-1]) / await batch(floor, 100) * 4.0)
    return {
        "plan_build_ms": (min(whole) - min(known)) / 1e3,
        "plan_build_ms_scaled": median(scaled) / 1e3,
        "plan_build_with_known_validator_ms": min(whole) / 1e3,
    }


async def measure(effort: Effort) -> dict[str, float]:
    return await plan_build(effort) | await call_among_many(effort)
