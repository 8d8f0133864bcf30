"""The append-only audit log in SQL. Triggers refuse updates, and deletes of rows that no pruning checkpoint covers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import asdict
from typing import TypeVar

from callgate.errors import StoreConflict
from callgate.providers.stores.base import AuditCheckpoint, AuditRow, AuditTip, CheckpointKind
from callgate.providers.stores.namespaces import from_table, in_table, range_of
from callgate.providers.stores.sql.audit_reading import SqlAuditSnapshot
from callgate.providers.stores.sql.audit_statements import APPEND, AUDIT_VERSION, TIPS, append_values
from callgate.providers.stores.sql.database.connections import Connected
from callgate.providers.stores.sql.database.database import Database
from callgate.providers.stores.sql.database.part import SqlPart, check_row_version, parsed_column, statement
from callgate.providers.stores.turns import Entered

T = TypeVar("T")

_PAGE = 500
"""Rows of one read; no connection is held while the caller handles them."""

_READ = """
SELECT segment, number, version, at, body, previous, hash FROM callgate_audit
WHERE (at, segment, number) > (:at, :segment, :number) AND at >= :since AND segment >= :low AND segment < :high
"""
_ANCHOR = "INSERT INTO callgate_anchors (segment, number, hash, at) VALUES (:segment, :number, :hash, :at)"
_ANCHORS = """
SELECT segment, number, hash, at FROM callgate_anchors WHERE segment >= :low AND segment < :high ORDER BY id
"""
_PROBE = f"{APPEND.lite} ON CONFLICT DO NOTHING"
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


class _AbsentError(Exception):
    """Rolls back the transaction that looks for a row."""


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

        async def write(connection: Connected) -> None:
            try:
                await connection.execute(statement(APPEND.lite), values)
            except IntegrityError as error:
                raise StoreConflict(
                    "an audit row of that segment and number exists already; append the row with the next number"
                ) from error

        await self._transact(write)

    async def holds(self, tenant: str, row: AuditRow) -> bool:
        """See ``SearchedAudit``. A row that is written and taken back waits for a transaction that writes the same one."""

        async def write(connection: Connected) -> None:
            done = await connection.execute(statement(_PROBE), append_values(tenant, row, self.namespace))
            if done.rowcount:
                raise _AbsentError

        try:
            await self._database.transact(write)
        except _AbsentError:
            return False
        return True

    async def read(
        self, tenant: str | None, *, since: float = 0.0, until: float | None = None
    ) -> AsyncIterator[AuditRow]:
        query = _READ
        values: dict[str, object] = {
            "since": float(since),
            "at": float("-inf"),
            "segment": "",
            "number": 0,
            **self._range,
        }
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
                yield AuditRow(self._read(segment), number, at, parsed_column(body), previous, hash)
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

    def snapshot(self) -> AbstractAsyncContextManager[SqlAuditSnapshot]:
        database = self._database
        begin = "BEGIN" if database.lite else "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"

        async def read(stack: AsyncExitStack) -> SqlAuditSnapshot:
            connection = self._within or await stack.enter_async_context(database.reading(begin))
            return SqlAuditSnapshot(connection, database.url.get_backend_name(), self.namespace)

        return Entered(read)

    async def checkpoint(self, checkpoints: Sequence[AuditCheckpoint]) -> int:

        async def write(connection: Connected) -> int:
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
        async def write(connection: Connected) -> None:
            for segment, before, number in moves:
                place = in_table(self.namespace, segment)
                values = {"name": cursor, "segment": place, "before": before, "number": number}
                if not (await connection.execute(statement(_ADVANCE), values)).rowcount:
                    raise StoreConflict("another process has moved this cursor; give each exporter a cursor of its own")

        await self._transact(write)

    async def cursors(self) -> set[str]:
        return {name for (name,) in await self._rows(_CURSORS, self._range)}

    async def _transact(self, work: Callable[[Connected], Awaitable[T]]) -> T:
        if self._within is not None:
            return await work(self._within)
        return await self._database.transact(work)
