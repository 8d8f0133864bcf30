"""A gate for ``callgate mcp``, whose tools write what they do into a file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from callgate import Approval, Gate, tool

LOG = Path(os.environ["CALLGATE_TEST_LOG"])


def note(text: str) -> None:
    """Add a line to the file."""
    with LOG.open("a") as log:
        log.write(f"{text}\n")


@tool(effect="irreversible", key=("order",), requires_approval=Approval(roles={"lead"}, reason="Pay out?"))
async def payout(order: str) -> str:
    """Pay out."""
    note(f"paid {order}")
    return f"paid {order}"


@tool(effect="irreversible", key=("order",), deadline=8)
async def ship(order: str) -> str:
    """Ship, which takes long."""
    note(f"began {order} {os.getpid()}")
    try:
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0)
        note(f"cleaned {order}")
    return order


gate = Gate([payout, ship], store=os.environ["CALLGATE_TEST_STORE"], signing_keys=["k" * 32], allow_unguarded=True)
