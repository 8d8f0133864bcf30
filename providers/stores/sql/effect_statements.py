"""The statements of the effect ledger in SQL."""

from __future__ import annotations

from callgate.providers.stores.effects import EffectRecord, EffectState
from callgate.providers.stores.signed_rows import EFFECT
from callgate.providers.stores.sql.database.part import OURS, Columns, as_blob
from callgate.providers.stores.sql.database.statements import Statement

COLUMNS = Columns(
    EffectRecord,
    {"version": "tool_version", "user": "person"},  # `version` is that of the row, `user` a keyword of SQL
    {
        **dict.fromkeys(("lease_until", "began_at", "ended_at", "expires_at"), float),  # SQLite may return an int
        "receipt": as_blob,
        "state": EffectState,
    },
)
LISTED = COLUMNS.listed
# S608: built from constants.
HELD = f"{OURS} AND state IN ('claimed', 'running')"
OVERDUE = f"{HELD} AND lease_until <= :now"
LOST = "state = CASE state WHEN 'running' THEN 'unknown' ELSE 'no_effect' END, token = token + 1, ended_at = :now"
OVER = f"{OURS} AND state IN ('committed', 'no_effect') AND ended_at < :before"

FREE = """
    e.state = 'no_effect'
    OR (e.state = 'claimed' AND e.lease_until <= excluded.began_at)
    OR (e.state = 'committed' AND e.expires_at <= excluded.began_at)
    OR ({retry} AND e.input_hash = excluded.input_hash
        AND (e.state = 'unknown' OR (e.state = 'running' AND e.lease_until <= excluded.began_at)))
"""
OVERWRITTEN = ", ".join(
    ["token = e.token + 1", *(f"{name} = excluded.{name}" for name in COLUMNS.names if name not in {"key", "token"})]
)
BOUND = {"key": ":alias", "idempotency_key": ":given", "alias_of": "key"}
CLAIM = f"""
INSERT INTO callgate_effects AS e (tenant, version, namespace, {LISTED})
{{values}}
ON CONFLICT (tenant, key) DO UPDATE SET {OVERWRITTEN}
WHERE e.version = excluded.version AND e.namespace = excluded.namespace AND ({FREE})
RETURNING token, tenant, key
"""
VALUES = f"VALUES (:tenant, :version, :namespace, {COLUMNS.marks})"
CLAIM_ONE = CLAIM.format(values=VALUES, retry=":retry")
CLAIM_SEEN = CLAIM_ONE.replace("RETURNING", "AND e.mac = :seen RETURNING")
"""Claims the row whose signature was checked, and no other: the database does not check it."""
TYPES = {"lease_until": "float8", "began_at": "float8", "ended_at": "float8", "expires_at": "float8"} | {
    "token": "bigint",
    "receipt": "bytea",
}
# In order of the keys, so that two processes lock the same rows in the same order.
SELECTED = f"SELECT tenant, version, namespace, {LISTED} FROM {{given}} ORDER BY tenant, key"  # noqa: S608
CLAIMS = {
    retry: Statement(
        CLAIM_ONE,
        CLAIM.format(values=SELECTED, retry=str(retry).lower()),
        tenant="text",
        version="smallint",
        namespace="text",
        **{name: TYPES.get(name, "text") for name in COLUMNS.names},
    )
    for retry in (False, True)
}
"""The claim of many keys, by ``retry``."""
NEW_CLAIM = f"""
INSERT INTO callgate_effects (tenant, version, namespace, {LISTED})
{{values}}
ON CONFLICT (tenant, key) DO NOTHING RETURNING token, tenant, key
"""
CLAIM_NEW = Statement(
    NEW_CLAIM.format(values=VALUES),
    NEW_CLAIM.format(values=SELECTED),
    tenant="text",
    version="smallint",
    namespace="text",
    **{name: TYPES.get(name, "text") for name in COLUMNS.names},
)
"""The claim of many keys that have no rows."""
SETTLE_ONE = f"""
UPDATE callgate_effects
SET state = :state, ended_at = :ended_at, receipt = :receipt, expires_at = :expires_at, note = :note, mac = :mac
WHERE tenant = :tenant AND key = :key AND {OURS} AND token = :token AND state IN :states
"""  # noqa: S608
SETTLE_SEEN = f"{SETTLE_ONE} AND mac = :seen"
"""Settles the row whose signature was checked."""
SETTLED = {
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
    "mac": "text",
    "alias": "text",
    "alias_mac": "text",
}
SETTLE = Statement(
    SETTLE_ONE.replace("IN :states", "IN (SELECT value FROM json_each(:states))") + "RETURNING tenant, key",  # noqa: S608
    """
UPDATE callgate_effects AS e
SET state = given.state, ended_at = given.ended_at, receipt = given.receipt, expires_at = given.expires_at, note = NULL,
    mac = given.mac
FROM {given}
WHERE e.tenant = given.tenant AND e.key = given.key AND e.version = given.version AND e.namespace = given.namespace
    AND e.token = given.token AND jsonb_exists(given.states::jsonb, e.state)
RETURNING e.tenant, e.key
""",
    **SETTLED,
)
"""The outcomes of many effects."""
CLAIM_OF = "a.owner = p.owner AND a.request_id = p.request_id AND a.began_at = p.began_at"  # see ``same_claim``
LEFT = "a.state IN ('claimed', 'running', 'unknown')"
SETTLE_ALIAS_ROWS = f"""
UPDATE callgate_effects AS a
SET state = :state, ended_at = :ended_at, receipt = :receipt, expires_at = :expires_at, note = :note, mac = :alias_mac
WHERE a.tenant = :tenant AND a.alias_of = :key AND (CAST(:alias AS text) IS NULL OR a.key = :alias) AND a.version = :version AND a.namespace = :namespace
    AND ({LEFT} OR a.state IN :states)
    AND EXISTS (SELECT 1 FROM callgate_effects AS p WHERE p.tenant = a.tenant AND p.key = :key AND {CLAIM_OF}
        AND p.token = :token AND p.state IN :states)
"""  # noqa: S608
SETTLE_ALIASES = Statement(
    SETTLE_ALIAS_ROWS.replace("IN :states", "IN (SELECT value FROM json_each(:states))"),
    f"""
UPDATE callgate_effects AS a
SET state = given.state, ended_at = given.ended_at, receipt = given.receipt, expires_at = given.expires_at,
    note = given.note, mac = given.alias_mac
FROM {{given}} JOIN callgate_effects AS p ON p.tenant = given.tenant AND p.key = given.key AND p.token = given.token
WHERE a.tenant = given.tenant AND a.alias_of = given.key AND a.version = given.version
    AND a.namespace = given.namespace AND {CLAIM_OF} AND jsonb_exists(given.states::jsonb, p.state)
    AND ({LEFT} OR jsonb_exists(given.states::jsonb, a.state)) AND (given.alias IS NULL OR a.key = given.alias)
RETURNING a.key
""",  # noqa: S608
    **SETTLED,
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
LOSE = f"UPDATE callgate_effects SET {LOST} WHERE tenant = :tenant AND key = :key AND {OVERDUE} RETURNING {LISTED}"  # noqa: S608
GET = f"SELECT version, {LISTED} FROM callgate_effects WHERE tenant = :tenant AND key = :key AND namespace = :namespace"  # noqa: S608
# A row whose effect has another claim by now is no alias any more, and an operator has to see it if its end is not known.
LIST = f"""
SELECT tenant, {LISTED} FROM callgate_effects AS a WHERE {OURS} AND (a.alias_of IS NULL OR {LEFT} AND NOT EXISTS (
    SELECT 1 FROM callgate_effects AS p WHERE p.tenant = a.tenant AND p.key = a.alias_of AND {CLAIM_OF}
))
"""  # noqa: S608
BIND = f"""
INSERT INTO callgate_effects AS e (tenant, version, namespace, {LISTED})
SELECT tenant, version, namespace, {", ".join(BOUND.get(name, name) for name in COLUMNS.names)}
FROM callgate_effects WHERE tenant = :tenant AND key = :key AND {OURS} AND state IN ('committed', 'claimed', 'running')
ON CONFLICT (tenant, key) DO UPDATE SET {OVERWRITTEN}
WHERE e.version = excluded.version AND e.namespace = excluded.namespace AND e.state = 'no_effect'
"""  # noqa: S608
COPY = f"""
UPDATE callgate_effects
SET state = :state, lease_until = :lease_until, ended_at = :ended_at, receipt = :receipt, expires_at = :expires_at,
    note = :note, mac = :mac
WHERE tenant = :tenant AND key = :key AND {OURS} AND token = :token
"""  # noqa: S608
RENEW = "UPDATE callgate_effects SET lease_until = :until WHERE "
OWN = f"owner = :owner AND {HELD}"
EXPIRE = f"UPDATE callgate_effects SET {LOST} WHERE "  # noqa: S608


ALIASES = f"SELECT {LISTED} FROM callgate_effects WHERE tenant = :tenant AND alias_of = :key AND {OURS}"  # noqa: S608
PRUNE_VERSIONS = f"""
DELETE FROM callgate_versions WHERE kind = '{EFFECT}' AND number < :number AND {{ours}} AND NOT EXISTS (
    SELECT 1 FROM callgate_effects AS e
    WHERE CAST(:before AS text) || e.tenant = callgate_versions.tenant AND e.key = callgate_versions.key AND e.namespace = :namespace
)
"""  # noqa: S608
