"""Rows of an audit log that are chained as a gate does, and changes of them by an owner of the tables."""

from __future__ import annotations

import uuid

from sqlalchemy import text

from callgate import tool
from callgate.hooks import AuditRow
from callgate.hooks.stock.records.audit_chain import micros, row_hash
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import Backend

KEY = "a signing key of the tests"


@tool(effect="read")
async def look(n: int) -> int:
    """Look at a number."""
    return n


@tool(effect="irreversible", key=("n",))
async def pay(n: int) -> int:
    """Pay a number."""
    return n


def chained(
    count: int, *, begin: int = 1, name: str = "", previous: str = "", at: float = 1_000.0, tenant: str = "t"
) -> list[AuditRow]:
    """Rows of one segment, chained as a gate does."""
    rows: list[AuditRow] = []
    name = name or f"segment-{uuid.uuid4().hex[:12]}"
    for number in range(begin, begin + count):
        body = {"kind": "outcome", "tenant": tenant, "n": number, "at_us": micros(at + number)}
        hash = row_hash(body, name, number, previous)
        rows.append(AuditRow(name, number, at + number, body, previous, hash))
        previous = hash
    return rows


async def forge(backend: Backend, statement: str) -> None:
    """Change rows as an owner of the tables can: without the triggers."""
    assert isinstance(backend.store, SqlStore)
    base = backend.store._database
    if base.lite:
        triggers = await base.rows(text("SELECT name FROM sqlite_master WHERE type = 'trigger'"), {})
        for (name,) in triggers:
            await base.write(text(f'DROP TRIGGER "{name}"'), {})
    else:
        for table in ("callgate_audit", "callgate_anchors", "callgate_audit_checkpoints"):
            await base.write(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"), {})
    await base.write(text(statement), {})
