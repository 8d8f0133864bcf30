"""The tables, and the container: an engine for the process, and a transaction for each call."""

from collections.abc import AsyncGenerator
from typing import Annotated

from dependency_injector import containers, providers
from sqlalchemy import ForeignKey, insert, make_url, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from callgate import EffectClaim, Provide, Scoped

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
INVOICES = [("I-1001", 4_200, True), ("I-1002", 25_000, True), ("I-1003", 9_900, False)]
Claim = Annotated[EffectClaim, Provide[EffectClaim]]


class Base(DeclarativeBase): ...


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    email: Mapped[str]


class Invoice(Base):
    __tablename__ = "invoices"
    id: Mapped[str] = mapped_column(primary_key=True)
    customer_id: Mapped[str] = mapped_column(ForeignKey(Customer.id))
    cents: Mapped[int]
    paid: Mapped[bool]
    refunded: Mapped[int] = mapped_column(default=0)


class Mail(Base):  # the outbox: a mail is committed with its call, and sent from here by a mail client
    __tablename__ = "mails"
    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str]
    text: Mapped[str]


async def connect(address: str) -> AsyncGenerator[AsyncEngine]:
    """Open an engine. Create the tables and the first rows if they are missing; in production, migrations do this."""
    engine = create_async_engine(make_url(address).set(drivername=DRIVERS[address.partition(":")[0]]))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        if await connection.scalar(select(Customer.id)) is None:
            await connection.execute(insert(Customer).values(id="C-1", tenant="acme", email="bo@example.org"))
            rows = [{"id": id, "customer_id": "C-1", "cents": cents, "paid": paid} for id, cents, paid in INVOICES]
            await connection.execute(insert(Invoice), rows)
    yield engine
    await engine.dispose()


async def transaction(sessions: async_sessionmaker[AsyncSession], effects: Claim) -> AsyncGenerator[AsyncSession]:
    async with sessions.begin() as session:  # commits after the tool, rolls back if the call fails
        effects.in_transaction(session)  # the outcome of the effect is the last statement of this transaction
        yield session


class Billing(containers.DeclarativeContainer):
    config = providers.Configuration()
    engine = Scoped("global", connect, config.database)
    sessions = Scoped("global", async_sessionmaker, engine)
    session = Scoped("execution", transaction, sessions)
