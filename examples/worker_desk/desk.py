"""The application of the submitting process and of every worker: two tools, a bank, and a hook that logs calls.

The bank is the external system: each payment is a line in an append-only file that all processes share. After any
crash, that file shows how often each order was refunded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from callgate import (
    Effects,
    Gate,
    Hook,
    InvokeContext,
    Jobs,
    Provide,
    ToolContext,
    ToolError,
    User,
    tool,
)
from callgate.hooks import Authorize, permit
from callgate.jobs import EmbeddedJobs
from callgate.runtime.options.job_engine import JobBackend
from examples.order_desk.desk import AppContainer, open_db
from examples.order_desk.tools import Database, OrderId, Reason, get_order

STORE, FOLDER, KEY = "WORKER_DESK_STORE", "WORKER_DESK_FOLDER", "WORKER_DESK_KEY"
"""Environment variables for a worker: its store, the folder of the run, and the key that signs jobs."""

LEASE = 4.0
"""The lease of a job in seconds (default: 60). After it, the jobs of a dead worker are delivered again."""

MAX, CARL = User("max", "acme", roles={"manager"}), User("carl", "acme", roles={"clerk"})
TOTAL = 9_900
"""The price of every order of the run, in cents."""


class Bank:
    """A bank that confirms with a delay, so that a worker can be killed between a payment and its record."""

    answers_in = 0.03

    def __init__(self, folder: Path) -> None:
        self.file = folder / "bank"

    async def pay(self, order: str, cents: int) -> None:
        """Record a payment."""
        append(self.file, f"{order} {cents}")
        await asyncio.sleep(self.answers_in)

    def paid(self) -> list[str]:
        """Return the orders of all payments; an order paid twice appears twice."""
        return [line.split()[0] for line in self.file.read_text().splitlines()] if self.file.exists() else []


@tool(effect="irreversible", key=("order_id",), tags={"money"})
async def refund(
    order_id: OrderId,
    cents: Annotated[int, Field(ge=1)],
    reason: Reason,
    *,
    db: Database,
    bank: Annotated[Bank, Provide[Bank]],
    ctx: ToolContext,
) -> str:
    """Give money back for an order, once. It cannot be taken back."""
    asked = "select total_cents from orders where id = ? and tenant = ?"
    found = db.execute(asked, (order_id, ctx.tenant)).fetchone()
    if found is None or cents > found[0]:
        raise ToolError("No more can go back than the order cost.", no_effect=True)
    await bank.pay(order_id, cents)
    return f"{cents} cents are on their way back"


class Tell(Hook):
    """A hook that logs the start and the end of each call, one line each, in a file per process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def did_create_invoke_context(self, ctx: InvokeContext) -> None:
        append(self.folder / f"calls.{os.getpid()}", f"+ {ctx.tool.name}")

    def will_finalize_invoke(self, ctx: InvokeContext) -> None:
        append(self.folder / f"calls.{os.getpid()}", f"- {ctx.tool.name} {ctx.outcome}")


def append(path: Path, line: str) -> None:
    """Append to a shared file in one write."""
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(number, f"{line}\n".encode())
    finally:
        os.close(number)


def take_orders(folder: Path, orders: Sequence[str]) -> None:
    """Fill the desk's database."""
    rows = [(id, "acme", "2026-03-02T09:15:00+00:00", TOTAL, "Am Markt 4", "28195", "DE") for id in orders]
    for db in open_db(str(folder / "desk.db")):
        with db:
            db.executemany("insert or replace into orders values (?, ?, ?, ?, ?, ?, ?)", rows)


def engine(store: str) -> JobBackend:
    """Return Procrastinate on PostgreSQL; elsewhere the embedded engine, without a worker in this process."""
    if not store.startswith("postgresql"):
        return EmbeddedJobs(0)
    from callgate.runtime.hosts.procrastinate import ProcrastinateJobs

    return ProcrastinateJobs()


def desk(store: str, folder: Path, key: str) -> Gate:
    """Make the gate of one process."""
    container = AppContainer()
    container.config.db.from_value(str(folder / "desk.db"))
    return Gate(
        [get_order, refund],
        [
            Authorize(
                permit("staff-works-here", tags={"orders"}, roles={"clerk", "manager"}),
                permit("managers-refund", tags={"money"}, roles={"manager"}),
            ),
            Tell(folder),
        ],
        container=container,
        provide={Bank: Bank(folder)},
        store=store,
        signing_keys=[key],
        jobs=Jobs(engine=engine(store), lease=LEASE, backoff=0.2),
        effects=Effects(lease=LEASE),
    )


def worker() -> Gate:
    """Make the gate for ``callgate worker --app examples.worker_desk.desk:worker``."""
    return desk(os.environ[STORE], Path(os.environ[FOLDER]), os.environ[KEY])
