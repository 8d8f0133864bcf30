"""A call through MCP passes the same stages as in process, and any replica goes on with what another began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")

import mcp_types as types
from mcp import Client, MCPError

from callgate.testing import RecordingHook
from tests.runtime.hosts.mcp.world import ERAS, PEOPLE, Desk, client_of, server_of, text_of

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("add", {"a": 1}),
    ("add", {"a": "many"}),
    ("add", {}),
    ("fails", {}),
    ("crashes", {}),
    ("ledger", {}),
    ("count", {}),
    ("payout", {"order": "A1"}),
    ("steps", {"count": 2}),
]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=str)
async def test_a_call_passes_the_stages_that_it_passes_in_process(
    name: str, arguments: dict[str, Any], era: str
) -> None:
    direct, remote = RecordingHook(), RecordingHook()
    async with Desk().gate(direct) as gate:
        await gate.call(name, arguments, user=PEOPLE["ann"])
    async with Desk().gate(remote) as gate, client_of(server_of(gate, "memory"), "memory", era) as client:
        try:
            await client.session.call_tool(name, arguments)
        except MCPError:
            assert name == "ledger", "a hidden tool is an unknown one"
    assert remote.moments == direct.moments != []


APPROVED: dict[str, Any] = {"answer": types.ElicitResult(action="accept", content={"approve": True})}


def never(_: types.ElicitRequestParams) -> types.ElicitResult:
    raise AssertionError("the test answers itself")


async def _refund(client: Client, state: str | None) -> Any:
    return await client.session.call_tool(
        "refund",
        {"order": "A1", "cents": 5},
        request_state=state,
        input_responses=None if state is None else APPROVED,
        allow_input_required=True,
    )


@pytest.mark.parametrize("keys", ["shared", "of its own"])
async def test_another_replica_goes_on_after_a_restart(keys: str, tmp_path: Path) -> None:
    """The first server asks and ends; the next one takes the answer. One with other keys does not believe the state."""
    store, first, second = f"sqlite:///{tmp_path}/desk.db", Desk(), Desk()
    server = server_of(first.gate(store=store), "memory")
    async with client_of(server, "memory", "modern", answers=never) as client:
        state = (await _refund(client, None)).request_state
    own = {} if keys == "shared" else {"signing_keys": ["z" * 32]}
    server = server_of(second.gate(store=store, **own), "memory")
    async with client_of(server, "memory", "modern", answers=never) as client:
        if keys == "shared":
            for _ in range(3):
                assert text_of(await _refund(client, state)) == "5 for A1"
        else:
            with pytest.raises(MCPError, match="Invalid or expired requestState"):
                await _refund(client, state)
    assert (first.ran, second.ran) == ([], ["A1 5"] if keys == "shared" else [])
