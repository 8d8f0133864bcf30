"""Tools of many shapes that never fail by themselves: what a generator of requests is let loose on."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from typing import Annotated, Any

from pydantic import BaseModel, Field

from callgate import Gate, Hook, InvokeContext, ToolContext, tool
from tests.runtime.gate.making import made


class Size(enum.StrEnum):
    S = "s"
    L = "l"


class Item(BaseModel):
    sku: Annotated[str, Field(pattern="^[a-z]{1,8}$")]
    size: Size = Size.S
    parts: list[Item] = []


class Order(BaseModel):
    items: Annotated[list[Item], Field(max_length=3)]
    note: str | None = None


@tool(effect="read")
async def price(order: Order, discount: Annotated[float, Field(ge=0, le=1)] = 0.0) -> Order:
    """Compute the price of an order; input and output are a nested, recursive model."""
    return order


@tool(effect="read")
async def nothing() -> None:
    """Takes nothing, gives nothing."""


@tool(effect="read")
async def parts(upto: Annotated[int, Field(ge=0, le=3)], ctx: ToolContext) -> AsyncIterator[int]:
    """Comes in parts."""
    for number in range(upto):
        ctx.progress(number)
        yield number


async def pair(**values: Any) -> Any:
    return values


PAIR: dict[str, Any] = {
    "$id": "https://example.com/pair",
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "left": {"type": "integer", "minimum": -5, "maximum": 5},
        "right": {"$ref": "#/properties/left"},
        "$ref": {"type": "string", "enum": ["#/properties/left"]},
    },
    "required": ["left", "right"],
    "additionalProperties": False,
}


class Busy(Hook):
    """Some calls are put off, some refused: those are answers, too."""

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        if ctx.tool_id == "pair" and ctx.input["left"] == 5:
            ctx.retry_after(100)
        if ctx.tool_id == "pair" and ctx.input["left"] == 4:
            ctx.abort("no fours")


def catalogue() -> Gate:
    """The gate of these."""
    tools = [price, nothing, parts, made(pair, "pair", parameters=PAIR, output=PAIR)]
    return Gate(tools, [Busy()], allow_unguarded=True)
