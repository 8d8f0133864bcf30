"""A shop whose orders are rows in the database of the gate's store; its transaction carries the outcome of each order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Annotated, Any

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from callgate import EffectClaim, Effects, Gate, Provide, Scoped, ToolCall, User, tool
from callgate.providers.stores.sql.effects import SqlEffects
from callgate.providers.stores.sql.ledger import SqlLedgerWriter
from callgate.providers.stores.sql.store import SqlStore
from tests.harness.gate_options import gate_options

ANN = User("ann", "acme")
INSERT = text("INSERT INTO orders VALUES (:id)")
POINTS = (
    "before the claim",
    "after the claim",
    "after begin",
    "in the body before the row",
    "in the body after the row",
    "after the body",
    "before the outcome",
    "before the commit",
    "after the commit",
    "before the receipt",
    "after the receipt",
)
"""Where a process is killed, in order."""
COMMITTED_AT = POINTS.index("after the commit")

Passes = Callable[[str], None]
Claim = Annotated[EffectClaim, Provide[EffectClaim]]


class PointedWriter(SqlLedgerWriter):
    """The ledger in its own transactions, which tells where it is."""

    passes: Passes

    async def claim(self, *args: Any, **more: Any) -> Any:
        """See ``LedgerWriter``."""
        self.passes("before the claim")
        found = await super().claim(*args, **more)
        self.passes("after the claim")
        return found

    async def settle(self, tenant: str, outcome: Any, rows: Any) -> bool:
        """See ``LedgerWriter``."""
        self.passes("before the receipt")
        done = await super().settle(tenant, outcome, rows)
        self.passes("after the receipt")
        return done


class PointedEffects(SqlEffects):
    """The ledger in the transactions of the shop, which tells where it is."""

    passes: Passes

    async def settle(self, *args: Any, **facts: Any) -> bool:
        """See ``EffectStore``."""
        self.passes("before the outcome")
        return await super().settle(*args, **facts)


class PointedStore(SqlStore):
    """A store with such a ledger."""

    def __init__(self, address: str, passes: Passes) -> None:
        super().__init__(address)
        self.passes = passes
        self.ledger = writer = PointedWriter(self._database, self.effects)
        writer.passes = passes

    def effects_in(self, connection: Any, threads: Any = None) -> SqlEffects:
        """See ``SqlStore``."""
        joined = super().effects_in(connection, threads)
        made = PointedEffects(self._database, joined._within, joined.namespace, joined.signer)
        made.passes = self.passes
        return made


def driver(address: str, *, is_async: bool) -> str:
    """The address with the driver that SQLAlchemy takes."""
    name = "sqlite+aiosqlite" if is_async else "sqlite"
    return address.replace("sqlite:", f"{name}:").replace("postgresql:", "postgresql+psycopg:")


def shop(
    address: str,
    how: str,
    passes: Passes = lambda _: None,
    *,
    carries: bool = True,
    on: Any = None,
    at_begin: Any = None,
    **options: Any,
) -> Gate:
    """A gate with one tool, ``order(id)``; *how* names its provider. *at_begin* and *on* get the session."""
    is_async = how.startswith("async")
    make: Any = create_async_engine if is_async else create_engine
    engine = make(driver(address, is_async=is_async), poolclass=NullPool)
    token: Any = {"async session": AsyncSession, "async connection": AsyncConnection, "sync session": Session}[how]

    def carried(effects: EffectClaim, held: Any) -> None:
        passes("after begin")
        effects.in_transaction(held)

    async def session(effects: Claim) -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as held, held.begin():
            carried(effects, held)
            if at_begin is not None:
                await at_begin(held)
            yield held
            if on is not None:
                await on(held)
            passes("before the commit")
        passes("after the commit")

    async def connection(effects: Claim) -> AsyncIterator[AsyncConnection]:
        async with engine.begin() as held:
            carried(effects, held)
            yield held
            passes("before the commit")
        passes("after the commit")

    def plain(effects: Claim) -> Iterator[Session]:
        with ExitStack() as stack:
            held = stack.enter_context(Session(engine))
            stack.enter_context(held.begin())
            carried(effects, held)
            yield held
            passes("before the commit")
        passes("after the commit")

    async def uncarried() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as held, held.begin():
            yield held
            passes("before the commit")
        passes("after the commit")

    provider: Any = {"async session": session, "async connection": connection, "sync session": plain}[how]
    if not carries:
        provider = uncarried

    @tool(name="order", effect="irreversible", key=("id",))
    async def order(id: str, *, db: Annotated[Any, Provide[token]]) -> str:
        """Order something."""
        passes("in the body before the row")
        await db.execute(INSERT, {"id": id})
        passes("in the body after the row")
        if id.startswith("broken"):
            raise ValueError(id)
        passes("after the body")
        return f"ordered {id}"

    @tool(name="order", effect="irreversible", key=("id",))
    def plain_order(id: str, *, db: Annotated[Any, Provide[token]]) -> str:
        """Order something, in a thread."""
        passes("in the body before the row")
        db.execute(INSERT, {"id": id})
        passes("in the body after the row")
        if id.startswith("broken"):
            raise ValueError(id)
        passes("after the body")
        return f"ordered {id}"

    return Gate(
        [order if is_async else plain_order],
        options.pop("hooks", ()),
        provide={token: Scoped("execution", provider)},
        store=PointedStore(address, passes),
        **gate_options(effects=Effects(lease=5.0, wait=0.1), open=True, **options),
    )


async def ask(gate: Gate, id: str) -> Any:
    """Order it."""
    return await gate.call(ToolCall(id="c", name="order", arguments={"id": id}), user=ANN)


async def rows(address: str) -> dict[str, int]:
    """How often each order is there."""
    engine = create_async_engine(driver(address, is_async=True), poolclass=NullPool)
    async with engine.begin() as connection:
        found = await connection.execute(text("SELECT id, count(*) AS number FROM orders GROUP BY id"))
        return {row.id: row.number for row in found}


async def make_table(address: str) -> None:
    """An empty table; that nothing is there twice is what is to be shown, so nothing forbids it."""
    engine = create_async_engine(driver(address, is_async=True), poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE orders (id TEXT)"))


def die_at_each_point(address: str, how: str, carries: bool) -> None:
    """Fork a process for each point, which orders under the name of the point and is killed there."""
    asyncio.run(make_table(address))
    for point in POINTS:

        def passes(name: str, point: str = point) -> None:
            if name == point:
                os.kill(os.getpid(), signal.SIGKILL)

        async def live(point: str = point, passes: Passes = passes) -> None:
            async with shop(address, how, passes, carries=carries) as gate:
                await ask(gate, point)

        if not (pid := os.fork()):
            asyncio.run(live())
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        print(point, os.WIFSIGNALED(status))


if __name__ == "__main__":
    die_at_each_point(sys.argv[1], sys.argv[2], sys.argv[3] == "carries")
