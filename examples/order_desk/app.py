"""The desk put together: container, gate, and a run through a morning's answers."""

from __future__ import annotations

import argparse
import asyncio
import io
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from callgate import Effect, Gate
from examples.order_desk.answers import ANSWERS, TRACED
from examples.order_desk.desk import AppContainer, Carriers
from examples.order_desk.exchange import exchange
from examples.order_desk.hooks import Audit, Authorize, Cache, ForgetAfterWrite, Quota, limit_refund
from examples.order_desk.recorded import read_recording, replay
from examples.order_desk.report import Report
from examples.order_desk.tools import TOOLS
from examples.order_desk.trouble import Trouble

GRANTS = {"orders": {"clerk", "manager"}, "stock": {"clerk", "manager"}, "money": {"manager"}}


@dataclass(frozen=True)
class OrderDesk:
    """A desk that is ready to open; the database is open already, the gate is not."""

    gate: Gate
    quota: Quota
    db: sqlite3.Connection


def order_desk(container: AppContainer) -> OrderDesk:
    """Tools, hooks and dependencies, in one gate."""
    reads = {tool.definition.name for tool in TOOLS if tool.definition.effect is Effect.READ}
    writes = {tool.definition.name for tool in TOOLS} - reads
    quota, cache = Quota(at_once=3), Cache(reads)
    gate = Gate(
        tools=TOOLS,
        hooks=[Authorize(GRANTS), limit_refund, quota, cache, ForgetAfterWrite(cache, writes), Audit()],
        container=container,
        provide={Carriers: Carriers},
        deadline=2,
    )
    return OrderDesk(gate, quota, container.db())


async def run(desk: OrderDesk, report: Report) -> None:
    """Feed every answer to the gate, one after the other, and report what became of the calls."""
    before = desk.db.execute("select count(*) from audit").fetchone()[0]
    done = []
    async with desk.gate:
        for answer in ANSWERS:
            trace = answer is TRACED
            done.append(await exchange(desk.gate, answer.wire, answer.response, answer.user, trace=trace))
        await all_given_back(desk.quota)
    passed = [one for each in done for one in each.passed]
    cached = desk.db.execute("select call_id from audit where cached and rowid > ?", (before,))
    report.tools(desk.gate)
    report.calls(passed, {call_id for (call_id,) in cached})
    shown = done[ANSWERS.index(TRACED)]
    call = max(shown.passed, key=lambda one: len(one.result.trace or ()))  # the one that came furthest
    report.trace(call)
    report.plan(desk.gate.explain(call.result.tool, user=call.user))
    report.messages(call.wire, shown.messages)
    report.books(desk.db, places_held=sum(desk.quota.held.values()))
    report.summary(passed)


async def all_given_back(quota: Quota, within: float = 2.0) -> None:
    """Wait for threads that were left behind after their deadline: they keep their place until they really end."""
    for _ in range(round(within / 0.01)):
        if not any(quota.held.values()):
            return
        await asyncio.sleep(0.01)


def run_desk(path: str, report: Report) -> None:
    """Open the database, run, and close it."""
    container = AppContainer()
    container.config.db.from_value(path)
    try:
        asyncio.run(run(order_desk(container), report))
    except sqlite3.Error as error:
        raise Trouble(f"the database {path!r} cannot be used: {error}") from error
    finally:
        container.shutdown_resources()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: 0 when the run was made, 2 when it could not be."""
    parser = argparse.ArgumentParser(prog="order_desk", description="Model answers through one gate.")
    one_of = parser.add_mutually_exclusive_group()
    one_of.add_argument("--input", metavar="FILE", help="a recorded exchange (JSON) to feed to a gate of its tools")
    one_of.add_argument("--db", metavar="FILE", default=":memory:", help="keep the database in a file")
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character still gets the line
    try:
        if options.input is None:
            run_desk(options.db, Report())
        else:
            asyncio.run(replay(read_recording(Path(options.input)), Report()))
    except Trouble as trouble:
        print(f"order_desk: {trouble}", file=sys.stderr)
        return 2
    return 0
