"""Reading and verifying the audit log in memory leaves turns of the event loop to other tasks."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from callgate import Gate, tool
from callgate.hooks import Audit, verify_audit
from callgate.hooks.stock.records import audit_verify
from callgate.providers.stores.memory import audit as memory_audit

CALLS = 300


@pytest.mark.parametrize("reads", [1, 3])
async def test_other_tasks_have_a_turn_while_a_log_in_memory_is_hashed_and_verified(
    reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 34, 6: 100,000 rows stalled the event loop for 6 seconds. No row is lost or hashed twice meanwhile."""
    monkeypatch.setattr(memory_audit, "SLICE", 10)
    monkeypatch.setattr(audit_verify, "_SLICE", 10)

    @tool(effect="read")
    async def add(a: int) -> int:
        """Add one."""
        return a + 1

    turns = 0

    async def other(gate: Gate) -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1
            if turns % 20 == 0:  # calls go on meanwhile
                await gate.call("add", {"a": turns})

    async with Gate([add], hooks=[Audit()], mode="development") as gate:
        for number in range(CALLS):
            await gate.call("add", {"a": number})
        task = asyncio.ensure_future(other(gate))
        reports: list[Any] = await asyncio.gather(*(verify_audit(gate.store.audit) for _ in range(reads)))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert turns >= CALLS / 10 + 15  # both while it is hashed and while it is verified
        assert all(report.ok and report.rows >= CALLS for report in reports)
        report = await verify_audit(gate.store.audit)
        assert report.ok
        assert report.rows == CALLS + turns // 20
