"""Suspended calls and agreed definitions of outside tools, in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.effects import Pin, Wait, WaitState
from callgate.providers.stores.sql_part import VERSION, SqlPart, same_version

COLUMNS = "id, kind, tool, person, made_at, expires_at, body, mac, state, number"
PUT = f"""
INSERT INTO callgate_waits (tenant, version, {COLUMNS})
VALUES (:tenant, :version, :id, :kind, :tool, :person, :made_at, :expires_at, :body, :mac, :state, :number)
ON CONFLICT (tenant, id) DO NOTHING
"""  # noqa: S608  (put together of the constants above, as are those below)
REPLACE = """
UPDATE callgate_waits SET kind = :kind, tool = :tool, person = :person, made_at = :made_at, expires_at = :expires_at,
    body = :body, mac = :mac, state = :state, number = :number
WHERE tenant = :tenant AND id = :id AND version = :version AND number = :number - 1 AND state = 'waiting'
"""
GET = f"SELECT version, {COLUMNS} FROM callgate_waits WHERE tenant = :tenant AND id = :id"  # noqa: S608
LIST = f"SELECT {COLUMNS} FROM callgate_waits WHERE tenant = :tenant AND version = :version AND state = :state"  # noqa: S608
DUE = f"""
SELECT tenant, {COLUMNS} FROM callgate_waits
WHERE version = :version AND state = 'waiting' AND expires_at <= :now ORDER BY expires_at, tenant, id LIMIT :limit
"""  # noqa: S608
PRUNE = """
DELETE FROM callgate_waits
WHERE version = :version AND state IN ('used', 'denied', 'expired', 'void') AND made_at < :before
"""

FIND = """
SELECT version, provider, tool, digest, at, person FROM callgate_pins
WHERE tenant = :tenant AND provider = :provider AND tool = :tool
"""
PIN = """
INSERT INTO callgate_pins (tenant, version, provider, tool, digest, at, person)
VALUES (:tenant, :version, :provider, :tool, :digest, :at, :person)
ON CONFLICT (tenant, provider, tool)
"""
ADD = f"{PIN} DO NOTHING"
REPIN = f"{PIN} DO UPDATE SET version = excluded.version, digest = excluded.digest, at = excluded.at, person = excluded.person"
PINS = """
SELECT version, provider, tool, digest, at, person FROM callgate_pins
WHERE tenant = :tenant AND provider = :provider ORDER BY tool
"""


class SqlWaits(SqlPart):
    """See ``WaitStore``."""

    async def put(self, tenant: str, wait: Wait) -> None:
        """See ``WaitStore``."""
        if not await self._write(PUT, _written(tenant, wait)):
            raise StoreConflict("a call that waits has that id already")

    async def get(self, tenant: str, id: str) -> Wait | None:
        """See ``WaitStore``."""
        rows = await self._rows(GET, {"tenant": tenant, "id": id})
        if not rows:
            return None
        version, *row = rows[0]
        same_version(version)
        return _wait(row)

    async def replace(self, tenant: str, wait: Wait) -> bool:
        """See ``WaitStore``."""
        return bool(await self._write(REPLACE, _written(tenant, wait)))

    async def list(
        self, tenant: str, *, state: WaitState = WaitState.WAITING, user: str | None = None, limit: int = 100
    ) -> Sequence[Wait]:
        """See ``WaitStore``."""
        query = LIST
        values = {"tenant": tenant, "version": VERSION, "state": state.value, "limit": limit}
        if user is not None:
            query += " AND person = :person"
            values["person"] = user
        return [_wait(row) for row in await self._rows(f"{query} ORDER BY made_at, id LIMIT :limit", values)]

    async def due(self, now: float, limit: int = 100) -> Sequence[tuple[str, Wait]]:
        """See ``WaitStore``."""
        rows = await self._rows(DUE, {"version": VERSION, "now": now, "limit": limit})
        return [(tenant, _wait(row)) for tenant, *row in rows]

    async def prune(self, before: float) -> int:
        """See ``WaitStore``."""
        return int(await self._write(PRUNE, {"version": VERSION, "before": before}))


class SqlPins(SqlPart):
    """See ``PinStore``."""

    async def find(self, tenant: str, provider: str, tool: str) -> Pin | None:
        """See ``PinStore``."""
        rows = await self._rows(FIND, {"tenant": tenant, "provider": provider, "tool": tool})
        return _pin(rows[0]) if rows else None

    async def add(self, tenant: str, pin: Pin) -> Pin:
        """See ``PinStore``."""
        if await self._write(ADD, _pinned(tenant, pin)):
            return pin
        found = await self.find(tenant, pin.provider, pin.tool)
        if found is None:
            raise StoreError("the pin of the tool was removed while it was asked for")
        return found

    async def put(self, tenant: str, pin: Pin) -> None:
        """See ``PinStore``."""
        await self._write(REPIN, _pinned(tenant, pin))

    async def list(self, tenant: str, provider: str) -> Sequence[Pin]:
        """See ``PinStore``."""
        return [_pin(row) for row in await self._rows(PINS, {"tenant": tenant, "provider": provider})]


def _written(tenant: str, wait: Wait) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "version": VERSION,
        "id": wait.id,
        "kind": wait.kind,
        "tool": wait.tool,
        "person": wait.user,
        "made_at": wait.made_at,
        "expires_at": wait.expires_at,
        "body": wait.body,
        "mac": wait.mac,
        "state": wait.state.value,
        "number": wait.number,
    }


def _wait(row: Sequence[Any]) -> Wait:
    id, kind, tool, person, made_at, expires_at, body, mac, state, number = row
    try:
        stands = WaitState(state)
    except ValueError:
        raise StoreError("a suspended call in the store is in a state that there is not") from None
    data = bytes(body) if isinstance(body, bytes | memoryview) else b""  # SQLite keeps anything; no MAC is over that
    return Wait(id, kind, tool, person, made_at, expires_at, data, mac, stands, number)


def _pinned(tenant: str, pin: Pin) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "version": VERSION,
        "provider": pin.provider,
        "tool": pin.tool,
        "digest": pin.digest,
        "at": pin.at,
        "person": pin.by,
    }


def _pin(row: Sequence[Any]) -> Pin:
    version, *told = row
    same_version(version)
    return Pin(*told)
