"""The append-only audit log in SQL. Triggers refuse updates, and deletes of rows that no pruning checkpoint covers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, TypeVar

from callgate.errors import StoreConflict, StoreError
from callgate.providers.stores.base import MAX_TIPS, AuditCheckpoint, AuditRow, AuditTip, CheckpointKind
from callgate.providers.stores.namespaces import from_table, in_table, range_of
from callgate.providers.stores.sql_audit_reading import AUDIT_VERSION, SqlAuditSnapshot
from callgate.providers.stores.sql_connections import shielded
from callgate.providers.stores.sql_database import Database
from callgate.providers.stores.sql_part import SqlPart, check_row_version, statement
from callgate.providers.stores.sql_statements import Statement

T = TypeVar("T")

_PAGE = 500
"""Rows of one read; no connection is held while the caller handles them."""

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
_READ = """
SELECT segment, number, version, at, body, previous, hash FROM callgate_audit
WHERE (at, segment, number) > (:at, :segment, :number) AND at >= :since AND segment >= :low AND segment < :high
"""
_ANCHOR = "INSERT INTO callgate_anchors (segment, number, hash, at) VALUES (:segment, :number, :hash, :at)"
_ANCHORS = """
SELECT segment, number, hash, at FROM callgate_anchors WHERE segment >= :low AND segment < :high ORDER BY id
"""
_REPLACE = "DELETE FROM callgate_audit_checkpoints WHERE segment = :segment AND kind = :kind"
_CHECKPOINT = """
INSERT INTO callgate_audit_checkpoints (segment, kind, number, hash, at, mac)
VALUES (:segment, :kind, :number, :hash, :at, :mac) ON CONFLICT DO NOTHING
"""
_PRUNE = "DELETE FROM {table} WHERE segment = :segment AND number <= :number"
_ADVANCE = """
INSERT INTO callgate_audit_cursors (name, segment, number) VALUES (:name, :segment, :number)
ON CONFLICT (name, segment) DO UPDATE SET number = excluded.number WHERE callgate_audit_cursors.number = :before
"""
_CURSORS = "SELECT DISTINCT name FROM callgate_audit_cursors WHERE segment >= :low AND segment < :high"


class SqlAudit(SqlPart):
    """Audit rows and anchors. Segments are of one namespace; see ``namespaces`` for their names in the tables."""

    def __init__(self, database: Database, within: object = None, namespace: str = "") -> None:
        super().__init__(database, within, namespace)
        low, high = range_of(namespace)
        self._range = {"low": low, "high": high}

    def _read(self, segment: str) -> str:
        return from_table(self.namespace, segment)

    async def append(self, tenant: str, rows: Sequence[AuditRow]) -> None:
        values = [append_values(tenant, row, self.namespace) for row in rows]
        if not values:
            return
        from sqlalchemy.exc import IntegrityError

        async def write(connection: Any) -> None:
            try:
                await connection.execute(statement(APPEND.lite), values)
            except IntegrityError as error:
                raise StoreConflict(
                    "an audit row of that segment and number exists already; append the row with the next number"
                ) from error

        await self._transact(write)

    async def read(
        self, tenant: str | None, *, since: float = 0.0, until: float | None = None
    ) -> AsyncIterator[AuditRow]:
        query = _READ
        values: dict[str, Any] = {"since": float(since), "at": float("-inf"), "segment": "", "number": 0, **self._range}
        if tenant is not None:
            query += " AND tenant = :tenant"
            values["tenant"] = tenant
        if until is not None:
            query += " AND at < :until"
            values["until"] = float(until)
        while True:
            page = await self._rows(f"{query} ORDER BY at, segment, number LIMIT {_PAGE}", values)
            for segment, number, version, at, body, previous, hash in page:
                check_row_version(version, AUDIT_VERSION)
                yield AuditRow(self._read(segment), number, at, json.loads(body), previous, hash)
            if len(page) < _PAGE:
                return
            values |= {"segment": page[-1][0], "number": page[-1][1], "at": page[-1][3]}

    async def tips(self) -> list[AuditTip]:
        """See ``TippedAudit``."""
        found = await self._rows(TIPS.lite, self._range)
        return [(self._read(segment), number, hash) for segment, number, hash in found]

    async def anchor(self, segment: str, number: int, hash: str, at: float) -> None:
        values = {"segment": in_table(self.namespace, segment), "number": number, "hash": hash, "at": float(at)}
        await self._write(_ANCHOR, values)

    async def anchors(self) -> list[tuple[str, int, str, float]]:
        found = await self._rows(_ANCHORS, self._range)
        return [(self._read(segment), number, hash, at) for segment, number, hash, at in found]

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[SqlAuditSnapshot, None]:
        backend = self._database.url.get_backend_name()
        if self._within is not None:
            yield SqlAuditSnapshot(self._within, backend, self.namespace)
            return
        begin = "BEGIN" if self._database.lite else "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
        async with self._database.reading() as connection:
            await connection.exec_driver_sql(begin)
            try:
                yield SqlAuditSnapshot(connection, backend, self.namespace)
            finally:  # after a cancellation, too: a pooled connection must have no open transaction
                await shielded(connection.exec_driver_sql("ROLLBACK"))

    async def checkpoint(self, checkpoints: Sequence[AuditCheckpoint]) -> int:

        async def write(connection: Any) -> int:
            removed = 0
            for one in checkpoints:
                place = {"segment": in_table(self.namespace, one.segment), "number": one.number}
                values = asdict(one) | {"kind": str(one.kind), **place}
                if one.kind is CheckpointKind.PRUNED:
                    await connection.execute(statement(_CHECKPOINT), values)
                    done = await connection.execute(statement(_PRUNE.format(table="callgate_audit")), place)
                    removed += done.rowcount
                    await connection.execute(statement(_PRUNE.format(table="callgate_anchors")), place)
                else:
                    await connection.execute(statement(_REPLACE), {"segment": place["segment"], "kind": str(one.kind)})
                    await connection.execute(statement(_CHECKPOINT), values)
            return removed

        return await self._transact(write)

    async def advance(self, cursor: str, moves: Sequence[tuple[str, int, int]]) -> None:
        async def write(connection: Any) -> None:
            for segment, before, number in moves:
                place = in_table(self.namespace, segment)
                values = {"name": cursor, "segment": place, "before": before, "number": number}
                if not (await connection.execute(statement(_ADVANCE), values)).rowcount:
                    raise StoreConflict("another process has moved this cursor; give each exporter a cursor of its own")

        await self._transact(write)

    async def cursors(self) -> set[str]:
        return {name for (name,) in await self._rows(_CURSORS, self._range)}

    async def _transact(self, work: Callable[[Any], Awaitable[T]]) -> T:
        if self._within is not None:
            return await work(self._within)
        return await self._database.transact(work)


def append_values(tenant: str, row: AuditRow, namespace: str = "") -> dict[str, Any]:
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
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError):
        raise StoreError("the body of an audit row is not JSON") from None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {**value}
    raise TypeError
