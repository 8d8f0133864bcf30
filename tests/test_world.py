"""The tools and gates that the tests share do what their names say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.world import ANN, MANAGER, RAN, TOOLS, asked, audited_gate, bare_gate, durable_gate

CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "look": ({"n": 2}, "success"),
    "lookup": ({"order_id": "A-1"}, "success"),
    "plain": ({"n": 2}, "success"),
    "crash": ({"n": 2}, "error"),
    "count": ({"n": 2}, "success"),
    "nest": ({"n": 2}, "success"),
    "fail": ({"n": 2}, "error"),
    "put": ({"name": "a", "value": "b"}, "success"),
    "pay": ({"cents": 5}, "success"),
    "refund": ({"order_id": "A-1"}, "success"),
}


async def test_each_tool_ends_alike_in_each_gate(tmp_path: Path) -> None:
    for made in (bare_gate(), audited_gate(), durable_gate(f"sqlite:///{tmp_path}/world.db")):
        RAN.clear()
        async with made as gate:
            for name, (arguments, outcome) in CALLS.items():
                assert (await gate.call(asked(name, **arguments), user=ANN)).outcome == outcome, name
        assert RAN == ["lookup", "put", "pay", "refund"]


async def test_a_transfer_waits_for_a_manager_and_outlives_its_gate(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/world.db"
    RAN.clear()
    async with durable_gate(address) as gate:
        asking = await gate.call(asked("transfer", to="eve", cents=5), user=ANN)
    assert asking.pending is not None
    async with durable_gate(address) as gate:
        done = await gate.resume(asking.pending.handle, "approve", approver=MANAGER)
    assert (done.output, RAN) == ("5 to eve", ["transfer"])


def test_each_tool_but_the_one_that_waits_is_called() -> None:
    assert {tool.record.id for tool in TOOLS} - CALLS.keys() == {"wait"}
