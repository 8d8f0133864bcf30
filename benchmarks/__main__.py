"""``make bench``: what a call through the gate costs, as ratios to the same work written by hand.

It exits with 1 when a target is missed, except with ``--quick``, whose figures are rough. Absolute times serve for order
only; a shared machine drifts. See ``timing.py`` for how the ratios are taken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    changes,
    counts,
    ends,
    inflight,
    instructions,
    leases,
    ledger,
    overhead,
    promises,
    scale,
    scopes,
    stock,
    streams,
)
from benchmarks.table import Row, show
from benchmarks.timing import FULL, QUICK, Effort

OUT = Path(__file__).parent / "out" / "overhead.json"
SECTIONS = {
    "counts": counts,
    "overhead": overhead,
    "leases": leases,
    "scopes": scopes,
    "scale": scale,
    "changes": changes,
    "inflight": inflight,
    "stock": stock,
    "ledger": ledger,
    "ends": ends,
    "streams": streams,
}
ON_REQUEST = {"instructions": instructions, "promises": promises}
KEYS = (
    *("zero_hooks_x_floor2s", "twelve_hooks_x_floor2s", "twelve_hooks_x_floor2", "calls_twelve_hooks"),
    *("tasks_twelve_hooks", "inflight_cpu_x_floor", "inflight_kb", "plan_build_ms", "tools_1e5_x_10"),
    "scope_x_best_peer",
    *("stock_pipeline_x_floor2", "ledger_memory_x_floor2", "stream_decode_x_sdk", "hydrate_recorded_x_floor1"),
)


ROWS = (
    Row("floor1_us", "floor1: parse, validate, run (µs)"),
    Row("floor2_us", "floor2: also authorise, quota, cache, validate output, audit (µs)"),
    Row("floor2s_us", "floor2s: floor2, parsing strictly (µs)"),
    Row("zero_hooks_x_floor2s", "no hooks, times floor2s", 1.0),
    Row("zero_hooks_x_floor2", "no hooks, times floor2"),
    Row("twelve_hooks_x_floor2s", "12 hooks at work, times floor2s", 3.2),
    Row("twelve_hooks_x_floor2", "12 hooks at work, times floor2"),
    Row("sync_method_x_floor1", "each further plain hook method, times floor1", 0.03, form="{:.3f}"),
    Row("async_method_x_floor1", "each further async hook method, times floor1", 0.06, form="{:.3f}"),
    Row("idle_hooks_x_zero", "12 hooks of other tools, times no hooks", 1.05, 0.95),
    Row("calls_idle_hooks", "function calls for them", 0, form="{:.0f}"),
    Row("calls_twelve_hooks", "function calls, 12 hooks, less the hooks' own", 60, form="{:.0f}"),
    Row("calls_zero_hooks", "function calls, no hooks", form="{:.0f}"),
    Row("calls_floor2s", "function calls, floor2s", form="{:.0f}"),
    Row("tasks_twelve_hooks", "tasks made, 12 hooks", 0, form="{:.0f}"),
    Row("tasks_zero_hooks", "tasks made, no hooks", 0, form="{:.0f}"),
    Row("callbacks_twelve_hooks", "loop callbacks, 12 hooks", 0, form="{:.0f}"),
    Row("callbacks_zero_hooks", "loop callbacks, no hooks", 0, form="{:.0f}"),
    Row("lease_us_scaled", "async lease, over the same methods without one (µs where floor2s takes 4)", 0.4),
    Row("lease_us_scaled_over_no_hook", "async lease, over no hook (the same µs)"),
    Row("scope_us", "request scope: enter, one async generator, leave (µs)"),
    Row("scope_dishka_us", "the same with dishka (µs)"),
    Row("scope_wireup_us", "the same with wireup (µs)"),
    Row("scope_x_best_peer", "request scope, times the faster of dishka and wireup", 1.5),
    Row("three_singletons_us_scaled", "a tool's three singletons (µs where floor2s takes 4)", 0.6),
    Row("three_container_singletons_us_scaled", "three of a container (the same µs)"),
    Row("change_longest_ms", "2,000 tools: longest stall of a change (ms)", 20.0),
    Row("change_use_ms", "2,000 tools: use (ms)"),
    Row("change_undo_ms", "2,000 tools: undo (ms)"),
    Row("change_add_ms", "2,000 tools: add (ms)"),
    Row("change_add_500_cpu_ms", "500 tools added one by one: processor time (ms)", 200.0),
    Row("change_remove_500_cpu_ms", "500 tools removed one by one: processor time (ms)", 200.0),
    Row("change_remove_ms", "2,000 tools: remove (ms)"),
    Row("inflight_calls", "calls in flight at once", form="{:,.0f}"),
    Row("inflight_cpu_x_floor", "in flight, no hooks: CPU, times floor2s", 1.15),
    Row("inflight_kb", "in flight, no hooks: kB a call", 2.5),
    Row("inflight_floor_kb", "in flight, floor2s: kB a call"),
    Row("inflight_twelve_cpu_x_floor", "in flight, 12 hooks: CPU, times floor2s"),
    Row("inflight_twelve_kb", "in flight, 12 hooks: kB a call"),
    Row("plan_build_ms_scaled", "plan of 12 hooks, without validators (ms where floor2s takes 4 µs)", 0.3),
    Row("tools", "tools in a large gate", form="{:,.0f}"),
    Row("tools_1e5_x_10", "a call in it, times one among 10 tools", 1.1, 0.9),
    Row("registration_growth", "registering a tool after 2,000 others, times the first", 3.0, form="{:.1f}"),
    Row("stock_pipeline_x_floor2", "seven stock hooks at work, times floor2", 6.5),
    Row("stock_hit_x_floor2", "the same, answered from the cache, times floor2", 4.5),
    Row("cache_hit_x_floor2", "an answer from the cache, times floor2", 3.0),
    *(
        Row(f"stock_{name}_x_floor2", f"{name} alone, over no hook, times floor2")
        for name in ("authorize", "quota", "concurrency", "cache", "output_policy", "audit", "metrics")
    ),
    Row("ledger_memory_x_floor2", "a tool with an effect, its ledger in memory, times floor2", 2.8),
    Row("ledger_own_x_floor2", "the ledger alone, over a tool that reads, times floor2"),
    Row("ledger_keyed_x_floor2", "the same with the caller's key, times floor2"),
    Row("ledger_receipt_x_floor2", "a repeat, answered with its receipt, times floor2"),
    Row("failing_x_call", "a call that fails and is logged, times one that succeeds", 5.0),
    Row("objects_x_text", "arguments as an object, times the same as text", 1.15),
    Row("worst_call_ms", "12 hooks: the slowest of 100,000 calls (ms)", 5.0),
    Row("audit_growth_bytes", "with Audit on the store in memory: bytes that stay, a call", 10.0),
    Row("stream_decode_x_sdk", "streams: times as fast as the provider's own client, the worst", least=5.0),
    *(
        Row(f"stream_{wire}_x_sdk", f"{wire}: times as fast")
        for wire in ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama")
    ),
    *(
        Row(f"stream_{wire}_paced_x_sdk", f"{wire}: the same, each event a read of its own")
        for wire in ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama")
    ),
    *(
        Row(f"stream_{wire}_us", f"{wire}: one event, client and transport included (µs)")
        for wire in ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama")
    ),
    Row("hydrate_recorded_x_floor1", "a recorded call is hydrated, times floor1", 1.5),
    Row("calls_recorded_x_floor1", "a recorded answer is read for its calls, times floor1"),
    *(Row(f"promise_{name}_x_floor2s", f"{what}, over no hook, times floor2s") for name, what in promises.WHAT.items()),
    Row("instructions_floor2s", "instructions, floor2s", form="{:,.0f}"),
    Row("instructions_stock_pipeline_x_floor2", "instructions, seven stock hooks, times floor2", form="{:.3f}"),
    Row("instructions_stock_hit_x_floor2", "instructions, the same, from the cache, times floor2", form="{:.3f}"),
    Row("instructions_zero_hooks_x_floor2s", "instructions, no hooks, times floor2s", form="{:.3f}"),
    Row("instructions_twelve_hooks_x_floor2s", "instructions, 12 hooks, times floor2s", form="{:.3f}"),
    Row(
        "instructions_twelve_bare_x_floor2s", "instructions, the same 12 called in a row, times floor2s", form="{:.3f}"
    ),
)


TITLE = "Callgate, against the same work written by hand"


def report(found: dict[str, float]) -> list[Row]:
    """Print the table; returns the rows that miss their target."""
    return show(TITLE, ROWS, found)


def as_json(found: dict[str, float]) -> dict[str, Any]:
    """The file: the headline figures (null where they were not asked for), and ``more``."""
    more: dict[str, Any] = {key: value for key, value in found.items() if key not in KEYS}
    more["python"] = f"{platform.python_implementation()} {platform.python_version()}"
    return {key: found.get(key) for key in KEYS} | {"more": more}


async def run(names: list[str], effort: Effort, say: Callable[[str], None]) -> dict[str, float]:
    """Measure some sections, one after another, in this process."""
    found: dict[str, float] = {}
    for name in names:
        began = time.perf_counter()
        found |= await (SECTIONS | ON_REQUEST)[name].measure(effort)
        say(f"{name}: {time.perf_counter() - began:.1f} s")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rough answer, in seconds")
    parser.add_argument(
        "--only", choices=[*SECTIONS, *ON_REQUEST], action="append", help="one section; may be repeated"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help=f"where to; default, for a whole run: {OUT.name}")
    asked = parser.parse_args(argv)
    found = asyncio.run(run(asked.only or list(SECTIONS), QUICK if asked.quick else FULL, print))
    missed = report(found)
    path = asked.json or (None if asked.only else OUT)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(as_json(found), indent=2) + "\n", "utf-8")
        print(f"written: {path}")
    print(f"{len(missed)} targets missed" if missed else "all targets met")
    return 1 if missed and not asked.quick else 0


if __name__ == "__main__":
    sys.exit(main())
