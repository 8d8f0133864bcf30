"""The shop's tools and their gate, independent of the web framework."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from pydantic import Field

from callgate import Effects, Gate, Hook, InvokeContext, Provide, ToolContext, ToolError, User, tool

USERS = {"ann": User("ann", tenant="acme", roles={"clerk"}), "max": User("max", tenant="acme", roles={"manager"})}
STORE = os.environ.get("CALLGATE_STORE") or None  # such as sqlite:///shop.db; processes that serve together share one
TOKENS = {"token-of-ann": USERS["ann"], "token-of-max": USERS["max"]}  # a service reads them from a secret store


class Orders:
    """The payments and refunds of the shop, in cents."""

    def __init__(self) -> None:
        self.paid = {"A-1001": 4_200, "A-1002": 12_900}
        self.refunded: dict[str, int] = {}
        self.lock = threading.Lock()


OrderId = Annotated[str, Field(pattern="^A-[0-9]{4}$", description="Such as A-1001.")]
Books = Annotated[Orders, Provide[Orders]]


@tool(effect="read")
async def get_order(order_id: OrderId, *, orders: Books) -> dict[str, Any]:
    """Look up the payment and the refund of an order."""
    return {"order_id": order_id, "paid": _paid(orders, order_id), "refunded": orders.refunded.get(order_id, 0)}


@tool(effect="irreversible", key=("order_id",), allowed_roles={"manager"})
async def refund(order_id: OrderId, cents: Annotated[int, Field(ge=1)], *, orders: Books) -> dict[str, Any]:
    """Give money back for an order, once."""
    with orders.lock:
        if cents > _paid(orders, order_id):
            raise ToolError("No more can go back than was paid.", code="too_much")
        if order_id in orders.refunded:
            raise ToolError("This order was refunded before.", code="refunded_before")
        orders.refunded[order_id] = cents
    return {"order_id": order_id, "refunded": cents}


@tool(effect="read")
async def pack(
    order_id: OrderId, parcels: Annotated[int, Field(ge=1, le=20)] = 3, *, ctx: ToolContext
) -> AsyncIterator[str]:
    """Pack an order, and tell of each parcel as it is ready."""
    for number in range(1, parcels + 1):
        await asyncio.sleep(0.01)
        ctx.progress(number, parcels)
        yield f"{order_id}/{number}"


class KnownUsers(Hook):
    """A hook that authorises users of the shop, and only managers where a tool requires it."""

    def will_authorize(self, ctx: InvokeContext) -> None:
        if ctx.user.tenant is None:
            ctx.abort(f"{ctx.user.id} is no user of the shop")
        allowed = ctx.tool.allowed_roles
        if allowed and not allowed & frozenset(ctx.user.roles):
            ctx.abort(f"{ctx.user.id} is none of {sorted(allowed)}", code="forbidden")


class AtOnce(Hook):
    """A concurrency limit for this process; a call releases its permit on every outcome."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    async def will_acquire_quota(self, ctx: InvokeContext) -> None:
        await ctx.lease(self.place(ctx))

    @asynccontextmanager
    async def place(self, ctx: InvokeContext) -> AsyncGenerator[None, None]:
        if self.held >= self.most:
            ctx.retry_after(1_000, "too many calls under way")
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1


def who(request: Any) -> User | None:
    """Authenticate a web request by its bearer token; ``headers`` of the request is a mapping."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return TOKENS.get(token) if scheme == "Bearer" else None


def make_gate() -> Gate:
    """Make the gate of one process."""
    return Gate(
        tools=[get_order, refund, pack],
        hooks=[KnownUsers(), AtOnce(50)],
        provide={Orders: Orders},
        store=STORE,
        effects=Effects(durable=STORE is not None),
        deadline=10,
    )


def _paid(orders: Orders, order_id: str) -> int:
    if order_id not in orders.paid:
        raise ToolError("There is no such order.", code="no_such_order")
    return orders.paid[order_id]
