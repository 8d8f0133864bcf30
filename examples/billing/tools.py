"""The three tools. Each call has a transaction of its own, and uses only the rows of its user's tenant."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from callgate import Approval, Provide, ToolContext, ToolError, tool
from examples.billing.database import Billing, Customer, Invoice, Mail

Cents = Annotated[int, Field(ge=1)]
InvoiceId = Annotated[str, Field(pattern="^I-[0-9]{4}$", description="Such as I-1001.")]
Level = Literal["first", "last"]
Session = Annotated[AsyncSession, Provide[Billing.session]]


class Found(BaseModel, from_attributes=True):
    id: str
    customer_id: str
    cents: int
    paid: bool
    refunded: int


def over_100_euros(arguments: dict[str, int]) -> Approval | None:
    rule = Approval(roles={"lead"}, reason="A lead approves refunds over 100 euros.")
    return rule if arguments["cents"] > 10_000 else None


@tool(effect="read", tags={"billing"})
async def find_invoices(customer: str | None = None, *, session: Session, ctx: ToolContext) -> list[Found]:
    """List the invoices of all customers, or of the customer with this id."""
    wanted = select(Invoice).join(Customer).where(Customer.tenant == ctx.tenant).order_by(Invoice.id).limit(100)
    if customer is not None:
        wanted = wanted.where(Customer.id == customer)
    return [Found.model_validate(row) for row in await session.scalars(wanted)]


@tool(effect="irreversible", key=("invoice_id",), requires_approval=over_100_euros, tags={"billing"})
async def refund_invoice(invoice_id: InvoiceId, cents: Cents, *, session: Session, ctx: ToolContext) -> str:
    """Refund a paid invoice, once."""
    of_tenant = select(Customer.id).where(Customer.tenant == ctx.tenant)
    mine = update(Invoice).where(Invoice.id == invoice_id, Invoice.customer_id.in_(of_tenant), Invoice.paid)
    covered = mine.where(Invoice.refunded + cents <= Invoice.cents)  # checked and written by one statement
    change = covered.values(refunded=Invoice.refunded + cents).returning(Invoice.id)
    if (await session.execute(change)).first() is None:
        raise ToolError("No paid invoice of this id covers the amount.", code="not_refundable")
    return f"{cents} cents of {invoice_id} are refunded"


@tool(effect="irreversible", key=("invoice_id", "level"), tags={"billing"})
async def send_reminder(invoice_id: InvoiceId, level: Level, *, session: Session, ctx: ToolContext) -> str:
    """Remind a customer of an unpaid invoice, once at each level."""
    unpaid = select(Invoice, Customer).join(Customer).where(Invoice.id == invoice_id, Invoice.paid.is_(False))
    if (found := (await session.execute(unpaid.where(Customer.tenant == ctx.tenant))).first()) is None:
        raise ToolError("No unpaid invoice has this id.", code="nothing_due")
    invoice, customer = found
    session.add(Mail(recipient=customer.email, text=f"The {level} reminder: {invoice.cents} cents for {invoice.id}."))
    return f"the {level} reminder of {invoice_id} is in the outbox"
