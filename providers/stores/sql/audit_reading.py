"""Snapshots of the audit log in SQL, read by segment and number with the indexes on them."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection

from callgate.providers.stores.base import AuditCheckpoint, AuditRow, AuditSegment, CheckpointKind
from callgate.providers.stores.namespaces import from_table, in_table, range_of
from callgate.providers.stores.sql.audit_statements import AUDIT_VERSION
from callgate.providers.stores.sql.database.connections import Connected, sql_errors
from callgate.providers.stores.sql.database.part import check_row_version, parsed_column, statement
from callgate.providers.stores.sql.database.rows import Row

PAGE = 500
"""Rows of one read."""

_NEXT = " UNION ALL ".join(
    f"SELECT min(segment) AS name FROM {table} WHERE segment > {{after}}"  # noqa: S608  (constants)
    for table in ("callgate_audit", "callgate_anchors", "callgate_audit_checkpoints")
)
_SEGMENTS = f"""
WITH RECURSIVE found(name) AS (
  SELECT min(first.name) FROM ({_NEXT.format(after=":after")}) AS first
  UNION ALL
  SELECT (SELECT min(next.name) FROM ({_NEXT.format(after="found.name")}) AS next) FROM found WHERE found.name IS NOT NULL
)
SELECT name,
  coalesce((SELECT min(number) FROM callgate_audit WHERE segment = name), 0),
  coalesce((SELECT max(number) FROM callgate_audit WHERE segment = name), 0),
  coalesce((SELECT hash FROM callgate_audit WHERE segment = name ORDER BY number DESC LIMIT 1), ''),
  coalesce((SELECT max(number) FROM callgate_anchors WHERE segment = name), 0),
  coalesce((SELECT number FROM callgate_audit_cursors c WHERE c.name = :cursor AND c.segment = found.name), 0)
FROM found WHERE name IS NOT NULL LIMIT {PAGE}
"""  # noqa: S608  (constants)
_CHECKPOINTS = """
SELECT kind, segment, number, hash, at, mac FROM callgate_audit_checkpoints
WHERE segment >= :first AND segment <= :last ORDER BY segment, number
"""
_ROWS = f"""
SELECT segment, number, tenant, version, at, body, previous, hash FROM callgate_audit
WHERE (segment, number) > (:segment, :number) ORDER BY segment, number LIMIT {PAGE}
"""  # noqa: S608  (a constant)
_ANCHORS = f"""
SELECT DISTINCT segment, number, hash FROM callgate_anchors
WHERE (segment, number, hash) > (:segment, :number, :hash) ORDER BY segment, number, hash LIMIT {PAGE}
"""  # noqa: S608  (a constant)
_OURS = "segment >= :low AND segment < :high"
_KNOWN = f"""
SELECT hash FROM callgate_audit WHERE hash IN :hashes AND {_OURS}
UNION SELECT hash FROM callgate_audit_checkpoints WHERE kind = 'pruned' AND hash IN :hashes AND {_OURS}
"""  # noqa: S608  (constants)
_CONTINUED = f"SELECT DISTINCT previous FROM callgate_audit WHERE number = 1 AND previous IN :hashes AND {_OURS}"  # noqa: S608


class SqlAuditSnapshot:
    """See ``AuditSnapshot``. The connection has an open transaction that sees one state of the database."""

    def __init__(self, connection: Connected, backend: str, namespace: str = "") -> None:
        self._connection, self._namespace = connection, namespace
        self._low, self._high = range_of(namespace)
        self._backend = backend
        self._row_pages = _Pages(self._next_rows)
        self._anchor_pages = _Pages(self._next_anchors)

    async def segments(self, after: str = "", *, cursor: str | None = None) -> AsyncIterator[AuditSegment]:
        after = in_table(self._namespace, after) if after else self._low
        while True:
            page = await self._query(_SEGMENTS, {"after": after, "cursor": cursor or ""})
            last = len(page) < PAGE or page[-1][0] >= self._high
            page = [row for row in page if row[0] < self._high]
            if not page:
                return
            checkpoints: dict[str, list[AuditCheckpoint]] = {}
            for kind, segment, *rest in await self._query(_CHECKPOINTS, {"first": page[0][0], "last": page[-1][0]}):
                checkpoints.setdefault(segment, []).append(
                    AuditCheckpoint(CheckpointKind(kind), self._read(segment), *rest)
                )
            for name, first, last, hash, anchored, exported in page:
                yield AuditSegment(
                    self._read(name), first, last, hash, anchored, exported, tuple(checkpoints.get(name, ()))
                )
            if last:
                return
            after = page[-1][0]

    async def rows(self, segment: str, after: int = 0) -> AsyncIterator[tuple[str, AuditRow]]:
        name = in_table(self._namespace, segment)
        async for _, number, tenant, version, at, body, previous, hash in self._row_pages.read(name, after):
            check_row_version(version, AUDIT_VERSION)
            yield tenant, AuditRow(segment, number, at, parsed_column(body), previous, hash)

    async def anchors(self, segment: str, after: int = 0) -> AsyncIterator[tuple[int, str]]:
        async for _, number, hash in self._anchor_pages.read(in_table(self._namespace, segment), after):
            yield number, hash

    async def known_hashes(self, hashes: Collection[str]) -> set[str]:
        return await self._hashes(_KNOWN, hashes)

    async def continued_hashes(self, hashes: Collection[str]) -> set[str]:
        return await self._hashes(_CONTINUED, hashes)

    async def _hashes(self, sql: str, hashes: Collection[str]) -> set[str]:
        found = await self._query(sql, {"hashes": list(hashes), "low": self._low, "high": self._high})
        return {hash for (hash,) in found}

    def _read(self, segment: str) -> str:
        return from_table(self._namespace, segment)

    async def _next_rows(self, segment: str, number: int, *_row: object) -> list[Row]:
        return await self._query(_ROWS, {"segment": segment, "number": number})

    async def _next_anchors(self, segment: str, number: int, *hash: str) -> list[Row]:
        # "zz" sorts after every hash: without a hash, the page begins after the number
        return await self._query(_ANCHORS, {"segment": segment, "number": number, "hash": (*hash, "zz")[0]})

    async def _query(self, sql: str, values: dict[str, object]) -> list[Row]:
        with sql_errors(self._backend):
            return list((await self._connection.execute(statement(sql), values)).all())


class _Pages:
    """Rows of a table whose first columns are segment and number. A page is kept, so that small segments share a query."""

    def __init__(self, query: Callable[..., Awaitable[list[Row]]]) -> None:
        self._query = query
        self._page: deque[Row] = deque()
        self._at: tuple[str, int] = ("", 0)
        self._last = False

    async def read(self, segment: str, after: int) -> AsyncIterator[Row]:
        """Read the rows of a segment with a number greater than *after*."""
        place: Row = (segment, after)
        if (segment, after) < self._at:
            self._page.clear()
            self._last = False
        self._at = (segment, after)
        while self._page and tuple(self._page[0][:2]) <= self._at:
            self._page.popleft()
        while True:
            if not self._page and not self._last:
                self._page.extend(await self._query(*place))
                self._last = len(self._page) < PAGE
            if not self._page or self._page[0][0] != segment:
                return
            place = self._page.popleft()
            self._at = (place[0], place[1])
            yield place
