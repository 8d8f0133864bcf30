"""``make bench-workers``: what it costs that a call is written down and run by a worker, on a PostgreSQL.

Ratios, each taken in rounds in which both sides have their turn, and the median of the rounds; absolute figures serve for
order only. Every job of the run is counted by what its tool noted as it ran: none may be lost, none may run twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import workers_backlog, workers_engine, workers_memory, workers_two
from benchmarks.table import Row, show
from benchmarks.workers_place import NoPostgres, schemas
from callgate.errors import StoreError

OUT = Path(__file__).parent / "out" / "workers.json"
KEYS = ("submit_x_engine", "two_workers_x_one", "cost_spread_1e3_1e5", "lost", "doubled")
TITLE = "Workers: submitted calls, on Procrastinate where nothing else is said"


@dataclass(frozen=True)
class Effort:
    """How long to measure: rounds, and calls in each for each side."""

    submit: tuple[int, int] = (40, 60)
    two: tuple[int, int] = (12, 120)
    backlog: tuple[int, int] = (16, 125)
    few: int = 1_000
    many: int = 100_000
    at_once: int = 500


FULL = Effort()
QUICK = Effort(submit=(10, 60), two=(4, 80), backlog=(6, 100), many=20_000, at_once=200)

_SPREAD = [
    Row(f"spread_{engine}_{clock}", f"{engine}: {clock} a call, 10⁵ jobs waiting over 10³, less 1", form="{:+.3f}")
    for engine in workers_backlog.ENGINES
    for clock in ("cpu", "wall")
]
ROWS = (
    Row("submit_x_engine", "submit to done, times the engine with the same transactions by hand", least=0.85),
    Row("submit_cpu_x_engine", "the same, by the CPU time of this process"),
    Row("submit_calls_s", "calls a second in one process that submits and works, here and now", form="{:.0f}"),
    Row("engine_calls_s", "the same, engine alone", form="{:.0f}"),
    Row("two_workers_x_one", "two workers, times one; 4 at once in each, 20 ms a call", least=1.8),
    Row("one_worker_calls_s", "calls a second of one, here and now (200 at the most)", form="{:.0f}"),
    Row("two_workers_calls_s", "calls a second of two, here and now (400 at the most)", form="{:.0f}"),
    Row(
        "cost_spread_1e3_1e5",
        "a call's cost, 10⁵ jobs waiting over 10³, less 1: the worst below",
        0.15,
        -0.15,
        "{:+.3f}",
    ),
    *_SPREAD,
    *(
        Row(f"{engine}_few_{clock}_ms", f"{engine}: {what} a call that a worker runs, here and now (ms)")
        for engine in workers_backlog.ENGINES
        for clock, what in (("cpu", "CPU"), ("server", "of which in the server:"))
    ),
    Row("waiting_record_kb", "a call that waits: kB in the store"),
    Row("waiting_engine_kb", "the same, in the engine's tables"),
    Row("inflight_kb", "a call that runs: kB in the memory of its worker"),
    Row("worker_mb", "a worker process: MB", form="{:.0f}"),
    Row("lost", "jobs lost", 0, form="{:.0f}"),
    Row("doubled", "jobs that ran twice", 0, form="{:.0f}"),
)


async def run(make: Callable[[], str], effort: Effort, step: Callable[[str], None]) -> dict[str, float]:
    """Measure everything, one after another."""
    levels = {"few": effort.few, "many": effort.many}
    found: dict[str, float] = {"lost": 0.0, "doubled": 0.0}
    for some in (
        workers_engine.measure(make, *effort.submit, lambda: step("submit, and the engine alone")),
        workers_two.measure(make, *effort.two, lambda: step("one worker, and two")),
        workers_memory.measure(make, effort.at_once, lambda: step("memory")),
        workers_backlog.measure(make, levels, *effort.backlog, lambda: step("few jobs waiting, and many")),
    ):
        more = await some
        found |= more | {name: found[name] + more.get(name, 0.0) for name in ("lost", "doubled")}
    return found


def steps_of(effort: Effort) -> int:
    """How often ``run`` says that it has come further."""
    return sum(rounds + 1 for rounds, _ in (effort.submit, effort.two, effort.backlog)) + 2 * len(
        workers_backlog.ENGINES
    )


@contextmanager
def progress(steps: int) -> Generator[Callable[[str], None]]:
    """A bar on a terminal; elsewhere a line for what begins."""
    began, last = time.monotonic(), ""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description:30}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("connecting", total=steps)
            yield lambda what: bar.update(task, description=what, advance=1)
        return

    def tell(what: str) -> None:
        nonlocal last
        if what != last:
            print(f"{time.monotonic() - began:4.0f} s  {what}", file=sys.stderr, flush=True)
        last = what

    yield tell


def as_json(found: dict[str, float]) -> dict[str, Any]:
    """The file: the headline figures, and ``more``."""
    more: dict[str, Any] = {key: value for key, value in found.items() if key not in KEYS}
    more |= {"python": f"{platform.python_implementation()} {platform.python_version()}", "cpus": os.cpu_count()}
    more |= {"loadavg": os.getloadavg()[0]}
    return {key: found[key] for key in KEYS} | {"more": more}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rough answer, in less than a minute")
    parser.add_argument("--json", type=Path, metavar="PATH", default=OUT, help="where to; default: out/workers.json")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    asked = parser.parse_args(argv)
    effort = QUICK if asked.quick else FULL
    try:
        with schemas() as make, progress(steps_of(effort)) as step:
            found = asyncio.run(run(make, effort, step))
    except (NoPostgres, StoreError) as error:
        print(f"bench-workers: {error}", file=sys.stderr)
        return 2
    missed = show(TITLE, ROWS, found)
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(as_json(found), indent=2) + "\n", "utf-8")
    print(f"written: {asked.json}")
    print(f"{len(missed)} targets missed" if missed else "all targets met")
    return 1 if missed and asked.strict else 0


if __name__ == "__main__":
    sys.exit(main())
