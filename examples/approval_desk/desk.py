"""The desk behind the page: its people, the gate, suspended calls and the record. It is independent of HTTP."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from callgate import Approval, Decision, Gate, Pending, ToolCall, ToolResult, User
from callgate.errors import NotPending
from callgate.hooks import Audit, Authorize, RequireApproval, permit
from callgate.stores import EffectRecord
from examples.order_desk.desk import AppContainer
from examples.order_desk.tools import Reason, get_order, refund

EIGHT_HOURS = 8 * 3_600.0
SHOWN = 20
ASKED = (
    "create table if not exists asked (handle text primary key, user text not null, at text default current_timestamp)"
)


@dataclass(frozen=True)
class Person:
    """A person at the desk. A service gets its users from authentication; here they are chosen on a page."""

    user: User
    name: str
    job: str
    does: str

    @property
    def decides(self) -> bool:
        """Return True if the page shows the decision buttons. The gate itself authorises each decision."""
        return "lead" in self.user.roles


PEOPLE = {
    person.user.id: person
    for person in (
        Person(User("ann", "acme", roles={"clerk"}), "Ann", "clerk", "asks for refunds"),
        Person(User("lea", "acme", roles={"lead"}), "Lea", "lead", "decides on them"),
    )
}
REASONS = [reason.value for reason in Reason]


@dataclass(frozen=True)
class Entry:
    """One call in the record: the caller, the arguments, the latest outcome, and the receipt of its effect."""

    at: datetime
    call: str
    user: str
    outcome: str
    detail: str
    approved_by: str
    receipt: str | None


class Desk:
    """A gate with one rule: a lead approves each refund."""

    def __init__(self, folder: Path, signing_keys: Sequence[str]) -> None:
        self.container = AppContainer()
        self.container.config.db.from_value(str(folder / "orders.db"))
        self.gate = Gate(
            [get_order, refund],
            [
                Authorize(permit("staff", roles={"clerk", "lead"})),
                RequireApproval(
                    Approval(roles={"lead"}, expires=EIGHT_HOURS, reason="Money leaves the house: a lead looks first."),
                    tools={"refund"},
                ),
                Audit(),
            ],
            container=self.container,
            store=f"sqlite:///{folder / 'gate.db'}",
            signing_keys=signing_keys,
            deadline=10,
        )

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None, None]:
        """Open the gate and the database of the order desk."""
        try:
            with self._db as db:
                db.execute(ASKED)
            async with self.gate:
                yield
        finally:
            self.container.shutdown_resources()

    @property
    def _db(self) -> sqlite3.Connection:
        found: sqlite3.Connection = self.container.db()
        return found

    def orders(self, person: Person) -> list[tuple[str, int]]:
        """Return the orders that can be refunded, with their totals in cents."""
        asked = "select id, total_cents from orders where tenant = ? order by id"
        return list(self._db.execute(asked, (person.user.tenant,)))

    async def ask(self, person: Person, call_id: str, arguments: dict[str, Any]) -> tuple[ToolResult, Pending | None]:
        """Request a refund; return the result so far and the pending call."""
        result = await self.gate.call(ToolCall(id=call_id, name="refund", arguments=arguments), user=person.user)
        if result.pending is None:
            return result, None
        with self._db as db:  # a handle grants access to the call: it stays on the server
            db.execute("insert into asked (handle, user) values (?, ?)", (result.pending.handle, person.user.id))
        return result, await self.gate.waits.look(result.pending.handle, person.user)

    async def waiting(self, person: Person) -> list[Pending]:
        """List the calls that this person may decide; for a person without that right, their own requests."""
        if person.decides:
            return await self.gate.waits.pending(person.user)
        found: list[Pending] = []
        asked = "select handle from asked where user = ? order by at, handle"
        for (handle,) in self._db.execute(asked, (person.user.id,)).fetchall():
            try:
                found.append(await self.gate.waits.look(handle, person.user))
            except NotPending:  # decided, expired or withdrawn: it is in the record
                with self._db as db:
                    db.execute("delete from asked where handle = ?", (handle,))
        return found

    async def order_of(self, person: Person, waits: Pending) -> str:
        """Read the order for the approver, through the gate and with the approver's own rights."""
        asked = {"order_id": (waits.arguments or {}).get("order_id")}
        result = await self.gate.call(ToolCall(id="", name="get_order", arguments=asked), user=person.user)
        if result.error is not None:
            return result.error.public
        order = result.output
        return f"{euros(order['total_cents'])}, placed {order['placed_at'][:10]}, to {order['address']['country']}"

    async def decide(self, person: Person, handle: str, decision: Decision) -> ToolResult:
        """Decide a pending call. The process that suspended it may have ended."""
        return await self.gate.resume(handle, decision, approver=person.user)

    async def withdraw(self, person: Person, handle: str) -> None:
        """Withdraw a request."""
        await self.gate.waits.withdraw(handle, person.user)

    async def record(self, person: Person) -> list[Entry]:
        """List the latest refund requests, from the audit log and the effect ledger."""
        tenant = person.user.tenant or ""
        effects = {one.request_id: one for _, one in await self.gate.store.effects.list(tenant, tool="refund")}
        rows: dict[str, Any] = {}
        async for row in self.gate.store.audit.read(tenant):
            if row.body["kind"] == "outcome" and row.body["tool"] == "refund":
                rows.pop(row.body["request_id"], None)
                rows[row.body["request_id"]] = row.body  # the latest audit row of a request
        newest = list(rows.items())[: -SHOWN - 1 : -1]
        return [_entry(body, effects.get(request_id)) for request_id, body in newest]


def _entry(body: dict[str, Any], effect: EffectRecord | None) -> Entry:
    outcome, detail = body["outcome"], body.get("reason") or ""
    if outcome == "suspended":
        outcome, detail = "asked", ""  # the list of pending calls shows whether it still waits
    if body.get("replayed"):
        detail = "it ran before"
    kept = {} if effect is None or effect.receipt is None else json.loads(effect.receipt)
    receipt = kept.get("output", kept.get("error"))
    return Entry(
        datetime.fromtimestamp(body["at_us"] / 1e6, UTC),
        "not valid, so not written down" if body["input"] is None else _spelled(body["input"]),
        body["user"],
        outcome,
        detail,
        ", ".join(body.get("approved_by", ())),
        None if receipt is None else json.dumps(receipt),
    )


def euros(cents: Any) -> str:
    """Format cents for people; return any other value unchanged."""
    return f"{cents / 100:,.2f} €" if isinstance(cents, int) else str(cents)


def _spelled(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments.items())
