"""The effect ledger in SQL: one row for each key, changed by one statement at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import Any

from callgate.errors import StoreError
from callgate.providers.stores.effects import OPEN, Effect, EffectState, claimable, overdue
from callgate.providers.stores.sql_part import VERSION, SqlPart, same_version

FIELDS = tuple(field.name for field in fields(Effect))
RENAMED = {"version": "tool_version", "user": "person"}  # one is that of the row, the other a word of SQL
COLUMNS = tuple(RENAMED.get(name, name) for name in FIELDS)
LISTED = ", ".join(COLUMNS)
TRIES = 20
"""How often another may change an effect between two statements of one claim."""

# S608: put together of constants.
HELD = "version = :version AND state IN ('claimed', 'running')"
OVERDUE = f"{HELD} AND lease_until <= :now"
LOST = "state = CASE state WHEN 'running' THEN 'unknown' ELSE 'no_effect' END, token = token + 1, ended_at = :now"
OVER = "version = :version AND state IN ('committed', 'no_effect') AND ended_at < :before"

CLAIM = f"""
INSERT INTO callgate_effects AS e (tenant, version, {LISTED})
VALUES (:tenant, :version, {", ".join(f":{column}" for column in COLUMNS)})
ON CONFLICT (tenant, key) DO UPDATE SET token = e.token + 1,
    {", ".join(f"{column} = excluded.{column}" for column in COLUMNS if column not in {"key", "token"})}
WHERE e.version = excluded.version AND (
    e.state = 'no_effect'
    OR (e.state = 'claimed' AND e.lease_until <= excluded.began_at)
    OR (e.state = 'committed' AND e.expires_at <= excluded.began_at)
    OR (:again AND e.input_hash = excluded.input_hash
        AND (e.state = 'unknown' OR (e.state = 'running' AND e.lease_until <= excluded.began_at)))
)
RETURNING token
"""  # noqa: S608
LOSE = f"UPDATE callgate_effects SET {LOST} WHERE tenant = :tenant AND key = :key AND {OVERDUE} RETURNING {LISTED}"  # noqa: S608
SETTLE = """
UPDATE callgate_effects
SET state = :state, ended_at = :ended_at, receipt = :receipt, expires_at = :expires_at, note = :note
WHERE tenant = :tenant AND key = :key AND version = :version AND token = :token AND state IN :states
"""
GET = f"SELECT version, {LISTED} FROM callgate_effects WHERE tenant = :tenant AND key = :key"  # noqa: S608
LIST = f"SELECT tenant, {LISTED} FROM callgate_effects WHERE version = :version"  # noqa: S608
RENEW = f"UPDATE callgate_effects SET lease_until = :until WHERE owner = :owner AND {HELD}"  # noqa: S608
EXPIRE = f"UPDATE callgate_effects SET {LOST} WHERE "  # noqa: S608
PRUNE = "DELETE FROM callgate_effects WHERE "


class SqlEffects(SqlPart):
    """See ``EffectStore``."""

    async def claim(self, tenant: str, effect: Effect, *, again: bool = False) -> tuple[bool, Effect]:
        """See ``EffectStore``."""
        values: dict[str, Any] = {"tenant": tenant, "version": VERSION, "again": again}
        values |= {column: getattr(effect, name) for column, name in zip(COLUMNS, FIELDS, strict=True)}
        for _ in range(TRIES):
            taken = await self._write(CLAIM, values)
            if taken is not None:
                return True, effect if taken[0] == effect.token else replace(effect, token=taken[0])
            found = await self.get(tenant, effect.key)
            if found is not None and not claimable(found, effect, again=again):
                if overdue(found, effect.began_at):
                    found = await self._lose(tenant, effect.key, effect.began_at)
                if found is not None:
                    return False, found
            # It was changed since the first statement: it may be free now.
        raise StoreError("the effect is changed by others faster than it can be claimed")

    async def _lose(self, tenant: str, key: str, now: float) -> Effect | None:
        """Nobody holds it any more: what it is then, None when somebody has changed it meanwhile."""
        values = {"tenant": tenant, "key": key, "version": VERSION, "now": float(now)}
        row = await self._write(LOSE, values)
        return None if row is None else _effect(row)

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
        of: Collection[EffectState] = OPEN,
    ) -> bool:
        """See ``EffectStore``."""
        values: dict[str, Any] = {
            "tenant": tenant,
            "key": key,
            "version": VERSION,
            "token": token,
            "state": state.value,
            "ended_at": None if state in OPEN else at,
            "receipt": receipt,
            "expires_at": expires_at,
            "note": note,
            "states": [each.value for each in of],
        }
        return bool(await self._write(SETTLE, values))

    async def get(self, tenant: str, key: str) -> Effect | None:
        """See ``EffectStore``."""
        rows = await self._rows(GET, {"tenant": tenant, "key": key})
        if not rows:
            return None
        version, *row = rows[0]
        same_version(version)
        return _effect(row)

    async def list(
        self, tenant: str | None, *, states: Collection[EffectState] = (), tool: str | None = None, limit: int = 100
    ) -> Sequence[tuple[str, Effect]]:
        """See ``EffectStore``."""
        query = LIST
        values: dict[str, Any] = {"version": VERSION, "limit": limit}
        for name, given in (("tenant", tenant), ("tool", tool)):
            if given is not None:
                query += f" AND {name} = :{name}"
                values[name] = given
        if states:
            query += " AND state IN :states"
            values["states"] = [state.value for state in states]
        rows = await self._rows(f"{query} ORDER BY began_at DESC, tenant, key LIMIT :limit", values)
        return [(owner, _effect(row)) for owner, *row in rows]

    async def renew(self, owner: str, until: float) -> int:
        """See ``EffectStore``."""
        return int(await self._write(RENEW, {"owner": owner, "until": until, "version": VERSION}))

    async def expire(self, now: float) -> int:
        """See ``EffectStore``."""
        return int(await self._write(EXPIRE + self._chosen(OVERDUE), {"now": now, "version": VERSION}))

    async def prune(self, before: float) -> int:
        """See ``EffectStore``."""
        return int(await self._write(PRUNE + self._chosen(OVER), {"before": before, "version": VERSION}))

    def _chosen(self, condition: str) -> str:
        return self._unlocked("callgate_effects", "tenant, key", condition)


def _effect(row: Sequence[Any]) -> Effect:
    found: dict[str, Any] = dict(zip(FIELDS, row, strict=True))
    for time in ("lease_until", "began_at", "ended_at", "expires_at"):
        found[time] = None if found[time] is None else float(found[time])  # SQLite may give whole ones as int
    found["receipt"] = None if found["receipt"] is None else bytes(found["receipt"])
    found["state"] = EffectState(found["state"])
    return Effect(**found)
