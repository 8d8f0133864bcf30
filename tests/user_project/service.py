"""A service as a user with strict type checkers writes it: nothing here may be reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, assert_type

from dependency_injector import containers, providers

import callgate.models
from callgate import (
    Gate,
    Hook,
    InvokeContext,
    Provide,
    Scoped,
    Stage,
    ToolCall,
    ToolContext,
    ToolRecord,
    ToolResult,
    User,
    on,
    tool,
)
from callgate.hooks import Cache, Quota, Retry, Timeout
from callgate.stores import MemoryStore, Store


class Db:
    """A pool."""

    def find(self, order_id: str) -> str:
        return order_id


class Transaction:
    """One transaction."""

    def __init__(self, db: Db) -> None:
        self.db = db


async def transaction(db: Db) -> AsyncIterator[Transaction]:
    yield Transaction(db)


class App(containers.DeclarativeContainer):
    """The service's providers."""

    db = providers.Singleton(Db)
    transaction = Scoped("request", transaction, db=db)


@dataclass
class Order:
    """The output of a tool."""

    id: str
    paid: bool


@tool(effect="read")
async def find_order(order_id: str, *, db: Annotated[Db, Provide[App.db]], ctx: ToolContext) -> Order:
    """Find an order."""
    return Order(db.find(order_id), paid=ctx.user.tenant is not None)


@tool(effect="read")
def count_orders(status: str, db: Db = Provide[App.db]) -> int:
    """Count the orders of a status."""
    return len(db.find(status))


class Authorise(Hook):
    """Refuses who lacks a scope, by the books."""

    priority = 10

    async def will_authorize(self, ctx: InvokeContext, open_tx: Transaction = Provide[App.transaction]) -> None:
        assert_type(open_tx, Transaction)
        if "orders" not in ctx.user.scopes:
            ctx.abort("no scope")

    def will_audit(self, ctx: InvokeContext) -> None:
        ctx.data["seen"] = ctx.tool_id


class Timed(Hook):
    """Wraps the tool."""

    async def around_execute(self, ctx: InvokeContext, next: object) -> object:
        return ctx.input


@on(Stage.WILL_AUTHORIZE, priority=5)
async def tenants_only(ctx: InvokeContext) -> None:
    """Refuse who has no tenant."""
    if ctx.tenant is None:
        ctx.abort("no tenant")


async def ping(arguments: dict[str, object], ctx: ToolContext) -> str:
    """Answer."""
    return "pong"


async def main() -> None:
    """Call them."""
    user = User("u1", tenant="acme", scopes={"orders"}, claims={"email": "u1@example.com"}, token="secret")
    assert_type(user.token, str | None)
    record = ToolRecord(
        id="ping", name="Ping", description="Answer.", input_schema={"type": "object"}, execute=ping, tags=["health"]
    )
    assert_type(record.description, str | None)
    clients: list[type[callgate.models.Client]] = [callgate.models.Ollama, callgate.models.Anthropic]
    store: Store = MemoryStore()
    limits = [Quota("100/minute"), Retry(3), Timeout(5), Cache(60)]
    guarded = Gate([record], limits, store=store, allow_unguarded=True)
    assert_type(guarded, Gate)
    assert len(clients) == 2
    gate = Gate([find_order, count_orders], [Authorise(), tenants_only], container=App())
    async with gate:
        order = await gate.invoke(find_order, {"order_id": "7"}, user=user)
        assert_type(order, Order)
        count = await gate.invoke(count_orders, {"status": "paid"}, user=user)
        assert_type(count, int)
        result = await gate.call(ToolCall(id="c1", name="find_order", arguments={"order_id": "7"}), user=user)
        assert_type(result, ToolResult)
        async with gate.session(user=user) as session:
            assert_type(await session.invoke(find_order, {"order_id": "8"}), Order)
        with gate.override({App.db: Db()}):
            print(order.id, count, result.ok)


if __name__ == "__main__":
    asyncio.run(main())
