"""``make bench-simulation``: does a simulation of the state layer reproduce what is measured, and what does it plan?

The simulation knows the parts of a call: CPU of the process and of the database, flushes of the log and their
bandwidth, and round trips. Each is measured on its own. It predicts the throughput of callers, over a network, and with
two processes, each of which is then measured. It never sees a throughput. At the end it plans 10,000 effectful calls a
second with ``Audit``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.simulation_model import Parts, Site, plan, simulate
from benchmarks.simulation_parts import NoCounters, learn, learn_lite, trips_of
from benchmarks.state_place import Make, drive, paying, paying_on, places, store_of
from benchmarks.state_way import delayed
from benchmarks.workers import progress

OUT = Path(__file__).parent / "out" / "simulation.json"
LIMIT = 0.2
"""The largest difference from the measurement, as a part of it."""
ROUNDS = 5
DELAY_S = 0.005
WANTED = 10_000
PLAN_TRIP_S = 0.0005
CONNECTIONS = 15
"""Of each process; see docs/how-to/choose-a-store.md."""
DAY_S = 86_400


@dataclass(frozen=True)
class Line:
    """A prediction and its measurement, in calls a second."""

    name: str
    predicted: float
    measured: float


@dataclass(frozen=True)
class Rows:
    """Bytes of one call in PostgreSQL: of the write-ahead log, of the audit log and of the ledger with their indices."""

    wal: float
    audit: float
    effects: float


def differs(predicted: float, measured: float) -> bool:
    """Return whether a prediction is too far from the measurement."""
    return abs(predicted - measured) > LIMIT * measured


async def measured(address: str, callers: int) -> float:
    """Return calls a second of one process."""
    async with paying(address) as call:
        await drive(call, callers, max(callers, 50))
        return median([(await drive(call, callers, max(300, callers * 8))).calls_s for _ in range(ROUNDS)])


async def by_processes(address: str, processes: int, callers: int) -> float:
    """Return calls a second of several processes on one store; each says when it is ready, and all start at once."""
    command = (sys.executable, "-m", "benchmarks.simulation", "--worker", address, str(callers))
    pipe = asyncio.subprocess.PIPE
    started = [await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(processes)]
    try:
        async with asyncio.timeout(60):
            for one in started:
                assert one.stdout is not None
                await one.stdout.readline()
            answers = await asyncio.gather(*(one.communicate(b"go\n") for one in started))
            return sum(float(answer[0]) for answer in answers)
    finally:
        for one in started:
            if one.returncode is None:
                one.kill()


async def work(address: str, callers: int) -> None:
    """One process of several: wait for the word, and print calls a second."""
    async with paying(address) as call:
        await drive(call, callers, callers)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print((await drive(call, callers, 2_000)).calls_s, flush=True)


async def bytes_of(address: str) -> Rows:
    """Measure what one call adds to PostgreSQL."""
    store = store_of(address)
    async with paying_on(store) as call:
        await drive(call, 16, 500)
        before = await _sizes(store)
        await drive(call, 64, 3_000)
        after = await _sizes(store)
    return Rows(*((late - early) / 3_000 for early, late in zip(before, after, strict=True)))


async def _sizes(store: Any) -> tuple[float, ...]:
    from callgate.providers.stores.sql.database.part import statement

    asked = (
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0'), "
        "pg_total_relation_size('callgate_audit'), pg_total_relation_size('callgate_effects')"
    )
    return tuple(float(one) for one in (await store._database.rows(statement(asked), {}))[0])


async def on_postgres(make: Make, step: Any, *, checked: bool) -> tuple[list[Line], tuple[Parts, Rows]]:
    """Predict and measure on PostgreSQL, if *checked*; return the parts and the bytes of a call too."""
    step("parts on PostgreSQL")
    trips, trip = await trips_of(make(), DELAY_S)
    parts = replace(await learn(make()), trips=trips)
    lines = await _checked(parts, trip, make, step) if checked else []
    step("bytes of a call")
    return lines, (parts, await bytes_of(make()))


async def _checked(parts: Parts, trip: float, make: Make, step: Any) -> list[Line]:
    lines = []
    for callers in (1, 4, 16, 64):
        step(f"PostgreSQL, {callers} callers")
        predicted = simulate(parts, Site(callers)).calls_s
        lines.append(Line(f"PostgreSQL, {callers} callers", predicted, await measured(make(), callers)))
    step("two processes")
    predicted = simulate(parts, Site(32, processes=2)).calls_s
    lines.append(Line("PostgreSQL, 2 processes of 32 callers", predicted, await by_processes(make(), 2, 32)))
    for callers in (16, 64):
        step(f"10 ms away, {callers} callers")
        with delayed(make(), DELAY_S) as far:
            predicted = simulate(parts, Site(callers, trip=trip)).calls_s
            lines.append(Line(f"PostgreSQL 10 ms away, {callers} callers", predicted, await measured(far, callers)))
    return lines


async def on_sqlite(make: Make, step: Any) -> list[Line]:
    """Predict and measure on SQLite."""
    step("parts on SQLite")
    parts = replace(await learn_lite(make()), trips=1.0)
    lines = []
    for callers in (1, 16, 64):
        step(f"SQLite, {callers} callers")
        predicted = simulate(parts, Site(callers)).calls_s
        lines.append(Line(f"SQLite, {callers} callers", predicted, await measured(make(), callers)))
    return lines


def show(lines: list[Line]) -> int:
    """Print predictions beside measurements. Return the number of those that are too far off."""
    print(f"{'calls a second':<42}{'predicted':>10}{'measured':>10}{'difference':>12}")
    for one in lines:
        mark = "  too far" if differs(one.predicted, one.measured) else ""
        share = one.predicted / one.measured - 1
        print(f"{one.name:<42}{one.predicted:>10.0f}{one.measured:>10.0f}{share:>11.0%} {mark}")
    return sum(differs(one.predicted, one.measured) for one in lines)


def show_plan(parts: Parts, rows: Rows) -> dict[str, Any]:
    """Print the plan for many calls a second, by the cores of the database; return it."""
    print(f"\nA plan for {WANTED:,} effectful calls a second with Audit, {PLAN_TRIP_S * 1e3:g} ms from the database:")
    plans: dict[str, Any] = {}
    for cores in (4, 8, 16, 32):
        found = plan(parts, WANTED, trip=PLAN_TRIP_S, server_cores=cores)
        if found is None:
            print(f"  {cores} cores of the database: not reached; its CPU or its disk is the limit")
            continue
        site, answer = found
        plans[str(cores)] = {"processes": site.processes, **asdict(answer)}
        print(
            f"  {cores} cores of the database: {site.processes} processes, {site.processes * CONNECTIONS} connections; "
            f"a process uses {answer.process_share:.0%} of its core, the database {answer.server_share:.0%}, "
            f"its disk {answer.log_share:.0%}"
        )
    daily = {key: value * WANTED * DAY_S / 1e12 for key, value in asdict(rows).items()}
    print(
        f"  the log of the database: {rows.wal * WANTED / 1e6:.0f} MB a second; one chain of audit rows for each process"
    )
    print(
        f"  a day: {daily['audit']:.1f} TB of audit rows ({2 * WANTED * DAY_S / 1e9:.1f} billion), {daily['effects']:.1f} TB of effects"
    )
    return {"by_server_cores": plans, "bytes_a_call": asdict(rows), "terabytes_a_day": daily}


async def run(kinds: list[str], *, checked: bool) -> int:
    lines: list[Line] = []
    written: dict[str, Any] = {}
    learned: tuple[Parts, Rows] | None = None
    with places(kinds) as (made, absent), progress(13 if checked else 2) as step:
        if "postgresql" in made:
            try:
                found, learned = await on_postgres(made["postgresql"], step, checked=checked)
                lines += found
            except NoCounters as error:
                absent["postgresql"] = str(error)
        if "sqlite" in made and checked:
            lines += await on_sqlite(made["sqlite"], step)
    wrong = show(lines) if checked else 0
    if learned is not None:
        written = {"parts": asdict(learned[0]), "plan": show_plan(*learned)}
    for kind in sorted(set(kinds) & set(absent)):
        print(f"left out: {absent[kind]}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"lines": [asdict(one) for one in lines], **written}, indent=2) + "\n", "utf-8")
    print(f"written: {OUT}")
    if checked:
        print(
            f"{wrong} of {len(lines)} predictions are more than {LIMIT:.0%} off" if wrong else f"all within {LIMIT:.0%}"
        )
    return 1 if wrong or (checked and not lines) else 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--on", choices=["postgresql", "sqlite"], nargs="+", default=["postgresql", "sqlite"])
    parser.add_argument("--plan", action="store_true", help="measure the parts and plan; check no prediction")
    parser.add_argument("--worker", nargs=2, metavar=("ADDRESS", "CALLERS"), help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.worker:
        asyncio.run(work(asked.worker[0], int(asked.worker[1])))
        return 0
    return asyncio.run(run(asked.on, checked=not asked.plan))


if __name__ == "__main__":
    sys.exit(main())
