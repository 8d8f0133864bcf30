"""A run: submit calls to two workers, kill one of them, and count the outcomes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from callgate import Gate, ToolCall, User
from callgate.errors import StoreError
from callgate.stores import JobState
from examples.order_desk.trouble import Trouble
from examples.worker_desk.desk import CARL, MAX, TOTAL, Bank, desk, take_orders
from examples.worker_desk.places import Place, place
from examples.worker_desk.tally import Asked, Tally, tally
from examples.worker_desk.view import View, view
from examples.worker_desk.workers import Worker, Workers

LOOK = 0.1
"""Seconds between two polls."""


@dataclass
class Run:
    """The state of one run."""

    calls: int
    gate: Gate
    workers: Workers
    view: View
    asked: list[Asked] = field(default_factory=list)
    done: int = 0

    async def submit(self) -> None:
        """Submit the calls: every second one is a refund; some exceed the order, and some callers lack the role."""
        orders = iter(_orders(self.calls))
        await asyncio.gather(*(self._submit_some(orders) for _ in range(4)))
        self.view.say(f"all {self.calls} calls are written down")

    async def _submit_some(self, orders: Any) -> None:
        for number, order in orders:
            user, call = _call(number, order)
            job = await self.gate.submit(call, user=user, key=call.id)
            self.asked.append(Asked(call.name, order, job))

    async def begin(self) -> None:
        """Start two workers."""
        two = [self._one_more(), self._one_more()]
        while any(worker.state == "starts" for worker in two):
            await self.look()
            await asyncio.sleep(LOOK)

    async def watch(self) -> None:
        """Poll until all calls have ended; after a third of them, kill a busy worker and start another."""
        killed = False
        while self.done < self.calls:
            await self.look()
            if not killed and self.done * 3 >= self.calls:
                killed = self._kill_one()
            await asyncio.sleep(LOOK)
        await self.look()
        if not killed:
            self.view.say("no worker was killed: none was in the middle of something after a third of the calls")

    def _kill_one(self) -> bool:
        victim = max(self.workers.all, key=lambda worker: worker.running)
        if not victim.running:
            return False
        victim.kill()
        self.view.say(f"worker {victim.number} was killed; it was running {victim.running} calls")
        self._one_more()
        return True

    def _one_more(self) -> Worker:
        worker = self.workers.begin()
        self.view.say(f"worker {worker.number} begins, pid {worker.process.pid}")
        return worker

    async def look(self) -> None:
        """Poll the run and show its state."""
        counted = await self.gate.store.jobs.count()
        self.done = sum(counted[state] for state in (JobState.DONE, JobState.DEAD, JobState.CANCELLED))
        for worker in self.workers.all:
            for what in worker.news():
                self.view.ended(worker, what)
        self.view.show(self.done, self.workers.all)


def _orders(calls: int) -> list[tuple[int, str]]:
    """Return one order per call."""
    return [(n, f"{chr(ord('A') + n // 10_000)}-{n % 10_000:04d}") for n in range(calls)]


def _call(number: int, order: str) -> tuple[User, ToolCall]:
    if number % 2 == 0:
        return CARL, ToolCall(id=f"call-{number}", name="get_order", arguments={"order_id": order})
    cents = 2 * TOTAL if number % 50 == 1 else TOTAL // 3
    user = CARL if number % 40 == 3 else MAX
    return user, ToolCall(
        id=f"call-{number}", name="refund", arguments={"order_id": order, "cents": cents, "reason": "late"}
    )


async def run(where: Place, calls: int, limit: float) -> Tally:
    """Run everything and return the tally. All processes end, also after an error."""
    key = secrets.token_hex(32)
    take_orders(where.folder, [order for _, order in _orders(calls)])
    async with contextlib.AsyncExitStack() as stack:
        gate = await stack.enter_async_context(desk(where.store, where.folder, key))
        workers = await stack.enter_async_context(Workers(where, key))
        shown = stack.enter_context(view(calls))
        shown.say(f"{calls} calls for two workers: {where.called}")
        one = Run(calls, gate, workers, shown)
        await one.begin()
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(one.submit(), one.watch())
        except TimeoutError:
            shown.say(f"not done after {limit:.0f} s")
        return await tally(gate, one.asked, Bank(where.folder), time.monotonic() - began)


async def _until_told(where: Place, calls: int, limit: float) -> Tally:
    """Execute ``run``; SIGTERM ends it as Ctrl-C does."""
    task = asyncio.ensure_future(run(where, calls, limit))
    with contextlib.suppress(NotImplementedError):  # on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 without lost or repeated effects, 1 otherwise, 2 if the run could not start."""
    parser = argparse.ArgumentParser(prog="worker_desk", description="Two workers, one is killed, and nothing is lost.")
    parser.add_argument("--calls", type=int, default=500, metavar="N", help="how many; default 500")
    parser.add_argument(
        "--on", choices=["auto", "postgresql", "sqlite"], default="auto", help="default: PostgreSQL where it answers"
    )
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help="give up after; default 300")
    asked = parser.parse_args(arguments)
    if not 1 <= asked.calls <= 100_000 or not asked.limit > 0:
        parser.error("--calls is 1 to 100000, --limit above 0")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # replace characters that the terminal cannot encode
    try:
        with place(asked.on) as where:
            found = asyncio.run(_until_told(where, asked.calls, asked.limit))
    except (Trouble, StoreError) as trouble:
        print(f"worker_desk: {trouble}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("worker_desk: ended; its processes and tables are gone", file=sys.stderr)
        return 130
    found.print(Console(highlight=False))
    return 0 if found.is_sound else 1
