"""The effect ledger in SQL: one row for each key; each change is one statement.

An effect with an alias has a second row, which is claimed before it and settled before it, in the same transaction. The
order of the two prevents deadlocks.
"""

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
    Alias,
    EffectPosition,
    EffectRecord,
    EffectState,
    binds,
    claimable,
    overdue,
    same_claim,
)
from callgate.providers.stores.ledger_writes import Settlement
from callgate.providers.stores.sql_part import OURS, Columns, SqlPart
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
_OVERWRITTEN = ", ".join(
    ["token = e.token + 1", *(f"{name} = excluded.{name}" for name in _COLUMNS.names if name not in {"key", "token"})]
)
_BOUND = {"key": ":alias", "idempotency_key": ":given", "alias_of": "key"}
_CLAIM = f"""
INSERT INTO callgate_effects AS e (tenant, version, namespace, {_LISTED})
{{values}}
ON CONFLICT (tenant, key) DO UPDATE SET {_OVERWRITTEN}
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
_SETTLED = {
    "tenant": "text",
    "key": "text",
    "version": "smallint",
    "namespace": "text",
    "token": "bigint",
    "state": "text",
    "ended_at": "float8",
    "receipt": "bytea",
    "expires_at": "float8",
    "states": "text",
}
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
    **_SETTLED,
)
"""The outcomes of many effects."""
_CLAIM_OF = "a.owner = p.owner AND a.request_id = p.request_id AND a.began_at = p.began_at"  # see ``same_claim``
_LEFT = "a.state IN ('claimed', 'running', 'unknown')"
_SETTLE_ALIASES = f"""
UPDATE callgate_effects AS a
SET state = :state, ended_at = :ended_at, receipt = :receipt, expires_at = :expires_at, note = :note
WHERE a.tenant = :tenant AND a.alias_of = :key AND a.version = :version AND a.namespace = :namespace
    AND ({_LEFT} OR a.state IN :states)
    AND EXISTS (SELECT 1 FROM callgate_effects AS p WHERE p.tenant = a.tenant AND p.key = :key AND {_CLAIM_OF}
        AND p.token = :token AND p.state IN :states)
"""  # noqa: S608
SETTLE_ALIASES = Statement(
    _SETTLE_ALIASES.replace("IN :states", "IN (SELECT value FROM json_each(:states))"),
    f"""
UPDATE callgate_effects AS a
SET state = given.state, ended_at = given.ended_at, receipt = given.receipt, expires_at = given.expires_at,
    note = given.note
FROM {{given}} JOIN callgate_effects AS p ON p.tenant = given.tenant AND p.key = given.key AND p.token = given.token
WHERE a.tenant = given.tenant AND a.alias_of = given.key AND a.version = given.version
    AND a.namespace = given.namespace AND {_CLAIM_OF} AND jsonb_exists(given.states::jsonb, p.state)
    AND ({_LEFT} OR jsonb_exists(given.states::jsonb, a.state))
RETURNING a.key
""",  # noqa: S608
    **_SETTLED,
    note="text",
)
"""The outcomes of the aliases of many effects; it runs before ``SETTLE``."""
DROP = Statement(
    f"DELETE FROM callgate_effects WHERE tenant = :tenant AND key = :key AND {OURS}",  # noqa: S608
    "DELETE FROM callgate_effects AS e USING {given} WHERE e.tenant = given.tenant AND e.key = given.key "
    "AND e.version = given.version AND e.namespace = given.namespace RETURNING e.key",
    tenant="text",
    key="text",
    version="smallint",
    namespace="text",
)
"""Takes back aliases whose effects were refused, in the transaction that claimed them: their rows were free."""
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
# A row whose effect has another claim by now is no alias any more, and an operator has to see it if its end is not known.
_LIST = f"""
SELECT tenant, {_LISTED} FROM callgate_effects AS a WHERE {OURS} AND (a.alias_of IS NULL OR {_LEFT} AND NOT EXISTS (
    SELECT 1 FROM callgate_effects AS p WHERE p.tenant = a.tenant AND p.key = a.alias_of AND {_CLAIM_OF}
))
"""  # noqa: S608
_BIND = f"""
INSERT INTO callgate_effects AS e (tenant, version, namespace, {_LISTED})
SELECT tenant, version, namespace, {", ".join(_BOUND.get(name, name) for name in _COLUMNS.names)}
FROM callgate_effects WHERE tenant = :tenant AND key = :key AND {OURS} AND state = 'committed'
ON CONFLICT (tenant, key) DO UPDATE SET {_OVERWRITTEN}
WHERE e.version = excluded.version AND e.namespace = excluded.namespace AND e.state = 'no_effect'
"""  # noqa: S608
_COPY = f"""
UPDATE callgate_effects
SET state = :state, lease_until = :lease_until, ended_at = :ended_at, receipt = :receipt, expires_at = :expires_at,
    note = :note
WHERE tenant = :tenant AND key = :key AND {OURS} AND token = :token
"""  # noqa: S608
_RENEW = "UPDATE callgate_effects SET lease_until = :until WHERE "
_OWN = f"owner = :owner AND {_HELD}"
_EXPIRE = f"UPDATE callgate_effects SET {_LOST} WHERE "  # noqa: S608


class SqlEffects(SqlPart):
    """See ``EffectStore``."""

    async def claim(
        self, tenant: str, effect: EffectRecord, *, retry: bool = False, alias: Alias | None = None
    ) -> tuple[bool, EffectRecord]:
        if alias is not None and self._within is None:
            return await self._database.transact(
                lambda connection: SqlEffects(self._database, connection, self.namespace).claim(
                    tenant, effect, retry=retry, alias=alias
                ),
            )
        for _ in range(CLAIM_ATTEMPTS):
            taken = await self._take(tenant, effect, alias, retry=retry)
            if taken is not None:
                return True, effect if taken[0] == effect.token else replace(effect, token=taken[0])
            if (found := await self.refused(tenant, effect, retry=retry, alias=alias)) is not None:
                return False, found
        raise StoreError(
            f"other processes changed the effect {CLAIM_ATTEMPTS} times while it was claimed; try again later"
        )

    async def _take(self, tenant: str, effect: EffectRecord, alias: Alias | None, *, retry: bool) -> Any:
        """Claim both rows or none. Return the token of the effect in a row; None if it was refused."""
        if alias is not None:
            row = claim_values(tenant, alias.row(effect), self.namespace, retry=retry)
            if await self._write(_CLAIM_ONE, row) is None:
                return None
        taken = await self._write(_CLAIM_ONE, claim_values(tenant, effect, self.namespace, retry=retry))
        if taken is None and alias is not None:
            await self._write(DROP.lite, {"tenant": tenant, "key": alias.key})
        return taken

    async def refused(
        self, tenant: str, effect: EffectRecord, *, retry: bool, alias: Alias | None = None
    ) -> EffectRecord | None:
        """Return the effect for which a claim was refused.

        None means that another process has changed it since, and that it may be free now.
        """
        if alias is not None:
            found = await self._row(tenant, alias.key)
            if found is not None and not claimable(found, effect, retry=retry):
                return await self._held(tenant, found, effect.began_at)
        found = await self._row(tenant, effect.key)
        if found is None or claimable(found, effect, retry=retry):
            return None
        found = await self._held(tenant, found, effect.began_at)
        if alias is not None and found is not None and binds(found, effect):
            await self.bind(tenant, found.key, alias)
        return found

    async def _held(self, tenant: str, found: EffectRecord, now: float) -> EffectRecord | None:
        """Return the effect that holds a row, after its lease has ended if that is over. None: look again."""
        effect = await self._aliased(tenant, found)
        if effect is not None and overdue(effect, now):
            effect = await self._lose(tenant, effect.key, now)
            if effect is None:
                return None
        if effect is None:
            return await self._lose(tenant, found.key, now) if overdue(found, now) else found
        if effect.state is found.state:
            return effect
        # One of the two rows was locked when leases ended, or the version before settled one of them.
        names = ("state", "lease_until", "ended_at", "receipt", "expires_at", "note")
        copied = {name: getattr(effect, name) for name in names}
        await self._write(_COPY, copied | {"tenant": tenant, "key": found.key, "token": found.token})
        return None

    async def _aliased(self, tenant: str, row: EffectRecord) -> EffectRecord | None:
        """Return the effect that a row is an alias of; None if the row is an effect itself."""
        effect = None if row.alias_of is None else await self._row(tenant, row.alias_of)
        return effect if effect is not None and same_claim(effect, row) else None

    async def bind(self, tenant: str, key: str, alias: Alias) -> None:
        await self._write(_BIND, {"tenant": tenant, "key": key, "alias": alias.key, "given": alias.given})

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
        aliases: bool = False,
    ) -> bool:
        outcome = Settlement(key, token, state, at, receipt, expires_at, of)
        values = settle_values(tenant, outcome, self.namespace) | {"note": note}
        listed = {"states": [each.value for each in of]}
        if not aliases:
            return bool(await self._write(_SETTLE, values | listed))
        if self._within is None:
            return await self._database.transact(
                lambda connection: SqlEffects(self._database, connection, self.namespace)._settle_both(values, listed),
            )
        return await self._settle_both(values, listed)

    async def _settle_both(self, values: dict[str, Any], listed: dict[str, Any]) -> bool:
        await self._write(_SETTLE_ALIASES, values | listed)
        return bool(await self._write(_SETTLE, values | listed))

    async def get(self, tenant: str, key: str) -> EffectRecord | None:
        found = await self._row(tenant, key)
        return found if found is None or found.alias_of is None else await self._aliased(tenant, found) or found

    async def _row(self, tenant: str, key: str) -> EffectRecord | None:
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
        lost = f"{_EXPIRE}{self._chosen(_OVERDUE)} RETURNING alias_of"
        return sum(alias_of is None for (alias_of,) in await self._write_rows(lost, {"now": now}, upkeep=True))

    async def prune(self, before: float, limit: int = PRUNE_BATCH) -> int:
        return await self._prune("callgate_effects", "tenant, key", _OVER, before, limit)

    def _chosen(self, condition: str) -> str:
        return self._unlocked("callgate_effects", "tenant, key", condition)


def claim_values(tenant: str, effect: EffectRecord, namespace: str, *, retry: bool) -> dict[str, Any]:
    """Return the values of ``CLAIMS`` for an effect."""
    return {
        **_COLUMNS.values(effect),
        "tenant": tenant,
        "version": SqlEffects.version,
        "namespace": namespace,
        "retry": retry,
    }


def settle_values(tenant: str, outcome: Settlement, namespace: str) -> dict[str, Any]:
    """Return the values of ``SETTLE`` for an outcome."""
    state = outcome.state
    return {
        "tenant": tenant,
        "key": outcome.key,
        "version": SqlEffects.version,
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
