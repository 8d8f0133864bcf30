"""Suspended calls and approved definitions of outside tools, in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.effects import PRUNE_BATCH, Pin, SuspensionPosition, SuspensionRecord, SuspensionState
from callgate.providers.stores.namespaces import in_table
from callgate.providers.stores.sql_part import OURS, Columns, SqlPart, check_row_version


def _state(found: str) -> SuspensionState:
    try:
        return SuspensionState(found)
    except ValueError:
        raise StoreError("a suspended call in the store has an unknown state; the row was changed by hand") from None


def _body(found: object) -> bytes:
    return bytes(found) if isinstance(found, bytes | memoryview) else b""  # SQLite stores any type; no MAC fits b""


SUSPENSION_COLUMNS = Columns(SuspensionRecord, {"user": "person"}, {"state": _state, "body": _body})
_LISTED = SUSPENSION_COLUMNS.listed
_PUT = f"""
INSERT INTO callgate_waits (tenant, version, namespace, {_LISTED})
VALUES (:tenant, :version, :namespace, {SUSPENSION_COLUMNS.marks})
ON CONFLICT (tenant, id) DO NOTHING
"""  # noqa: S608  (built from the constants above, as are those below)
_REPLACE = f"""
UPDATE callgate_waits SET {", ".join(f"{name} = :{name}" for name in SUSPENSION_COLUMNS.names if name != "id")}
WHERE tenant = :tenant AND id = :id AND {OURS} AND number = :number - 1 AND state = 'waiting'
"""  # noqa: S608
_GET = f"SELECT version, {_LISTED} FROM callgate_waits WHERE tenant = :tenant AND id = :id AND namespace = :namespace"  # noqa: S608
_LIST = f"SELECT {_LISTED} FROM callgate_waits WHERE tenant = :tenant AND {OURS} AND state = :state"  # noqa: S608
_DUE = f"""
SELECT tenant, {_LISTED} FROM callgate_waits
WHERE {OURS} AND state = 'waiting' AND expires_at <= :now ORDER BY expires_at, tenant, id LIMIT :limit
"""  # noqa: S608
_HAS = {
    "sqlite": "instr(substr(body, max(instr(body, :behind), 1)), :part{0}) > 0",
    "postgresql": "position(:part{0} IN substring(body FROM greatest(position(:behind IN body), 1))) > 0",
}
"""A part in the body, from ``behind`` on if the body has it."""
_OVER = f"{OURS} AND state IN ('used', 'denied', 'expired', 'void') AND made_at < :before"

_PIN_COLUMNS = Columns(Pin, {"by": "person"}, {})
_SELECT_PINS = (
    f"SELECT version, {_PIN_COLUMNS.listed} FROM callgate_pins WHERE tenant = :tenant AND provider = :provider"  # noqa: S608
)
_FIND = f"{_SELECT_PINS} AND tool = :tool"
_PINS = f"{_SELECT_PINS} ORDER BY tool"
_PIN = f"""
INSERT INTO callgate_pins (tenant, version, {_PIN_COLUMNS.listed}) VALUES (:tenant, :version, {_PIN_COLUMNS.marks})
ON CONFLICT (tenant, provider, tool)
"""  # noqa: S608
_ADD = f"{_PIN} DO NOTHING"
_REPIN = f"{_PIN} DO UPDATE SET version = excluded.version, digest = excluded.digest, at = excluded.at, person = excluded.person"


class SqlSuspensions(SqlPart):
    """See ``SuspensionStore``."""

    async def put(self, tenant: str, wait: SuspensionRecord) -> None:
        if not await self._write(_PUT, _values(tenant, wait)):
            raise StoreConflict("a suspended call has that id already")

    async def get(self, tenant: str, id: str) -> SuspensionRecord | None:
        return await self._one(_GET, {"tenant": tenant, "id": id}, SUSPENSION_COLUMNS)

    async def replace(self, tenant: str, wait: SuspensionRecord) -> bool:
        return bool(await self._write(_REPLACE, _values(tenant, wait)))

    async def list(
        self,
        tenant: str,
        *,
        state: SuspensionState = SuspensionState.WAITING,
        user: str | None = None,
        limit: int = 100,
        after: SuspensionPosition | None = None,
        kind: str | None = None,
        valid_at: float | None = None,
        having: Collection[bytes] | None = None,
        behind: bytes = b"",
    ) -> Sequence[SuspensionRecord]:
        query = _LIST
        values: dict[str, Any] = {"tenant": tenant, "state": state.value, "limit": limit}
        chosen = list[str]()
        if user is not None:
            chosen.append("person = :person")
            values["person"] = user
        # Parts of the body and no JSON functions: PostgreSQL would fail on a row that was damaged by hand.
        for number, part in enumerate(sorted(having or ())):
            chosen.append(_HAS["sqlite" if self._database.lite else "postgresql"].format(number))
            values |= {f"part{number}": part, "behind": behind}
        if chosen or having is not None:
            query += f" AND ({' OR '.join(chosen) or 'false'})"
        if after is not None:
            query += " AND (made_at, id) > (:after_time, :after_id)"
            values |= {"after_time": float(after[0]), "after_id": after[1]}
        if kind is not None:
            query += " AND kind = :kind"
            values["kind"] = kind
        if valid_at is not None:
            query += " AND (expires_at IS NULL OR expires_at > :valid_at)"
            values["valid_at"] = float(valid_at)
        return [
            SUSPENSION_COLUMNS.record(row)
            for row in await self._rows(f"{query} ORDER BY made_at, id LIMIT :limit", values)
        ]

    async def due(self, now: float, limit: int = 100) -> Sequence[tuple[str, SuspensionRecord]]:
        rows = await self._rows(_DUE, {"now": now, "limit": limit})
        return [(tenant, SUSPENSION_COLUMNS.record(row)) for tenant, *row in rows]

    async def prune(self, before: float, limit: int = PRUNE_BATCH) -> int:
        return await self._prune("callgate_waits", "tenant, id", _OVER, before, limit)


class SqlPins(SqlPart):
    """See ``PinStore``."""

    async def find(self, tenant: str, provider: str, tool: str) -> Pin | None:
        values = {"tenant": in_table(self.namespace, tenant), "provider": provider, "tool": tool}
        return await self._one(_FIND, values, _PIN_COLUMNS)

    async def add(self, tenant: str, pin: Pin) -> Pin:
        if await self._write(_ADD, _pin_values(in_table(self.namespace, tenant), pin)):
            return pin
        found = await self.find(tenant, pin.provider, pin.tool)
        if found is None:
            raise StoreError("another process removed the pin of the tool; try again")
        return found

    async def put(self, tenant: str, pin: Pin) -> None:
        await self._write(_REPIN, _pin_values(in_table(self.namespace, tenant), pin))

    async def list(self, tenant: str, provider: str) -> Sequence[Pin]:
        rows = await self._rows(_PINS, {"tenant": in_table(self.namespace, tenant), "provider": provider})
        for version, *_ in rows:
            check_row_version(version, self.version)
        return [_PIN_COLUMNS.record(row) for _, *row in rows]


def _values(tenant: str, wait: SuspensionRecord) -> dict[str, Any]:
    return {**SUSPENSION_COLUMNS.values(wait), "tenant": tenant}


def _pin_values(tenant: str, pin: Pin) -> dict[str, Any]:
    return {**_PIN_COLUMNS.values(pin), "tenant": tenant}
