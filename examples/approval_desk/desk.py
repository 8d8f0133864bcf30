"""The desk behind the page: who works there, the gate, what waits, and what ran. Nothing here knows of HTTP."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from callgate import (
    Approval,
    Audit,
    Authorize,
    Decision,
    EffectRecord,
    Gate,
    NotPending,
    Pending,
    RequireApproval,
    ToolCall,
    ToolResult,
    User,
    permit,
)
from examples.order_desk.desk import AppContainer
from examples.order_desk.tools import Reason, get_order, refund

EIGHT_HOURS = 8 * 3_600.0
SHOWN = 20
ASKED = (
    "create table if not exists asked (handle text primary key, user text not null, at text default current_timestamp)"
)


@dataclass(frozen=True)
class Person:
    """Somebody who works at the desk. Your service knows such people from its sign-in; here they are chosen on a page."""

    user: User
    name: str
    job: str
    does: str

    @property
    def decides(self) -> bool:
        """Whether the page offers to decide. It is the gate that lets them, or does not."""
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
    """One call in the record: who asked for what, how it ended so far, and the receipt of its effect."""

    at: datetime
    call: str
    user: str
    outcome: str
    detail: str
    approved_by: str
    receipt: str | None


class Desk:
    """A gate with one rule: a lead approves what leaves the house."""

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
        """The gate, and the books of the order desk."""
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
        """The orders that a refund may be asked for, with what they cost in cents."""
        asked = "select id, total_cents from orders where tenant = ? order by id"
        return list(self._db.execute(asked, (person.user.tenant,)))

    async def ask(self, person: Person, call_id: str, arguments: dict[str, Any]) -> tuple[ToolResult, Pending | None]:
        """Ask for a refund: the result so far, and the call as it waits."""
        result = await self.gate.call(ToolCall(call_id, "refund", arguments), user=person.user)
        if result.pending is None:
            return result, None
        with self._db as db:  # a handle is as good as a ticket: it stays on the server
            db.execute("insert into asked (handle, user) values (?, ?)", (result.pending.handle, person.user.id))
        return result, await self.gate.waits.look(result.pending.handle, person.user)

    async def waiting(self, person: Person) -> list[Pending]:
        """What this person may decide; of somebody who decides nothing, what they have asked for."""
        if person.decides:
            return await self.gate.waits.pending(person.user)
        found: list[Pending] = []
        asked = "select handle from asked where user = ? order by at, handle"
        for (handle,) in self._db.execute(asked, (person.user.id,)).fetchall():
            try:
                found.append(await self.gate.waits.look(handle, person.user))
            except NotPending:  # decided, lapsed or withdrawn: it is in the record
                with self._db as db:
                    db.execute("delete from asked where handle = ?", (handle,))
        return found

    async def order_of(self, person: Person, waits: Pending) -> str:
        """What whoever decides should know of the order, read through the gate, as this person may."""
        asked = {"order_id": (waits.arguments or {}).get("order_id")}
        result = await self.gate.call(ToolCall("", "get_order", asked), user=person.user)
        if result.error is not None:
            return result.error.public
        order = result.output
        return f"{euros(order['total_cents'])}, placed {order['placed_at'][:10]}, to {order['address']['country']}"

    async def decide(self, person: Person, handle: str, decision: Decision) -> ToolResult:
        """Decide: whatever process asked, and whether or not it still lives."""
        return await self.gate.resume(handle, decision, approver=person.user)

    async def withdraw(self, person: Person, handle: str) -> None:
        """Take a request back."""
        await self.gate.waits.withdraw(handle, person.user)

    async def record(self, person: Person) -> list[Entry]:
        """The last refunds that somebody asked for, from the audit record and the ledger of effects."""
        tenant = person.user.tenant or ""
        effects = {one.request_id: one for _, one in await self.gate.store.effects.list(tenant, tool="refund")}
        rows: dict[str, Any] = {}
        async for row in self.gate.store.audit.read(tenant):
            if row.body["kind"] == "outcome" and row.body["tool"] == "refund":
                rows.pop(row.body["request_id"], None)
                rows[row.body["request_id"]] = row.body  # the last word about a request
        newest = list(rows.items())[: -SHOWN - 1 : -1]
        return [_entry(body, effects.get(request_id)) for request_id, body in newest]


def _entry(body: dict[str, Any], effect: EffectRecord | None) -> Entry:
    outcome, detail = body["outcome"], body.get("reason") or ""
    if outcome == "suspended":
        outcome, detail = "asked", ""  # whether it waits still, the list of what waits says
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
    """Cents as people read them; what is no number stays what it is."""
    return f"{cents / 100:,.2f} €" if isinstance(cents, int) else str(cents)


def _spelled(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments.items())
