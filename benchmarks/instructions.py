"""Machine instructions for one call, counted by valgrind: no clock, so no noise. Slow; ``--only instructions`` asks for it.

Under valgrind, a process imports everything and forks for every case; a child makes so many calls and ends. The
difference between two children of one case is the cost of their difference in calls.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.floors import ARGS_JSON, floor1, floor2, floor2s
from benchmarks.stock import stock
from benchmarks.timing import Call, Effort
from benchmarks.twelve import USER, call_of, make_tool, twelve_gate
from callgate import Gate, InvokeContext
from callgate.hooks.state.step import ASYNC, SYNC, SYNC_LEASE

FEW, MANY = 300, 800
_COLLECTED = re.compile(r"==(\d+)== Collected : (\d+)")


async def _repeat(call: Call, n: int) -> None:
    for _ in range(n):
        await call()


async def _repeat_in(gate: Gate, n: int) -> None:
    async with gate:
        await _repeat(call_of(gate), n)


async def _repeat_bare(n: int) -> None:
    """The same twelve hooks as straight-line code: no ledger, no errors, no cancellation; what no lifecycle can beat."""
    gate, _ = twelve_gate()
    async with gate:
        await call_of(gate)()
        plan = gate._plans.current.live["add"]
        release = next(step.release for _, _, step in plan.before if step.release is not None)
        steps = [*plan.before, (ASYNC, plan.fast_path, plan.running), *plan.shaping, *plan.closing, release]
        names: dict[str, Any] = {
            "Context": InvokeContext,
            "plan": plan,
            "raw": ARGS_JSON,
            "user": USER,
            "now": gate._now,
        }
        lines = ["async def call():", " ctx = Context(plan, raw, user, now())"]
        for i, (kind, method, step) in enumerate(steps):
            names |= {f"call{i}": method, f"step{i}": step}
            lines.append(f" ctx.run.step = step{i}")
            waits = "" if kind in (SYNC, SYNC_LEASE) else "await "
            lines.append(
                f" ctx.run.output = await call{i}(**ctx.run.input)" if step is plan.running else f" {waits}call{i}(ctx)"
            )
        exec("\n".join(lines), names)
        await _repeat(names["call"], n)


CASES = {
    "floor1": lambda n: _repeat(floor1(), n),
    "floor2": lambda n: _repeat(floor2(), n),
    "floor2s": lambda n: _repeat(floor2s(), n),
    "zero_hooks": lambda n: _repeat_in(Gate([make_tool()]), n),
    "twelve_hooks": lambda n: _repeat_in(twelve_gate()[0], n),
    "twelve_bare": _repeat_bare,
    "stock_pipeline": lambda n: _repeat_in(Gate([make_tool()], list(stock().values())), n),
    "stock_hit": lambda n: _repeat_in(Gate([make_tool()], list(stock(hit=True).values())), n),
}


def run_cases() -> None:
    """What runs under valgrind; says which process was what."""
    gc.disable()
    for name, case in CASES.items():
        for n in (1, FEW, MANY):  # the first child compiles the modules that the case imports, and is not counted
            child = os.fork()
            if not child:
                asyncio.run(case(n))
                os._exit(0)
            os.waitpid(child, 0)
            print(child, name, n)


def count() -> dict[str, float]:
    """Instructions a call by case; nothing where there is no valgrind."""
    if shutil.which("valgrind") is None:
        print("instructions: valgrind is not installed")
        return {}
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m", __name__]
    done = subprocess.run(
        command,
        cwd=Path(__file__).resolve().parents[1],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    collected = {int(pid): int(count) for pid, count in _COLLECTED.findall(done.stderr)}
    totals = {}
    for line in done.stdout.splitlines():
        pid, name, n = line.split()
        totals[name, int(n)] = collected[int(pid)]
    found = {f"instructions_{name}": (totals[name, MANY] - totals[name, FEW]) / (MANY - FEW) for name in CASES}
    for name in ("zero_hooks", "twelve_hooks", "twelve_bare"):
        found[f"instructions_{name}_x_floor2s"] = found[f"instructions_{name}"] / found["instructions_floor2s"]
    for name in ("stock_pipeline", "stock_hit"):
        found[f"instructions_{name}_x_floor2"] = found[f"instructions_{name}"] / found["instructions_floor2"]
    return found


async def measure(_effort: Effort) -> dict[str, float]:
    return await asyncio.to_thread(count)


if __name__ == "__main__":
    run_cases()
