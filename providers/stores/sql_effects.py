"""The effect ledger in SQL: one row for each key; each change is one statement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from callgate.errors import StoreError
from callgate.providers.stores.effects import (
    OPEN_STATES,
    EffectPosition,
    EffectRecord,
    EffectState,
    claimable,
    overdue,
)
from callgate.providers.stores.sql_part import ROW_VERSION, Columns, SqlPart

_COLUMNS = Columns(
    EffectRecord,
    {"version": "tool_version", "user": "person"},  # `version` is that of the row, `user` a keyword of SQL
    {
        **dict.fromkeys(("lease_until", "began_at", "ended_at", "expires_at"), float),  # SQLite may return an int
        "receipt": bytes,
        "state": EffectState,
    },
)
_LISTED = _COLUMNS.listed
_ATTEMPTS = 20
"""The number of attempts of one claim when other processes change the effect between its statements."""

# S608: built from constants.
_HELD = "version = :version AND state IN ('claimed', 'running')"
_OVERDUE = f"{_HELD} AND lease_until <= :now"
_LOST = "state = CASE state WHEN 'running' THEN 'unknown' ELSE 'no_effect' END, token = token + 1, ended_at = :now"
_OVER = "version = :version AND state IN ('committed', 'no_effect') AND ended_at < :before"

_CLAIM = f"""
INSERT INTO callgate_effects AS e (tenant, version, {_LISTED})
VALUES (:tenant, :version, {_COLUMNS.marks})
ON CONFLICT (tenant, key) DO UPDATE SET token = e.token + 1,
    {", ".join(f"{column} = excluded.{column}" for column in _COLUMNS.names if column not in {"key", "token"})}
WHERE e.version = excluded.version AND (
    e.state = 'no_effect'
    OR (e.state = 'claimed' AND e.lease_until <= excluded.began_at)
    OR (e.state = 'committed' AND e.expires_at <= excluded.began_at)
    OR (:retry AND e.input_hash = excluded.input_hash
        AND (e.state = 'unknown' OR (e.state = 'running' AND e.lease_until <= excluded.began_at)))
)
RETURNING token
"""  # noqa: S608
_LOSE = f"UPDATE callgate_effects SET {_LOST} WHERE tenant = :tenant AND key = :key AND {_OVERDUE} RETURNING {_LISTED}"  # noqa: S608
_SETTLE = """
UPDATE callgate_effects
SET state = :state, ended_at = :ended_at, receipt = :receipt, expires_at = :expires_at, note = :note
WHERE tenant = :tenant AND key = :key AND version = :version AND token = :token AND state IN :states
"""
_GET = f"SELECT version, {_LISTED} FROM callgate_effects WHERE tenant = :tenant AND key = :key"  # noqa: S608
_LIST = f"SELECT tenant, {_LISTED} FROM callgate_effects WHERE version = :version"  # noqa: S608
_RENEW = f"UPDATE callgate_effects SET lease_until = :until WHERE owner = :owner AND {_HELD}"  # noqa: S608
_EXPIRE = f"UPDATE callgate_effects SET {_LOST} WHERE "  # noqa: S608
_PRUNE = "DELETE FROM callgate_effects WHERE "


class SqlEffects(SqlPart):
    """See ``EffectStore``."""

    async def claim(self, tenant: str, effect: EffectRecord, *, retry: bool = False) -> tuple[bool, EffectRecord]:
        values = {**_COLUMNS.values(effect), "tenant": tenant, "version": ROW_VERSION, "retry": retry}
        for _ in range(_ATTEMPTS):
            taken = await self._write(_CLAIM, values)
            if taken is not None:
                return True, effect if taken[0] == effect.token else replace(effect, token=taken[0])
            found = await self.get(tenant, effect.key)
            if found is not None and not claimable(found, effect, retry=retry):
                if overdue(found, effect.began_at):
                    found = await self._lose(tenant, effect.key, effect.began_at)
                if found is not None:
                    return False, found
            # Another process changed it after the first statement: it may be free now.
        raise StoreError(f"other processes changed the effect {_ATTEMPTS} times while it was claimed; try again later")

    async def _lose(self, tenant: str, key: str, now: float) -> EffectRecord | None:
        """End an effect whose lease has ended. Return it, or None when another process has changed it."""
        values = {"tenant": tenant, "key": key, "version": ROW_VERSION, "now": float(now)}
        row = await self._write(_LOSE, values)
        return None if row is None else _COLUMNS.record(row)

    async def settle(
        self,
        tenant: str,
        key: str,
        token: int,
        state: EffectState,
        *,
        at: float,
        receipt: bytes | None = None,
        expires_at: float | None = None,
        note: str | None = None,
        of: Collection[EffectState] = OPEN_STATES,
    ) -> bool:
        values: dict[str, Any] = {
            "tenant": tenant,
            "key": key,
            "version": ROW_VERSION,
            "token": token,
            "state": state.value,
            "ended_at": None if state in OPEN_STATES else at,
            "receipt": receipt,
            "expires_at": expires_at,
            "note": note,
            "states": [each.value for each in of],
        }
        return bool(await self._write(_SETTLE, values))

    async def get(self, tenant: str, key: str) -> EffectRecord | None:
        return await self._one(_GET, {"tenant": tenant, "key": key}, _COLUMNS)

    async def list(
        self,
        tenant: str | None,
        *,
        states: Collection[EffectState] = (),
        tool: str | None = None,
        after: EffectPosition | None = None,
        limit: int = 100,
    ) -> Sequence[tuple[str, EffectRecord]]:
        query, order = _LIST, "DESC" if after is None else "ASC"
        values: dict[str, Any] = {"version": ROW_VERSION, "limit": limit}
        for name, given in (("tenant", tenant), ("tool", tool)):
            if given is not None:
                query += f" AND {name} = :{name}"
                values[name] = given
        if states:
            query += " AND state IN :states"
            values["states"] = [state.value for state in states]
        if after is not None:
            query += " AND (began_at, tenant, key) > (:after_time, :after_tenant, :after_key)"
            values |= dict(zip(("after_time", "after_tenant", "after_key"), after, strict=True))
        rows = await self._rows(f"{query} ORDER BY began_at {order}, tenant, key LIMIT :limit", values)
        return [(owner, _COLUMNS.record(row)) for owner, *row in rows]

    async def renew(self, owner: str, until: float) -> int:
        return int(await self._write(_RENEW, {"owner": owner, "until": until, "version": ROW_VERSION}))

    async def expire(self, now: float) -> int:
        return int(await self._write(_EXPIRE + self._chosen(_OVERDUE), {"now": now, "version": ROW_VERSION}))

    async def prune(self, before: float) -> int:
        return int(await self._write(_PRUNE + self._chosen(_OVER), {"before": before, "version": ROW_VERSION}))

    def _chosen(self, condition: str) -> str:
        return self._unlocked("callgate_effects", "tenant, key", condition)
