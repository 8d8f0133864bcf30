"""The statements that write rows of the audit log, also in a batch, and their values."""

from __future__ import annotations

import json
from collections.abc import Mapping

from callgate.errors import StoreError
from callgate.providers.stores.base import MAX_TIPS, AuditRow
from callgate.providers.stores.ledger_writes import row_json
from callgate.providers.stores.namespaces import in_table
from callgate.providers.stores.sql.database.statements import Statement

AUDIT_VERSION = 1
"""The version of the rows; see ``SqlPart``."""

APPEND = Statement(
    """
INSERT INTO callgate_audit (tenant, segment, number, version, at, body, previous, hash)
VALUES (:tenant, :segment, :number, :version, :at, :body, :previous, :hash)
""",
    """
INSERT INTO callgate_audit (tenant, segment, number, version, at, body, previous, hash)
SELECT tenant, segment, number, version, at, body, previous, hash FROM {given}
""",
    tenant="text",
    segment="text",
    number="bigint",
    version="smallint",
    at="float8",
    body="text",
    previous="text",
    hash="text",
)
_TIPS = f"""SELECT segment, number, hash FROM (WITH RECURSIVE found(name, low, n) AS (
  SELECT (SELECT max(segment) FROM callgate_audit WHERE segment >= {{low}} AND segment < {{high}}), {{low}}, 1 {{of}}
  UNION ALL
  SELECT (SELECT max(segment) FROM callgate_audit WHERE segment >= low AND segment < name), low, n + 1 FROM found
  WHERE name IS NOT NULL AND n < {MAX_TIPS}
)
SELECT last.segment, last.number, last.hash FROM found JOIN callgate_audit AS last ON last.segment = name
WHERE last.number = (SELECT max(number) FROM callgate_audit WHERE segment = name)) AS tips ORDER BY segment DESC
"""  # noqa: S608  (constants)
TIPS = Statement(
    _TIPS.format(low=":low", high=":high", of=""),
    _TIPS.format(low="given.low", high="given.high", of="FROM {given}"),
    low='text COLLATE "C"',
    high='text COLLATE "C"',
)
"""The last row of each of the newest segments of a namespace: the index on segments answers it."""


def append_values(tenant: str, row: AuditRow, namespace: str = "") -> dict[str, object]:
    """Return the values of ``APPEND`` for a row."""
    return {
        "tenant": tenant,
        "segment": in_table(namespace, row.segment),
        "number": row.number,
        "version": AUDIT_VERSION,
        "at": float(row.at),
        "body": body_json(row.body),
        "previous": row.previous,
        "hash": row.hash,
    }


def body_json(body: Mapping[str, object]) -> str:
    """Return the body of an audit row as JSON.

    Raises:
        StoreError: the body is not JSON; the message shows nothing of it.
    """
    data = getattr(body, "encoded", None) or row_json(body)
    # orjson writes null for a float that is not finite. A database whose encoding is not UTF-8 takes ASCII alone.
    if data is not None and data.isascii() and data.count(b"null") == list(body.values()).count(None):
        return data.decode()
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError):
        raise StoreError("the body of an audit row is not JSON") from None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {**value}
    raise TypeError
