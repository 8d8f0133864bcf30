"""What the tests of ``callgate effects`` share: a tool whose end may be unknown, ledgers to look into, the command itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, ToolCall, ToolError, ToolResult, User, tool
from callgate.hooks import Audit
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import AuditRow, Store
from callgate.runtime.commands.effects import main
from callgate.stores import EffectRecord, EffectState
from tests.providers.stores.backends import place

KEY, OTHER = "ab" * 32, "ab" * 31 + "cd"
ran: list[str] = []


@tool(effect="irreversible", key=("order_id",))
async def refund(order_id: str) -> str:
    """Give money back; where the name of the order says so, nobody knows whether it did."""
    ran.append(order_id)
    if order_id.startswith("lost"):
        raise ConnectionError("the bank hung up")
    if order_id.startswith("no"):
        raise ToolError("No.")
    return f"{order_id} is paid"


@pytest.fixture(params=["sqlite-file", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    """A database of its own; the one of PostgreSQL is skipped loudly where there is no server."""
    ran.clear()
    with place(request.param, tmp_path) as (at, _):
        yield at


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    ran.clear()
    return f"sqlite:///{tmp_path / 'desk.db'}"


def effects(*arguments: str, answers: Any = "") -> tuple[int, str]:
    out = StringIO()
    code = main(arguments, out, StringIO(answers) if isinstance(answers, str) else answers)
    return code, out.getvalue()


def call(address: str, *orders: str, tenant: str | None = "acme", user: str = "ann") -> list[ToolResult]:
    """One call an order, through a gate that is opened for them and closed again."""

    async def calls() -> list[ToolResult]:
        async with Gate([refund], [Audit()], allow_unguarded=True, store=address) as gate:
            asked = [ToolCall(id="c", name="refund", arguments={"order_id": order}) for order in orders]
            return [await gate.call(one, user=User(user, tenant)) for one in asked]

    return asyncio.run(calls())


def in_store(address: str, work: Callable[[Store], Awaitable[Any]]) -> Any:
    async def working() -> Any:
        store = store_at(address)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(working())


def ledger(address: str) -> list[tuple[str, EffectRecord]]:
    """What is in it, the oldest first."""
    found: Sequence[tuple[str, EffectRecord]] = in_store(address, lambda store: store.effects.list(None, limit=1_000))
    return sorted(found, key=lambda one: one[1].began_at)


def notes(address: str) -> list[AuditRow]:
    """The rows that the command has written."""

    async def read(store: Store) -> list[AuditRow]:
        return [row async for row in store.audit.read(None) if row.body["kind"] == "note"]

    found: list[AuditRow] = in_store(address, read)
    return found


def keep(address: str, key: str, state: EffectState = EffectState.UNKNOWN, **facts: Any) -> None:
    """Put an effect into the ledger as a gate would that has ended."""
    now = time.time()
    plain: dict[str, Any] = {"tool": "refund", "version": "v", "user": "ann", "input_hash": "h", "request_id": "r"}
    plain |= {"owner": "o", "lease_until": now + 60, "began_at": now}
    tenant, ended = facts.pop("tenant", "acme"), facts.pop("at", now)

    async def write(store: Store) -> None:
        mine, found = await store.effects.claim(tenant, EffectRecord(key=key, **plain | facts))
        assert mine
        if state is not EffectState.RUNNING:
            assert await store.effects.settle(tenant, key, found.token, state, at=ended)

    in_store(address, write)
