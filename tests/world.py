"""The world of the tests: people, a dozen tools that tell what they did, and three gates.

A test that needs a tool or a gate of its own makes it; what several files would write alike is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from callgate import Approval, Effects, Gate, ToolCall, ToolContext, ToolError, User, tool
from callgate.hooks import Audit
from tests.harness.gate_options import gate_options

USER = User("u", tenant="acme")
ANN = User("ann", tenant="acme")
CLERK = User("ann", tenant="acme", roles={"clerk"})
MANAGER = User("max", tenant="acme", roles={"manager"}, scopes={"mfa", "refunds"})
STRANGER = User("eve", tenant="globex")
KEY = "a signing key of the tests"
RAN: list[str] = []
"""The tools that ran and change something, in order; a test that reads it clears it first."""


@tool(effect="read")
async def look(n: int, note: str = "") -> int:
    """Look at a number."""
    return n


@tool(effect="read", tags={"orders"})
async def lookup(order_id: str) -> str:
    """What became of an order."""
    RAN.append("lookup")
    return "sent"


@tool(effect="read")
def plain(n: int) -> int:
    """Look at a number, in a thread."""
    return n


@tool(effect="read")
async def wait(n: int) -> int:
    """Wait for ever."""
    await asyncio.sleep(1e6)
    return n


@tool(effect="read")
async def crash(n: int) -> int:
    """Break, with a secret in the text."""
    raise RuntimeError("canary-of-the-tool")


@tool(effect="read")
async def count(n: int) -> AsyncIterator[int]:
    """Count in parts."""
    for number in range(n):
        yield number


@tool(effect="read")
async def nest(n: int, ctx: ToolContext) -> Any:
    """Look at a number through another call."""
    return await ctx.call("look", {"n": n})


@tool(effect="idempotent")
async def fail(n: int) -> int:
    """Fail."""
    raise ToolError("no such thing")


@tool(effect="idempotent")
async def put(name: str, value: str) -> str:
    """Set a value."""
    RAN.append("put")
    return f"{name} is {value}"


@tool(effect="irreversible")
async def pay(cents: int, password: str = "", note: str = "") -> str:
    """Pay."""
    RAN.append("pay")
    return f"paid {cents}"


@tool(effect="irreversible", key=("order_id",), tags={"money"})
async def refund(order_id: str, cents: int = 9_000) -> str:
    """Give money back."""
    RAN.append("refund")
    return "done"


@tool(effect="irreversible", requires_approval=Approval(roles={"manager"}))
async def transfer(to: str, cents: int) -> str:
    """Move money; a manager approves it."""
    RAN.append("transfer")
    return f"{cents} to {to}"


TOOLS: list[Any] = [look, lookup, plain, wait, crash, count, nest, fail, put, pay, refund]


def asked(name: str, /, **arguments: Any) -> ToolCall:
    """A call as a model makes it."""
    return ToolCall(id="c1", name=name, arguments=arguments)


def bare_gate(*hooks: Any, **options: Any) -> Gate:
    """The tools that need no approval, and no hooks but those of the test; nothing is kept after the test."""
    return Gate(TOOLS, hooks, allow_unguarded=True, **gate_options(durable=False, **options))


def audited_gate(*hooks: Any, **options: Any) -> Gate:
    """The same, with an audit log."""
    return bare_gate(Audit(), *hooks, **options)


def durable_gate(address: str, *hooks: Any, **options: Any) -> Gate:
    """All tools on the store at *address*: effects, jobs and approvals outlive the gate."""
    options = {"signing_keys": [KEY], "effects": Effects(), "allow_unguarded": True, **options}
    return Gate([*TOOLS, transfer], hooks, store=address, **options)
