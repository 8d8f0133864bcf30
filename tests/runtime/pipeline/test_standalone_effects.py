"""``invoke_tool`` and the effect ledger: a promise about repeats is kept in a store, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from callgate import Effects, ToolContext, ToolRecord, User, invoke_tool, tool
from callgate.errors import Conflict, RegistrationError
from callgate.providers.stores.sql.effects import SqlEffects
from callgate.runtime.pipeline import standalone
from callgate.stores import MemoryStore, Store
from callgate.tools.declaring.declare import as_tool
from tests.providers.stores.backends import DURABLE, opened, place

ANN = User("ann")
PROMISES: dict[str, dict[str, Any]] = {
    "keyed": {"effect": "keyed", "key": ("order",)},
    "irreversible with a key": {"effect": "irreversible", "key": ("order",)},
    "dedupe": {"effect": "irreversible", "dedupe": "arguments", "within": 3600.0},
    "undeclared effect with dedupe": {"dedupe": "arguments", "within": 3600.0},
}


@pytest.fixture(params=DURABLE)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Store]:
    with place(request.param, tmp_path) as at:
        async with opened(request.param, at) as backend:
            yield backend.store


def refund(ran: list[str], **options: Any) -> ToolRecord:
    async def refund(order: str, amount: int = 1) -> str:
        """Give money back."""
        ran.append(order)
        return f"{order} is paid"

    return as_tool(tool(**options)(refund))


@pytest.mark.parametrize("promise", PROMISES)
async def test_a_repeat_runs_once_with_a_store(promise: str, store: Store) -> None:
    """Two records are two processes: what they share is the store."""
    ran: list[str] = []
    for record in (refund(ran, **PROMISES[promise]), refund(ran, **PROMISES[promise])):
        for _ in range(2):
            assert await invoke_tool(record, {"order": "1"}, user=ANN, store=store) == "1 is paid"
    assert await invoke_tool(record, {"order": "2"}, user=ANN, store=store) == "2 is paid"
    assert ran == ["1", "2"]
    if "key" in PROMISES[promise]:
        with pytest.raises(Conflict):
            await invoke_tool(record, {"order": "1", "amount": 2}, user=ANN, store=store)


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("nested", [False, True], ids=["called", "called by another tool"])
async def test_a_promise_about_repeats_is_refused_without_a_store(promise: str, nested: bool) -> None:
    ran: list[str] = []
    record = refund(ran, **PROMISES[promise])

    @tool(effect="read")
    async def outer(ctx: ToolContext) -> object:
        """Call the other tool."""
        return await ctx.call(record, {"order": "1"})

    with pytest.raises(RegistrationError, match=r"invoke_tool\(refund, arguments, store=store\)"):
        await (invoke_tool(outer, {}) if nested else invoke_tool(record, {"order": "1"}))
    assert ran == []


@pytest.mark.parametrize("options", [{}, {"effect": "read"}, {"effect": "idempotent"}, {"effect": "irreversible"}])
async def test_tools_without_such_a_promise_need_no_store(options: dict[str, Any]) -> None:
    ran: list[str] = []
    record = refund(ran, **options)
    for _ in range(2):
        await invoke_tool(record, {"order": "1"})
    assert ran == ["1", "1"]


async def test_without_its_claim_a_keyed_tool_would_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control."""
    ran: list[str] = []
    monkeypatch.setattr(standalone, "_ledger_in", lambda *_: (None, None))
    monkeypatch.setattr(standalone, "_refuse_promise", lambda _: None)
    record, store = refund(ran, **PROMISES["keyed"]), MemoryStore()
    for _ in range(2):
        await invoke_tool(record, {"order": "1"}, store=store)
    assert ran == ["1", "1"]


async def test_the_lease_of_a_long_call_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed, renew = asyncio.Event(), SqlEffects.renew

    async def renews(self: SqlEffects, *given: Any) -> None:
        await renew(self, *given)
        renewed.set()

    @tool(effect="keyed", key=("order",))
    async def slow(order: str) -> str:
        """Run until the lease of the effect was renewed."""
        await asyncio.wait_for(renewed.wait(), 300)
        return order

    monkeypatch.setattr(SqlEffects, "renew", renews)
    monkeypatch.setattr(standalone, "Effects", lambda: Effects(lease=0.05))
    with place("sqlite-file", tmp_path) as at:
        async with opened("sqlite-file", at) as backend:
            assert await invoke_tool(slow, {"order": "1"}, store=backend.store) == "1"
    assert not [one for one in asyncio.all_tasks() if one.get_name().startswith("callgate background")]


async def test_a_store_that_keeps_no_effects_is_refused(tmp_path: Path) -> None:
    record = refund([], **PROMISES["keyed"])
    with place("redis", tmp_path) as at:
        async with opened("redis", at) as backend:
            with pytest.raises(RegistrationError, match="keeps no effects; write"):
                await invoke_tool(record, {"order": "1"}, store=backend.store)


async def test_the_address_of_a_store_is_answered_with_the_line_to_write() -> None:
    address: Any = "sqlite:///calls.db"
    with pytest.raises(TypeError, match="store_at"):
        await invoke_tool(refund([]), {"order": "1"}, store=address)
