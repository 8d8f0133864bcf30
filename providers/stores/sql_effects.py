"""The effect ledger in SQL: one row for each key; each change is one statement."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from callgate.errors import StoreError
from callgate.providers.stores.effects import (
    OPEN_STATES,
    PRUNE_BATCH,
    EffectPosition,
    EffectRecord,
    EffectState,
    claimable,
    overdue,
)
from callgate.providers.stores.ledger_writes import Settlement
from callgate.providers.stores.sql_part import OURS, ROW_VERSION, Columns, SqlPart
from callgate.providers.stores.sql_statements import Statement

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
CLAIM_ATTEMPTS = 20
"""The number of attempts of one claim when other processes change the effect between its statements."""

# S608: built from constants.
_HELD = f"{OURS} AND state IN ('claimed', 'running')"
_OVERDUE = f"{_HELD} AND lease_until <= :now"
_LOST = "state = CASE state WHEN 'running' THEN 'unknown' ELSE 'no_effect' END, token = token + 1, ended_at = :now"
_OVER = f"{OURS} AND state IN ('committed', 'no_effect') AND ended_at < :before"

_FREE = """
    e.state = 'no_effect'
    OR (e.state = 'claimed' AND e.lease_until <= excluded.began_at)
    OR (e.state = 'committed' AND e.expires_at <= excluded.began_at)
    OR ({retry} AND e.input_hash = excluded.input_hash
        AND (e.state = 'unknown' OR (e.state = 'running' AND e.lease_until <= excluded.began_at)))
"""
_CLAIM = f"""
INSERT INTO callgate_effects AS e (tenant, version, namespace, {_LISTED})
{{values}}
ON CONFLICT (tenant, key) DO UPDATE SET token = e.token + 1,
    {", ".join(f"{column} = excluded.{column}" for column in _COLUMNS.names if column not in {"key", "token"})}
WHERE e.version = excluded.version AND e.namespace = excluded.namespace AND ({_FREE})
RETURNING token, tenant, key
"""
_CLAIM_ONE = _CLAIM.format(values=f"VALUES (:tenant, :version, :namespace, {_COLUMNS.marks})", retry=":retry")
_TYPES = {"lease_until": "float8", "began_at": "float8", "ended_at": "float8", "expires_at": "float8"} | {
    "token": "bigint",
    "receipt": "bytea",
}
# In order of the keys, so that two processes lock the same rows in the same order.
_SELECTED = f"SELECT tenant, version, namespace, {_LISTED} FROM {{given}} ORDER BY tenant, key"  # noqa: S608
CLAIMS = {
    retry: Statement(
        _CLAIM_ONE,
        _CLAIM.format(values=_SELECTED, retry=str(retry).lower()),
        tenant="text",
        version="smallint",
        namespace="text",
        **{name: _TYPES.get(name, "text") for name in _COLUMNS.names},
    )
    for retry in (False, True)
}
"""The claim of many keys, by ``retry``."""
_SETTLE = f"""
UPDATE callgate_effects
SET state = :state, ended_at = :ended_at, receipt = :receipt, expires_at = :expires_at, note = :note
WHERE tenant = :tenant AND key = :key AND {OURS} AND token = :token AND state IN :states
"""  # noqa: S608
SETTLE = Statement(
    _SETTLE.replace("IN :states", "IN (SELECT value FROM json_each(:states))") + "RETURNING tenant, key",  # noqa: S608
    """
UPDATE callgate_effects AS e
SET state = given.state, ended_at = given.ended_at, receipt = given.receipt, expires_at = given.expires_at, note = NULL
FROM {given}
WHERE e.tenant = given.tenant AND e.key = given.key AND e.version = given.version AND e.namespace = given.namespace
    AND e.token = given.token AND jsonb_exists(given.states::jsonb, e.state)
RETURNING e.tenant, e.key
""",
    tenant="text",
    key="text",
    version="smallint",
    namespace="text",
    token="bigint",  # noqa: S106  (a type)
    state="text",
    ended_at="float8",
    receipt="bytea",
    expires_at="float8",
    states="text",
)
"""The outcomes of many effects."""
FIND = Statement(
    f"SELECT tenant, key, token, state FROM callgate_effects WHERE tenant = :tenant AND key = :key AND {OURS}",  # noqa: S608
    "SELECT e.tenant, e.key, e.token, e.state FROM callgate_effects AS e "
    "JOIN {given} USING (tenant, key, version, namespace)",
    tenant="text",
    key="text",
    version="smallint",
    namespace="text",
)
"""The states of many effects."""
_LOSE = f"UPDATE callgate_effects SET {_LOST} WHERE tenant = :tenant AND key = :key AND {_OVERDUE} RETURNING {_LISTED}"  # noqa: S608
_GET = (
    f"SELECT version, {_LISTED} FROM callgate_effects WHERE tenant = :tenant AND key = :key AND namespace = :namespace"  # noqa: S608
)
_LIST = f"SELECT tenant, {_LISTED} FROM callgate_effects WHERE {OURS}"  # noqa: S608
_RENEW = "UPDATE callgate_effects SET lease_until = :until WHERE "
_OWN = f"owner = :owner AND {_HELD}"
_EXPIRE = f"UPDATE callgate_effects SET {_LOST} WHERE "  # noqa: S608


class SqlEffects(SqlPart):
    """See ``EffectStore``."""

    async def claim(self, tenant: str, effect: EffectRecord, *, retry: bool = False) -> tuple[bool, EffectRecord]:
        values = claim_values(tenant, effect, self.namespace, retry=retry)
        for _ in range(CLAIM_ATTEMPTS):
            taken = await self._write(_CLAIM_ONE, values)
            if taken is not None:
                return True, effect if taken[0] == effect.token else replace(effect, token=taken[0])
            if (found := await self.refused(tenant, effect, retry=retry)) is not None:
                return False, found
        raise StoreError(
            f"other processes changed the effect {CLAIM_ATTEMPTS} times while it was claimed; try again later"
        )

    async def refused(self, tenant: str, effect: EffectRecord, *, retry: bool) -> EffectRecord | None:
        """Return the effect for which a claim was refused.

        None means that another process has changed it since, and that it may be free now.
        """
        found = await self.get(tenant, effect.key)
        if found is None or claimable(found, effect, retry=retry):
            return None
        return await self._lose(tenant, effect.key, effect.began_at) if overdue(found, effect.began_at) else found

    async def _lose(self, tenant: str, key: str, now: float) -> EffectRecord | None:
        """End an effect whose lease has ended. Return it, or None when another process has changed it."""
        values = {"tenant": tenant, "key": key, "now": float(now)}
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
        outcome = Settlement(key, token, state, at, receipt, expires_at, of)
        values = settle_values(tenant, outcome, self.namespace) | {"note": note, "states": [each.value for each in of]}
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
        values: dict[str, Any] = {"limit": limit}
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
        values = {"owner": owner, "until": until}
        return int(await self._write(_RENEW + self._chosen(_OWN), values, upkeep=True))

    async def expire(self, now: float) -> int:
        return int(await self._write(_EXPIRE + self._chosen(_OVERDUE), {"now": now}, upkeep=True))

    async def prune(self, before: float, limit: int = PRUNE_BATCH) -> int:
        return await self._prune("callgate_effects", "tenant, key", _OVER, before, limit)

    def _chosen(self, condition: str) -> str:
        return self._unlocked("callgate_effects", "tenant, key", condition)


def claim_values(tenant: str, effect: EffectRecord, namespace: str, *, retry: bool) -> dict[str, Any]:
    """Return the values of ``CLAIMS`` for an effect."""
    return {**_COLUMNS.values(effect), "tenant": tenant, "version": ROW_VERSION, "namespace": namespace, "retry": retry}


def settle_values(tenant: str, outcome: Settlement, namespace: str) -> dict[str, Any]:
    """Return the values of ``SETTLE`` for an outcome."""
    state = outcome.state
    return {
        "tenant": tenant,
        "key": outcome.key,
        "version": ROW_VERSION,
        "namespace": namespace,
        "token": outcome.token,
        "state": state.value,
        "ended_at": None if state in OPEN_STATES else outcome.at,
        "receipt": outcome.receipt,
        "expires_at": outcome.expires_at,
        "note": None,
        "states": _states(tuple(outcome.of)),
    }


@cache
def _states(states: tuple[EffectState, ...]) -> str:
    return json.dumps(states)
