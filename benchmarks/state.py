"""``make bench-state``: what calls that keep something in a shared store cost, against a transaction for each
change ("before") and against SQL by hand.

Ratios, each taken in rounds in which both sides have their turn, and the median of the rounds; absolute figures serve for
order only. What needs a server that is absent is left out, and the reason is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import state_fair, state_hooks, state_signed, workers_engine
from benchmarks.state_hand import against_hand
from benchmarks.state_place import OPENERS, Compared, Load, Make, against_before, places
from benchmarks.state_way import delayed, round_trip_ms
from benchmarks.table import Row, show
from benchmarks.workers import progress
from callgate.errors import StoreError

OUT = Path(__file__).parent / "out" / "state.json"
TITLE = "State: calls that keep something in a store, with Audit where nothing else is said"
DELAY_S = 0.005
"""The delay of each direction; a round trip takes twice as long."""
ELSEWHERE = "scaling by worker processes (two_workers_x_one): `make bench-workers` measures it, on idle cores"


@dataclass(frozen=True)
class Effort:
    """How long to measure: seconds and rounds of fairness, loads of the comparisons, rounds and calls of ``submit``."""

    fair: tuple[float, int]
    loopback: Load
    network: Load
    lite: Load
    one: Load
    hand: Load
    hooks: Load
    signed: Load
    submit: tuple[int, int]


FULL = Effort(
    fair=(3.0, 3),
    loopback=Load(64, 192, 1_280, 7),
    network=Load(64, 64, 640, 3),
    lite=Load(64, 128, 1_280, 7),
    one=Load(1, 60, 60, 15),
    hand=Load(64, 1_280, 1_280, 9),
    hooks=Load(16, 320, 320, 7),
    signed=Load(16, 800, 800, 15),  # a few in a hundred: seven rounds of 320 gave 0.94 to 1.18
    submit=(10, 60),
)
QUICK = Effort(
    fair=(1.6, 1),
    loopback=Load(64, 128, 640, 3),
    network=Load(64, 64, 256, 1),
    lite=Load(64, 64, 640, 3),
    one=Load(1, 40, 40, 5),
    hand=Load(64, 640, 640, 3),
    hooks=Load(16, 96, 96, 3),
    signed=Load(16, 96, 96, 3),
    submit=(3, 60),
)

ROWS = (
    Row("fair_p99_x_mean", "PostgreSQL: p99 of latency over its mean, 30 and 100 callers, the worst", 3),
    Row("fair_30_p99_x_mean", "  of 30 callers"),
    Row("fair_100_p99_x_mean", "  of 100 callers"),
    Row("fair_pool_p99_x_mean", "the same when each change takes a connection of the default pool", 3),
    Row("fair_pool_30_p99_x_mean", "  of 30 callers"),
    Row("fair_pool_100_p99_x_mean", "  of 100 callers"),
    Row("fair_failed", "calls that failed", 0, form="{:.0f}"),
    Row("fair_starved", "leases that ended while their call ran", 0, form="{:.0f}"),
    Row("audit_x_before_loopback", "PostgreSQL, 64 callers: calls/s over before (goal 15)", least=8),
    Row("audit_cpu_x_before", "  client CPU a call over before", 0.3),
    Row("audit_calls_s", "  calls/s, here and now", form="{:.0f}"),
    Row("audit_before_calls_s", "  calls/s before", form="{:.0f}"),
    Row("audit_x_before_10ms", "PostgreSQL 10 ms away, 64 callers: calls/s over before", least=20),
    Row("network_round_trip_ms", "  a round trip, measured (ms)"),
    Row("audit_10ms_calls_s", "  calls/s, here and now", form="{:.0f}"),
    Row("audit_10ms_before_calls_s", "  calls/s before", form="{:.0f}"),
    Row("audit_one_caller_x_before", "PostgreSQL, one caller: calls/s over before", least=1.0),
    Row("audit_sqlite_x_before", "SQLite, 64 callers: calls/s over before (goal 30)", least=10),
    Row("audit_sqlite_cpu_x_before", "  client CPU a call over before"),
    Row("audit_sqlite_calls_s", "  calls/s, here and now", form="{:.0f}"),
    Row("audit_sqlite_before_calls_s", "  calls/s before", form="{:.0f}"),
    Row("audit_sqlite_one_caller_x_before", "SQLite, one caller: calls/s over before", least=1.0),
    Row("audit_x_by_hand", "PostgreSQL, 64 callers: calls/s over the same SQL by hand", least=0.5),
    Row("audit_cpu_x_by_hand", "  client CPU a call over by hand"),
    Row("by_hand_calls_s", "  calls/s by hand", form="{:.0f}"),
    Row("audit_sqlite_x_by_hand", "SQLite, 64 callers: calls/s over the same SQL by hand", least=0.5),
    Row("audit_sqlite_cpu_x_by_hand", "  client CPU a call over by hand"),
    Row("sqlite_by_hand_calls_s", "  calls/s by hand", form="{:.0f}"),
    Row("hooks_postgresql_x_before", "seven stock hooks, 16 callers, PostgreSQL: calls/s over before", least=4),
    Row("hooks_postgresql_calls_s", "  calls/s, here and now", form="{:.0f}"),
    Row("hooks_sqlite_x_before", "the same, SQLite", least=4),
    Row("hooks_sqlite_calls_s", "  calls/s, here and now", form="{:.0f}"),
    Row("hooks_redis_x_before", "the same, Redis", least=1.5),
    Row("hooks_redis_calls_s", "the same, Redis: calls/s, here and now", form="{:.0f}"),
    Row("signed_hooks_sqlite_cpu_x", "signing_keys, seven stock hooks, SQLite: client CPU a call over without", 1.03),
    Row("signed_hooks_sqlite_calls_x", "  calls/s over without"),
    Row(
        "signed_effect_sqlite_cpu_x", "signing_keys, an effect with Audit, SQLite: client CPU a call over without", 1.05
    ),
    Row("signed_effect_sqlite_calls_x", "  calls/s over without"),
    Row("signed_hooks_postgresql_cpu_x", "the same, PostgreSQL: seven stock hooks", 1.03),
    Row("signed_hooks_postgresql_calls_x", "  calls/s over without"),
    Row("signed_effect_postgresql_cpu_x", "the same, PostgreSQL: an effect with Audit", 1.05),
    Row("signed_effect_postgresql_calls_x", "  calls/s over without"),
    Row("submit_x_engine", "submit to done, over the engine with the same transactions by hand", least=0.85),
)

# ---------------------------------------------------------------------------------------------- what is measured

Measure = Callable[[Make, Effort], Awaitable[dict[str, float]]]


@dataclass(frozen=True)
class Part:
    """A part of the run: a title, the kind of store that it needs, and the function that measures it."""

    title: str
    kind: str
    run: Measure


def figures(found: Compared, *keys: str) -> dict[str, float]:
    """Return a comparison by keys: the ratio, that of CPU time, calls a second now and of the reference."""
    return dict(zip(keys, (found.x, found.cpu_x, found.now.calls_s, found.reference.calls_s), strict=True))


async def _loopback(make: Make, effort: Effort) -> dict[str, float]:
    found = await against_before(make, effort.loopback)
    return figures(found, "audit_x_before_loopback", "audit_cpu_x_before", "audit_calls_s", "audit_before_calls_s")


async def _network(make: Make, effort: Effort) -> dict[str, float]:
    with delayed(make(), DELAY_S) as before, delayed(make(), DELAY_S) as now:
        trip = await round_trip_ms(now)
        addresses = iter((before, now))
        found = await against_before(lambda: next(addresses), effort.network)
    keys = ("audit_x_before_10ms", "audit_10ms_cpu_x_before", "audit_10ms_calls_s", "audit_10ms_before_calls_s")
    return figures(found, *keys) | {"network_round_trip_ms": trip}


async def _lite(make: Make, effort: Effort) -> dict[str, float]:
    keys = ("x_before", "cpu_x_before", "calls_s", "before_calls_s")
    return figures(await against_before(make, effort.lite), *(f"audit_sqlite_{key}" for key in keys))


async def _one(make: Make, effort: Effort) -> dict[str, float]:
    return {"audit_one_caller_x_before": (await against_before(make, effort.one)).x}


async def _lite_one(make: Make, effort: Effort) -> dict[str, float]:
    return {"audit_sqlite_one_caller_x_before": (await against_before(make, effort.one)).x}


async def _hand(make: Make, effort: Effort) -> dict[str, float]:
    keys = ("audit_x_by_hand", "audit_cpu_x_by_hand", "audit_beside_hand_calls_s", "by_hand_calls_s")
    return figures(await against_hand(make, effort.hand), *keys)


async def _lite_hand(make: Make, effort: Effort) -> dict[str, float]:
    keys = ("audit_sqlite_x_by_hand", "audit_sqlite_cpu_x_by_hand", "audit_sqlite_beside_hand_calls_s")
    return figures(await against_hand(make, effort.hand), *keys, "sqlite_by_hand_calls_s")


def _signed(kind: str) -> Measure:
    return lambda make, effort: state_signed.measure(kind, make, effort.signed)


def _hooks(kind: str) -> Measure:
    return lambda make, effort: state_hooks.measure(kind, make, effort.hooks)


async def _submit(make: Make, effort: Effort) -> dict[str, float]:
    found = await workers_engine.measure(make, *effort.submit, lambda: None)
    return {"submit_x_engine": found["submit_x_engine"]}


PARTS = (
    Part("fairness", "postgresql", lambda make, effort: state_fair.measure(make, *effort.fair)),
    Part("effects against before", "postgresql", _loopback),
    Part("effects against before, 10 ms away", "postgresql", _network),
    Part("one caller", "postgresql", _one),
    Part("effects against before, SQLite", "sqlite", _lite),
    Part("one caller, SQLite", "sqlite", _lite_one),
    Part("effects against SQL by hand", "postgresql", _hand),
    Part("effects against SQL by hand, SQLite", "sqlite", _lite_hand),
    *(Part(f"seven stock hooks, {kind}", kind, _hooks(kind)) for kind in ("postgresql", "sqlite", "redis")),
    *(Part(f"signing keys, {kind}", kind, _signed(kind)) for kind in ("sqlite", "postgresql")),
    Part("submit, and the engine alone", "postgresql", _submit),
)


async def run(
    made: dict[str, Make], absent: dict[str, str], effort: Effort, step: Callable[[str], None]
) -> tuple[dict[str, float], list[str]]:
    """Measure all parts whose store is there. Return the figures, and what was left out with the reason."""
    found: dict[str, float] = {}
    left_out: list[str] = []
    for part in PARTS:
        if part.kind not in made:
            left_out.append(f"{part.title}: {absent[part.kind]}")
            continue
        step(part.title)
        found |= await part.run(made[part.kind], effort)
    if "hooks_redis_calls_s" in found and "hooks_redis_x_before" not in found:
        left_out.append("hooks_redis_x_before: the store has no switch to the state before")
    return found, [*left_out, ELSEWHERE]


# ---------------------------------------------------------------------------------------------- the answer


def as_json(found: dict[str, float], left_out: list[str]) -> dict[str, Any]:
    """The file: the figures with a target, and ``more``."""
    keys = [row.key for row in ROWS if row.target and row.key in found]
    more: dict[str, Any] = {key: value for key, value in found.items() if key not in keys}
    more |= {"python": f"{platform.python_implementation()} {platform.python_version()}", "cpus": os.cpu_count()}
    more |= {"loadavg": os.getloadavg()[0], "left_out": left_out}
    return {key: found[key] for key in keys} | {"more": more}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rough answer, in less than a minute")
    parser.add_argument("--on", choices=list(OPENERS), nargs="+", default=list(OPENERS), help="which stores")
    parser.add_argument("--json", type=Path, metavar="PATH", default=OUT, help="where to; default: out/state.json")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    asked = parser.parse_args(argv)
    effort = QUICK if asked.quick else FULL
    try:
        with places(asked.on) as (made, absent), progress(len(PARTS)) as step:
            found, left_out = asyncio.run(run(made, absent, effort, step))
    except StoreError as error:
        print(f"bench-state: {error}", file=sys.stderr)
        return 2
    missed = show(TITLE, ROWS, found)
    for line in left_out:
        print(f"left out: {line}")
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(as_json(found, left_out), indent=2) + "\n", "utf-8")
    print(f"written: {asked.json}")
    print(f"{len(missed)} targets missed" if missed else "all targets met")
    return 1 if missed and asked.strict else 0


if __name__ == "__main__":
    sys.exit(main())
