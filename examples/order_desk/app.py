"""The assembled desk: container, gate, and a run over the responses of a morning."""

from __future__ import annotations

import argparse
import asyncio
import io
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callgate import Effects, Gate, configure_logging
from callgate.errors import StoreError
from callgate.hooks import Concurrency
from examples.order_desk.answers import ANSWERS, MAX, TRACED, Then
from examples.order_desk.deeds import audited, deeds, recorded
from examples.order_desk.desk import CARRIER_KEY, AppContainer, Carriers
from examples.order_desk.exchange import Exchange, exchange
from examples.order_desk.hooks import Policies, policies
from examples.order_desk.recorded import read_recording, replay
from examples.order_desk.report import Report
from examples.order_desk.telemetry import Telemetry
from examples.order_desk.tools import TOOLS
from examples.order_desk.trouble import Trouble


@dataclass(frozen=True)
class OrderDesk:
    """A desk that is ready to open: its database is open, its gate is closed."""

    gate: Gate
    policies: Policies
    telemetry: Telemetry
    db: sqlite3.Connection


def order_desk(container: AppContainer, store: str | None = None) -> OrderDesk:
    """Make one gate of tools, hooks and dependencies. The hooks keep data that outlives a call in *store*."""
    telemetry = Telemetry.in_memory()
    chosen = policies(telemetry)
    gate = Gate(
        tools=TOOLS,
        hooks=chosen.hooks,
        container=container,
        provide={Carriers: Carriers},
        store=store,
        effects=Effects(durable=store is not None),
    )
    return OrderDesk(gate, chosen, telemetry, container.db())


async def run(desk: OrderDesk, report: Report) -> None:
    """Send every response to the gate, in sequence, and report the outcomes of the calls."""
    done: list[Exchange] = []
    logged: list[Mapping[str, Any]] = []
    configure_logging(logged.append)  # without a sink, exceptions go to stderr
    try:
        async with desk.gate:
            for answer in ANSWERS:
                trace = answer is TRACED
                done.append(await exchange(desk.gate, answer.wire, answer.response, answer.user, trace=trace))
                await happens(answer.then, desk.policies)
            await all_given_back(desk.policies.concurrency)
    finally:
        configure_logging()
    passed = [one for each in done for one in each.passed]
    audit, effects = await audited(desk.gate.store), await recorded(desk.gate.store)
    shown = done[ANSWERS.index(TRACED)]
    call = max(shown.passed, key=lambda one: len(one.result.trace or ()))  # the call with the most stages
    outside = [*desk.telemetry.spans(), *(str(each.messages) for each in done)]
    report.tools(desk.gate)
    report.calls([(each.passed, answer.then) for each, answer in zip(done, ANSWERS, strict=True)], audit)
    report.deeds(deeds(passed, audit, CARRIER_KEY, outside))
    report.trace(call)
    report.plan(desk.gate.explain(call.result.tool, user=call.user))
    report.messages(call.wire, shown.messages)
    report.audit(audit, ["toolu_move", "toolu_forbidden", call.result.call_id])
    report.ledger(effects)
    report.exceptions(logged)
    report.metrics(desk.telemetry)
    report.books(desk.db, places_held=desk.policies.concurrency.in_use())
    report.summary(passed)


async def happens(then: Then | None, policies: Policies) -> None:
    """Run the events at the desk after a response."""
    match then:
        case Then.MAX_AGREES:  # in a service: the signed-in person clicked
            await policies.consent.grant(MAX, "refund")
        case Then.QUOTES_OFF:
            policies.flags["desk.quote_shipping"] = False
        case None:
            pass


async def all_given_back(concurrency: Concurrency, within: float = 2.0) -> None:
    """Wait for threads that outlived their timeout: each holds its permit until it ends."""
    for _ in range(round(within / 0.01)):
        if not concurrency.in_use():
            return
        await asyncio.sleep(0.01)


def run_desk(path: str, store: str | None, report: Report) -> None:
    """Open the database, run, and close it."""
    container = AppContainer()
    container.config.db.from_value(path)
    try:
        asyncio.run(run(order_desk(container, store), report))
    except sqlite3.Error as error:
        raise Trouble(f"the database {path!r} cannot be used: {error}") from error
    except StoreError as error:
        raise Trouble(f"the store cannot be used: {error}") from error
    finally:
        container.shutdown_resources()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 after a run, 2 if the run could not start."""
    parser = argparse.ArgumentParser(prog="order_desk", description="Model answers through one gate.")
    parser.add_argument("--store", metavar="ADDRESS", help="keep audit, quotas, ... there: sqlite:///hooks.db")
    one_of = parser.add_mutually_exclusive_group()
    one_of.add_argument("--input", metavar="FILE", help="a recorded exchange (JSON) to feed to a gate of its tools")
    one_of.add_argument("--db", metavar="FILE", default=":memory:", help="keep the database in a file")
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # replace characters that the terminal cannot encode
    try:
        if options.input is None:
            run_desk(options.db, options.store, Report())
        else:
            asyncio.run(replay(read_recording(Path(options.input)), Report()))
    except Trouble as trouble:
        print(f"order_desk: {trouble}", file=sys.stderr)
        return 2
    return 0
