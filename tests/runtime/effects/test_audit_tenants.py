"""Audit rows have the tenant of the caller, also where the effect belongs to another tenant or to all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import callgate
from callgate import Approve, Effects, Gate, Outcome, ToolCall, User, tool
from callgate.hooks import Audit
from callgate.hooks.stock.records.audit_verify import verify_audit
from callgate.providers.stores import ledger_writes
from callgate.providers.stores.sql import ledger as sql_ledger
from tests.hooks.stock.records.auditing import rows_of
from tests.providers.stores.backends import DURABLE, place

TENANTS = ("acme", "globex", None)
ADDRESSES = {"memory": "memory://", "sqlite-memory": "sqlite:///:memory:"}
LEAD = callgate.Approval(roles={"lead"})


def refunding(name: str, **options: Any) -> Any:
    async def refund(order: int) -> str:
        return f"refunded {order}"

    options = {"effect": "irreversible", "key": ("order",), "key_scope": "global", "description": "Refund.", **options}
    return tool(name=name, **options)(refund)


async def audited(kind: str, folder: Path, name: str) -> tuple[dict[str, list[str]], list[str]]:
    """Call the tool as a user of each tenant at once. Return the kinds of the rows by tenant, and the problems found."""
    with place(kind, folder) as address:
        tools = [refunding("now"), refunding("asked", requires_approval=LEAD)]
        gate = Gate(
            tools,
            [Audit()],
            store=ADDRESSES.get(kind, address[0]),
            effects=Effects(durable=False),
            signing_keys=["a key of the tests"],
            allow_unguarded=True,
        )
        async with asyncio.timeout(20.0), gate:

            async def call(order: int, tenant: str | None) -> None:
                asked = ToolCall(id="c", name=name, arguments={"order": order})
                result = await gate.call(asked, user=User("ann", tenant))
                if result.pending is not None:
                    result = await gate.resume(
                        result.pending.handle, Approve(), approver=User("lead", tenant, roles={"lead"})
                    )
                assert result.outcome is Outcome.SUCCESS

            await asyncio.gather(*(call(order, tenant) for order, tenant in enumerate(TENANTS)))
            audit = gate.store.audit
            rows = {tenant or "": await rows_of(audit, tenant or "") for tenant in TENANTS}
            problems = [one.kind for one in (await verify_audit(audit)).problems]
    return {tenant: [row.body["kind"] for row in found] for tenant, found in rows.items()}, problems


@pytest.mark.parametrize("kind", DURABLE)
@pytest.mark.parametrize("name", ["now", "asked"])
async def test_rows_of_a_global_effect_have_the_tenant_of_their_caller(kind: str, name: str, tmp_path: Path) -> None:
    kinds, problems = await audited(kind, tmp_path, name)
    assert problems == []
    assert all({"intent", "outcome"} <= set(found) for found in kinds.values())
    assert len({tuple(sorted(found)) for found in kinds.values()}) == 1


async def test_verification_finds_rows_with_the_tenant_of_the_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with the tenant of the effect, the rows of two tenants are not stored where they belong."""
    for module in (ledger_writes, sql_ledger):
        monkeypatch.setattr(module, "row_tenant", lambda _body, tenant: tenant)
    kinds, problems = await audited("sqlite-file", tmp_path, "now")
    assert (kinds["acme"], kinds["globex"]) == ([], [])
    assert problems == ["moved"] * 4
