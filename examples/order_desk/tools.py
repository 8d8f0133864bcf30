"""The six tools, at least one of each effect. They remain plain functions: tests call them without a gate."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from callgate import Provide, ToolContext, ToolError, tool
from examples.order_desk.desk import AppContainer, Carrier, Carriers

OrderId = Annotated[str, Field(pattern="^[A-Z]-[0-9]{4}$", description="Such as A-1001.")]
Database = Annotated[sqlite3.Connection, Provide[AppContainer.db]]  # a provider of the container
CarrierServices = Annotated[Carriers, Provide[Carriers]]  # a plain token: Gate(provide={Carriers: ...})
CarrierKey = Annotated[str, Provide["carrier_key"]]  # a secret: the hook Secrets binds it


class Country(StrEnum):
    """Countries that the desk delivers to."""

    DE = "DE"
    ES = "ES"
    FR = "FR"
    IT = "IT"


class Reason(StrEnum):
    """The reason of a refund."""

    DAMAGED = "damaged"
    LATE = "late"
    RETURNED = "returned"


class Warehouse(StrEnum):
    """The warehouse of the goods. The connection to ``north`` is unreliable today."""

    MAIN = "main"
    NORTH = "north"


ANSWERS_IN = {Warehouse.MAIN: 0.01, Warehouse.NORTH: 5.0}  # seconds


@dataclass(frozen=True)
class Address:
    """The address of a delivery."""

    street: str
    postcode: str
    country: Country


@dataclass(frozen=True)
class Order:
    """An order as the model sees it."""

    id: str
    placed_at: datetime
    total_cents: int
    address: Address


@dataclass(frozen=True)
class Reservation:
    """Goods put aside."""

    order_id: str
    sku: str
    quantity: int
    until: datetime


@dataclass(frozen=True)
class Quote:
    """A price for a parcel."""

    cents: int
    days: int


@tool(effect="read", tags={"orders"})
async def get_order(order_id: OrderId, *, db: Database, ctx: ToolContext) -> Order:
    """Look up one order: when it was placed, what it cost, where it goes."""
    row = _order(db, order_id, ctx.tenant)
    _, _, placed_at, total_cents, street, postcode, country = row
    return Order(order_id, datetime.fromisoformat(placed_at), total_cents, Address(street, postcode, Country(country)))


@tool(effect="idempotent", tags={"orders"})
async def set_address(order_id: OrderId, address: Address, *, db: Database, ctx: ToolContext) -> Address:
    """Change where an order goes. Doing it twice changes nothing more."""
    _order(db, order_id, ctx.tenant)
    with db:
        db.execute(
            "update orders set street = ?, postcode = ?, country = ? where id = ? and tenant = ?",
            (address.street, address.postcode, address.country, order_id, ctx.tenant),
        )
    return address


@tool(effect="keyed", key=("order_id", "sku"), tags={"stock"}, deadline=0.2)
async def reserve_stock(
    order_id: OrderId,
    sku: str,
    quantity: Annotated[int, Field(ge=1, le=100)],
    until: datetime,
    warehouse: Warehouse = Warehouse.MAIN,
    *,
    db: Database,
    ctx: ToolContext,
) -> Reservation:
    """Put goods aside for an order.

    Args:
        order_id: The order they are for.
        sku: What to put aside.
        quantity: How many.
        until: When they go back on the shelf, with a time zone.
        warehouse: Where to look.
    """
    _order(db, order_id, ctx.tenant)
    await asyncio.sleep(ANSWERS_IN[warehouse])  # the warehouse confirms
    wanted = (order_id, sku, quantity, until.isoformat())
    try:  # the ledger answers repeats before this line; the table's key also stops other writers
        with db:
            if db.execute("insert or ignore into reservations values (?, ?, ?, ?)", wanted).rowcount:
                taken = db.execute("update stock set free = free - ? where sku = ?", (quantity, sku)).rowcount
                if not taken:
                    raise ToolError(f"There is no {sku} in the catalogue.")
    except sqlite3.IntegrityError:
        raise ToolError(f"There are not enough of {sku} in stock.", code="out_of_stock") from None
    return Reservation(order_id, sku, quantity, until)


@tool(effect="irreversible", key=("order_id",), tags={"money"}, parallel=False)  # the policies authorise the caller
async def refund(
    order_id: OrderId, cents: Annotated[int, Field(ge=1)], reason: Reason, *, db: Database, ctx: ToolContext
) -> dict[str, str]:
    """Give money back for an order, once. It cannot be taken back."""
    *_, total_cents, _, _, _ = _order(db, order_id, ctx.tenant)
    if cents > total_cents:
        raise ToolError(f"The order cost {total_cents} cents; no more than that can go back.")
    try:
        with db:
            db.execute("insert into refunds values (?, ?, ?, ?)", (order_id, cents, reason, ctx.user.id))
    except sqlite3.IntegrityError:
        raise ToolError("This order was refunded before.", code="refunded_before") from None
    return {"order_id": order_id, "status": f"{cents} cents are on their way back"}


@tool(tags={"carriers"})
def quote_shipping(
    weight_kg: Annotated[float, Field(gt=0, le=100)],
    country: Country,
    carrier: Carrier = Carrier.SWIFT,
    *,
    carriers: CarrierServices,
) -> Quote:
    """Ask a carrier what a parcel costs. Its client blocks, so this is a plain function: it runs in a worker thread."""
    cents, days = carriers.ask(carrier, weight_kg)
    return Quote(cents if country is Country.DE else cents * 2, days)


@tool(effect="read", tags={"carriers"})
async def track_parcel(
    parcel: Annotated[str, Field(pattern="^P-[0-9]{4}$", description="Such as P-7001.")],
    carrier: Carrier = Carrier.SWIFT,
    *,
    carriers: CarrierServices,
    key: CarrierKey,
) -> str:
    """Track a parcel."""
    return "\n".join(reversed(await carriers.scans(carrier, parcel, key)))


TOOLS = (get_order, set_address, reserve_stock, refund, quote_shipping, track_parcel)


def _order(db: sqlite3.Connection, order_id: str, tenant: str | None) -> tuple[str, str, str, int, str, str, str]:
    """Return one order of this tenant; orders of other tenants are reported as missing."""
    found = db.execute("select * from orders where id = ? and tenant = ?", (order_id, tenant)).fetchone()
    if found is None:
        raise ToolError("There is no such order.", code="no_such_order")
    row: tuple[str, str, str, int, str, str, str] = found
    return row
